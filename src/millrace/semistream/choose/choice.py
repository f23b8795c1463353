"""Chooses an algorithm and its options: predicts how fast each algorithm can join the master, and picks the best.

The best has the highest service rate with a given memory, or takes the least memory for a given rate. Algorithms
without a cost model are not considered. For algorithms that cannot join this master the reason is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.core.errors import BudgetTooSmallError, ConfigError, OutOfReachError
from millrace.core.sizes import format_size, parse_size
from millrace.core.spec import On
from millrace.cost import tuner
from millrace.cost.engine import PREDICTED
from millrace.cost.frequencies import Frequencies
from millrace.cost.measured import MeasuredCosts
from millrace.cost.prediction import Prediction
from millrace.cost.symbols import Disk, UnitCosts
from millrace.cost.workload import Workload
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.rows.columns import plain_schema
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.arguments import JoinArguments
from millrace.semistream.binding import bind
from millrace.semistream.choose.join_workload import workload_of
from millrace.semistream.choose.validate import check_algorithms, check_given, check_goal, check_master

_STREAM = (("sid", pa.int64()), ("quantity", pa.int32()), ("price", pa.float32()))


@dataclass(frozen=True)
class Candidate:
    """An algorithm that was considered, and what was predicted for it."""

    algorithm: str
    prediction: Prediction | None
    """Prediction of the cost model; None if the algorithm cannot be used."""
    why_not: str
    """Reason why the algorithm was not chosen; empty for the best one."""


@dataclass(frozen=True)
class Choice:
    """The best algorithm, and all that were considered."""

    best: Prediction
    flat: tuple[int, int]
    """Smallest and largest size of a load or page, in rows, whose rate is within 5 % of the best."""
    candidates: tuple[Candidate, ...]

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of a join that uses this choice."""
        found: dict[str, Any] = {"algorithm": self.best.algorithm, "memory": self.best.memory}
        if self.best.b:
            found["b"] = self.best.b
        if self.best.cache_share is not None:
            found["cache_share"] = self.best.cache_share
        return found

    def explain(self) -> str:
        """Return the choice, its budget, its prediction, and why other algorithms were not chosen, as text."""
        best = self.best
        least, greatest = self.flat
        lines = [
            f"{best.algorithm}: {ALGORITHMS[best.algorithm].summary}",
            f"  memory {format_size(best.memory)}",
        ]
        if best.b:
            lines[-1] += f", b = {best.b:,} rows (from {least:,} to {greatest:,} about as good)"
        if best.cache_share is not None:
            lines[-1] += f", cache_share = {best.cache_share:g}"
        for part, nbytes in sorted(best.parts.items(), key=lambda item: -item[1]):
            lines.append(f"  {part:>10} {format_size(nbytes):>10}  {nbytes / best.memory:6.1%}")
        lines += [
            f"  {per_second(best.rate)} predicted, {best.hit_share:.0%} of the tuples answered by the cache",
            f"  a step takes {in_seconds(best.c_loop)} for {best.w:,.0f} tuples; tuples that wait do so for "
            f"{in_seconds(best.mean_wait)} on average and at most {in_seconds(best.worst_wait)}",
            "not chosen:",
        ]
        lines += [f"  {other.algorithm:>10}: {other.why_not}" for other in self.candidates if other.why_not]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the choice as plain values, for JSON."""
        best = self.best
        return {
            "algorithm": best.algorithm,
            "parameters": {name: value for name, value in self.options.items() if name not in ("algorithm", "memory")},
            "memory": best.memory,
            "parts": {part: round(nbytes) for part, nbytes in best.parts.items()},
            "rate": _finite(best.rate),
            "hit_share": best.hit_share,
            "wait": {"mean": best.mean_wait, "worst": best.worst_wait},
            "step": {"seconds": best.c_loop, "tuples": best.w},
            "as_good": {"b": list(self.flat)},
            "alternatives": [
                {
                    "algorithm": other.algorithm,
                    "rate": other.prediction and _finite(other.prediction.rate),
                    "memory": other.prediction and other.prediction.memory,
                    "why_not": other.why_not,
                }
                for other in self.candidates
                if other.why_not
            ],
        }


def choose(
    master: MasterStore,
    *,
    frequencies: Frequencies,
    memory: str | int | None = None,
    rate: float | None = None,
    device: Device,
    disk: Disk | None = None,
    costs: UnitCosts | MeasuredCosts | None = None,
    on: On | None = None,
    how: str = "inner",
    stream: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    algorithms: Sequence[str] = PREDICTED,
    batch: int = 10_000,
) -> Choice:
    """Return the best algorithm for a given memory, or for a given rate.

    Parameters
    ----------
    frequencies
        Frequencies of the stream's keys.
    memory, rate
        One of them: the memory available, or the rate required in tuples per second.
    device
        The device that is read from; its modelled disk is used for predictions.
    disk, costs
        Measured costs of reading and of computing; by default those of the device's modelled disk, and 0 for computing.
    on, how, stream, columns, suffix
        As in the join. Without ``stream``, tuples are assumed to hold the key and 16 more bytes.
    algorithms
        Names of the algorithms to consider; by default all that have a cost model.
    batch
        Number of stream tuples per batch.
    """
    check_master(master)
    check_goal(memory, rate)
    check_given(frequencies, device, disk, costs, stream)
    check_algorithms(algorithms)
    nbytes = None if memory is None else parse_size(memory, of=master.nbytes)
    on = list(master.key) if on is None else on
    stream = _stream_like(master) if stream is None else stream
    found: dict[str, tuple[Prediction, Workload]] = {}
    refused: dict[str, str] = {}
    impossible: list[OutOfReachError | BudgetTooSmallError] = []
    for name in algorithms:
        try:
            arguments = JoinArguments.checked(
                master, on, how, algorithm=name, columns=columns, suffix=suffix, device=device, options={}
            )
            binding = bind(arguments, plain_schema(stream))
            workload = workload_of(arguments, binding, frequencies, disk=disk, costs=costs, batch=batch)
            if nbytes is not None:
                found[name] = tuner.for_memory(workload, name, nbytes), workload
            else:
                assert rate is not None
                found[name] = tuner.for_rate(workload, name, float(rate)), workload
        except (OutOfReachError, BudgetTooSmallError) as error:
            impossible.append(error)
            refused[name] = str(error)
        except ConfigError as error:
            refused[name] = str(error).removeprefix(f"{name}: ")
    if not found:
        raise _nearest(impossible, refused)
    best, workload = (
        max(found.values(), key=lambda pair: pair[0].rate)
        if rate is None
        else min(found.values(), key=lambda pair: pair[0].memory)
    )
    candidates = [Candidate(name, None, why) for name, why in refused.items()]
    for name, (prediction, _) in found.items():
        candidates.append(Candidate(name, prediction, _why_not(prediction, best, by_rate=rate is None)))
    return Choice(best, tuner.flat_region(workload, best), tuple(candidates))


def _nearest(
    impossible: list[OutOfReachError | BudgetTooSmallError], refused: dict[str, str]
) -> OutOfReachError | BudgetTooSmallError | ConfigError:
    """Return the error to raise if no algorithm reaches the goal.

    Of the errors in ``impossible``, it is that of the algorithm that comes nearest to the goal. If ``impossible`` is
    empty, the error lists the reasons in ``refused``, by algorithm.
    """
    fast = [error for error in impossible if isinstance(error, OutOfReachError)]
    small = [error for error in impossible if isinstance(error, BudgetTooSmallError)]
    if fast:
        return max(fast, key=lambda error: error.nearest)
    if small:
        return min(small, key=lambda error: error.minimum)
    return ConfigError("; ".join(f"{name}: {why}" for name, why in refused.items()))


def _why_not(prediction: Prediction, best: Prediction, *, by_rate: bool) -> str:
    if prediction is best:
        return ""
    if by_rate:
        part = "" if math.isinf(best.rate) else f", {prediction.rate / best.rate:.2f}x of the best"
        return per_second(prediction.rate) + part
    return f"needs {format_size(prediction.memory)}, {prediction.memory / best.memory:.2f}x of the least"


def _stream_like(master: MasterStore) -> pa.Schema:
    """Return the schema of a stream with the master's key and a few number columns."""
    fields = [master.schema.field(name) for name in master.key]
    taken = set(master.schema.names)
    return pa.schema([*fields, *(pa.field(name, type_) for name, type_ in _STREAM if name not in taken)])


def per_second(rate: float) -> str:
    """Return a rate in tuples per second as text."""
    return "as many tuples/s as the processor can" if math.isinf(rate) else f"{rate:,.0f} tuples/s"


def _finite(rate: float) -> float | None:
    """Return a rate, or None if it is infinite, which JSON cannot express."""
    return None if math.isinf(rate) else rate


def in_seconds(seconds: float) -> str:
    """Return a time in seconds as text with a fitting unit, such as ``3.2 ms``."""
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
