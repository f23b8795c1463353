"""The table of named algorithms: each is the same loop with its own policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.core.errors import ConfigError, one_of
from millrace.semistream.balanced import BalancedCache
from millrace.semistream.cache import Cache, NoCache, Surroundings


@dataclass(frozen=True)
class Algorithm:
    """One row of the table."""

    name: str
    cache: Callable[..., Cache]
    summary: str

    @property
    def options(self) -> list[str]:
        """Options of its policies, as keyword arguments of the join."""
        parameters = inspect.signature(self.cache).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

    def check_options(self, options: Mapping[str, Any]) -> None:
        unknown = [name for name in options if name not in self.options]
        if unknown:
            known = ", ".join(self.options) or "no options"
            raise ConfigError(f"{self.name}: unknown option {', '.join(unknown)}; it has {known}")

    def make_cache(self, around: Surroundings, options: Mapping[str, Any]) -> Cache:
        return self.cache(around, **options)


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "meshjoin",
            NoCache,
            "every tuple waits one turn of the wheel and shares each read with all who wait",
        ),
        Algorithm(
            "ssbj",
            BalancedCache,
            "keys whose master rows take less memory than their waiting tuples are cached",
        ),
    )
}
"""All algorithms by name."""


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name, or an error that lists them."""
    return ALGORITHMS[one_of("algorithm", name, ALGORITHMS)]
