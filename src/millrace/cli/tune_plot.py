"""Plots the rate that is predicted for every algorithm against memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from millrace.core.errors import BudgetTooSmallError, ConfigError
from millrace.semistream.choose.choice import Choice

_DECADES = 1.0  # powers of ten of memory that are drawn on each side of the choice
_PLACES = 13


def draw(path: Path, chosen: Choice, at: Callable[[int], Choice]) -> None:
    """Draw a line of predicted rates against memory for every algorithm, and mark ``chosen``.

    ``at`` is a function that returns the choice for a memory budget in bytes.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plot: needs matplotlib; pip install 'millrace[plot]'") from None

    lines: dict[str, list[tuple[float, float]]] = {}
    for memory in np.geomspace(chosen.best.memory / 10**_DECADES, chosen.best.memory * 10**_DECADES, _PLACES):
        try:
            choice = at(int(memory))
        except BudgetTooSmallError:
            continue
        for candidate in choice.candidates:
            if candidate.prediction is not None:
                lines.setdefault(candidate.algorithm, []).append((memory / 1e6, candidate.prediction.rate))
    figure = Figure(figsize=(6.4, 3.8))
    axes = figure.subplots()
    for name, points in lines.items():
        axes.loglog(*zip(*points, strict=True), label=name, linewidth=2 if name == chosen.best.algorithm else 1)
    axes.plot(chosen.best.memory / 1e6, chosen.best.rate, "o", color="#1f6f8b")
    axes.set_xlabel("memory, MB")
    axes.set_ylabel("predicted tuples per second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130, bbox_inches="tight")
