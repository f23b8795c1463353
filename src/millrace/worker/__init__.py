"""What Spark's Python workers load first.

A package of its own, not a part of ``millrace.spark``: importing anything of that package loads every join, and a
worker that only reads rows from files needs neither kernels nor pandas nor PySpark's SQL.
"""
