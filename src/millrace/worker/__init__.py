"""What Spark's Python workers begin with. It needs neither kernels nor pandas: who does little stays small."""
