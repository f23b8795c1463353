"""``algorithm="auto"``: the join chooses its algorithm, observes the stream, and chooses again.

Without a modelled disk, a master with an index is joined by ``lookup``: few measurements found anything faster. Without
an index the master is scanned over and over, and the cost model decides whether frequent keys are cached (``ssbj``) or
not (``r-meshjoin``); once the whole master fits into the cache, no tuple waits. The cost model uses unit costs measured
on this machine, else defaults. On a modelled disk the cost model alone decides.

The cost model needs the frequencies of keys; until enough tuples have come, a moderately skewed stream is assumed.
After that the choice is repeated, less and less often but at least once in a million tuples (twenty million without a
modelled disk, where a join takes more tuples per second). Each time the weight of old tuples is halved, so that changes
of the stream are noticed.

A switch costs a drain: waiting tuples are answered by the algorithm that let them in, then the other one begins with an
empty cache. So the predicted gain has to be large.
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
"""Zipf exponent of the stream that is assumed until enough tuples have been observed."""
_STATISTICS = 65_536
_SHARE = 25  # at most 1/25 of the budget is for statistics
_ENOUGH = 50_000  # tuples that are needed to estimate the frequencies of keys
_LONGER, _SELDOM = 1.5, 1_000_000  # growth and limit of the pause between choices, in tuples; on a modelled disk
_LONGER_REAL, _SELDOM_REAL = 4, 20_000_000  # choosing takes a tenth of a second, as long as joining many tuples
_WORTHWHILE, _WORTHWHILE_REAL = 1.25, 1.1  # gain in rate required to switch; without a modelled disk a drain is short
_WHEEL = ("r-meshjoin", "ssbj")
_BATCH = 10_000  # tuples per batch, assumed before the first batch
_WHY_SPARE_HITS = "spare_hits sheds tuples that would have to wait, so it needs an algorithm in which tuples wait"


class Decision(NamedTuple):
    """An algorithm with its options, and why it was chosen."""

    algorithm: str
    options: dict[str, Any]
    why: str


def best_without_disk_model(store: MasterStore, *, keyed: bool = True, wheel: str = "") -> Decision:
    """Return the algorithm that was fastest in measurements without a modelled disk.

    The result depends on nothing but the arguments, so that a join and the driver of a cluster with many joins get the
    same. ``keyed`` says whether the join has a key. ``wheel`` is the reason why the master must be scanned even if it
    has an index; it is empty if there is no such reason.
    """
    if not keyed:
        return Decision("meshjoin", {}, "without a key every tuple has to be compared with every row")
    if not store.rows:
        return Decision("ssbj", {}, "the master is empty")
    if store.indexed and not wheel:
        return Decision("lookup", {}, "the master has an index, and no disk is modelled")
    return Decision("ssbj", {}, wheel or "the master has no index")


class Auto:
    """Chooses the algorithm of one join, and chooses again as it observes the stream."""

    def __init__(self, memory: int) -> None:
        self.nbytes = min(_STATISTICS, memory // _SHARE)
        """Bytes of the budget for statistics of the stream; 0 if the budget is too small for them."""
        if self.nbytes < LEAST_BYTES:
            self.nbytes = 0
        self._statistics = StreamStatistics(self.nbytes) if self.nbytes else None
        self._pause = self._next = _ENOUGH
        self._batches = self._tuples = 0
        self.why = ""
        """Reason for the current choice."""

    def observe(self, codes: Codes, valid: npt.NDArray[np.bool_] | None) -> None:
        """Count the keys of a batch of tuples; ``valid`` flags the keys that are not null (None: all)."""
        self._batches += 1
        self._tuples += len(codes)
        if self._statistics is not None:
            self._statistics.observe(codes if valid is None else codes[valid])

    @property
    def due(self) -> bool:
        """Whether it is time to choose again."""
        return self._statistics is not None and self._statistics.tuples >= self._next

    @property
    def observed(self) -> Frequencies | None:
        """Key frequencies observed in the stream; None before enough tuples have come."""
        if self._statistics is None or self._statistics.tuples < _ENOUGH:
            return None
        return Frequencies(*self._statistics.frequencies())

    def begin(self, arguments: JoinArguments, binding: Binding) -> Decision:
        """Return the first choice, made when only the columns of the stream are known."""
        decision = self._best_without_prediction(arguments)
        if decision is None:
            assumed = Frequencies.zipf(ASSUMED_SKEW, max(1, arguments.store.manifest.keys))
            decision = _best_of(self._predictions(arguments, binding, assumed), arguments)
        self.why = decision.why
        return decision

    def reconsider(self, arguments: JoinArguments, binding: Binding) -> Decision | None:
        """Return another choice if it is predicted to be so much better that a switch pays, else None."""
        assert self._statistics is not None
        modelled = arguments.device.disk is not None
        longer, seldom = (_LONGER, _SELDOM) if modelled else (_LONGER_REAL, _SELDOM_REAL)
        worthwhile = _WORTHWHILE if modelled else _WORTHWHILE_REAL
        self._pause = min(int(self._pause * longer), seldom)
        self._next = self._statistics.tuples + self._pause
        if self._best_without_prediction(arguments) is not None:
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
        """Set ``why`` for an algorithm that was not chosen here but came with a snapshot or with a kept cache."""
        self.why = why

    def _best_without_prediction(self, arguments: JoinArguments) -> Decision | None:
        """Return the choice if it can be made without predictions; None if the cost model has to decide."""
        keyed = bool(arguments.spec.stream_key)
        spares = arguments.shedding is not None and arguments.shedding.spare_hits
        as_modelled = arguments.device.disk is not None or not (arguments.store.indexed or spares)
        if keyed and arguments.store.rows and as_modelled:
            return None
        return best_without_disk_model(arguments.store, keyed=keyed, wheel=_WHY_SPARE_HITS if spares else "")

    def _predictions(
        self, arguments: JoinArguments, binding: Binding, frequencies: Frequencies
    ) -> dict[str, Prediction]:
        """Return a prediction for every algorithm that may be chosen."""
        memory = arguments.memory - self.nbytes
        batch = self._tuples // self._batches if self._tuples else _BATCH
        if arguments.device.disk is None:
            return _scan_predictions(arguments, binding, frequencies, memory, batch)
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


def _scan_predictions(
    arguments: JoinArguments, binding: Binding, frequencies: Frequencies, memory: int, batch: int
) -> dict[str, Prediction]:
    """Return predictions for algorithms that scan the master, without a modelled disk and with default load sizes.

    The result is empty if memory is too small for a prediction.
    """
    cached = arguments.with_algorithm("ssbj", {})
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
        return best_without_disk_model(arguments.store)
    first, *others = sorted(predictions.values(), key=lambda p: -p.rate)
    why = f"{first.rate:,.0f} tuples/s predicted"
    if others:
        why += f", {first.rate / others[0].rate:.2f}x of {others[0].algorithm}"
    options: dict[str, Any] = {"b": first.b} if first.b and arguments.device.disk is not None else {}
    if first.cache_share is not None:
        options["cache_share"] = first.cache_share
    return Decision(first.algorithm, options, why)
