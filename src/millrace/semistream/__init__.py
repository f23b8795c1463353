"""Joins a stream with a stored master. All algorithms share one loop and differ in their cache and access policies."""
