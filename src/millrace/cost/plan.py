"""How a join divides its budget before the first tuple arrives: the load's buffer and the buffers of index pairs.

An index pair is the slot of a tuple and the number of a master row that matches it. Joins and cost models take their
sizes from here.
"""

from __future__ import annotations

from dataclasses import dataclass

LOAD_ROW_BYTES = 8
"""Bytes of a master row in a load, which holds only the key codes of its rows."""
PAGE_ROWS = 256
"""Default number of rows of a page that is found through the index."""
PAIR_BYTES = 8
LEAST_PAIRS = 16
LEAST_MATCHES = 16

_LOAD_SHARE = 1 / 8
_PAIR_SHARE = 1 / 100
_MATCH_SHARE = 1 / 100
_MOST_PAIRS = 65_536
_MOST_MATCHES = 16_384


@dataclass(frozen=True)
class Plan:
    """The sizes of a join that do not change while it runs."""

    b: int
    """Master rows per load or, if pages are loaded, per page."""
    step_rows: int
    """Master rows that are in memory at the same time in a step."""
    pairs: int
    """Maximum number of pairs (slot of a tuple, number of a matching master row) that are handled at a time."""
    matches: int
    """Maximum number of matching master rows that each thread handles at a time."""

    @property
    def load_bytes(self) -> int:
        return self.step_rows * LOAD_ROW_BYTES + self.pair_bytes

    @property
    def pair_bytes(self) -> int:
        return self.pairs * PAIR_BYTES


def rows_by_share(total: int) -> int:
    """Return the default of b, the master rows per load: as many as fit into an eighth of ``total`` bytes."""
    return max(1, int(total * _LOAD_SHARE) // LOAD_ROW_BYTES)


def plan(total: int, rows: int, *, paged: bool, b: int | None = None, threads: int = 1) -> Plan:
    """Return the sizes for a budget of ``total`` bytes and a master of ``rows`` rows.

    ``paged`` says whether the join loads pages that it finds through the index. ``b`` is the number of rows per load
    or page that the user has set, or None.

    >>> plan(2_480_000, 2_000_000, paged=False)
    Plan(b=38750, step_rows=38750, pairs=3100, matches=3100)
    >>> plan(2_480_000, 2_000_000, paged=True, threads=2)
    Plan(b=256, step_rows=38750, pairs=3100, matches=1550)
    """
    by_share = rows_by_share(total)
    b = min(b or (min(PAGE_ROWS, by_share) if paged else by_share), max(1, rows))
    step_rows = max(b, min(by_share, rows)) if paged else b
    pairs = max(LEAST_PAIRS, min(_MOST_PAIRS, int(total * _PAIR_SHARE) // PAIR_BYTES))
    matches = max(LEAST_MATCHES, min(_MOST_MATCHES, int(total * _MATCH_SHARE) // (8 * threads)))
    return Plan(b, step_rows, pairs, matches)
