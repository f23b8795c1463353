"""The process that Spark forks Python workers from, with the joins already loaded.

Spark uses this module if it is the value of ``spark.python.daemon.module``. Spark's own daemon loads nothing, so a new
worker needs a second to load pandas, numba and the kernels before its first join, and Spark ends workers that were idle
for a minute. A worker forked from this daemon can join at once, and all workers share the memory of what is loaded.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from pyspark.daemon import manager

from millrace.worker.row_files import READER, ROLE


def main() -> None:
    """Import the modules that tasks need, then fork workers for Spark."""
    if os.environ.get(ROLE) != READER:
        importlib.import_module("millrace.spark")
    for kind_of_worker in sys.argv[1:2]:
        importlib.import_module(kind_of_worker)
    gc.collect()
    gc.freeze()  # memory pages that the garbage collector does not write to stay shared between the workers
    manager()


if __name__ == "__main__":
    main()
