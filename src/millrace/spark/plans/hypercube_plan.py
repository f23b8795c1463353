"""What a join of several streams sends to its workers: the attributes of each input, and the grid of cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from millrace.rows.key_codes import KeyCoder
from millrace.spark.plans.stream_join_plan import StreamJoinPlan


class Attribute(NamedTuple):
    """The positions of columns of an input that are joined on together, and their dimension of the grid."""

    dimension: int
    places: tuple[int, ...]


class JoinStep(NamedTuple):
    """A step from one input (``origin``), whose rows are known, to another, whose matching rows are looked up."""

    origin: int
    origin_attribute: Attribute
    target: int
    target_attribute: Attribute


@dataclass(frozen=True)
class HypercubePlan(StreamJoinPlan):
    """A join of several streams, as its workers see it."""

    attributes: tuple[tuple[Attribute, ...], ...]
    """The attributes of each input; its rows are kept sorted by the first attribute's codes."""
    key_types: tuple[bytes, ...]
    """For each dimension, the Arrow schema in which its attributes are compared, serialized."""
    parts: tuple[int, ...]
    """For each dimension of the grid, the number of parts that it is cut into."""
    steps: tuple[tuple[JoinStep, ...], ...]
    """For each input, the steps that lead from its rows to the matching rows of all other inputs."""
    output_places: tuple[tuple[int, ...], ...]
    """For each input, the positions of those of its columns that are in the output."""

    @property
    def block_bytes(self) -> int:
        """Size of a block of rows, in bytes: all steps but the last hold one, and two while combining pieces."""
        return self.memory // (4 * len(self.schemas))

    def _fixed(self) -> tuple[Any, ...]:
        return (self.schemas, self.attributes, self.key_types, self.parts, self.names)

    @cached_property
    def coders(self) -> tuple[KeyCoder, ...]:
        """For each dimension, the coder of the key that its inputs have in common."""
        schemas = [pa.ipc.read_schema(pa.py_buffer(types)) for types in self.key_types]
        return tuple(KeyCoder(schema.types, schema.names) for schema in schemas)
