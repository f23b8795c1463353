"""The specification of a join of two inputs: the keys, the kind of join, and the output columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import pyarrow as pa

from millrace.core.errors import ConfigError, SchemaError, one_of

How = Literal["inner", "left", "right", "full", "semi", "anti"]
On = str | Sequence[str] | tuple[str, str] | Sequence[tuple[Any, ...]]
SideName = Literal["left", "right"]
SIDES: tuple[SideName, SideName] = ("left", "right")


@dataclass(frozen=True)
class PairSpec:
    """What a join of two inputs computes, as far as it is known before any rows arrive.

    Parameters
    ----------
    keys
        Key columns of the left and of the right input, in the same order.
    how
        ``inner``, ``left``, ``right``, ``full``, ``semi`` (left rows with a match, each once) or ``anti`` (left rows
        without a match).
    ranged
        Whether keys match if they are within a band, rather than equal; the right key is then output too.
    suffix
        Text that is appended to the name of a right column if the left input has a column of that name. If it is None,
        such a name is an error.
    """

    keys: tuple[tuple[str, ...], tuple[str, ...]]
    how: How
    ranged: bool
    suffix: str | None

    @staticmethod
    def of(on: On, how: str = "inner", ranged: bool = False, suffix: str | None = None) -> PairSpec:
        """Create the specification from a join's arguments, after checking them.

        >>> PairSpec.of(("bid", "ask"), ranged=True).keys
        (('bid',), ('ask',))
        >>> PairSpec.of(["day", "shop"]).keys
        (('day', 'shop'), ('day', 'shop'))
        """
        wanted = "a column name, a list of them, or a pair (left name, right name)"
        if isinstance(on, str):
            keys: tuple[tuple[Any, ...], tuple[Any, ...]] = ((on,), (on,))
        elif isinstance(on, tuple) and len(on) == 2:
            keys = ((on[0],), (on[1],))
        elif isinstance(on, list):
            keys = (tuple(on), tuple(on))
        else:
            raise SchemaError(f"on: expected {wanted}; got {on!r}")
        names = [name for side in keys for name in side]
        if not names or not all(isinstance(name, str) for name in names):
            raise SchemaError(f"on: expected {wanted}; got {on!r}")
        if any(len(set(side)) != len(side) for side in keys):
            raise SchemaError(f"on: a column is named twice in {on!r}")
        if ranged and len(keys[0]) != 1:
            raise ConfigError(f"band: expected one key column; got {', '.join(keys[0])}")
        if suffix is not None and not isinstance(suffix, str):
            raise SchemaError(f"suffix: expected text such as '_right'; got {suffix!r}")
        return PairSpec(keys, cast(How, one_of("how", how, get_args(How))), ranged, suffix)

    @property
    def emits_right(self) -> bool:
        """Whether the output has columns of the right input."""
        return self.how not in ("semi", "anti")

    def keeps(self, side: int) -> bool:
        """Return whether unmatched rows of a side are output."""
        return self.how in (("left", "full", "anti") if side == 0 else ("right", "full"))

    @property
    def tracks(self) -> bool:
        """Whether the join must keep track of which rows have matched."""
        return self.how != "inner"

    def check_side(self, side: int, schema: pa.Schema) -> None:
        """Check that an input has its key columns, and that no column name is repeated."""
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise SchemaError(f"{SIDES[side]}: columns appear more than once: {', '.join(repeated)}")
        for name in self.keys[side]:
            if name not in schema.names:
                raise SchemaError(f"{SIDES[side]}: has no key column {name!r}; it has {', '.join(schema.names)}")

    def right_columns(self, right: pa.Schema) -> list[int]:
        """Return the positions of the right input's output columns, without key columns that equal the left ones."""
        if not self.emits_right:
            return []
        return [i for i, name in enumerate(right.names) if self.ranged or name not in self.keys[1]]

    def output_schema(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """Return the output schema: the columns of the left input, then those of the right."""
        optional = self.how in ("right", "full")
        fields = [field.with_nullable(True) if optional else field for field in left.remove_metadata()]
        taken = set(left.names)
        for i in self.right_columns(right):
            field = right.field(i)
            name = field.name
            if name in taken and self.suffix is not None:
                name += self.suffix
            if name in taken:
                advice = "choose another suffix" if self.suffix else "tell them apart with suffix='_right'"
                raise SchemaError(f"output: both inputs have a column {name!r}; rename one, or {advice}")
            taken.add(name)
            fields.append(field.with_name(name).with_nullable(True))
        return pa.schema(fields)


def schema_difference(side: str, bound: pa.Schema, came: pa.Schema) -> str:
    """Describe how the schema of a later batch of an input differs from that of its first batch."""
    for field in bound:
        at = came.get_field_index(field.name)
        if at < 0:
            return f"{side}: column {field.name!r} ({field.type}) is missing from a later batch"
        if came.field(at).type != field.type:
            return f"{side}: column {field.name!r} was {field.type} and is {came.field(at).type} in a later batch"
    return (
        f"{side}: expected the columns {', '.join(bound.names)}, in this order; "
        f"a later batch has {', '.join(came.names)}"
    )
