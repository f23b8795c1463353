"""What a join of several streams sends to its workers.

The shards are the cells of a grid. The grid has a dimension for every set of columns that conditions make equal; the
columns of one input in such a set are an attribute of the input. See :mod:`millrace.spark.streams.hypercube_parts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from millrace.rows.key_codes import KeyCoder
from millrace.spark.plans.stream_join_plan import StreamJoinPlan


class Attribute(NamedTuple):
    """The columns of an input that are compared in one dimension of the grid; ``places`` holds their positions."""

    dimension: int
    places: tuple[int, ...]


class JoinStep(NamedTuple):
    """A step of a join, which matches the rows found in the input ``origin`` with the rows of the input ``target``."""

    origin: int
    origin_attribute: Attribute
    target: int
    target_attribute: Attribute


@dataclass(frozen=True)
class HypercubePlan(StreamJoinPlan):
    """The plan of a join of several streams in the cells of a grid."""

    attributes: tuple[tuple[Attribute, ...], ...]
    """The attributes of each input. The rows of an input are kept sorted by the key code of its first attribute."""
    key_types: tuple[bytes, ...]
    """For each dimension, the types in which its attributes are compared, as a serialized Arrow schema."""
    parts: tuple[int, ...]
    """For each dimension of the grid, the number of parts that its values are divided into."""
    steps: tuple[tuple[JoinStep, ...], ...]
    """For each input, the steps that lead from its rows to the matching rows of all other inputs."""
    output_places: tuple[tuple[int, ...], ...]
    """For each input, the positions of the columns that are in the output."""

    @property
    def block_bytes(self) -> int:
        """Size of a block of rows, in bytes. Each step but the last holds one block, or two while combining pieces."""
        return self.memory // (4 * len(self.schemas))

    def _fixed(self) -> tuple[Any, ...]:
        return (self.schemas, self.attributes, self.key_types, self.parts, self.names)

    @cached_property
    def coders(self) -> tuple[KeyCoder, ...]:
        """For each dimension of the grid, the :class:`KeyCoder` that computes key codes from the columns joined on."""
        schemas = [pa.ipc.read_schema(pa.py_buffer(types)) for types in self.key_types]
        return tuple(KeyCoder(schema.types, schema.names) for schema in schemas)
