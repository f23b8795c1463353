"""What to expect of a join, and of the others in its place, without measuring anything.

Predictions come from the cost model, for the stream as it came if the join has looked at it, with what
:mod:`millrace.semistream.choose.unit_costs` knows of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.core.errors import ConfigError
from millrace.cost.engine import PREDICTED, Prediction, predict
from millrace.cost.frequencies import Frequencies
from millrace.semistream.algorithms import ALGORITHMS
from millrace.semistream.choose.auto import ASSUMED_SKEW
from millrace.semistream.choose.situation import situation_of
from millrace.semistream.choose.unit_costs import Assumed, assumed

if TYPE_CHECKING:
    from millrace.semistream.choose.choice import Candidate
    from millrace.semistream.join import SemiStreamJoin


@dataclass(frozen=True)
class Outlook:
    """What the model says of a join."""

    stream: str
    """What is joined, in words."""
    machine: str
    """What it is joined with."""
    left_out: list[str]
    """What the model knows nothing of."""
    own: Prediction | None
    why_none: str
    """Empty if there is a prediction."""
    others: list[Candidate]
    """The other algorithms that have a model."""
    without_model: list[str]


def outlook(join: SemiStreamJoin) -> Outlook | str:
    """What to expect of a join that is bound; why nothing can be said, where that is so."""
    if not join.spec.stream_key:
        return "the model is of joins by a key"
    if not join.store.rows:
        return "the master is empty"
    frequencies, stream = _stream(join)
    machine = assumed(join.store, join.device)
    own, why_none = _own(join, frequencies, machine)
    others = [other for other in _others(join, frequencies, machine) if other.algorithm != join.algorithm.name]
    known = {join.algorithm.name, *(other.algorithm for other in others)}
    without_model = [name for name in ALGORITHMS if name not in known]
    return Outlook(stream, machine.words, _left_out(join), own, why_none, others, without_model)


def memory_of(join: SemiStreamJoin) -> int:
    """What the join has for itself, beside what knowing the stream takes."""
    return join.budget.total - (join.auto.nbytes if join.auto else 0)


def _stream(join: SemiStreamJoin) -> tuple[Frequencies, str]:
    seen = join.auto.seen if join.auto else None
    if seen is not None:
        return seen, f"a stream as it came, in {seen.keys:,.0f} keys"
    keys = max(1, join.store.manifest.keys)
    return Frequencies.zipf(ASSUMED_SKEW, keys), f"a moderately skewed stream (Zipf {ASSUMED_SKEW:g}, {keys:,} keys)"


def _own(join: SemiStreamJoin, frequencies: Frequencies, machine: Assumed) -> tuple[Prediction | None, str]:
    name = join.algorithm.name
    if name not in PREDICTED or ALGORITHMS[name] is not join.algorithm:
        return None, f"{name} has no model"
    given = {option: value for option, value in join.options.items() if option in ("cache_share", "l")}
    situation = situation_of(join, frequencies, disk=machine.disk, costs=machine.costs)
    try:
        return predict(situation, name, memory_of(join), b=join.b, **given), ""
    except ConfigError as error:
        return None, str(error)


def _others(join: SemiStreamJoin, frequencies: Frequencies, machine: Assumed) -> list[Candidate]:
    from millrace.semistream.choose.choice import Candidate, choose

    spec = join.spec
    try:
        choice = choose(
            join.store,
            frequencies=frequencies,
            memory=memory_of(join),
            device=join.device,
            disk=machine.disk,
            costs=machine.costs,
            on=dict(zip(spec.stream_key, spec.master_key, strict=True)),
            stream=join.stream_schema,
            columns=spec.columns,
            suffix=spec.suffix,
        )
    except ConfigError as error:
        return [Candidate(name, None, str(error)) for name in PREDICTED]
    return [other for other in choice.candidates if other.algorithm in PREDICTED]


def _left_out(join: SemiStreamJoin) -> list[str]:
    facts = (
        ("that keys repeat unevenly", not join.store.unique),
        ("the condition", join.where is not None),
        ("the order of rows", join.ordered),
        ("load shedding", join.shedding is not None),
    )
    return [words for words, there in facts if there]
