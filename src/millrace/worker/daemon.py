"""The process that Spark forks Python workers from, with the joins loaded already: ``spark.python.daemon.module``.

Spark's own daemon loads nothing, so a worker spends a second on pandas, numba and the kernels before its first join,
and workers that were idle for a minute are ended. A worker forked from this daemon is ready at once, and what is loaded
is in memory once for all of them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from pyspark.daemon import manager

from millrace.worker.row_files import READER, ROLE


def main() -> None:
    """Load what tasks run, then fork workers for Spark."""
    if os.environ.get(ROLE) != READER:
        importlib.import_module("millrace.spark")
    for kind_of_worker in sys.argv[1:2]:
        importlib.import_module(kind_of_worker)
    gc.collect()
    gc.freeze()  # pages that the collector leaves alone stay shared between the workers
    manager()


if __name__ == "__main__":
    main()
