"""The papers' experiments by name. To add a paper, write a module in ``papers`` and add the module to the list here."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.core.errors import ConfigError
from millrace_bench.experiments.experiment import Experiment
from millrace_bench.experiments.papers import diner, meshjoin, miner, pq, ssbj, sscj

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for paper in (meshjoin, ssbj, sscj, pq, diner, miner) for experiment in paper.FIGURES
}
"""All experiments by name, such as ``ssbj-4a``."""


def chosen(names: Iterable[str]) -> list[Experiment]:
    """Return the experiments that ``names`` lists by name or by paper; if ``names`` is empty, return all experiments.

    >>> [e.name for e in chosen(["ssbj-4a", "meshjoin"])][:2]
    ['ssbj-4a', 'meshjoin-5a']
    """
    found: dict[str, Experiment] = {}
    for given in names:
        name = given.lower()
        of_paper = {e.name: e for e in EXPERIMENTS.values() if e.source.name.lower() == name}
        if not of_paper and name not in EXPERIMENTS:
            papers = ", ".join(dict.fromkeys(e.source.name.lower() for e in EXPERIMENTS.values()))
            raise ConfigError(
                f"experiment: expected a paper ({papers}) or one of {', '.join(EXPERIMENTS)}; got {given!r}"
            )
        found |= of_paper or {name: EXPERIMENTS[name]}
    return list((found or EXPERIMENTS).values())
