"""Predictions for a join and for other algorithms in its place, without measuring anything.

The predictions come from the cost model, for the observed stream if the join keeps statistics, with the unit costs of
:mod:`millrace.semistream.choose.unit_costs`.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.core.errors import ConfigError
from millrace.cost.engine import PREDICTED, predict
from millrace.cost.frequencies import Frequencies
from millrace.cost.prediction import Prediction
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.arguments import JoinArguments
from millrace.semistream.binding import Binding
from millrace.semistream.choose.auto import ASSUMED_SKEW, Auto
from millrace.semistream.choose.choice import Candidate, choose
from millrace.semistream.choose.join_workload import workload_of
from millrace.semistream.choose.unit_costs import Assumed, assumed


@dataclass(frozen=True)
class Forecast:
    """Predictions for a join and for other algorithms in its place."""

    stream: str
    """The assumed or observed stream, in words."""
    machine: str
    """The disk or unit costs used, in words."""
    left_out: list[str]
    """Properties of the join that the model does not cover."""
    own: Prediction | None
    """Prediction for the join with its current settings; None if none can be made, see ``why_none``."""
    why_none: str
    """Reason why ``own`` is None; empty if it is not."""
    others: list[Candidate]
    """Other algorithms that have a cost model, with predictions or reasons why they cannot be used."""
    without_model: list[str]
    """Names of the algorithms without a cost model."""


@dataclass(frozen=True)
class Running:
    """State of a running join that predictions depend on."""

    arguments: JoinArguments
    binding: Binding
    b: int
    tuple_bytes: float
    """Average bytes that a waiting tuple takes at the moment."""
    auto: Auto | None


def forecast(join: Running) -> Forecast | str:
    """Return predictions for a join, or the reason why there are none."""
    arguments = join.arguments
    if not arguments.spec.stream_key:
        return "the cost model covers only joins with a key"
    if not arguments.store.rows:
        return "the master is empty"
    frequencies, stream = _stream(join)
    machine = assumed(arguments.store, arguments.device)
    own, why_none = _own(join, frequencies, machine)
    others = [other for other in _others(join, frequencies, machine) if other.algorithm != arguments.algorithm.name]
    predicted = {arguments.algorithm.name, *(other.algorithm for other in others)}
    without_model = [name for name in ALGORITHMS if name not in predicted]
    return Forecast(stream, machine.words, _left_out(arguments), own, why_none, others, without_model)


def _memory(join: Running) -> int:
    """Return the bytes of the join's budget that are not for statistics of the stream."""
    return join.arguments.memory - (join.auto.nbytes if join.auto else 0)


def _stream(join: Running) -> tuple[Frequencies, str]:
    observed = join.auto.observed if join.auto else None
    if observed is not None:
        return observed, f"the stream so far, with {observed.keys:,.0f} keys"
    keys = max(1, join.arguments.store.manifest.keys)
    return Frequencies.zipf(ASSUMED_SKEW, keys), f"a moderately skewed stream (Zipf {ASSUMED_SKEW:g}, {keys:,} keys)"


def _own(join: Running, frequencies: Frequencies, machine: Assumed) -> tuple[Prediction | None, str]:
    algorithm = join.arguments.algorithm
    name = algorithm.name
    if name not in PREDICTED or ALGORITHMS[name] is not algorithm:
        return None, f"{name} has no model"
    given = {option: value for option, value in join.arguments.options.items() if option in ("cache_share", "l")}
    workload = workload_of(
        join.arguments,
        join.binding,
        frequencies,
        disk=machine.disk,
        costs=machine.costs,
        tuple_bytes=join.tuple_bytes,
    )
    try:
        return predict(workload, name, _memory(join), b=join.b, **given), ""
    except ConfigError as error:
        return None, str(error)


def _others(join: Running, frequencies: Frequencies, machine: Assumed) -> list[Candidate]:
    arguments = join.arguments
    spec = arguments.spec
    try:
        choice = choose(
            arguments.store,
            frequencies=frequencies,
            memory=_memory(join),
            device=arguments.device,
            disk=machine.disk,
            costs=machine.costs,
            on=dict(zip(spec.stream_key, spec.master_key, strict=True)),
            how=spec.how,
            stream=join.binding.stream,
            columns=spec.columns,
            suffix=spec.suffix,
        )
    except ConfigError as error:
        return [Candidate(name, None, str(error)) for name in PREDICTED]
    return [other for other in choice.candidates if other.algorithm in PREDICTED]


def _left_out(arguments: JoinArguments) -> list[str]:
    facts = (
        ("that some keys have more rows than others", not arguments.store.unique),
        ("the condition", arguments.where is not None),
        ("the order of rows", arguments.ordered),
        ("load shedding", arguments.shedding is not None),
    )
    return [words for words, there in facts if there]
