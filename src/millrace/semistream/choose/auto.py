"""``algorithm="auto"``: the join chooses its algorithm, looks at the stream, and chooses again.

On the machine as it is, a master with an index has its rows looked up as tuples come: little measured is faster.
Without one the wheel turns, and the cost model decides whether frequent keys are cached, which becomes a join in memory
once the master fits; unit costs are those measured on this machine if they ever were, or else typical ones. On a
modelled disk the cost model decides alone. It has to know how often the keys come; until enough have come to tell, they
are taken to be moderately skewed. After that the stream is looked at again and again, ever more seldom but at least
once in a million tuples (in twenty on the machine as it is, where they come that fast), and each time old tuples count
for half as much, so that a stream that changes is noticed.

A change costs a drain: those who wait are answered by the algorithm they came to, then the other begins with an empty
cache. So it has to promise a good deal more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.errors import BudgetTooSmallError
from millrace.cost.engine import predict
from millrace.cost.frequencies import Frequencies
from millrace.cost.prediction import Prediction
from millrace.master.store import MasterStore
from millrace.rows.keyed_rows import Codes
from millrace.rows.stream_statistics import LEAST_BYTES, StreamStatistics
from millrace.semistream.arguments import JoinArguments
from millrace.semistream.binding import Binding
from millrace.semistream.choose.choice import choose
from millrace.semistream.choose.join_workload import workload_of
from millrace.semistream.choose.unit_costs import assumed
from millrace.semistream.sizing.least_memory import least_bytes

ASSUMED_SKEW = 0.75
"""Of a stream that nothing is known of yet."""
_STATISTICS = 65_536
_SHARE = 25  # of the budget, at most, goes to statistics
_ENOUGH = 50_000  # tuples, to tell how often keys come
_LONGER, _SELDOM = 1.5, 1_000_000  # on a modelled disk
_LONGER_AS_IT_IS, _SELDOM_AS_IT_IS = 4, 20_000_000  # a look takes a tenth of a second, in which many tuples could go by
_WORTHWHILE, _WORTHWHILE_AS_IT_IS = 1.25, 1.1  # a turn is short where no disk is modelled, and so is a drain
_WHEEL = ("r-meshjoin", "ssbj")
_BATCH = 10_000  # tuples that come together, before the first have
_SPARES = "tuples that would have to wait are to be shed, so some have to wait"


class Decision(NamedTuple):
    """What a join is to run with."""

    algorithm: str
    options: dict[str, Any]
    why: str


def as_it_is(store: MasterStore, *, keyed: bool = True, wheel: str = "") -> Decision:
    """What was measured to be best on a machine as it is, where no disk is modelled.

    Nothing but the store has to be known, so that whoever asks gets the same answer: the join, or the driver of a
    cluster for all of its workers. ``wheel`` says why tuples have to wait for a turn, if they have to.
    """
    if not keyed:
        return Decision("meshjoin", {}, "without a key every tuple has to meet every row")
    if not store.rows:
        return Decision("ssbj", {}, "the master is empty")
    if store.indexed and not wheel:
        return Decision("lookup", {}, "the master has an index, and no disk is modelled")
    return Decision("ssbj", {}, wheel or "the master has no index")


class Auto:
    """Chooses for one join."""

    def __init__(self, memory: int) -> None:
        self.nbytes = min(_STATISTICS, memory // _SHARE)
        """What knowing the stream takes of the budget."""
        if self.nbytes < LEAST_BYTES:
            self.nbytes = 0
        self._statistics = StreamStatistics(self.nbytes) if self.nbytes else None
        self._pause = self._next = _ENOUGH
        self._batches = self._tuples = 0
        self.why = ""
        """Why the join runs with what it does."""

    def observe(self, codes: Codes, valid: npt.NDArray[np.bool_] | None) -> None:
        """Tuples have come together with these keys."""
        self._batches += 1
        self._tuples += len(codes)
        if self._statistics is not None:
            self._statistics.observe(codes if valid is None else codes[valid])

    @property
    def due(self) -> bool:
        """Whether it is time to choose again."""
        return self._statistics is not None and self._statistics.tuples >= self._next

    @property
    def seen(self) -> Frequencies | None:
        """How often keys come, once enough tuples have come to tell."""
        if self._statistics is None or self._statistics.tuples < _ENOUGH:
            return None
        return Frequencies(*self._statistics.frequencies())

    def begin(self, arguments: JoinArguments, binding: Binding) -> Decision:
        """Return the first choice, when only the columns of the stream are known."""
        decision = self._measured(arguments)
        if decision is None:
            assumed = Frequencies.zipf(ASSUMED_SKEW, max(1, arguments.store.manifest.keys))
            decision = _best_of(self._predictions(arguments, binding, assumed), arguments)
        self.why = decision.why
        return decision

    def reconsider(self, arguments: JoinArguments, binding: Binding) -> Decision | None:
        """Return another choice, if it promises more for the stream as it came."""
        assert self._statistics is not None
        on_a_disk = arguments.device.disk is not None
        longer, seldom = (_LONGER, _SELDOM) if on_a_disk else (_LONGER_AS_IT_IS, _SELDOM_AS_IT_IS)
        worthwhile = _WORTHWHILE if on_a_disk else _WORTHWHILE_AS_IT_IS
        self._pause = min(int(self._pause * longer), seldom)
        self._next = self._statistics.tuples + self._pause
        if self._measured(arguments) is not None:
            return None
        predictions = self._predictions(arguments, binding, Frequencies(*self._statistics.frequencies()))
        self._statistics.decay()
        decision = _best_of(predictions, arguments)
        current = predictions.get(arguments.algorithm.name)
        if not predictions or (current and predictions[decision.algorithm].rate < worthwhile * current.rate):
            return None
        if (decision.algorithm, decision.options) == (arguments.algorithm.name, arguments.given_options):
            return None
        self.why = decision.why
        return decision

    def explain_choice(self, why: str) -> None:
        """Note why the join runs with what it does, where it was not chosen here."""
        self.why = why

    def _measured(self, arguments: JoinArguments) -> Decision | None:
        """Return what is best on a machine as it is; None on a modelled disk, or if tuples have to wait for a turn."""
        keyed = bool(arguments.spec.stream_key)
        spares = arguments.shedding is not None and arguments.shedding.spare_hits
        as_modelled = arguments.device.disk is not None or not (arguments.store.indexed or spares)
        if keyed and arguments.store.rows and as_modelled:
            return None
        return as_it_is(arguments.store, keyed=keyed, wheel=_SPARES if spares else "")

    def _predictions(
        self, arguments: JoinArguments, binding: Binding, frequencies: Frequencies
    ) -> dict[str, Prediction]:
        """Return what to expect of every algorithm that may be chosen."""
        memory = arguments.memory - self.nbytes
        batch = self._tuples // self._batches if self._tuples else _BATCH
        if arguments.device.disk is None:
            return _on_the_wheel(arguments, binding, frequencies, memory, batch)
        spec = arguments.spec
        choice = choose(
            arguments.store,
            frequencies=frequencies,
            memory=memory,
            device=arguments.device,
            on=dict(zip(spec.stream_key, spec.master_key, strict=True)),
            how=spec.how,
            stream=binding.stream,
            columns=spec.columns,
            suffix=spec.suffix,
            batch=batch,
        )
        return {c.algorithm: c.prediction for c in choice.candidates if c.prediction is not None}


def _on_the_wheel(
    arguments: JoinArguments, binding: Binding, frequencies: Frequencies, memory: int, batch: int
) -> dict[str, Prediction]:
    """Return predictions for the machine as it is, with loads as the join takes them by itself.

    There are none if memory is too small to tell.
    """
    cached = arguments.running("ssbj", {})
    if arguments.memory < least_bytes(cached, binding):
        return {}
    disk, costs, _ = assumed(arguments.store, arguments.device)
    workload = workload_of(cached, binding, frequencies, disk=disk, costs=costs, batch=batch)
    try:
        return {name: predict(workload, name, memory) for name in _WHEEL}
    except BudgetTooSmallError:
        return {}


def _best_of(predictions: dict[str, Prediction], arguments: JoinArguments) -> Decision:
    if not predictions:
        return as_it_is(arguments.store)
    first, *others = sorted(predictions.values(), key=lambda p: -p.rate)
    why = f"{first.rate:,.0f} tuples/s predicted"
    if others:
        why += f", {first.rate / others[0].rate:.2f}x of {others[0].algorithm}"
    options: dict[str, Any] = {"b": first.b} if first.b and arguments.device.disk is not None else {}
    if first.cache_share is not None:
        options["cache_share"] = first.cache_share
    return Decision(first.algorithm, options, why)
