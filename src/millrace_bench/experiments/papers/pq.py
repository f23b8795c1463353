"""The page queue paper's figures: HYBRIDJOIN and CACHEJOIN with a look-up position (-L) and with a page queue (-PQ)."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from millrace_bench.experiments.experiment import Experiment, Gap, Paper, Peak, Ratio, Scale, Series, lines

_QUEUE = "at small skew no page gets far more tuples than others, so the queue has no page to prefer"
_CACHE = "with the popular keys in the cache, pages are about equally wanted and how they are chosen matters little"
_GUARD = (
    "every second load is the oldest tuple's, for without that guard tuples may starve, so the position matters less: "
    "from 0.15 to 0.8 the rate is within 8 % of the best at skew 1"
)

_REPEATS = (
    "a longitude has many rows on many pages, and its tuples stay until all of them were loaded, so a page that many "
    "tuples want is not enough for any: with 250 MB a tuple takes 2.0 seeks with HYBRIDJOIN's queue and 1.75 with its "
    "position, 2.1 and 1.9 with CACHEJOIN's, which answers less than 1 % from its cache (seed 11)"
)

_SKEWED = (
    "the queue is about pages that many tuples want, of which there are more with skew; without the guard of the "
    "position HYBRIDJOIN-PQ would have 1.24 times the rate of -L at skew 0.25 and 1.61 at 1 (seed 11)"
)
_ALIKE = (
    "with 16 times the rows HYBRIDJOIN-PQ has 0.318 of its rate and -L 0.325, CACHEJOIN-PQ 0.220 and -L 0.210, "
    "so they fall alike; R is 1.2 times the memory at first and 19 times at last"
)

PAPER = Paper(
    "PQ",
    "M. A. Naeem, G. Weber, C. Lutteroth, G. Dobbie: Optimizing Queue-Based Semi-Stream Joins with Indexed Master "
    "Data. DaWaK 2014",
    Scale(small=1 / 200, default=1 / 8),
    {"data": "unique", "rows": 2_000_000, "skew": 1.0, "page": 1 / 2000, "scaled_seek": True},
    {
        "hybridjoin-pq": {"times_average": 1.5},
        "cachejoin-l": {"cache_share": 0.1},
        "cachejoin-pq": {"cache_share": 0.1, "times_average": 2.0},
    },
)
_FOUR = lines("hybridjoin-pq", "hybridjoin-l", "cachejoin-pq", "cachejoin-l")
_BETTER = (
    Ratio("HYBRIDJOIN-PQ above -L", "hybridjoin-pq", "hybridjoin-l", (1, inf), why=_QUEUE),
    Ratio("CACHEJOIN-PQ above -L", "cachejoin-pq", "cachejoin-l", (1, inf), why=_CACHE),
)


def _gaps(hybridjoin: str, cachejoin: str, **others: Any) -> tuple[Gap, ...]:
    """Return two claims, with these texts, that -PQ and -L are farther apart at one place than at another."""
    return (
        Gap(hybridjoin, "hybridjoin-pq", "hybridjoin-l", **others),
        Gap(f"and {cachejoin}", "cachejoin-pq", "cachejoin-l", **others),
    )


_MEMORY = (50, 100, 150, 200, 250)
_SOME_MEMORY = (50, 150, 250)

FIGURES = (
    Experiment(
        PAPER,
        "2",
        "Rate over the position of the look-up",
        "The best position moves to the young end of the queue as skew grows: 30 % from it at skew 1.",
        varies="position",
        values=(0, 0.15, 0.3, 0.45, 0.6, 0.8, 1),
        few=(0.3, 1),
        series=tuple(Series("hybridjoin-l", f"skew {skew:g}", fixed={"skew": skew}) for skew in (0.25, 0.5, 0.75, 1.0)),
        metric="rate",
        fixed={"megabytes": 50},
        claims=(
            Peak("30 % at skew 1", "skew 1", (0.3, 0.3), why=_GUARD),
            Peak("farther from the young end at skew 0.25", "skew 0.25", (0.45, 1), why=_GUARD),
        ),
    ),
    Experiment(
        PAPER,
        "3a",
        "Rate over memory",
        "-PQ better than -L with any memory, the more so the more there is; HYBRIDJOIN gains more than CACHEJOIN.",
        varies="megabytes",
        values=_MEMORY,
        few=(50, 150),
        some=_SOME_MEMORY,
        series=_FOUR,
        metric="rate",
        claims=(*_BETTER, *_gaps("HYBRIDJOIN's gap grows with memory", "CACHEJOIN's", as_="difference")),
    ),
    Experiment(
        PAPER,
        "3b",
        "Rate over the size of R",
        "-PQ better than -L at all sizes, and falls more slowly.",
        varies="rows",
        values=(500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000),
        few=(1_000_000, 4_000_000),
        some=(500_000, 2_000_000, 8_000_000),
        series=_FOUR,
        metric="log rate",
        fixed={"megabytes": 50},
        claims=(*_BETTER, *_gaps("HYBRIDJOIN-PQ falls more slowly than -L", "CACHEJOIN-PQ", why=_ALIKE)),
    ),
    Experiment(
        PAPER,
        "3c",
        "Rate over the skew of the stream",
        "-PQ better than -L at any skew, most of all at small skew.",
        varies="skew",
        values=(0.25, 0.5, 0.75, 1),
        few=(0.25, 1),
        series=_FOUR,
        metric="rate",
        fixed={"megabytes": 50},
        claims=(
            *_BETTER,
            *_gaps("HYBRIDJOIN-PQ gains most at small skew", "CACHEJOIN-PQ", at="first", than_at="last", why=_SKEWED),
        ),
    ),
    Experiment(
        PAPER,
        "3d",
        "Rate over memory, TPC-H",
        "-PQ better than -L with any memory.",
        varies="megabytes",
        values=_MEMORY,
        few=(250,),
        some=_SOME_MEMORY,
        series=_FOUR,
        metric="rate",
        fixed={"data": "tpch", "rows": 15_000_000},
        scale=Scale(1 / 3000, 1 / 200),
        claims=_BETTER,
    ),
    Experiment(
        PAPER,
        "3e",
        "Rate over memory, weather",
        "-PQ better than -L with any memory.",
        varies="megabytes",
        values=_MEMORY,
        few=(250,),
        some=_SOME_MEMORY,
        series=_FOUR,
        metric="rate",
        fixed={"data": "weather", "rows": 20_000_000},
        scale=Scale(1 / 1000, 1 / 400),
        claims=tuple(replace(claim, why=_REPEATS) for claim in _BETTER),
    ),
)
