"""Inputs of experiments with adaptive joins: tables, arrival times, join conditions, and the size of the result.

Inputs are thinned, not cut off: every n-th of the paper's tuples and of their arrival times is taken, and time runs n
times faster. So drifts, seasons, and the overlap of two inputs' pauses stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import ConfigError, one_of
from millrace.datasets import read_orders
from millrace.datasets.adaptive_inputs import (
    Values,
    chain_inputs,
    drifting_normal,
    normal_values,
    partially_sorted,
    star_inputs,
    stock_orders,
    weather_stations,
    wide_tuples,
    zipf_values,
)
from millrace.datasets.arrival_times import GAP, exponential, with_stalls

DESCRIPTIONS = {
    "zipf": "synthetic: keys of both inputs from 1 to 999 follow the same Zipf law",
    "normal": "synthetic: keys of both inputs are normally distributed",
    "sorted": "synthetic: Zipf keys, sorted, cut into intervals, those in random order",
    "drifting": "synthetic: normal keys whose mean moves in ten periods",
    "csco": "synthetic stock orders of the number of CSCO's, prices a bounded walk: not the exchange's own",
    "ipix": "synthetic stock orders of the number of IPIX's, prices a bounded walk: not the exchange's own",
    "csco-own": "stock orders of the file stock/csco, in CSCO's place",
    "ipix-own": "stock orders of the file stock/ipix, in IPIX's place",
    "stations": "synthetic temperatures of two weather stations, hourly for five years: not the archive's own",
    "chain": "synthetic: R1 and R4 with every key once, R2 and R3 with Zipf keys, joined as a chain",
    "star": "synthetic: R1 and R4 with every key once, R2 and R3 with Zipf keys, all joined on one attribute",
}
"""Descriptions of data for figures, by the name that experiments use."""

_OWN = "-own"
_STOCKS = {"csco": 2000, "ipix": 500}  # price in cents at the start of the day
_BAND = (-4, 4)  # whole cents or degrees, a difference below 5
_KEYS = 10  # tuples of R2 for each tuple of R1


@dataclass(frozen=True)
class ExperimentInputs:
    """Inputs of a join and the size of its result."""

    tables: Mapping[str, pa.Table]
    on: Any
    band: tuple[int, int] | None
    results: int
    """Number of results of the join, computed from the keys alone."""

    @property
    def nbytes(self) -> int:
        """Bytes that the tuples of all inputs take together."""
        return sum(table.nbytes for table in self.tables.values())

    def times(self, paper_rows: int, delay: float, seed: int) -> dict[str, npt.NDArray[np.float64]]:
        """Return the arrival times of each input's tuples, in seconds.

        ``paper_rows`` is the number of tuples that the largest input has in the paper; ``delay`` is the pause after
        each fragment of an input, in percent of the time that the fragment takes.
        """
        step = max(1, round(paper_rows / max(table.num_rows for table in self.tables.values())))
        found = {}
        for number, (name, table) in enumerate(self.tables.items()):
            every = exponential(table.num_rows * step, GAP / step, seed=10 * seed + number)
            found[name] = with_stalls(every[step - 1 :: step], delay)
        return found


def own_name(name: str, directory: Path) -> str:
    """Return a data set's name, with ``-own`` added if the directory has the user's own file for it."""
    return f"{name}{_OWN}" if own_orders(directory, f"{name}{_OWN}") else name


def own_orders(directory: Path, name: str) -> list[Path]:
    """Return a list with the user's file for ``csco-own`` or ``ipix-own``; empty if there is no such file.

    For ``csco-own``, the file is ``stock/csco.csv``, ``stock/csco.csv.gz`` or ``stock/csco.parquet`` in the directory.
    """
    stock = name.removesuffix(_OWN)
    if name == stock or stock not in _STOCKS:
        return []
    files = (directory / "stock" / f"{stock}{ending}" for ending in (".csv", ".csv.gz", ".parquet"))
    return [file for file in files if file.is_file()][:1]


def open_inputs(
    name: str, rows: int, seed: int, *, directory: Path | None = None, band: bool = False, **parameters: Any
) -> ExperimentInputs:
    """Return the inputs that ``DESCRIPTIONS`` describes under a name; the largest has ``rows`` tuples.

    The user's own files are read from ``directory``. With ``band``, two keys match if they differ by less than 5.

    >>> found = open_inputs("zipf", 1000, seed=1, skew=5.0)
    >>> list(found.tables), found.results > 900_000
    (['left', 'right'], True)
    """
    if one_of("data", name, DESCRIPTIONS) in ("chain", "star"):
        return _multiway(name, rows, seed, **parameters)
    if name.endswith(_OWN):
        left, right = _own(directory, name, rows)
    else:
        left, right = (_FIXED_TOTALS.get(name) or _PAIRS[name])(rows, seed, **parameters)
    tables = {
        "left": wide_tuples({"key": left}, seed=2 * seed),
        "right": wide_tuples({"key": right}, seed=2 * seed + 1).rename_columns(["key", "other_row", "other_filler"]),
    }
    if band:
        tables["right"] = tables["right"].rename_columns(["other_key", "other_row", "other_filler"])
        return ExperimentInputs(tables, ("key", "other_key"), _BAND, _within(left, right, _BAND))
    return ExperimentInputs(tables, "key", None, _within(left, right, (0, 0)))


def _within(left: Values, right: Values, band: tuple[int, int]) -> int:
    """Return the number of pairs in which the right value minus the left is in the band."""
    ordered = np.sort(right)
    low, high = np.searchsorted(ordered, left + band[0]), np.searchsorted(ordered, left + band[1], "right")
    return int((high - low).sum())


def _multiway(name: str, rows: int, seed: int, *, inputs: float) -> ExperimentInputs:
    made = (star_inputs if name == "star" else chain_inputs)(int(inputs), rows=rows, keys=rows // _KEYS, seed=seed)
    names = list(made)
    columns = ["a"] * 3 if name == "star" else [f"a{each[1]}" for each in names[:-1]]
    on = [(f"{a}.{c}", f"{b}.{c}") for a, b, c in zip(names, names[1:], columns, strict=False)]
    shared = "a" if name == "star" else "a2"
    left, right = (made[each][shared].to_numpy() for each in ("R2", "R3"))
    return ExperimentInputs(made, on, None, _within(left, right, (0, 0)))


# keys of two inputs


def _zipf(rows: int, seed: int, *, skew: float = 1.0, smaller: float | None = None) -> tuple[Values, Values]:
    other = rows if smaller is None else round(smaller)
    return zipf_values(rows, skew, seed=2 * seed), zipf_values(other, skew, seed=2 * seed + 1)


def _normal(rows: int, seed: int, *, mean: float = 0.0, variance: float = 0.0) -> tuple[Values, Values]:
    first = normal_values(rows, seed=2 * seed)
    return first, normal_values(rows, 500 + mean, 50 + variance, seed=2 * seed + 1)


def _sorted(rows: int, seed: int, *, intervals: float) -> tuple[Values, Values]:
    both = (partially_sorted(keys, int(intervals), seed=2 * seed + i) for i, keys in enumerate(_zipf(rows, seed)))
    left, right = both
    return left, right


def _drifting(rows: int, seed: int, *, shift: float) -> tuple[Values, Values]:
    return drifting_normal(rows, shift, seed=2 * seed), drifting_normal(rows, shift, seed=2 * seed + 1)


_PAIRS: dict[str, Callable[..., tuple[Values, Values]]] = {
    "zipf": _zipf,
    "normal": _normal,
    "sorted": _sorted,
    "drifting": _drifting,
}


def _thinned(keys: Values, rows: int) -> Values:
    """Return ``rows`` of the keys, taken at even distances, or all of them if there are fewer."""
    return keys[np.linspace(0, len(keys) - 1, min(rows, len(keys))).astype(np.int64)]


def _stock(name: str, total: int) -> Callable[[int, int], tuple[Values, Values]]:
    def orders(rows: int, seed: int) -> tuple[Values, Values]:
        sides = stock_orders(total, start=_STOCKS[name], seed=seed)
        buy, sell = (_thinned(sides[side]["price"].to_numpy(), rows) for side in ("buy", "sell"))
        return buy, sell

    return orders


def _own(directory: Path | None, name: str, rows: int) -> tuple[Values, Values]:
    files = [] if directory is None else own_orders(directory, name)
    if not files:
        raise ConfigError(
            f"data {name}: expected a file of orders, stock/{name.removesuffix(_OWN)}.csv, .csv.gz or .parquet, in the "
            "folder of the inputs; there is none"
        )
    sides = read_orders(files[0])
    for side, prices in sides.items():
        if len(prices) < rows:
            raise ConfigError(f"{files[0]}: expected at least {rows:,} orders to {side}; there are {len(prices):,}")
    return _thinned(sides["buy"], rows), _thinned(sides["sell"], rows)


def _stations(rows: int, seed: int) -> tuple[Values, Values]:
    both = weather_stations(seed=seed)
    north, south = (_thinned(both[station]["temperature"].to_numpy(), rows) for station in ("north", "south"))
    return north, south


_FIXED_TOTALS: dict[str, Callable[[int, int], tuple[Values, Values]]] = {
    "csco": _stock("csco", 20_710),
    "ipix": _stock("ipix", 45_568),
    "stations": _stations,
}
