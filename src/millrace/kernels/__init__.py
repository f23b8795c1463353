"""Functions on NumPy arrays that numba compiles; they use no Python objects and no I/O."""
