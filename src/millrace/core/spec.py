"""The specification of a join: its keys, the kind of join, and the master columns in its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

import pyarrow as pa

from millrace.core.errors import SchemaError, one_of

How = Literal["inner", "left", "semi", "anti"]
On = str | Sequence[str] | Mapping[str, str]


@dataclass(frozen=True)
class JoinSpec:
    """The specification of a join of a stream with a master, made before either is read.

    Parameters
    ----------
    stream_key, master_key
        Names of the key columns of both sides, in the same order; empty for a join without a key.
    how
        ``inner``, ``left`` (stream rows without a match are output with nulls), ``semi`` (stream rows with a match,
        once each) or ``anti`` (stream rows without a match).
    columns
        Master columns in the output, in this order; None for all but the key.
    suffix
        Appended to the name of a master column that the stream has too; None makes such a clash an error.
    """

    stream_key: tuple[str, ...]
    master_key: tuple[str, ...]
    how: How
    columns: tuple[str, ...] | None
    suffix: str | None

    @staticmethod
    def of(
        on: On,
        how: str = "inner",
        columns: Sequence[str] | None = None,
        suffix: str | None = None,
    ) -> JoinSpec:
        """Make a specification from the arguments of a join as users write them.

        >>> JoinSpec.of({"cust": "custkey"}, "left").master_key
        ('custkey',)
        """
        if isinstance(on, str):
            pairs = [(on, on)]
        elif isinstance(on, Mapping):
            pairs = list(on.items())
        elif isinstance(on, Sequence):
            pairs = [(name, name) for name in on]
        else:
            raise SchemaError(f"on: expected a column name, a list of names, or a mapping; got {on!r}")
        if not pairs or not all(isinstance(name, str) for pair in pairs for name in pair):
            raise SchemaError(f"on: expected a column name, a list of names, or a mapping; got {on!r}")
        return JoinSpec._made(pairs, how, columns, suffix)

    @staticmethod
    def without_key(how: str = "inner", columns: Sequence[str] | None = None, suffix: str | None = None) -> JoinSpec:
        """Make the specification of a join without a key: the master's key is a column like any other."""
        return JoinSpec._made([], how, columns, suffix)

    @staticmethod
    def _made(
        pairs: Sequence[tuple[str, str]], how: str, columns: Sequence[str] | None, suffix: str | None
    ) -> JoinSpec:
        if isinstance(columns, str):
            raise SchemaError(f"columns: expected a list of column names; got the text {columns!r}")
        if columns is not None and not isinstance(columns, Sequence):
            raise SchemaError(f"columns: expected a list of column names; got {columns!r}")
        if suffix is not None and not isinstance(suffix, str):
            raise SchemaError(f"suffix: expected text such as '_master'; got {suffix!r}")
        return JoinSpec(
            stream_key=tuple(stream for stream, _ in pairs),
            master_key=tuple(master for _, master in pairs),
            how=cast(How, one_of("how", how, get_args(How))),
            columns=None if columns is None else tuple(columns),
            suffix=suffix,
        )

    def in_order_of(self, key: Sequence[str]) -> JoinSpec:
        """Return the specification with its key columns in the order of ``key``.

        If ``key`` does not have the same columns, the specification is returned unchanged.
        """
        if sorted(key) != sorted(self.master_key):
            return self
        order = [self.master_key.index(name) for name in key]
        return replace(self, stream_key=tuple(self.stream_key[i] for i in order), master_key=tuple(key))

    @property
    def emits_master(self) -> bool:
        """Whether master columns are part of the output."""
        return self.how in ("inner", "left")

    def master_columns(self, master: pa.Schema) -> list[int]:
        """Return the positions of the master columns that are in the output."""
        if not self.emits_master:
            return []
        wanted = [n for n in master.names if n not in self.master_key] if self.columns is None else self.columns
        missing = [name for name in wanted if name not in master.names]
        if missing:
            listed = ", ".join(master.names)
            raise SchemaError(f"columns: the master has no {', '.join(map(repr, missing))}; it has {listed}")
        if len(set(wanted)) != len(wanted):
            raise SchemaError(f"columns: a column is named twice in {list(wanted)}")
        return [master.get_field_index(name) for name in wanted]

    def check_keys(self, stream: pa.Schema, master: pa.Schema, store_key: Sequence[str]) -> None:
        """Check the keys of the stream and of the store against the specification; raise an error if they do not fit.

        The store must have this master key. The stream must have the key columns, with types that can be compared with
        the master's, and no column name twice.
        """
        if self.master_key and tuple(self.master_key) != tuple(store_key):
            raise SchemaError(
                f"on: the master store is keyed by {', '.join(store_key)}; got {', '.join(self.master_key)}"
            )
        repeated = sorted({name for name in stream.names if stream.names.count(name) > 1})
        if repeated:
            raise SchemaError(f"stream: columns appear more than once: {', '.join(repeated)}")
        for ours, theirs in zip(self.stream_key, self.master_key, strict=True):
            if ours not in stream.names:
                raise SchemaError(f"stream: has no key column {ours!r}; it has {', '.join(stream.names)}")
            got, expected = stream.field(ours).type, master.field(theirs).type
            if not _fits(got, expected):
                raise SchemaError(
                    f"stream: key column {ours!r} is {got}, but the master's {theirs!r} is {expected}; "
                    f"cast the stream's column to {expected}"
                )

    def output_schema(self, stream: pa.Schema, master: pa.Schema) -> pa.Schema:
        """Return the schema of the output: the stream's columns, then the master's."""
        fields = list(stream.remove_metadata())
        taken = set(stream.names)
        for i in self.master_columns(master):
            field = master.field(i)
            name = field.name
            if name in taken and self.suffix is not None:
                name += self.suffix
            if name in taken and field.name in self.master_key:
                raise SchemaError(f"columns: the output has the key {field.name!r} from the stream; leave it out")
            if name in taken:
                advice = "choose another suffix" if self.suffix else "tell them apart with suffix='_master'"
                raise SchemaError(
                    f"output: both the stream and the master have a column {name!r}; "
                    f"choose master columns with columns=[…] or {advice}"
                )
            taken.add(name)
            fields.append(field.with_name(name).with_nullable(True))
        return pa.schema(fields)


def _fits(stream: pa.DataType, master: pa.DataType) -> bool:
    """Return whether values of two key types can be compared.

    They can if the types are equal, both are strings, both are binary, or both are signed integers and the stream's
    is not wider than the master's.
    """
    plain = stream.value_type if pa.types.is_dictionary(stream) else stream
    if plain == master or _family(plain) == _family(master) != "":
        return True
    if pa.types.is_signed_integer(plain) and pa.types.is_signed_integer(master):
        return bool(plain.bit_width <= master.bit_width)
    return False


def _family(type_: pa.DataType) -> str:
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "text"
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return "bytes"
    return ""
