"""Measure Millrace and its peers in one run that can be interrupted and continued: ``millrace bench rivals``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from millrace.core.errors import ConfigError
from millrace.core.sizes import parse_size
from millrace_bench.engines.engine_list import ENGINES, USUAL
from millrace_bench.rivals import matrix, spark_matrix
from millrace_bench.rivals.cell import CellJournal
from millrace_bench.rivals.cell_worker import Limits
from millrace_bench.rivals.result_files import show_and_write

_Number = TypeVar("_Number", int, float)

_SIZES = (1_000_000, 10_000_000, 50_000_000)
_SKEWS = (0.0, 0.5, 1.0)
_BATCHES = (10_000, 100_000, 1_000_000)
_MEMORIES = ("0.2%", "1%", "5%", "20%")
_DESCRIPTION = """\
Millrace beside DuckDB, Polars, SQLite and pandas, or with --spark beside Spark's own joins and pandas in foreachBatch:
rates, latency and memory in every setting, and where a peer is ahead. Finished cells are kept: stop it with
Ctrl-C, and run the same command again to continue."""
_MOST_SKEW = 10.0
_SMALL: dict[str, Any] = {"sizes": (100_000,), "skews": (1.0,), "batches": (5_000, 50_000)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the missing cells of the matrix that the arguments describe, and show the results of all its cells."""
    options = _parser().parse_args(arguments)
    small = options.small
    if options.results and options.results.suffix != ".jsonl":
        raise ConfigError(f"results: expected a name that ends in .jsonl; got {options.results}")
    options.results = options.results or Path(f"build/bench/rivals{'-spark' * options.spark}{'-small' * small}.jsonl")
    console = Console()
    if options.spark:
        spark_matrix.main(options, console)
        return
    limits = Limits(options.warm, options.seconds)
    if small:
        limits = Limits(0.1, 0.2, tuples=200_000)
    wanted = matrix.cells(
        options.engines or USUAL,
        options.sizes or (_SMALL["sizes"] if small else _SIZES),
        options.skews or (_SMALL["skews"] if small else _SKEWS),
        options.batches or (_SMALL["batches"] if small else _BATCHES),
        memory=options.memory,
        memories=() if small else options.memories,
        rounds=options.rounds,
        limits=limits,
    )
    journal = CellJournal(options.results)
    missing = journal.missing(wanted)
    minutes = sum(matrix.expected(cell, limits) for cell in missing) / 60
    console.print(f"{len(wanted)} cells, {len(missing)} to measure: about {minutes:.0f} min once the inputs are there")
    if options.estimate:
        return
    options.directory.mkdir(parents=True, exist_ok=True)
    matrix.prepare(missing, options.directory, limits, console)
    if options.prepare:
        return
    matrix.run(wanted, options.directory, journal, limits, console=console)
    show_and_write(wanted, journal, console, options.results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millrace bench rivals", description=_DESCRIPTION)
    add = parser.add_argument
    add("--directory", type=Path, default=Path("bench-data"), help="folder of the inputs, reused by later runs")
    results = "file of results, one JSON per line; a rerun continues it. A .md and a .png are written beside it. "
    add("--results", type=Path, help=f"{results}build/bench/rivals.jsonl by default, rivals-spark.jsonl with --spark")
    add("--engines", type=_words, help=f"any of {', '.join(ENGINES)}; {','.join(USUAL)} by default")
    add("--sizes", type=_numbers, help="master rows, such as 1000000,10000000")
    add("--skews", type=_shares, help="such as 0,0.5,1")
    add("--batches", type=_numbers, help="rows of a batch, such as 10000,100000")
    add("--memory", type=_memory, default="1%", help="a share of the master, for engines that have a budget")
    add("--memories", type=_memories, default=_MEMORIES, help="budgets with which one setting is measured again")
    add("--rounds", type=_rounds, default=1, help="number of times to measure everything; medians count")
    add("--warm", type=_seconds, default=Limits.warm, help="seconds of warm-up of a cell")
    add("--seconds", type=_seconds, default=Limits.seconds, help="seconds of measuring a cell")
    add("--spark", action="store_true", help="the engines on Spark instead")
    add("--small", action="store_true", help="seconds instead of minutes, figures mean nothing")
    add("--estimate", action="store_true", help="only estimate how long it would take")
    add("--prepare", action="store_true", help="only make the inputs")
    return parser


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1; got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    if not 0 < (seconds := _number(float, text)) < inf:
        raise argparse.ArgumentTypeError(f"expected seconds above 0; got {text!r}")
    return seconds


def _memory(text: str) -> str:
    try:
        parse_size(text, of=10**9)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _memories(text: str) -> tuple[str, ...]:
    return tuple(_memory(word) for word in _words(text))


def _number(kind: type[_Number], text: str) -> _Number:
    try:
        return kind(text.replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers; got {text!r}") from None


def _words(text: str) -> tuple[str, ...]:
    words = tuple(part.strip() for part in text.split(",") if part.strip())
    if not words:
        raise argparse.ArgumentTypeError(f"expected one or more values, separated by commas; got {text!r}")
    return words


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(_number(int, part) for part in _words(text))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers of at least 1; got {text!r}")
    return numbers


def _shares(text: str) -> tuple[float, ...]:
    shares = tuple(_number(float, part) for part in _words(text))
    if not all(0 <= share <= _MOST_SKEW for share in shares):
        raise argparse.ArgumentTypeError(f"expected numbers from 0 to {_MOST_SKEW:g}; got {text!r}")
    return shares
