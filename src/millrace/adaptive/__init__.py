"""Adaptive joins of two finite inputs that come slowly and in bursts: sides, flush policies, reactive phases."""
