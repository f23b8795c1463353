"""What ``watch`` shows of a query, from progress as Spark tells it. No test here needs Spark to run."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from millrace.spark.metrics.enrich_metrics import OBSERVED_NAMES
from millrace.spark.watch import FACTS, Board, observed, watch

IDLE: dict[str, Any] = dict.fromkeys(OBSERVED_NAMES)
"""The numbers of a join that had nothing to do in a micro-batch."""


def _told(**numbers: float | None) -> dict[str, Any]:
    return dict.fromkeys(IDLE, 0) | {"tuples_in": 500, "hit_rate": 0.25, "budget_bytes": 1_000_000} | numbers


def _progress(batch: int, joins: dict[str, dict[str, Any]], ms: int = 2000) -> dict[str, Any]:
    return {
        "batchId": batch,
        "batchDuration": ms,
        "observedMetrics": {n: _row(numbers) for n, numbers in joins.items()},
    }


def _row(numbers: dict[str, Any]) -> Row:
    return Row(join=None if numbers == IDLE else Row(**numbers))


def _shown(board: Board, *, ended: bool = False) -> tuple[str, dict[str, list[str]]]:
    """The head of the table, and its rows by their labels, the names of joins first."""
    table = board.table(ended=ended)
    head, *joins = table.columns
    names: dict[str, list[str]] = {"": [str(join.header) for join in joins]}
    labels = [str(cell) for cell in head.cells]
    rows = zip(*(map(str, join.cells) for join in joins), strict=True)
    return str(head.header), names | dict(zip(labels, map(list, rows), strict=True))


def test_the_page_of_enrich_names_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/enrich.md").read_text()
    table = page.split("## Metrics")[1].split("```")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(OBSERVED_NAMES)


def test_joins_are_known_by_their_numbers_whatever_they_are_called() -> None:
    joins = {
        "first look": _told(),
        "millrace customers": IDLE,
    }
    progress = _progress(0, joins)
    progress["observedMetrics"] |= {"check": Row(rows=5), "mine": Row(join=Row(rows=5))}
    assert observed(progress) == {"first look": _told(), "millrace customers": IDLE}
    assert observed(SimpleNamespace(observedMetrics={"a": {"join": _told()}})) == {"a": _told()}
    assert observed(None) == {}


def test_before_the_first_batch() -> None:
    board = Board()
    board.note([])
    assert _shown(board) == ("waiting for the first batch", {"": []})


def test_every_join_has_a_column() -> None:
    board = Board()
    board.note(
        [_progress(3, {"first look": _told(), "millrace customers": _told(tuples_in=1000), "mine": {"rows": 1}})]
    )
    head, rows = _shown(board)
    assert head == "batch 3"
    assert list(rows) == ["", "last at work", *FACTS]
    assert rows[""] == ["first look", "customers"]
    assert rows["last at work"] == ["batch 3", "batch 3"]
    assert rows["arrived"] == ["500 tuples", "1,000 tuples"]
    assert rows["service rate"] == ["250 tuples/s", "500 tuples/s"]
    assert rows["answered by the cache"] == ["25.0%", "25.0%"]


@pytest.mark.parametrize("idle", [{}, {"a": IDLE, "b": IDLE}], ids=["no micro-batch", "an empty micro-batch"])
def test_an_idle_query_shows_what_it_did_last(idle: dict[str, dict[str, Any]]) -> None:
    board = Board()
    board.note([_progress(3, {"a": _told(), "b": _told(tuples_in=7)})])
    _, before = _shown(board)
    board.note([_progress(4, idle, ms=5)])
    head, rows = _shown(board)
    assert head == "waiting for input"
    assert rows.pop("last at work") == ["batch 3, waiting for input"] * 2
    assert rows == {label: cells for label, cells in before.items() if label != "last at work"}
    assert _shown(board, ended=True)[0] == "ended"
    assert _shown(board, ended=True)[1]["last at work"] == ["batch 3", "batch 3"]


def test_one_join_waits_while_another_works() -> None:
    board = Board()
    board.note([_progress(0, {"a": _told(), "b": IDLE})])
    _, rows = _shown(board)
    assert rows["last at work"] == ["batch 0", "waiting for input"]
    assert rows["arrived"] == ["500 tuples", "–"]
    assert _shown(board, ended=True)[1]["last at work"] == ["batch 0", "never"]
    board.note([_progress(1, {"a": IDLE, "b": _told(tuples_in=3)})])
    head, rows = _shown(board)
    assert head == "batch 1"
    assert rows["last at work"] == ["batch 0, waiting for input", "batch 1"]
    assert rows["arrived"] == ["500 tuples", "3 tuples"]


def test_the_wheel_turns_without_input() -> None:
    """With ``carry``, a micro-batch may answer tuples while none come; of none there is no hit rate."""
    board = Board()
    turned = _progress(1, {"a": _told(tuples_in=0, rows_out=40, hit_rate=None)})
    board.note([turned])
    assert _shown(board)[1]["answered by the cache"] == ["–"]
    board.note([_progress(0, {"a": _told()}), turned])
    head, rows = _shown(board)
    assert (head, rows["last at work"]) == ("batch 1", ["batch 1"])
    assert (rows["arrived"], rows["rows out"], rows["answered by the cache"]) == (["0 tuples"], ["40"], ["25.0%"])


# the loop


class Query:
    """A query that is active so many times it is asked."""

    def __init__(self, *recent: list[dict[str, Any]], error: Exception | None = None) -> None:
        self._active: Iterator[bool] = chain(repeat(True, len(recent) - 1), repeat(False))
        self._recent = iter(recent)
        self._error = error

    @property
    def isActive(self) -> bool:  # noqa: N802
        return next(self._active)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        return next(self._recent)

    def exception(self) -> Exception | None:
        return self._error


def _watched(query: Query) -> str:
    console = Console(file=io.StringIO(), width=100)
    watch(cast(StreamingQuery, query), every=0, console=console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_came_between_two_looks_is_not_missed() -> None:
    batch, idle = _progress(0, {"first look": _told()}), _progress(1, {})
    text = _watched(Query([], [batch, idle], [batch, idle, idle]))
    assert "ended" in text
    assert "first look" in text
    assert "500 tuples" in text


def test_the_error_of_a_query_is_raised() -> None:
    with pytest.raises(RuntimeError, match="gone"):
        _watched(Query([], error=RuntimeError("gone")))


def test_ctrl_c_leaves_the_query_running() -> None:
    class Interrupted(Query):
        @property
        def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
            raise KeyboardInterrupt

    assert "the query goes on; query.stop() ends it" in _watched(Interrupted([], []))
