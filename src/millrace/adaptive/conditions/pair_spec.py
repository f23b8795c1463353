"""What a join of two inputs is: the keys of both sides, the kind of join, and the columns that come out."""

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
    """A join of two inputs, as it is known before any row has come.

    Parameters
    ----------
    keys
        Key columns of the left and of the right input, in the same order.
    how
        ``inner``, ``left``, ``right``, ``full``, ``semi`` (left rows with a partner, once) or ``anti`` (left rows
        without one).
    ranged
        Whether keys only have to be near each other; the right one then comes out too.
    suffix
        Appended to the name of a right column that the left has too; None makes such a clash an error.
    """

    keys: tuple[tuple[str, ...], tuple[str, ...]]
    how: How
    ranged: bool
    suffix: str | None

    @staticmethod
    def of(on: On, how: str = "inner", ranged: bool = False, suffix: str | None = None) -> PairSpec:
        """Read the arguments as users write them.

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
            raise ConfigError(f"band: needs one key column; got {', '.join(keys[0])}")
        if suffix is not None and not isinstance(suffix, str):
            raise SchemaError(f"suffix: expected text such as '_right'; got {suffix!r}")
        return PairSpec(keys, cast(How, one_of("how", how, get_args(How))), ranged, suffix)

    @property
    def emits_right(self) -> bool:
        """Whether columns of the right side come out."""
        return self.how not in ("semi", "anti")

    def keeps(self, side: int) -> bool:
        """Return whether rows of a side come out without a partner too."""
        return self.how in (("left", "full", "anti") if side == 0 else ("right", "full"))

    @property
    def tracks(self) -> bool:
        """Whether it has to be known which rows have found a partner."""
        return self.how != "inner"

    def check_side(self, side: int, schema: pa.Schema) -> None:
        """Check that an input has its key columns, and no column name twice."""
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise SchemaError(f"{SIDES[side]}: columns appear more than once: {', '.join(repeated)}")
        for name in self.keys[side]:
            if name not in schema.names:
                raise SchemaError(f"{SIDES[side]}: has no key column {name!r}; it has {', '.join(schema.names)}")

    def right_columns(self, right: pa.Schema) -> list[int]:
        """Return the columns of the right side that come out: all but the key, which the left side supplies."""
        if not self.emits_right:
            return []
        return [i for i, name in enumerate(right.names) if self.ranged or name not in self.keys[1]]

    def output_schema(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """Return the columns of the result: those of the left input, then those of the right."""
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
    """Describe how the schema of a later batch differs from that of the first."""
    for field in bound:
        at = came.get_field_index(field.name)
        if at < 0:
            return f"{side}: column {field.name!r} ({field.type}) is missing from a later batch"
        if came.field(at).type != field.type:
            return f"{side}: column {field.name!r} was {field.type} and is {came.field(at).type} in a later batch"
    return f"{side}: a later batch has other columns, or in another order: {', '.join(came.names)}"
