"""What Spark's Python workers load first.

This is not a part of ``millrace.spark``, because importing any module of that package loads every join. A worker that
only reads rows from files needs neither the joins' kernels nor pandas nor PySpark's SQL.
"""
