"""Writes the text of ``explain()``: the plan of a join, its budget, its predicted rate and wait, and alternatives."""

from __future__ import annotations

from millrace.core.budget import MemoryBudget
from millrace.core.sizes import format_size
from millrace.cost.prediction import Prediction
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.arguments import JoinArguments
from millrace.semistream.choose.auto import Auto
from millrace.semistream.choose.choice import Candidate, in_seconds, per_second
from millrace.semistream.choose.forecast import Forecast, Running, forecast
from millrace.semistream.loop import JoinLoop

_NAME = 12
"""Width of the first column of a table, in characters."""
_UNLIMITED = 1e12
"""Predicted rates above this, in tuples per second, are shown as "no limit"; no computer is that fast."""


def explained(
    arguments: JoinArguments, budget: MemoryBudget, auto: Auto | None, shed: int, loop: JoinLoop | None
) -> str:
    """Return the plan, the split of the budget, the predicted rate and wait, and the alternatives, as text.

    ``loop`` is None as long as the stream's schema is not known; ``shed`` is the number of tuples shed so far.
    """
    lines = _plan(arguments, auto, shed, bound=loop is not None)
    if loop is None:
        return "\n".join([*lines, "  (split and predictions follow once the stream's schema is known)"])
    binding, access = loop.parts.binding, loop.access
    lines.append(f"  {access.explain()}")
    if binding.search is not None:
        lines.append(f"  {binding.search.explain()}")
    if not access.at_once:
        lines.append(f"  waiting room for {loop.order.capacity:,} tuples of {loop.room.tuple_bytes:.0f} bytes")
    if arguments.ordered:
        lines.append("  rows come out in the order of the stream; matches found early are held back")
    found = forecast(Running(arguments, binding, access.b, loop.room.tuple_bytes, auto))
    if isinstance(found, str):
        return "\n".join([*lines, *_budget(budget, auto, None), f"  no prediction: {found}"])
    return "\n".join([*lines, *_budget(budget, auto, found.own), *_expected(found), *_instead(arguments, found)])


def _plan(arguments: JoinArguments, auto: Auto | None, shed: int, *, bound: bool) -> list[str]:
    store, spec, algorithm = arguments.store, arguments.spec, arguments.algorithm
    lines = [
        f"{algorithm.name}: {algorithm.summary}",
        f"  {spec.how} join {arguments.matching} with {store.rows:,} master rows "
        f"({format_size(store.nbytes)}, {'unique keys' if store.unique else 'keys repeat'})",
        f"  memory {format_size(arguments.memory)}"
        + (f" = {arguments.memory / store.nbytes:.1%} of the master" if store.nbytes else ""),
    ]
    if auto is not None:
        lines[0] = f"auto, now {lines[0]}" if bound else "auto: the algorithm is chosen with the first batch"
        lines += [f"  chosen because {auto.why}"] if auto.why else []
    if arguments.shedding is not None:
        lines.append(f"  {arguments.shedding}; {shed:,} tuples shed so far")
    return lines


def _budget(budget: MemoryBudget, auto: Auto | None, expected: Prediction | None) -> list[str]:
    """Return a table of the budget as lines, one for each part: bytes now and predicted bytes."""
    parts, total = budget.parts(), budget.total
    then = {} if expected is None else dict(expected.parts)
    if auto is not None and auto.nbytes and then:
        then["statistics"] = auto.nbytes
    lines = [f"  {'budget':<{_NAME}}{'now':>18}{'predicted':>18}" if then else f"  {'budget':<{_NAME}}{'now':>18}"]
    rows = {part: (parts.get(part, 0), then.get(part, 0.0)) for part in {**parts, **then}}
    rows = dict(sorted(rows.items(), key=lambda row: -max(row[1])))
    rows["free"] = (budget.available, max(0.0, total - sum(then.values())))
    for part, (now, later) in rows.items():
        shown = f"  {part:<{_NAME}}{_share(now, total):>18}"
        lines.append(shown + f"{_share(later, total):>18}" if then else shown)
    return lines


def _share(nbytes: float, total: int) -> str:
    return f"{format_size(nbytes)} {nbytes / total:6.1%}"


def _expected(found: Forecast) -> list[str]:
    lines = [f"  predicted for {found.stream},", f"  {found.machine}"]
    if found.left_out:
        lines.append(f"  (the model leaves out {' and '.join(found.left_out)})")
    own = found.own
    if own is None:
        return [*lines, f"  {'rate':<{_NAME}}unknown: {found.why_none}"]
    wait = f"{in_seconds(own.mean_wait)} on average for tuples that wait, {in_seconds(own.worst_wait)} at most"
    return [
        *lines,
        f"  {'rate':<{_NAME}}{per_second(own.rate)}, {own.hit_share:.0%} of the tuples answered by the cache",
        f"  {'wait':<{_NAME}}{wait if own.worst_wait else 'no tuple waits'}",
    ]


def _instead(arguments: JoinArguments, found: Forecast) -> list[str]:
    """Return a table of the other algorithms as lines, fastest first: how each compares, or why it cannot be used."""
    able = [other for other in found.others if other.prediction is not None]
    able.sort(key=lambda other: -_rate(other))
    unable = [other for other in found.others if other.prediction is None]
    lines = [f"  {'instead':<{_NAME}}{'rate':>18}  "]
    lines += [f"  {other.algorithm:<{_NAME}}{_tuples(other):>18}  {_compared(other, found.own)}" for other in able]
    lines += [f"  {other.algorithm:<{_NAME}}{'-':>18}  {_why_unable(arguments, other)}" for other in unable]
    lines.append(f"  without a model: {', '.join(found.without_model)}")
    return [line.rstrip() for line in lines]


def _rate(other: Candidate) -> float:
    return other.prediction.rate if other.prediction is not None else 0.0


def _tuples(other: Candidate) -> str:
    return per_second(_rate(other)) if _rate(other) < _UNLIMITED else "no limit"


def _compared(other: Candidate, own: Prediction | None) -> str:
    """Return how another algorithm compares with this join in rate and wait, as text."""
    wait = "" if other.prediction is None else _waits(other.prediction)
    if own is None:
        return wait
    if own.rate == _rate(other):
        return f"no better; {wait}"
    if min(own.rate, _rate(other)) > _UNLIMITED:
        return f"no worse; {wait}"
    return f"{_rate(other) / own.rate:.2f}x of the rate; {wait}"


def _waits(prediction: Prediction) -> str:
    return f"waits up to {in_seconds(prediction.worst_wait)}" if prediction.worst_wait else "no tuple waits"


def _why_unable(arguments: JoinArguments, other: Candidate) -> str:
    algorithm = ALGORITHMS[other.algorithm]
    if algorithm.needs_index and not arguments.store.indexed:
        return "needs an index, which the master does not have"
    if not algorithm.many and not arguments.store.unique:
        return "needs a master whose keys do not repeat"
    return other.why_not
