"""Joins of a stream with a stored master: one loop, cache and access policies, and the table of algorithms."""
