"""The arguments of a semi-stream join, checked before its stream is known."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.core.errors import ConfigError, SchemaError
from millrace.core.lanes import Lanes
from millrace.core.sizes import parse_size
from millrace.core.space import Space
from millrace.core.spec import JoinSpec, On
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.rows.batch_builder import BATCH_ROWS
from millrace.semistream.algorithms import Algorithm, find_algorithm
from millrace.semistream.conditions.condition import Condition
from millrace.semistream.shedding import Shedding

AUTO = "auto"
"""The value of ``algorithm`` with which the join chooses the algorithm itself."""


@dataclass(frozen=True)
class JoinArguments:
    """Arguments of :class:`SemiStreamJoin <millrace.semistream.join.SemiStreamJoin>`, resolved and checked."""

    store: MasterStore
    spec: JoinSpec
    where: Condition | None
    algorithm: Algorithm
    automatic: bool
    """Whether the join chooses the algorithm."""
    memory: int
    b: int | None
    """Master rows per load, or per page; None if the user has not set it."""
    w: int | None
    """Tuples let into the waiting room per step; None if the user has not set it."""
    device: Device
    space: Space | None
    leave_early: bool
    lanes: Lanes
    output_rows: int
    ordered: bool
    """Whether rows come out in the order in which their stream tuples came."""
    shedding: Shedding | None
    options: Mapping[str, Any]
    """Options of the algorithm."""

    @classmethod
    def checked(
        cls,
        master: MasterStore | str | os.PathLike[str],
        on: On | None = None,
        how: str = "inner",
        *,
        where: Condition | None = None,
        algorithm: str | Algorithm | None = None,
        memory: str | int = "64MB",
        columns: Sequence[str] | None = None,
        suffix: str | None = None,
        b: int | None = None,
        w: int | None = None,
        device: Device | None = None,
        space: Space | None = None,
        leave_early: bool = True,
        threads: int | None = None,
        output_rows: int = BATCH_ROWS,
        ordered: bool | None = None,
        shed: str | Shedding | None = None,
        keep: float | str | None = None,
        options: Mapping[str, Any],
    ) -> JoinArguments:
        """Check the user's arguments, and return them with defaults filled in; errors name the wrong argument."""
        store = master if isinstance(master, MasterStore) else MasterStore.open(master)
        if where is not None and not isinstance(where, Condition):
            raise ConfigError(f"where: expected a condition, such as band(…) or compare(…); got {where!r}")
        spec = _spec(store, on, how, where, columns, suffix)
        automatic = isinstance(algorithm, str) and algorithm == AUTO
        if automatic:
            check_no_options([*options, *(["b"] if b is not None else [])])
        default = "ssbj" if spec.stream_key else "meshjoin"
        chosen = find_algorithm(default if algorithm is None or automatic else algorithm)
        if not spec.stream_key:
            chosen.check_keyless()
        for name, value in (("b", b), ("w", w), ("threads", threads), ("output_rows", output_rows)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}: expected a whole number of at least 1; got {value!r}")
        sizes = [name for name, value in (("b", b), ("w", w)) if value is not None]
        chosen.check_options([*sizes, *options])
        chosen.check_store(store)
        total = parse_size(memory, of=store.nbytes)
        if device is not None and not isinstance(device, Device):
            raise ConfigError(f"device: expected a Device, such as Device('hdd-2007'); got {device!r}")
        if ordered is not None and not isinstance(ordered, bool):
            raise ConfigError(f"ordered: expected True or False; got {ordered!r}")
        ordered = chosen.ordered if ordered is None else ordered
        shedding = _shedding(shed, keep, chosen, ordered)
        if not spec.stream_key and (ordered or (shedding is not None and shedding.by == "key")):
            what = "ordered" if ordered else "shed"
            raise ConfigError(f"{what}: works only in a join with a key; name the key columns with on=")
        return cls(
            store=store,
            spec=spec,
            where=where,
            algorithm=chosen,
            automatic=automatic,
            memory=total,
            b=None if b is None else most_rows(store, b),
            w=w,
            device=device or Device(),
            space=space,
            leave_early=leave_early,
            lanes=Lanes(threads or os.cpu_count() or 1),
            output_rows=output_rows,
            ordered=ordered,
            shedding=shedding,
            options=options,
        )

    def with_algorithm(self, algorithm: str, options: Mapping[str, Any]) -> JoinArguments:
        """Return the arguments of the same join with another algorithm and its options, which may include ``b``."""
        rest = {name: value for name, value in options.items() if name != "b"}
        return replace(self, algorithm=find_algorithm(algorithm), b=options.get("b"), options=rest)

    @property
    def matching(self) -> str:
        """Join keys and condition as text, such as ``on custkey``."""
        words = [f"on {', '.join(self.spec.stream_key)}"] if self.spec.stream_key else []
        return " ".join([*words, *([f"where {self.where}"] if self.where is not None else [])])

    @property
    def given_options(self) -> dict[str, Any]:
        """Options that were set for the algorithm, including ``b``; defaults are left out."""
        return {**({} if self.b is None else {"b": self.b}), **self.options}


JOIN_ARGUMENTS = frozenset(inspect.signature(JoinArguments.checked).parameters) - {"options"}
"""Names of the arguments that a join takes with every algorithm; all others are options of the algorithm."""


def most_rows(store: MasterStore, b: int) -> int:
    """Return ``b``, or the number of master rows if that is less."""
    return min(b, max(1, store.rows))


def _spec(
    store: MasterStore,
    on: On | None,
    how: str,
    where: Condition | None,
    columns: Sequence[str] | None,
    suffix: str | None,
) -> JoinSpec:
    if on is not None:
        spec = JoinSpec.of(on, how, columns, suffix).in_order_of(store.key)
    elif where is not None:
        spec = JoinSpec.without_key(how, columns, suffix)
    else:
        raise SchemaError(
            "on: expected a column name, a list of names, or a mapping; got None. To join without a key, set where="
        )
    spec.master_columns(store.schema)
    return spec


def check_no_options(options: Iterable[str]) -> None:
    """Raise an error that names the given options, if any: with ``algorithm="auto"`` the join chooses them."""
    given = ", ".join(options)
    if given:
        raise ConfigError(f"{given}: algorithm='auto' chooses options itself; name an algorithm to set them")


def _shedding(
    shed: str | Shedding | None, keep: float | str | None, algorithm: Algorithm, ordered: bool
) -> Shedding | None:
    if keep is not None and not isinstance(shed, str):
        raise ConfigError(f"keep: needs shed='random' or shed='key'; got keep={keep!r} with shed={shed!r}")
    if shed is None or isinstance(shed, Shedding):
        shedding = shed
    else:
        shedding = Shedding(shed, "auto" if keep is None else keep)
    if shedding is not None and shedding.spare_hits and (ordered or algorithm.at_once):
        why = "in ordered output a hit may wait too" if ordered else f"{algorithm.name} answers every tuple at once"
        raise ConfigError(f"spare_hits: expected False, because {why}; it drops only tuples that would have to wait")
    return shedding
