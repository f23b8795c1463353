"""The arms of a star join: the masters that a stream is joined with, and their order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any

import pyarrow as pa

from millrace.core.errors import ConfigError, MillraceError, SchemaError
from millrace.core.sizes import parse_size
from millrace.core.spec import JoinSpec, On
from millrace.master.store import MasterStore
from millrace.semistream.arguments import AUTO
from millrace.semistream.conditions.condition import Condition
from millrace.semistream.join import SemiStreamJoin
from millrace.semistream.sizing.least_memory import least_memory


class Arm:
    """One master of a star join, and how the stream is joined with it.

    Parameters
    ----------
    master
        A :class:`MasterStore` or its path.
    on
        Name of the key column on both sides; a list of names; or a mapping from the left side's names to the master's.
        The left side has the columns of the stream and those that earlier arms add (a snowflake).
    how
        ``"inner"``, ``"left"``, ``"semi"`` or ``"anti"``.
    columns
        Master columns that come out; all but the key by default.
    suffix
        Appended to the names of master columns that the stream or an earlier arm has too.
    algorithm
        A name from the table of algorithms, or ``"auto"`` to let the arm's join choose.
    share
        The arm's part of the star's memory: bytes, ``"16MB"``, or ``"25%"``; by default the star decides.
    name
        The arm's name in metrics and errors; by default the name of the store's directory.
    **options
        Options of the algorithm, or of :class:`SemiStreamJoin`.

    Examples
    --------
    >>> import tempfile
    >>> parts = pa.table({"partkey": [1, 2], "brand": ["x", "y"]})
    >>> store = MasterStore.build(parts, tempfile.mkdtemp() + "/parts", key="partkey")
    >>> Arm(store, on={"part": "partkey"}, how="left")
    Arm('parts', on=part, how=left)
    """

    def __init__(
        self,
        master: MasterStore | str | os.PathLike[str],
        on: On,
        how: str = "inner",
        *,
        columns: Sequence[str] | None = None,
        suffix: str | None = None,
        algorithm: str = AUTO,
        share: str | int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self.store = master if isinstance(master, MasterStore) else MasterStore.open(master)
        if "memory" in options:
            raise ConfigError(
                f"arm {name or self.store.path.name!r}: memory: the arms of a star share its memory; "
                "set one arm's part with share="
            )
        self.on, self.how, self.columns, self.suffix = on, how, columns, suffix
        self.algorithm, self.share, self.name, self.options = algorithm, share, name, options

    @staticmethod
    def of(arm: Any) -> Arm:
        """Return an arm from an :class:`Arm`, a tuple ``(master, on, how)``, or a mapping of arguments."""
        if isinstance(arm, Arm):
            return arm
        if isinstance(arm, tuple) and len(arm) in (2, 3):
            return Arm(*arm)
        if isinstance(arm, Mapping) and {"master", "on"} <= set(arm):
            return Arm(**arm)
        raise ConfigError(
            f"arms: expected Arm(master, on=…), (master, on, how), or a mapping with master and on; got {arm!r}"
        )

    def with_how(self, how: str) -> Arm:
        """Return the same arm with another kind of join."""
        other = copy(self)
        other.__dict__.pop("spec", None)
        other.how = how
        return other

    def with_algorithm(self, algorithm: str) -> Arm:
        """Return the same arm with another algorithm."""
        other = copy(self)
        other.algorithm = algorithm
        return other

    def __repr__(self) -> str:
        on = ", ".join(self.spec.stream_key)
        return f"Arm({self.name or self.store.path.name!r}, on={on}, how={self.how})"

    @cached_property
    def spec(self) -> JoinSpec:
        """Keys, kind of join, and columns."""
        return JoinSpec.of(self.on, self.how, self.columns, self.suffix).in_order_of(self.store.key)

    @property
    def added_columns(self) -> list[str]:
        """Names of the master columns that come out, before any suffix."""
        return [self.store.schema.field(place).name for place in self.spec.master_columns(self.store.schema)]

    def fixed(self, total: int) -> int | None:
        """Return how many bytes of ``total`` the user has set for the arm; None if the star decides."""
        if self.share is None:
            return None
        return parse_size(self.share, of=total, subject=f"arm {self.name!r}: share")

    def join(self, memory: int) -> SemiStreamJoin:
        """Return the arm's join with this much memory."""
        return SemiStreamJoin(self.store, self.on, self.how, memory=memory, **self._arguments)

    @property
    def _arguments(self) -> dict[str, Any]:
        """Arguments of the arm's join besides the master, the keys and the memory."""
        return {"algorithm": self.algorithm, "columns": self.columns, "suffix": self.suffix, **self.options}

    @property
    def needs(self) -> list[str]:
        """Names of the columns by which the arm joins, of the stream or of earlier arms."""
        where = self.options.get("where")
        return [*self.spec.stream_key, *(where.stream if isinstance(where, Condition) else ())]

    def least_join(self, stream: pa.Schema | None = None) -> SemiStreamJoin:
        """Return the arm's join with the least memory, bound to the stream if that is known."""
        join = self.join(least_memory(self.store, self.on, self.how, stream, **self._arguments))
        if stream is not None:
            join.bind(stream)
        return join

    def check_names(self, taken: Mapping[str, str]) -> None:
        """Raise an error if a column that the arm adds has a name in ``taken``, which maps names to their origin."""
        for column in self.added_columns:
            name = column + (self.suffix or "") if column in taken else column
            if name in taken and column in self.spec.master_key:
                raise SchemaError(f"columns: the output has the key {column!r} already; leave it out")
            if name in taken:
                advice = "choose another suffix" if self.suffix else "tell them apart with suffix='_…'"
                raise SchemaError(
                    f"output: {taken[name]} has a column {name!r} already; "
                    f"choose master columns with columns=[…] or {advice}"
                )


