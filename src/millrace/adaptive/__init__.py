"""Adaptive joins of finite inputs that arrive slowly and in bursts: joined on arrival, with overflow to disk."""
