"""What Spark's Python workers begin with. It needs neither kernels nor pandas, so it is there at once."""
