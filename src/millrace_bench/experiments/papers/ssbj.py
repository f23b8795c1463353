"""The SSBJ paper's figures: SSBJ against MESHJOIN."""

from __future__ import annotations

from math import inf

from millrace_bench.experiments.experiment import Experiment, Paper, Peak, Ratio, Scale, lines, with_models

_MORE_THAN_HITS = (
    "the cache answers 45 % of the tuples with 1 % of memory and 64 % with 10 % (figure 5f), so the disk phase has "
    "0.55 and 0.36 of them, and 1.8 and 2.8 times is the most it can save; by the paper's own 39 and 54 % it would be "
    "1.6 and 2.2 times, not 7 and 8"
)
_EVEN = (
    "standard TPC-H spreads orders evenly over customers: the cache answers 0 % with any memory, and 33 to 55 % if the "
    "orders are skewed (figure 5d-skewed); the paper adapted its data"
)

_FLAT = (
    "the optimum is flat: a key needs twice as many tuples to be cached, and those between are few, since keys come by "
    "a Zipf law; the cache answers 41 % instead of 45 and leaves its memory to the room"
)

PAPER = Paper(
    "SSBJ",
    "M. A. Naeem, G. Weber, C. Lutteroth: A Memory-Optimal Many-To-Many Semi-Stream Join. Distributed and Parallel "
    "Databases 37, 2019",
    Scale(small=1 / 2000, default=1 / 200),
    {"data": "repeats", "rows": 100_000_000, "skew": 1.0, "scaled_seek": True},
)
_OF_20M = Scale(small=1 / 400, default=1 / 40)
_BOTH = lines("ssbj", "meshjoin")
_MEMORY = lines("ssbj", "meshjoin", by="memory for a rate")
_SHARES = (1, 2, 4, 6, 8, 10)
_CLOSE = (
    Ratio("SSBJ predicted as measured", "ssbj, predicted", "ssbj", (1, 1), tolerance=0.1),
    Ratio("MESHJOIN predicted as measured", "meshjoin, predicted", "meshjoin", (1, 1), tolerance=0.1),
)