def read(arms: Any) -> list[Arm]:
    """Return the arms of a star as :class:`Arm` objects, at least one, each with a unique name."""
    if isinstance(arms, str | Mapping | Arm) or not isinstance(arms, Sequence):
        raise ConfigError(f"arms: expected a list of arms; got {arms!r}")
    found = [copy(Arm.of(arm)) for arm in arms]
    if not found:
        raise ConfigError("arms: expected at least one arm; got an empty list")
    stores = [arm.store.path.name for arm in found]
    for arm, store in zip(found, stores, strict=True):
        if arm.name is None:
            with naming(store):
                key = ", ".join(arm.spec.stream_key)
            arm.name = store if stores.count(store) == 1 else f"{store} on {key}"
    names = [arm.name for arm in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"arms: two arms have the name {twice[0]!r}; set other names with name=")
    return found


@contextmanager
def naming(name: str | None) -> Iterator[None]:
    """Add the name of an arm to errors that are raised inside the ``with`` block."""
    try:
        yield
    except MillraceError as error:
        error.args = (f"arm {name!r}: {error}",)
        raise


def output_names(arms: Sequence[Arm], stream: Sequence[str]) -> list[str]:
    """Return the names of the output's columns.

    Raise an error that names the arm if it joins by a column that does not exist before it, or if it adds a column
    that the output already has.
    """
    taken = dict.fromkeys(stream, "the stream")
    for place, arm in enumerate(arms):
        with naming(arm.name):
            _check_known(arm, taken, arms[place + 1 :])
            arm.check_names(taken)
        for column in arm.added_columns:
            taken[column + (arm.suffix or "") if column in taken else column] = f"arm {arm.name!r}"
    return list(taken)


def _check_known(arm: Arm, known: Mapping[str, str], later: Sequence[Arm]) -> None:
    for key in arm.needs:
        what = "on" if key in arm.spec.stream_key else "where"
        if key in known:
            continue
        later_arm = next((other for other in later if key in other.added_columns), None)
        if later_arm is not None:
            raise SchemaError(
                f"{what}: {key!r} is a column of arm {later_arm.name!r}, which comes later; put that arm first"
            )
        raise SchemaError(
            f"{what}: neither the stream nor an earlier arm has a column {key!r}; the columns are {', '.join(known)}"
        )


def run_order(arms: Sequence[Arm], stream: Sequence[str]) -> list[int]:
    """Return the places of the arms in the cheapest order.

    Arms that join by columns of the stream can be run in any order. Those that only filter (semi, anti) are first, then
    inner arms with at most one match per tuple, then left arms with at most one match, and last arms with several
    matches; arms of the same kind keep the given order. An arm that joins by another arm's column comes after that arm.
    If names repeat, so that suffixes depend on the order, the given order is kept.
    """
    names = [*stream, *(name for arm in arms for name in arm.added_columns)]
    if len(set(names)) < len(names):
        return list(range(len(arms)))
    known, left, order = set(stream), list(range(len(arms))), []
    while left:
        ready = [place for place in left if known.issuperset(arms[place].needs)]
        chosen = min(ready, key=lambda place: (_rank(arms[place]), place))
        left.remove(chosen)
        order.append(chosen)
        known.update(arms[chosen].added_columns)
    return order


def _rank(arm: Arm) -> int:
    if arm.how in ("semi", "anti"):
        return 0
    if not arm.store.unique:
        return 3
    return 1 if arm.how == "inner" else 2
