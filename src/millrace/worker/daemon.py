"""What Spark forks Python workers from, with the joins loaded already: ``spark.python.daemon.module``.

Spark's own loads nothing, so a worker spends a second on pandas, numba and the kernels before its first join, and
workers that had nothing to do for a minute are ended. From this one a worker comes ready, and what was loaded is in
memory once for all of them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from pyspark.daemon import manager

from millrace.worker.handover import READER, ROLE


def main() -> None:
    """Load what tasks run, then fork a worker whenever Spark wants one."""
    if os.environ.get(ROLE) != READER:
        importlib.import_module("millrace.spark")
    for kind_of_worker in sys.argv[1:2]:
        importlib.import_module(kind_of_worker)
    gc.collect()
    gc.freeze()  # what is here stays, and pages that the collector leaves alone stay shared
    manager()


if __name__ == "__main__":
    main()
