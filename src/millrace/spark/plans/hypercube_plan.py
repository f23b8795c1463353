"""What the workers of a join of several streams are told: who has which attribute, and how the grid is cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.rows.key_codes import KeyCoder
from millrace.spark.plans.stream_join_plan import CODE, OperatorPlan, Placed, SortedRows, cast, frozen, present


class Attribute(NamedTuple):
    """Columns of an input that are joined on, by their places, and the dimension of the grid they belong to."""

    dimension: int
    places: tuple[int, ...]


class Along(NamedTuple):
    """A condition, as a way from an input whose rows are found to one whose rows are looked for."""

    origin: int
    ours: Attribute
    target: int
    theirs: Attribute


@dataclass(frozen=True)
class HypercubePlan(OperatorPlan):
    """Several streams.

    ``attributes`` are what each input is joined on; its rows are kept in order of the first. ``key_types`` are, by
    dimension, the types in which all who belong to it are compared, ``parts`` how many parts it is cut into. ``ways``
    are, by input, how its rows get to all others; ``wanted`` the places of the columns of each that come out.
    """

    attributes: tuple[tuple[Attribute, ...], ...]
    key_types: tuple[bytes, ...]
    parts: tuple[int, ...]
    ways: tuple[tuple[Along, ...], ...]
    wanted: tuple[tuple[int, ...], ...]

    @property
    def block_bytes(self) -> int:
        """On the way to the last input, each but the last holds as much, and once more while it is put together."""
        return self.memory // (4 * len(self.schemas))

    def _fixed(self) -> tuple[Any, ...]:
        return (self.schemas, self.attributes, self.key_types, self.parts, self.names)

    def shipped(self, side: int) -> pa.Schema:
        return self.arriving[side]

    @cached_property
    def coders(self) -> tuple[KeyCoder, ...]:
        """By dimension, the key its inputs have in common."""
        schemas = [pa.ipc.read_schema(pa.py_buffer(types)) for types in self.key_types]
        return tuple(KeyCoder(schema.types, schema.names) for schema in schemas)

    # the grid

    def placed(self, batch: pa.RecordBatch, side: int) -> Placed:
        """A row's cell where the dimensions it lacks are 0, and how far its other cells are from there."""
        mine = self.attributes[side]
        keep = present(batch, [place for attribute in mine for place in attribute.places])
        rows = batch if keep.all() else batch.filter(pa.array(keep))
        steps = [prod(self.parts[dimension + 1 :]) for dimension in range(len(self.parts))]
        cell = np.zeros(len(rows), np.int64)
        for attribute in mine:
            cell += steps[attribute.dimension] * self._part(rows, attribute)
        had = {attribute.dimension for attribute in mine}
        lacking = [
            range(0, steps[dimension] * size, steps[dimension])
            for dimension, size in enumerate(self.parts)
            if dimension not in had
        ]
        return Placed(rows, cell, tuple(map(sum, product(*lacking))))

    def _part(self, rows: pa.RecordBatch, attribute: Attribute) -> npt.NDArray[np.int64]:
        """Which part of its dimension; other bits of the hash for each, lest equal values meet on the diagonal."""
        hashes = self.coders[attribute.dimension].hashes(self.key(rows, attribute, 0))
        return (hashes >> (7 * attribute.dimension % 49)) % self.parts[attribute.dimension]

    # rows

    def key(self, rows: pa.RecordBatch, attribute: Attribute, ahead: int = 1) -> list[pa.Array]:
        """An attribute of every row, in the types of its dimension; ``ahead`` columns stand before a row's own."""
        columns = [rows.column(place + ahead) for place in attribute.places]
        return cast(columns, self.coders[attribute.dimension].types)

    def codes(self, rows: pa.RecordBatch, attribute: Attribute, ahead: int = 1) -> npt.NDArray[np.int64]:
        """An attribute's codes."""
        return self.coders[attribute.dimension].codes(self.key(rows, attribute, ahead))[0]

    def in_order(self, rows: pa.RecordBatch, side: int) -> SortedRows:
        codes = self.codes(rows, self.attributes[side][0], 0)
        return self.again(rows.add_column(0, CODE, pa.array(codes, pa.int64())), side)

    def again(self, rows: pa.RecordBatch, side: int, *, sort: bool = True) -> SortedRows:
        codes = frozen(rows.column(0).to_numpy())
        if sort and len(rows):
            order = np.argsort(codes, kind="stable")
            rows, codes = rows.take(pa.array(order)), frozen(codes[order])
        return SortedRows(rows, codes, None)
