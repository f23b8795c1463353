"""The conditions of a join of several inputs as a tree: exactly one path of conditions connects any two inputs.

::

    orders ──custkey── customers ──nationkey── nations          a chain
                            └──────segment──── segments         with a branch: a snowflake

Several conditions between the same two inputs count as one condition on several columns. An input's *attributes* are
the columns, or groups of columns, that it is joined on; each is listed once, even if several conditions use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from millrace.adaptive.conditions.key_matching import Band, KeyMatching
from millrace.adaptive.conditions.pair_spec import PairSpec
from millrace.core.errors import ConfigError, SchemaError

_TAKEN = ("self", "arrivals", "costs")

Columns = tuple[str, ...]


@dataclass(frozen=True)
class EdgeEnd:
    """One end of a condition: the number of an input, and the number of one of its attributes."""

    relation: int
    attribute: int


@dataclass(frozen=True)
class TreeEdge:
    """An edge of the tree: all conditions between two inputs."""

    number: int
    ends: tuple[EdgeEnd, EdgeEnd]
    columns: tuple[Columns, Columns]
    band: Band | None
    text: str


@dataclass(frozen=True)
class TreeStep:
    """One direction along an edge: from an input whose rows are known to the input in which matches are looked up."""

    edge: int
    side: int
    """Position (0 or 1) of ``origin``, the input whose rows are known, in the ``ends`` of the edge."""
    origin: EdgeEnd
    target: EdgeEnd


@dataclass(frozen=True)
class JoinTree:
    """The inputs of a join, their attributes, and the conditions between them."""

    names: tuple[str, ...]
    attributes: tuple[tuple[Columns, ...], ...]
    """For each input, the columns or groups of columns that it is joined on."""
    edges: tuple[TreeEdge, ...]

    @staticmethod
    def of(on: Sequence[Any], band: Band | None = None) -> JoinTree:
        """Parse conditions as users write them: pairs of ``"input.column"``, with an optional band as a third part.

        >>> tree = JoinTree.of([("a.x", "b.x"), ("b.y", "c.y", (-1, 1)), ("d.day", "b.day"), ("d.shop", "b.shop")])
        >>> tree.names, tree.attributes[1], tree.edges[1].band
        (('a', 'b', 'c', 'd'), (('x',), ('y',), ('day', 'shop')), (-1, 1))
        """
        if band is not None:
            raise ConfigError(f"band: expected each band as the third part of a condition in on=; got band={band!r}")
        attributes: dict[str, list[Columns]] = {}
        edges: list[TreeEdge] = []
        groups: dict[str, str] = {}
        for number, tie in enumerate(_input_pairs(on)):
            for name in tie.names:
                attributes.setdefault(name, [])
                groups.setdefault(name, name)
            joined, gone = (groups[name] for name in tie.names)
            if joined == gone:
                raise ConfigError(
                    f"on: {tie.text} closes a cycle: {tie.names[0]!r} and {tie.names[1]!r} are already connected by "
                    "the conditions before it; expected a tree, with one path between any two inputs"
                )
            groups = {name: joined if group == gone else group for name, group in groups.items()}
            columns = tie.columns(attributes)
            ends = []
            for name, each in zip(tie.names, columns, strict=True):
                if each not in attributes[name]:
                    attributes[name].append(each)
                ends.append(EdgeEnd(list(attributes).index(name), attributes[name].index(each)))
            edges.append(TreeEdge(number, (ends[0], ends[1]), columns, tie.band, tie.text))
        names = tuple(attributes)
        if len(set(groups.values())) > 1:
            apart = [name for name in names if groups[name] != groups[names[0]]]
            raise ConfigError(f"on: no condition connects {', '.join(apart)} to {names[0]}")
        return JoinTree(names, tuple(tuple(each) for each in attributes.values()), tuple(edges))

    def __str__(self) -> str:
        return " and ".join(
            edge.text if edge.band is None else f"{edge.text} within {edge.band}" for edge in self.edges
        )

    @property
    def simple(self) -> bool:
        """Whether every input has a single attribute and no condition is a band."""
        return all(len(each) == 1 for each in self.attributes) and all(edge.band is None for edge in self.edges)

    def steps_from(self, relation: int) -> list[TreeStep]:
        """Return the steps from an input to each input that a condition connects to it."""
        return [
            TreeStep(edge.number, side, edge.ends[side], edge.ends[1 - side])
            for edge in self.edges
            for side in (0, 1)
            if edge.ends[side].relation == relation
        ]

    def order(self, start: int, costs: Sequence[float]) -> list[TreeStep]:
        """Return the steps from one input to all others; each step takes the cheapest edge that leads to a new input.

        ``costs`` holds the cost of each edge.

        >>> chain = JoinTree.of([("a.x", "b.x"), ("b.y", "c.y"), ("c.z", "d.z")])
        >>> [chain.names[step.target.relation] for step in chain.order(1, [0.5, 0.1, 0.9])]
        ['c', 'a', 'd']
        """
        steps: list[TreeStep] = []
        known, open_ = {start}, self.steps_from(start)
        while open_:
            step = min(open_, key=lambda each: costs[each.edge])
            steps.append(step)
            known.add(step.target.relation)
            open_ = [
                each for each in (*open_, *self.steps_from(step.target.relation)) if each.target.relation not in known
            ]
        return steps

    def key_matchings(self, mixed: bool) -> list[KeyMatching]:
        """Return the key matching of each edge, in order; ``mixed`` says whether key codes are hashed."""
        return [
            KeyMatching(PairSpec(edge.columns, "inner", edge.band is not None, None), edge.band, mixed)
            for edge in self.edges
        ]

    def check(self, relation: int, schema: pa.Schema) -> None:
        """Check that an input has all columns that it is joined on, and that no column name is repeated."""
        name = self.names[relation]
        repeated = sorted({each for each in schema.names if schema.names.count(each) > 1})
        if repeated:
            raise SchemaError(f"{name}: columns appear more than once: {', '.join(repeated)}")
        for column in chain(*self.attributes[relation]):
            if column not in schema.names:
                raise SchemaError(f"{name}: has no column {column!r}; it has {', '.join(schema.names)}")

    def columns_out(self, relation: int, schema: pa.Schema) -> list[int]:
        """Return the positions of an input's output columns: all but keys that equal a column of an earlier input."""
        equal = {
            column
            for step in self.order(0, [0.0] * len(self.edges))
            if step.target.relation == relation and self.edges[step.edge].band is None
            for column in self.attributes[relation][step.target.attribute]
        }
        return [i for i, name in enumerate(schema.names) if name not in equal]

    def output_schema(self, schemas: Sequence[pa.Schema], suffix: str | None) -> pa.Schema:
        """Return the output schema. A repeated name gets the suffix, or without one, the input's name as a prefix."""
        fields: list[pa.Field] = []
        taken: set[str] = set()
        for relation, schema in enumerate(schemas):
            for i in self.columns_out(relation, schema):
                field = schema.field(i).remove_metadata()
                name = field.name
                if name in taken:
                    name = f"{self.names[relation]}.{name}" if suffix is None else name + suffix
                if name in taken:
                    raise SchemaError(f"output: there are two columns {name!r}; rename one, or choose another suffix")
                taken.add(name)
                fields.append(field.with_name(name) if relation == 0 else field.with_name(name).with_nullable(True))
        return pa.schema(fields)


