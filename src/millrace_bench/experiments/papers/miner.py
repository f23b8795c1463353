"""MINER's figures, from the DINER paper: joins of several inputs as a chain, and as a star against MJoin."""

from __future__ import annotations

from millrace_bench.experiments.experiment import Experiment, Paper, Ratio, Scale, Series, lines
from millrace_bench.experiments.online_points import layout
from millrace_bench.experiments.papers.diner import REFERENCE

PAPER = Paper("MINER", REFERENCE, Scale(1 / 30, 1 / 10), {"rows": 100_000, "data": "chain"}, layout=layout)

_CHAINS = tuple(
    Series("miner", f"miner, {inputs} inputs", by="online", fixed={"inputs": inputs}) for inputs in (2, 3, 4)
)
_KNOWN = Series("miner", "known frequencies, 4 inputs", by="known frequencies", fixed={"inputs": 4})
_BOUND = (
    "a policy that knew beforehand how many results every row has a part in, with rows in all of memory, would have "
    "28 % with 5 % of memory at the paper's size, and 21 and 82 % with 5 and 20 % at a tenth of it (the line of known "
    "frequencies), so the paper's 55 % is beyond it; MINER does not know, and its rows with two indexes take 300 bytes"
)
_STEEP = (
    "a result of more inputs needs more rows in memory together: with known frequencies the third input keeps 0.74 "
    "of the share with 5 % of memory, 0.89 with 10 and 0.97 with 20, the fourth 0.71, 0.86 and 0.97"
)

_MORE = (
    "it is more, not less: MJoin sends buckets of all inputs away together, and with 5 % of memory at a tenth of the "
    "size 119 results are left to it (MINER has 441,391), with 20 % 26,178 (1,549,300)"
)

FIGURES = (
    Experiment(
        PAPER,
        "20",
        "Share of the result while tuples come, over memory",
        "With 4 inputs 55 % with 5 % of memory, and more than 80 % with 20 %; a modest loss for each more input.",
        varies="share",
        values=(5, 10, 20),
        few=(10, 20),
        series=(*_CHAINS, _KNOWN),
        metric="online share",
        claims=(
            Ratio("55 % of 4 inputs with 5 %", "miner, 4 inputs", None, (55, 55), 5, tolerance=0.15, why=_BOUND),
            Ratio("80 % of 4 inputs with 20 %", "miner, 4 inputs", None, (80, 100), 20, tolerance=0.15, why=_BOUND),
            Ratio("a modest loss for the third", "miner, 3 inputs", "miner, 2 inputs", (0.7, 1), why=_STEEP),
            Ratio("a modest loss for the fourth", "miner, 4 inputs", "miner, 3 inputs", (0.7, 1), why=_STEEP),
        ),
    ),
    Experiment(
        PAPER,
        "21",
        "Most tuples that wait while the disk is used",
        "1001 to 1004 tuples with 2, 3 and 4 inputs, with MaxNewArr 1000.",
        varies="delay",
        values=(10, 30, 50),
        few=(10, 50),
        some=(10, 50),
        series=_CHAINS,
        metric="most waiting",
        fixed={"share": 10},
        claims=tuple(
            Ratio(f"up to MaxNewArr, {line.name}", line.name, None, (1.001, 1.004), tolerance=0.1) for line in _CHAINS
        ),
    ),
    Experiment(
        PAPER,
        "22",
        "Results over memory, star",
        "MINER up to 60 times MJoin, with little memory.",
        varies="share",
        values=(5, 10, 20),
        few=(10, 20),
        series=lines("miner", "mjoin", by="online"),
        metric="log online",
        fixed={"data": "star", "inputs": 4},
        claims=(
            Ratio("1 to 60 times MJoin", "miner", "mjoin", (1, 60), tolerance=0.1, why=_MORE),
            Ratio("many times MJoin with 5 %", "miner", "mjoin", (5, 60), 5, tolerance=0.1, why=_MORE),
        ),
    ),
)
