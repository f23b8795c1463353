"""Unit costs that were measured with several memory budgets, because look-ups in more memory are slower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from millrace.core.errors import ConfigError
from millrace.core.sizes import format_size
from millrace.cost.symbols import Disk, UnitCosts


@dataclass(frozen=True)
class MeasuredCosts:
    """Unit costs measured with several budgets, interpolated linearly over the logarithm of the budget.

    >>> costs = MeasuredCosts((1_000_000, 16_000_000), (UnitCosts(c_H=1e-9), UnitCosts(c_H=5e-9)))
    >>> round(costs.at(4_000_000).c_H * 1e9, 3)
    3.0
    """

    memory: tuple[int, ...]
    """The budgets in bytes, ascending."""
    costs: tuple[UnitCosts, ...]

    def __post_init__(self) -> None:
        if not self.memory or len(self.memory) != len(self.costs) or sorted(set(self.memory)) != list(self.memory):
            raise ConfigError(
                "costs: expected budgets in ascending order, with unit costs for each; "
                f"got budgets {self.memory!r} with {len(self.costs)} unit costs"
            )

    def at(self, memory: float) -> UnitCosts:
        """Return the unit costs of a join with this budget.

        If the budget is outside the measured range, the costs of the nearest measured budget are returned.
        """
        places = [math.log(m) for m in self.memory]
        where = math.log(max(1.0, memory))
        return UnitCosts(
            **{
                f.name: float(np.interp(where, places, [getattr(c, f.name) for c in self.costs]))
                for f in fields(UnitCosts)
            }
        )

    def to_plain(self) -> list[dict[str, Any]]:
        """Return one dictionary per budget, with the budget and its unit costs, to be written as JSON."""
        return [{"memory": m, **asdict(c)} for m, c in zip(self.memory, self.costs, strict=True)]

    @classmethod
    def from_plain(cls, plain: Sequence[dict[str, Any]]) -> MeasuredCosts:
        """Create measured costs from the dictionaries that :meth:`to_plain` returned."""
        costs = [UnitCosts(**{name: p[name] for name in p if name != "memory"}) for p in plain]
        return cls(tuple(p["memory"] for p in plain), tuple(costs))


@dataclass(frozen=True)
class Calibration:
    """Measured unit costs, and how much the measurements vary."""

    costs: MeasuredCosts
    disk: Disk
    """Cost of loading a page that is found through the index: ``seek`` seconds, without the costs of its rows."""
    spread: dict[str, float] = field(default_factory=dict)
    """For each unit cost, half the distance between the quartiles of its measurements, relative to the median."""

    def explain(self) -> str:
        """Return a text table of the unit costs for each budget, and of their spread."""
        names = [name for name in vars(self.costs.costs[0]) if any(getattr(c, name) for c in self.costs.costs)]
        heads = "".join(f"{name:>10}" for name in names)
        lines = [f"{'ns':>10}{heads}"]
        for memory, costs in zip(self.costs.memory, self.costs.costs, strict=True):
            lines.append(f"{format_size(memory):>10}" + "".join(f"{getattr(costs, n) * 1e9:10,.1f}" for n in names))
        lines.append(f"{'spread':>10}" + "".join(f"{self.spread.get(n, 0.0):10.0%}" for n in names))
        lines.append(f"a page found through the index: {self.disk.seek * 1e6:.2f} µs in addition to its rows")
        return "\n".join(lines)
