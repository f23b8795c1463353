"""The table of named algorithms: each is the same join with its own policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.adaptive.flush.buckets import (
    AdaptivePairs,
    BiasedBuckets,
    LargestPartition,
    LeastLikely,
    SymmetricBuckets,
)
from millrace.adaptive.flush.flush_policy import Flushing, NeverFlush
from millrace.adaptive.flush.regions import ThreeRegions
from millrace.adaptive.flush.run_pairs import RunPairs
from millrace.adaptive.pair.pair_state import Machinery
from millrace.adaptive.reactive.partitioned import AtTheEnd, BestOfBoth, Merging, Probing
from millrace.adaptive.reactive.reactive_policy import Idle, Reactive, ReactiveNL
from millrace.core.errors import ConfigError, one_of
from millrace.core.options import check_known, options_of


@dataclass(frozen=True)
class Algorithm:
    """One row of the table."""

    name: str
    flushing: Callable[..., Flushing]
    reactive: Callable[..., Reactive]
    summary: str
    ordered: bool = True
    """Whether rows are kept in the order of their keys: a band needs it. Else in the order of their hashes."""
    probes: bool = True
    """Whether rows meet the other side's as they come."""

    @property
    def spills(self) -> bool:
        """Whether it can go on when memory is full."""
        return self.flushing is not NeverFlush

    @property
    def partitions(self) -> int:
        """Into how many ranges of codes rows on disk are divided."""
        return int(getattr(self.flushing, "partitions", 1))

    @property
    def options(self) -> list[str]:
        """Options of its policies, as keyword arguments of the join."""
        return [*options_of(self.flushing), *options_of(self.reactive)]

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Whether it has these options, or an error that names those it has."""
        check_known(self.name, options, self.options)

    def check_band(self) -> None:
        """Whether it can join by a band, or an error that names those that can."""
        if not self.ordered:
            able = [other.name for other in ALGORITHMS.values() if other.ordered]
            raise ConfigError(f"{self.name}: finds partners by the hash of the key, so band= needs {', '.join(able)}")

    def make(self, machinery: Machinery, options: Mapping[str, Any]) -> tuple[Flushing, Reactive]:
        """Its policies for one join."""
        mine = options_of(self.flushing), options_of(self.reactive)
        flushing = self.flushing(machinery, **{name: value for name, value in options.items() if name in mine[0]})
        reactive = self.reactive(machinery, **{name: value for name, value in options.items() if name in mine[1]})
        return flushing, reactive


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "shj",
            NeverFlush,
            Idle,
            "symmetric: every row meets the other side's in memory; both inputs have to fit",
        ),
        Algorithm(
            "dphj",
            SymmetricBuckets,
            AtTheEnd,
            "as shj; when memory is full the largest bucket of both sides goes to disk and stays there",
            ordered=False,
        ),
        Algorithm(
            "xjoin",
            LargestPartition,
            Probing,
            "the largest partition of one side goes to disk; while nothing comes in it meets the other side's memory",
            ordered=False,
        ),
        Algorithm(
            "pmj",
            RunPairs,
            AtTheEnd,
            "memory is filled, both sides are sorted, joined and written; the runs are joined at the end",
            probes=False,
        ),
        Algorithm(
            "hmj",
            AdaptivePairs,
            Merging,
            "pairs of buckets go to disk so that memory stays balanced; while nothing comes in they are merged",
            ordered=False,
        ),
        Algorithm(
            "rpj",
            LeastLikely,
            BestOfBoth,
            "rows whose partners are least likely to come go to disk; while nothing comes in the best of both is done",
            ordered=False,
        ),
        Algorithm(
            "ehj",
            BiasedBuckets,
            AtTheEnd,
            "buckets of one side go to disk before any of the other",
            ordered=False,
        ),
        Algorithm(
            "diner",
            ThreeRegions,
            ReactiveNL,
            "rows of the key range that has produced least go to disk; blocks are joined while nothing comes in",
        ),
    )
}
"""All algorithms by name."""


def algorithm(name: str | Algorithm) -> Algorithm:
    """The algorithm of that name, or an error that lists them; one of your own is taken as it is."""
    return name if isinstance(name, Algorithm) else ALGORITHMS[one_of("algorithm", name, ALGORITHMS)]