@dataclass(frozen=True)
class _InputPair:
    """All conditions between two inputs, collected while conditions are parsed."""

    names: tuple[str, str]
    pairs: list[tuple[str, str]]
    """Pairs of columns, one of each input."""
    bands: list[Band | None]
    texts: list[str]

    @property
    def text(self) -> str:
        return " and ".join(self.texts)

    @property
    def band(self) -> Band | None:
        return self.bands[0]

    def columns(self, known: Mapping[str, Sequence[Columns]]) -> tuple[Columns, Columns]:
        """Return the columns that the conditions compare: those of the first input, and their partners in the second.

        ``known`` lists the attributes of each input, which are groups of columns. If one of them consists of the same
        columns as the conditions, the columns have its order, else the order of the conditions.
        """
        pairs = self.pairs
        for side, name in enumerate(self.names):
            for group in known[name]:
                if sorted(group) == sorted(pair[side] for pair in self.pairs):
                    pairs = sorted(self.pairs, key=lambda pair: group.index(pair[side]))
                    break
        return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _input_pairs(on: Sequence[Any]) -> list[_InputPair]:
    """Group conditions by the two inputs that they connect."""
    ties: dict[frozenset[str], _InputPair] = {}
    for condition in on:
        (one, column), (other, match), band = _parts(condition)
        text = f"{one}.{column} = {other}.{match}"
        if one == other:
            raise ConfigError(f"on: {text} joins {one!r} with itself; expected two different inputs")
        tie = ties.setdefault(frozenset((one, other)), _InputPair((one, other), [], [], []))
        pair = (column, match) if tie.names[0] == one else (match, column)
        if pair in tie.pairs:
            raise ConfigError(f"on: {text} is given twice")
        tie.pairs.append(pair)
        tie.bands.append(band)
        tie.texts.append(text)
        if len(tie.pairs) > 1 and any(each is not None for each in tie.bands):
            raise ConfigError(
                f"on: {tie.text}: expected a band to be the only condition between two inputs; "
                f"got {len(tie.pairs)} conditions"
            )
    return list(ties.values())


def is_tree(on: Any) -> bool:
    """Return whether ``on`` is a list of conditions rather than of column names."""
    return isinstance(on, list) and bool(on) and not any(isinstance(each, str) for each in on)


def _parts(condition: Any) -> tuple[tuple[str, str], tuple[str, str], Band | None]:
    wanted = 'expected ("input.column", "input.column"), and a third part (least, greatest) for a band'
    if not isinstance(condition, tuple | list) or len(condition) not in (2, 3):
        raise SchemaError(f"on: {wanted}; got {condition!r}")
    ends = []
    for name in condition[:2]:
        table, dot, column = name.partition(".") if isinstance(name, str) else ("", "", "")
        if not (table and dot and column):
            raise SchemaError(f"on: {wanted}; got {condition!r}")
        if table in _TAKEN:
            raise ConfigError(
                f"on: an input cannot be called {table!r}, which is a parameter of run; got {condition!r}"
            )
        ends.append((table, column))
    band = condition[2] if len(condition) == 3 else None
    if len(condition) == 3 and (not isinstance(band, tuple | list) or len(band) != 2):
        raise ConfigError(f"on: {wanted}; got {condition!r}")
    return ends[0], ends[1], None if band is None else (band[0], band[1])
