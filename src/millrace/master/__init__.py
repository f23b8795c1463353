"""Master data on disk: how it is laid out, built, opened and read, and what reading costs."""
