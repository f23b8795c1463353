"""Sends functions to Spark's Python workers by name, so that a worker that cannot run a function reports why."""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import TypeVarTuple

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]
MapInArrow = Callable[[Batches], Batches]
Arguments = TypeVarTuple("Arguments")


def in_worker(task: Callable[[*Arguments, Batches], Batches], *arguments: *Arguments) -> MapInArrow:
    """Return a function for ``mapInArrow`` that calls ``task(*arguments, batches)`` in the worker.

    ``task`` is a function of a module that workers can import. Only its name is sent. A worker that has no Millrace, or
    another version, could not report this if the function itself were pickled.
    """
    module, function = task.__module__, task.__qualname__
    if module == "__main__" or "." in function:
        raise TypeError(f"in_worker: expected a function of a module that workers can import; got {module}.{function}")
    driver = identity()

    def run(batches: Batches) -> Batches:
        import importlib
        import sys

        try:
            shipping = importlib.import_module("millrace.worker.shipping")
            worker = shipping.identity()
            called = getattr(importlib.import_module(module), function)
        except ImportError as error:
            raise RuntimeError(
                f"the Python worker ({sys.executable}) cannot import millrace: {error}. Driver and workers must run "
                "the same environment: set PYSPARK_PYTHON to an interpreter that has millrace, on every machine"
            ) from error
        if worker != driver:
            raise RuntimeError(
                f"the Python worker ({sys.executable}) differs from the driver: it has {worker}, the driver has "
                f"{driver}. Set PYSPARK_PYTHON so that both run the same environment"
            )
        shipping.begin_task()
        return called(*arguments, batches)  # type: ignore[no-any-return]

    return run


_FREEZE_BEFORE = (2, 3, 5, 9)
"""Numbers of the tasks, from 1 on, before which a worker excludes all objects in memory from garbage collection.

The tasks just before these import modules and compile kernels, which stay in memory.
"""

_tasks = 0


def begin_task() -> None:
    """Count a task; before some of a worker's first tasks, exclude all objects in memory from garbage collection.

    Spark collects garbage after every task of a worker, and a collection visits every object: 0.15 s for modules and
    compiled kernels, which stay as long as the worker does.
    """
    global _tasks
    _tasks += 1
    if _tasks in _FREEZE_BEFORE:
        gc.freeze()


def identity() -> str:
    """Return the versions that must be the same in the driver and in its workers: Python, millrace and pyarrow."""
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    return f"{python}, millrace {version('millrace')}, pyarrow {pa.__version__}"
