"""Functions on NumPy arrays, compiled by numba: no Python objects, no I/O."""
