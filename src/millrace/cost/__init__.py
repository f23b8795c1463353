"""Cost models: how much memory a join needs for a service rate, and what rate it reaches with a budget."""
