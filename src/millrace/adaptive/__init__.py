"""Adaptive joins: finite inputs that arrive slowly and in bursts, joined as they come; the overflow goes to disk."""
