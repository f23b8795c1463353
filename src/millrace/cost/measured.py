"""Unit costs that were measured with several budgets: a larger one is slower to look things up in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from millrace.core.errors import ConfigError
from millrace.cost.symbols import UnitCosts


@dataclass(frozen=True)
class MeasuredCosts:
    """Unit costs by memory, on straight lines over its logarithm in between.

    >>> costs = MeasuredCosts((1_000_000, 16_000_000), (UnitCosts(c_H=1e-9), UnitCosts(c_H=5e-9)))
    >>> costs.at(4_000_000).c_H
    3e-09
    """

    memory: tuple[int, ...]
    """Bytes, ascending."""
    costs: tuple[UnitCosts, ...]

    def __post_init__(self) -> None:
        if not self.memory or len(self.memory) != len(self.costs) or sorted(set(self.memory)) != list(self.memory):
            raise ConfigError(f"costs: expected unit costs for each of some ascending budgets; got {self.memory!r}")

    def at(self, memory: float) -> UnitCosts:
        """Unit costs of a join with this budget; beyond those measured, as with the nearest."""
        places = [math.log(m) for m in self.memory]
        where = math.log(max(1.0, memory))
        return UnitCosts(
            **{f.name: float(np.interp(where, places, [getattr(c, f.name) for c in self.costs])) for f in _FIELDS}
        )

    def to_plain(self) -> list[dict[str, Any]]:
        """As plain values, for JSON."""
        return [{"memory": m, **asdict(c)} for m, c in zip(self.memory, self.costs, strict=True)]

    @classmethod
    def from_plain(cls, plain: Sequence[dict[str, Any]]) -> MeasuredCosts:
        """What :meth:`to_plain` gave."""
        costs = [UnitCosts(**{name: p[name] for name in p if name != "memory"}) for p in plain]
        return cls(tuple(p["memory"] for p in plain), tuple(costs))


_FIELDS = fields(UnitCosts)
