"""Trace one pushed batch of a `SemiStreamJoin`: count files, stack depth, calls between parts, and objects on its way.

    python -m tools.trace_batch                                  # the tree in src, algorithm ssbj
    python -m tools.trace_batch --list                           # with the files, crossings and classes one by one
    python -m tools.trace_batch --source ../before/src           # another tree
    python -m tools.trace_batch --algorithm lookup --ordered     # any join, through its public arguments
    python -m tools.trace_batch --between 'loop' 'order*|wait*'  # crossings of other parts

A store is built in a temporary folder, and a join takes in `--warm` batches. The next push is traced until it has
yielded all of its output batches. What is counted, with `sys.setprofile`:

files      files of the tree in which a function ran
depth      largest number of frames of the tree on the stack at one time, counted from `push`
crossings  calls of a function, and resumptions of a generator, that go from a frame of one set of files to a frame
           of the other. A set is one or several patterns, divided by `|`, for names of files without `.py`. Only files
           that match `--within` belong to a set, so files of the same names in other packages do not
calls      functions called and generators resumed in the tree
objects    objects of classes that the tree defines (counted by their constructors, in a second push with a new join)
generators generators started
"""

from __future__ import annotations

import argparse
import dis
import functools
import inspect
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def names(keys: npt.NDArray[np.int64]) -> list[str]:
    """Return whole-number keys as texts."""
    return [f"customer {key:08}" for key in keys]


def batches(rows: int, keys: int, number: int, text: bool, seed: int) -> list[pa.RecordBatch]:
    """Return stream batches with skewed keys; one tuple in twenty has a key that the master does not have."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        key = (keys * random.random(rows) ** 3).astype(np.int64) + np.where(random.random(rows) < 0.05, keys, 0)
        items = [f"item {i}" for i in random.integers(0, 99, rows)]
        made.append(
            pa.record_batch({"custkey": names(key) if text else key, "total": random.random(rows), "item": items})
        )
    return made


@functools.cache
def _start(code: CodeType) -> int:
    """Return the offset in a generator's byte code at which its body begins."""
    return next((each.offset for each in dis.get_instructions(code) if each.opname == "RESUME"), 0)


class Trace:
    """Counters of the files, calls, crossings and stack depth of a source tree while the trace is active."""

    def __init__(self, source: Path, within: str, first: str, second: str) -> None:
        self._source = str(source.resolve()) + "/"
        self._within, self._sets = within, (first.split("|"), second.split("|"))
        self._stack: list[tuple[FrameType, str]] = []
        self.files: Counter[str] = Counter()
        self.crossings: Counter[str] = Counter()
        self.depth = self.generators = 0
        self.deepest: list[str] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Trace until the block ends."""
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "return":
            if self._stack and self._stack[-1][0] is frame:
                self._stack.pop()
        elif event == "call" and file.startswith(self._source):
            name = file[len(self._source) :]
            self.files[name] += 1
            if frame.f_code.co_flags & inspect.CO_GENERATOR and frame.f_lasti <= _start(frame.f_code):
                self.generators += 1
            if self._stack:
                self._cross(self._stack[-1], (frame, name))
            self._stack.append((frame, name))
            if len(self._stack) > self.depth:
                self.depth = len(self._stack)
                self.deepest = [f"{name}:{each.f_code.co_qualname}" for each, name in self._stack]

    def _cross(self, caller: tuple[FrameType, str], called: tuple[FrameType, str]) -> None:
        sides = self._side(caller[1]), self._side(called[1])
        if None not in sides and sides[0] != sides[1]:
            ends = (f"{name}:{frame.f_code.co_qualname}" for frame, name in (caller, called))
            self.crossings[" -> ".join(ends)] += 1

    def _side(self, file: str) -> int | None:
        if not fnmatch(file, self._within):
            return None
        stem = Path(file).stem
        return next((i for i, each in enumerate(self._sets) if any(fnmatch(stem, pattern) for pattern in each)), None)


@contextmanager
def counted_constructors(source: Path) -> Iterator[Counter[str]]:
    """Count the objects made in this block by class, for all classes that a source tree's loaded modules define."""
    made: Counter[str] = Counter()
    undo: list[Callable[[], None]] = []
    start = str(source.resolve()) + "/"

    def wrap(cls: type, name: str) -> None:
        original = cls.__dict__[name]
        function = original.__func__ if isinstance(original, staticmethod) else original

        @functools.wraps(function)
        def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
            of = self if name == "__new__" else type(self)
            if getattr(of, name) is counting:  # otherwise a derived class's constructor has called this one
                made[of.__qualname__] += 1
            return function(self, *args, **kwargs)

        setattr(cls, name, staticmethod(counting) if name == "__new__" else counting)
        undo.append(lambda: setattr(cls, name, original))

    seen: set[type] = set()
    for module in list(sys.modules.values()):
        if not str(getattr(module, "__file__", None) or "").startswith(start):
            continue
        for cls in list(vars(module).values()):
            if isinstance(cls, type) and cls.__module__ == module.__name__ and cls not in seen:
                seen.add(cls)
                if issubclass(cls, Enum | BaseException):
                    continue
                if issubclass(cls, tuple) and "__new__" in cls.__dict__:
                    wrap(cls, "__new__")
                elif "__init__" in cls.__dict__:
                    wrap(cls, "__init__")
    try:
        yield made
    finally:
        for each in undo:
            each()


