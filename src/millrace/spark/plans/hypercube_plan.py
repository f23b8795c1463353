"""What a join of several streams sends to its workers: the attributes of each input, and the grid of cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from millrace.rows.key_codes import KeyCoder
from millrace.spark.plans.stream_join_plan import StreamJoinPlan


class Attribute(NamedTuple):
    """Columns of an input that are joined on, by their places, and the dimension of the grid they belong to."""

    dimension: int
    places: tuple[int, ...]


class JoinStep(NamedTuple):
    """A condition, followed from an input whose rows are found to one whose rows are looked up."""

    origin: int
    origin_attribute: Attribute
    target: int
    target_attribute: Attribute


@dataclass(frozen=True)
class HypercubePlan(StreamJoinPlan):
    """A join of several streams."""

    attributes: tuple[tuple[Attribute, ...], ...]
    """The attributes of each input; its rows are kept in order of the first."""
    key_types: tuple[bytes, ...]
    """By dimension, the Arrow schema in which its attributes are compared, serialized."""
    parts: tuple[int, ...]
    """By dimension, the number of parts that it is cut into."""
    steps: tuple[tuple[JoinStep, ...], ...]
    """By input, the steps from its rows to those of all others."""
    output_places: tuple[tuple[int, ...], ...]
    """By input, the places of its columns in the output."""

    @property
    def block_bytes(self) -> int:
        """Size of a block of rows, in bytes: every step but the last holds one, and one more while it is combined."""
        return self.memory // (4 * len(self.schemas))

    def _fixed(self) -> tuple[Any, ...]:
        return (self.schemas, self.attributes, self.key_types, self.parts, self.names)

    @cached_property
    def coders(self) -> tuple[KeyCoder, ...]:
        """By dimension, the key that its inputs have in common."""
        schemas = [pa.ipc.read_schema(pa.py_buffer(types)) for types in self.key_types]
        return tuple(KeyCoder(schema.types, schema.names) for schema in schemas)
