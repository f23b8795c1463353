"""Cost models: what memory a join needs for a service rate, and what rate it has for a memory."""
