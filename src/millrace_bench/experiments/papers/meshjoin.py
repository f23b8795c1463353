"""The MESHJOIN paper's figures: MESHJOIN against index nested loops, and its cost model."""

from __future__ import annotations

from math import inf

from millrace_bench.experiments.experiment import Experiment, Paper, Peak, Ratio, Scale, Series, lines, with_models

_INL = (
    "INL pays 0.996 seeks of 8 ms for a tuple and has 123 tuples/s, the paper's 274, as with half as many; against 274 "
    "the ratio would be 16"
)
_DISK_ONLY = (
    "only the disk takes time, so the rate grows as the memory does, to 82,000 tuples/s (the paper's 26,000); with "
    "26 µs more for each tuple it would be 26,000, and 6.5 times that with 0.5 % of memory"
)
_TURNS = "only the disk takes time: 44,016 tuples/s at any skew of R, while INL has 0.02 of its rate at skew 1"

PAPER = Paper(
    "MESHJOIN",
    "N. Polyzotis, S. Skiadopoulos, P. Vassiliadis, A. Simitsis, N. Frantzell: Supporting Streaming Updates in an "
    "Active Data Warehouse. ICDE 2007",
    Scale(small=1 / 70, default=1 / 3.5),
    {"data": "unique", "rows": 3_500_000, "skew": 0.5},
)

FIGURES = (
    Experiment(
        PAPER,
        "5a",
        "Memory over the size of a load, the rate fixed (the paper's equations)",
        "For a given rate there is one size of a load that takes the least memory.",
        varies="load",
        values=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
        few=(0.02, 0.1, 0.5, 2, 5),
        series=(Series("meshjoin", by="equations"),),
        metric="memory",
        fixed={"rate": 10_000, "share": 5},
        scale=Scale(1, 1),
        log_x=True,
        claims=(Peak("one minimum", "meshjoin"),),
    ),
    Experiment(
        PAPER,
        "5b",
        "Rate over the size of a load, the memory fixed (the paper's equations)",
        "For a given memory the rate rises to a maximum and then falls sharply.",
        varies="load",
        values=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 4.9),
        few=(0.02, 0.1, 0.5, 2, 4.9),
        series=(Series("meshjoin", by="equations"),),
        metric="rate",
        fixed={"share": 5},
        scale=Scale(1, 1),
        log_x=True,
        claims=(
            Peak("one maximum", "meshjoin"),
            Ratio("a sharp fall after it", "meshjoin", "meshjoin", (0, 0.5), at="last", under_at=0.5),
        ),
    ),
    Experiment(
        PAPER,
        "6a",
        "Rate over the size of a load: predicted and measured",
        "The model tracks the measurements; the rate is high for small loads and drops with large ones.",
        varies="load",
        values=(0.1, 0.5, 2, 10, 30, 60),
        few=(0.5, 10, 60),
        series=with_models("meshjoin"),
        metric="rate",
        fixed={"share": 5},
        log_x=True,
        claims=(
            Ratio("predicted as measured", "meshjoin, predicted", "meshjoin", (1, 1), tolerance=0.1),
            Ratio("drops with large loads", "meshjoin", "meshjoin", (0, 0.9), at="last", under_at="first"),
        ),
    ),
    Experiment(
        PAPER,
        "6b",
        "Rate over memory",
        "3,500 tuples/s to INL's 274 with 0.5 % of R (12.8 times), about 10 times everywhere; less and less gained.",
        varies="share",
        values=(0.2, 0.5, 1, 2, 5, 10),
        few=(0.5, 2, 10),
        series=lines("meshjoin", "inl"),
        metric="log rate",
        scale=Scale(1 / 14, 1 / 3.5),
        claims=(
            Ratio("12.8 times INL at 0.5 %", "meshjoin", "inl", (12.8, 12.8), 0.5, tolerance=0.3, why=_INL),
            Ratio("about 10 times INL everywhere", "meshjoin", "inl", (10, 10), tolerance=0.5, why=_INL),
            Ratio(
                "20 times the memory, 7.4 times the rate",
                "meshjoin", "meshjoin", (7.4, 7.4), 10, 0.5, tolerance=0.3, why=_DISK_ONLY,
            ),
        ),
    ),
    Experiment(
        PAPER,
        "6c",
        "Rate over the skew of R",
        "Both fall as R is more skewed; MESHJOIN never below 9,000 tuples/s, INL clearly lower.",
        varies="z_R",
        values=(0.1, 0.4, 0.7, 1),
        few=(0.1, 1),
        series=lines("meshjoin", "inl"),
        metric="log rate",
        fixed={"data": "skewed", "share": 5},
        claims=(
            Ratio("MESHJOIN above INL", "meshjoin", "inl", (1, inf)),
            Ratio("MESHJOIN never below 9,000 tuples/s", "meshjoin", None, (9_000, inf)),
            Ratio("MESHJOIN falls", "meshjoin", "meshjoin", (0, 0.98), at=1, under_at=0.1, why=_TURNS),
            Ratio("INL falls", "inl", "inl", (0, 0.98), at=1, under_at=0.1),
        ),
    ),
    Experiment(
        PAPER,
        "6d",
        "Rate over memory, weather",
        "MESHJOIN far above INL with any memory.",
        varies="share",
        values=(1, 2, 5, 10),
        few=(2, 10),
        series=lines("meshjoin", "inl"),
        metric="log rate",
        fixed={"data": "weather-32", "rows": 10_000_000},
        scale=Scale(1 / 200, 1 / 40),
        claims=(Ratio("MESHJOIN above INL", "meshjoin", "inl", (1, inf)),),
    ),
    Experiment(
        PAPER,
        "text",
        "Rate over the skew of the stream",
        "Both are relatively insensitive to it (no figure).",
        varies="skew",
        values=(0, 0.5, 1),
        few=(0, 1),
        series=lines("meshjoin", "inl"),
        metric="log rate",
        fixed={"share": 5},
        claims=(
            Ratio("MESHJOIN insensitive", "meshjoin", "meshjoin", (1, 1), 1, 0, tolerance=0.1),
            Ratio(
                "INL insensitive", "inl", "inl", (1, 1), 1, 0, tolerance=0.1,
                why="its pool of pages, 5 % of R, holds popular ones: 0.96 seeks a tuple without skew, 0.63 at skew 1",
            ),
        ),
    ),
)  # fmt: skip
