"""The algorithms for joins of two inputs, each with its own policies."""

from __future__ import annotations

from millrace.adaptive.adaptive_algorithm import AdaptiveAlgorithm
from millrace.adaptive.flush.buckets import (
    AdaptivePairs,
    BiasedBuckets,
    LargestPartition,
    LeastLikely,
    SymmetricBuckets,
)
from millrace.adaptive.flush.flush_policy import NeverFlush
from millrace.adaptive.flush.regions import ThreeRegions
from millrace.adaptive.flush.run_pairs import RunPairs
from millrace.adaptive.reactive.block_nested_loops import ReactiveNL
from millrace.adaptive.reactive.partition_policies import CleanUpOnly, DiskProbing, ProbeOrMerge, SegmentMerging
from millrace.adaptive.reactive.reactive_policy import NoReactivePhase
from millrace.core.errors import ConfigError, one_of

ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        AdaptiveAlgorithm(
            "shj",
            NeverFlush,
            NoReactivePhase,
            "symmetric: every row is joined with the other side's rows in memory; both inputs have to fit",
        ),
        AdaptiveAlgorithm(
            "dphj",
            SymmetricBuckets,
            CleanUpOnly,
            "as shj; when memory is full the largest bucket of both sides goes to disk and stays there",
            ordered=False,
        ),
        AdaptiveAlgorithm(
            "xjoin",
            LargestPartition,
            DiskProbing,
            "the largest partition of one side goes to disk; while no rows arrive it probes the other side's memory",
            ordered=False,
        ),
        AdaptiveAlgorithm(
            "pmj",
            RunPairs,
            CleanUpOnly,
            "memory is filled, both sides are sorted, joined and written; the runs are joined at the end",
            probes=False,
        ),
        AdaptiveAlgorithm(
            "hmj",
            AdaptivePairs,
            SegmentMerging,
            "pairs of buckets go to disk so that memory stays balanced; while no rows arrive they are merged",
            ordered=False,
        ),
        AdaptiveAlgorithm(
            "rpj",
            LeastLikely,
            ProbeOrMerge,
            "rows least likely to match later go to disk; then as xjoin or hmj, whichever promises more results",
            ordered=False,
        ),
        AdaptiveAlgorithm(
            "ehj",
            BiasedBuckets,
            CleanUpOnly,
            "buckets of one side go to disk before any of the other",
            ordered=False,
        ),
        AdaptiveAlgorithm(
            "diner",
            ThreeRegions,
            ReactiveNL,
            "rows of the key range with the fewest results go to disk; blocks are joined while no rows arrive",
        ),
    )
}
"""Algorithms for two inputs, by name."""


def pair_algorithm(given: str | AdaptiveAlgorithm) -> AdaptiveAlgorithm:
    """Return an algorithm by name, or raise an error that lists the names; return a user's own algorithm unchanged."""
    return given if isinstance(given, AdaptiveAlgorithm) else ALGORITHMS[one_of("algorithm", given, ALGORITHMS)]


def check_band(algorithm: AdaptiveAlgorithm) -> None:
    """Check that an algorithm supports band joins, or raise an error that lists the algorithms that do."""
    if not algorithm.ordered:
        able = [other.name for other in ALGORITHMS.values() if other.ordered]
        raise ConfigError(
            f"band: {algorithm.name} finds matches by hashes of keys, so it cannot join on a band; "
            f"use one of {', '.join(able)}"
        )