def main() -> None:
    """Read the command line, trace a pushed batch, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path("src"), help="folder of the tree; default: src")
    parser.add_argument("--algorithm", default="ssbj", help="default: ssbj")
    parser.add_argument("--how", default="inner", help="default: inner")
    parser.add_argument("--ordered", action="store_true", help="output in the order of arrival")
    parser.add_argument("--memory", default="384KB", help="default: 384KB")
    parser.add_argument("--master", type=int, default=20_000, help="rows of the master; default: 20000")
    parser.add_argument("--rows", type=int, default=2_000, help="rows of a batch; default: 2000")
    parser.add_argument("--text", action="store_true", help="keys are text; default: whole numbers")
    parser.add_argument("--warm", type=int, default=3, help="batches before the traced one; default: 3")
    parser.add_argument("--between", nargs=2, default=["loop", "order*"], metavar=("A", "B"), help="two sets of files")
    parser.add_argument("--within", default="*/semistream/*", help="files of both sets; default: */semistream/*")
    parser.add_argument("--list", action="store_true", help="print what is counted one by one")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    sys.path.insert(0, str(options.source.resolve()))
    import millrace as mr

    if not str(mr.__file__).startswith(str(options.source.resolve())):
        raise SystemExit(f"--source: millrace was imported from {mr.__file__}; set PYTHONPATH={options.source}")
    pushed = batches(options.rows, options.master, options.warm + 1, options.text, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        keys = np.arange(options.master)
        rows = {"custkey": names(keys) if options.text else keys, "name": names(keys)}
        store = mr.MasterStore.build(pa.table(rows), f"{folder}/store", key="custkey")

        def warmed_up() -> mr.SemiStreamJoin:
            join = mr.SemiStreamJoin(
                store,
                on="custkey",
                how=options.how,
                algorithm=options.algorithm,
                memory=options.memory,
                ordered=options.ordered or None,
                threads=1,
            )
            for batch in pushed[:-1]:
                list(join.push(batch))
            return join

        list(warmed_up().push(pushed[-1]))  # kernels and lazy imports are loaded
        join, trace = warmed_up(), Trace(options.source, options.within, *options.between)
        with trace.active():
            out = sum(len(batch) for batch in join.push(pushed[-1]))
        join = warmed_up()
        with counted_constructors(options.source) as made:
            list(join.push(pushed[-1]))
    figures = {
        "rows out": out,
        "files": len(trace.files),
        "depth": trace.depth,
        "crossings": sum(trace.crossings.values()),
        "calls": sum(trace.files.values()),
        "objects": sum(made.values()),
        "generators": trace.generators,
    }
    lists = {
        "files": dict(trace.files.most_common()),
        "deepest": trace.deepest,
        "crossings": dict(trace.crossings.most_common()),
        "objects": dict(made.most_common()),
    }
    if options.json:
        print(json.dumps({"figures": figures, "lists": lists}, indent=2))
        return
    for name, number in figures.items():
        print(f"{name:<12}{number:>8,}")
    if options.list:
        for name, each in lists.items():
            print(f"\n{name}")
            for line in each:
                print(f"  {each[line]:>6} {line}" if isinstance(each, dict) else f"  {line}")


if __name__ == "__main__":
    main()
