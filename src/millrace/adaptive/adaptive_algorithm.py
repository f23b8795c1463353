"""A named algorithm: the same join as any other, with its own flush policy and reactive policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.adaptive.flush.flush_policy import FlushPolicy
from millrace.adaptive.inputs.join_inputs import JoinInputs
from millrace.adaptive.reactive.reactive_policy import ReactivePolicy
from millrace.core.options import check_known, options_of


@dataclass(frozen=True)
class AdaptiveAlgorithm:
    """One row of a table of algorithms."""

    name: str
    flushing: Callable[..., FlushPolicy]
    """The class of the flush policy, or a function that makes one."""
    reactive: Callable[..., ReactivePolicy]
    """The class of the reactive policy, or a function that makes one."""
    summary: str
    ordered: bool = True
    """Whether rows are kept in the order of their keys, which a band needs; else in the order of their hashes."""
    probes: bool = True
    """Whether rows are joined with the other inputs' rows in memory as they come."""

    @property
    def spills(self) -> bool:
        """Whether the join can go on when memory is full."""
        return bool(getattr(self.flushing, "spills", True))

    @property
    def partitions(self) -> int:
        """Ranges of codes that rows on disk are divided into."""
        return int(getattr(self.flushing, "partitions", 1))

    @property
    def options(self) -> list[str]:
        """Options of the policies, as keyword arguments of the join."""
        return [*options_of(self.flushing), *options_of(self.reactive)]

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Check that the policies have these options, or raise an error that lists those they have."""
        check_known(self.name, options, self.options)

    def policies(self, inputs: JoinInputs[Any], options: Mapping[str, Any]) -> tuple[FlushPolicy, ReactivePolicy]:
        """Return the policies for one join."""
        mine = options_of(self.flushing), options_of(self.reactive)
        flushing = self.flushing(inputs, **{name: value for name, value in options.items() if name in mine[0]})
        reactive = self.reactive(inputs, **{name: value for name, value in options.items() if name in mine[1]})
        return flushing, reactive
