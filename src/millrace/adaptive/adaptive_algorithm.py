"""The description of an algorithm for adaptive joins: its name, its two policies, and how it keeps rows in memory.

The flush policy chooses the rows that go to disk when memory is full. The reactive policy joins rows on disk.
"""

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
    """A named algorithm: its flush policy, its reactive policy, and how it keeps and joins rows in memory."""

    name: str
    flushing: Callable[..., FlushPolicy]
    """Class of the flush policy, or a function that creates one."""
    reactive: Callable[..., ReactivePolicy]
    """Class of the reactive policy, or a function that creates one."""
    summary: str
    ordered: bool = True
    """Whether rows are kept in key order, which a band join needs; otherwise they are kept in hash order."""
    probes: bool = True
    """Whether new rows are joined with the other inputs' rows in memory as soon as they arrive."""

    @property
    def spills(self) -> bool:
        """Whether the join writes rows to disk when memory is full; if not, it fails."""
        return bool(getattr(self.flushing, "spills", True))

    @property
    def partitions(self) -> int:
        """Number of key-code ranges that rows on disk are divided into."""
        return int(getattr(self.flushing, "partitions", 1))

    @property
    def options(self) -> list[str]:
        """Names of the policies' options, which are keyword arguments of the join."""
        return [*options_of(self.flushing), *options_of(self.reactive)]

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise an error that lists the known options if a given option belongs to neither of the two policies."""
        check_known(self.name, options, self.options)

    def policies(self, inputs: JoinInputs[Any], options: Mapping[str, Any]) -> tuple[FlushPolicy, ReactivePolicy]:
        """Create the flush policy and the reactive policy of one join."""
        mine = options_of(self.flushing), options_of(self.reactive)
        flushing = self.flushing(inputs, **{name: value for name, value in options.items() if name in mine[0]})
        reactive = self.reactive(inputs, **{name: value for name, value in options.items() if name in mine[1]})
        return flushing, reactive
