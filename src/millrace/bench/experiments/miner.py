"""MINER's figures: several inputs, as a chain and as a star, the latter against MJoin."""

from __future__ import annotations

from millrace.bench.adaptive_points import layout
from millrace.bench.experiment import Experiment, Paper, Ratio, Scale, Series, lines
from millrace.bench.experiments.diner import REFERENCE

PAPER = Paper("MINER", REFERENCE, Scale(1 / 30, 1 / 10), {"rows": 100_000, "data": "chain"}, layout=layout)

_CHAINS = tuple(
    Series("miner", f"miner, {inputs} inputs", by="online", fixed={"inputs": inputs}) for inputs in (2, 3, 4)
)
_KNOWN = Series("miner", "known frequencies, 4 inputs", by="known frequencies", fixed={"inputs": 4})
_BOUND = (
    "a policy that knew all frequencies, with rows in all of memory, would have 32 % with 5 % of memory and 82 % with "
    "20 % at the paper's size, and 24 % and 73 % at a tenth of it, by simulation; and rows take more than 200 bytes"
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
            Ratio("a modest loss for the third", "miner, 3 inputs", "miner, 2 inputs", (0.7, 1)),
            Ratio("a modest loss for the fourth", "miner, 4 inputs", "miner, 3 inputs", (0.7, 1)),
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
            Ratio("1 to 60 times MJoin", "miner", "mjoin", (1, 60), tolerance=0.1),
            Ratio("many times MJoin with 5 %", "miner", "mjoin", (5, 60), 5, tolerance=0.1),
        ),
    ),
)
