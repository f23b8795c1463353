"""Joins of finite inputs that arrive slowly or in bursts: rows are joined on arrival, and overflow to disk."""
