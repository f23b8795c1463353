"""Functions that run in Spark's Python workers, sent so that a worker that cannot run them says why."""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pyarrow as pa

MapInArrow = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def shipped(module: str, function: str, *arguments: Any) -> MapInArrow:
    """A function for ``mapInArrow`` that calls ``module.function(*arguments, batches)`` in the worker."""
    ours = identity()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import sys

        try:
            shipping = importlib.import_module("millrace.worker.shipping")
            theirs = shipping.identity()
            called = getattr(importlib.import_module(module), function)
        except ImportError as error:
            raise RuntimeError(
                f"the Python worker ({sys.executable}) cannot import millrace: {error}. Driver and workers must run "
                "the same environment: set PYSPARK_PYTHON to an interpreter that has millrace, on every machine"
            ) from error
        if theirs != ours:
            raise RuntimeError(
                f"the Python worker ({sys.executable}) is not like the driver: it has {theirs}, the driver has {ours}. "
                "Set PYSPARK_PYTHON so that both run the same environment"
            )
        shipping.begin_task()
        return called(*arguments, batches)  # type: ignore[no-any-return]

    return run


_SETTLING = (2, 3, 5, 9)
"""Tasks of a worker before which it has just learned something that it will keep."""

_tasks = 0


def begin_task() -> None:
    """Have the garbage collector leave alone what the tasks before have loaded.

    Spark collects garbage behind every task of a worker, and that looks at every object there is: 0.15 s for modules
    and compiled kernels, which stay as long as the worker does.
    """
    global _tasks
    _tasks += 1
    if _tasks in _SETTLING:
        gc.freeze()


def identity() -> str:
    """What has to be the same in the driver and in its workers."""
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    return f"{python}, millrace {version('millrace')}, pyarrow {pa.__version__}"