FIGURES = (
    Experiment(
        PAPER,
        "4a",
        "Memory over the arrival rate",
        "MESHJOIN needs about 7 times the memory of SSBJ at all rates.",
        varies="rate",
        values=(10_000, 20_000, 50_000, 80_000),
        few=(20_000, 50_000),
        series=_MEMORY,
        metric="memory",
        fixed={"rows": 20_000_000},
        scale=_OF_20M,
        claims=(
            Ratio("7 times at all rates", "meshjoin", "ssbj", (7, 7), tolerance=0.2, why=_MORE_THAN_HITS),
        ),
    ),
    Experiment(
        PAPER,
        "4b",
        "Memory over the size of R",
        "For 51,242 tuples/s MESHJOIN needs 7 times the memory with 20 M rows, 5 times with 80 M.",
        varies="rows",
        values=(20_000_000, 40_000_000, 60_000_000, 80_000_000),
        few=(20_000_000, 80_000_000),
        series=_MEMORY,
        metric="memory",
        fixed={"rate": 51_242},
        scale=Scale(small=1 / 1000, default=1 / 100),
        claims=(
            Ratio("7 times with 20 M rows", "meshjoin", "ssbj", (7, 7), "first", tolerance=0.2, why=_MORE_THAN_HITS),
            Ratio("5 times with 80 M rows", "meshjoin", "ssbj", (5, 5), "last", tolerance=0.2, why=_MORE_THAN_HITS),
        ),
    ),
    Experiment(
        PAPER,
        "5a",
        "Rate over memory",
        "SSBJ 7 times faster than MESHJOIN with 1 % of R, 8 times with 10 %.",
        varies="share",
        values=_SHARES,
        few=(1, 10),
        series=_BOTH,
        metric="rate",
        claims=(
            Ratio("7 times at 1 %", "ssbj", "meshjoin", (7, 7), "first", tolerance=0.2, why=_MORE_THAN_HITS),
            Ratio(
                "8 times at 10 % (5.7 in figure 5b)",
                "ssbj", "meshjoin", (5.7, 8), "last", tolerance=0.1, why=_MORE_THAN_HITS,
            ),
        ),
    ),
    Experiment(
        PAPER,
        "5b",
        "Rate over the size of R",
        "With 1.12 GB SSBJ is 7 times faster with 20 M rows and 5.7 times with 100 M.",
        varies="rows",
        values=(20_000_000, 40_000_000, 60_000_000, 80_000_000, 100_000_000),
        few=(20_000_000, 100_000_000),
        some=(20_000_000, 60_000_000, 100_000_000),
        series=_BOTH,
        metric="log rate",
        fixed={"megabytes": 1_120},
        claims=(
            Ratio("7 times with 20 M rows", "ssbj", "meshjoin", (7, 7), "first", tolerance=0.2, why=_MORE_THAN_HITS),
            Ratio(
                "5.7 times with 100 M rows (8 in figure 5a)",
                "ssbj", "meshjoin", (5.7, 8), "last", tolerance=0.1, why=_MORE_THAN_HITS,
            ),
        ),
    ),
    Experiment(
        PAPER,
        "5c",
        "Rate over the skew of the stream",
        "Equal without skew, SSBJ better from a slight skew on, about 8 times at 1; MESHJOIN falls slightly with skew.",
        varies="skew",
        values=(0, 0.25, 0.5, 0.75, 1),
        few=(0, 0.5, 1),
        series=_BOTH,
        metric="rate",
        fixed={"share": 10},
        claims=(
            Ratio("equal without skew", "ssbj", "meshjoin", (1, 1), 0, tolerance=0.1),
            Ratio(
                "better with some", "ssbj", "meshjoin", (1, inf), 0.5,
                why="at skew 0.5 the cache answers 2.7 % of the tuples, as much as its memory costs; at 0.75 it is "
                "21 % and 1.13 times",
            ),
            Ratio("8 times at 1", "ssbj", "meshjoin", (5.7, 8), 1, tolerance=0.1, why=_MORE_THAN_HITS),
            Ratio(
                "MESHJOIN falls slightly", "meshjoin", "meshjoin", (0.8, 0.99), 1, 0,
                why="only the disk takes time: 82,203 tuples/s at every skew",
            ),
        ),
    ),
    Experiment(
        PAPER,
        "5d",
        "Rate over memory, TPC-H",
        "SSBJ 3.4 times faster with 1 % of R, 7.4 times with 10 %.",
        varies="share",
        values=(1, 2, 5, 10),
        few=(2, 10),
        series=_BOTH,
        metric="rate",
        fixed={"data": "tpch", "rows": 15_000_000},
        scale=Scale(1 / 1000, 1 / 200),
        claims=(
            Ratio("3.4 times at 1 %", "ssbj", "meshjoin", (3.4, 3.4), "first", tolerance=0.2, why=_EVEN),
            Ratio("7.4 times at 10 %", "ssbj", "meshjoin", (7.4, 7.4), "last", tolerance=0.2, why=_EVEN),
        ),
    ),
    Experiment(
        PAPER,
        "5d-skewed",
        "Rate over memory, TPC-H with skewed orders",
        "As 5d, if what the paper calls adapted data was skewed by a Zipf law.",
        varies="share",
        values=(1, 2, 5, 10),
        few=(2, 10),
        series=_BOTH,
        metric="rate",
        fixed={"data": "tpch-skewed", "rows": 15_000_000},
        scale=Scale(1 / 1000, 1 / 200),
        claims=(
            Ratio("3.4 times at 1 %", "ssbj", "meshjoin", (3.4, 3.4), "first", tolerance=0.2, why=_MORE_THAN_HITS),
            Ratio("7.4 times at 10 %", "ssbj", "meshjoin", (7.4, 7.4), "last", tolerance=0.2, why=_MORE_THAN_HITS),
        ),
    ),
    Experiment(
        PAPER,
        "5e",
        "Rate over memory, weather",
        "SSBJ better with any memory.",
        varies="share",
        values=(1, 2, 5, 10),
        few=(2, 10),
        series=_BOTH,
        metric="rate",
        fixed={"data": "weather", "rows": 20_000_000},
        scale=_OF_20M,
        claims=(
            Ratio(
                "better with any memory", "ssbj", "meshjoin", (1, inf),
                why="a longitude has hundreds of rows, which take more memory than tuples that wait, so the cache "
                "answers 0 % and costs 1 to 4 % of the rate; how skewed the archive is, the paper does not say",
            ),
        ),
    ),
    Experiment(
        PAPER,
        "5f",
        "What the cache answers, over memory",
        "39 % of the tuples with 1 % of R, 54 % with 9 % and above.",
        varies="share",
        values=_SHARES,
        few=(1, 10),
        series=lines("ssbj"),
        metric="hits",
        claims=(
            Ratio(
                "39 % at 1 %", "ssbj", None, (39, 39), "first", tolerance=0.15,
                why="more than in the paper, not less; a cache that admits fewer keys answers 41 % with a switching "
                "factor of 2 and 37 % with 4 (the points of figure 6a), at a lower rate",
            ),
            Ratio(
                "54 % at 10 %", "ssbj", None, (54, 54), "last", tolerance=0.15,
                why="here tuples always come, 186,000 in a second, and the more come in a turn the more of them "
                "repeat: with 20,000, 50,000, 100,000 and 150,000 arriving in a second the cache answers 48, 54.5, 60 "
                "and 62 % (seed 11)",
            ),
        ),
    ),
    Experiment(
        PAPER,
        "6a",
        "Rate over the switching factor",
        "Best at 1, with a clear loss elsewhere.",
        varies="switching_factor",
        values=(0.25, 0.5, 1, 2, 4),
        few=(0.25, 1, 4),
        series=lines("ssbj"),
        metric="rate",
        fixed={"rows": 20_000_000, "share": 1},
        scale=_OF_20M,
        log_x=True,
        claims=(
            Peak("best at 1", "ssbj", (1, 1)),
            *(
                Ratio(f"a clear loss at {factor:g}", "ssbj", "ssbj", (0, 0.97), factor, 1, why=_FLAT)
                for factor in (0.25, 0.5, 2, 4)
            ),
        ),
    ),
    Experiment(
        PAPER,
        "6b",
        "Rate of the disk phase over the size of a load",
        "Rises with the load, then falls.",
        varies="load",
        values=(0.1, 0.5, 1, 2, 5, 10),
        few=(0.5, 2, 10),
        series=lines("ssbj"),
        metric="disk rate",
        fixed={"share": 1},
        log_x=True,
        claims=(
            Peak(
                "rises, then falls", "ssbj",
                why="the wheel reads on where it stopped, so a small load costs no seek of its own and is the best",
            ),
        ),
    ),
    *(
        Experiment(
            PAPER,
            figure,
            f"Seconds of a step, predicted and measured, skew {skew:g}",
            "Calculated and measured are close for both.",
            varies="share",
            values=(1, 2, 5, 10),
            few=(2, 10),
            series=with_models("ssbj", "meshjoin"),
            metric="c_loop",
            fixed={"data": "unique", "skew": skew},
            claims=_CLOSE,
        )
        for figure, skew in (("6c", 0.0), ("6d", 1.0))
    ),
)  # fmt: skip
