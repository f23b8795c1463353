"""``join_streams`` of named inputs: the conditions determine a grid of shards, in which one query joins all inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from millrace.adaptive.conditions.join_tree import EdgeEnd, JoinTree
from millrace.core.errors import ConfigError, SchemaError
from millrace.rows.key_codes import KeyCoder
from millrace.spark import arrow_types as types
from millrace.spark.plans.hypercube_plan import Attribute, HypercubePlan, JoinStep
from millrace.spark.streams.hypercube_parts import grid_parts
from millrace.spark.streams.stream_inputs import (
    check_inputs,
    common_type,
    join_packed,
    name_folding,
    names_of_shards,
    output_field,
    shard_count,
    task_memory,
)
from millrace.spark.tasks.hypercube_join import HypercubeJoin
from millrace.spark.tasks.pack_rows import pack_hypercube_input
from millrace.worker.shipping import in_worker


def join_hypercube(
    frames: Mapping[str, DataFrame],
    on: Any,
    sizes: Mapping[str, float] | None,
    *,
    shards: int | None,
    memory: str | int,
    suffix: str | None,
    name: str | None,
) -> DataFrame:
    """Return the join of all named inputs, which one stateful operator computes."""
    tree = _tree(frames, on)
    ordered = {each: frames[each] for each in tree.names}
    check_inputs(ordered)
    schemas = [types.arrow_schema(df.schema, each) for each, df in ordered.items()]
    for relation, (schema, df) in enumerate(zip(schemas, ordered.values(), strict=True)):
        tree.check(relation, schema)
        for column in _joined_on(tree, relation):
            types.check_collation(df.schema[column], tree.names[relation])
    spark = next(iter(ordered.values())).sparkSession
    output = _output(ordered, tree, schemas, suffix)
    plan = hypercube_plan(
        tree,
        schemas,
        _sizes(tree, sizes),
        shard_count(spark, shards),
        partial(names_of_shards, spark),
        task_memory(spark, memory),
        types.sent_schema(output),
    )
    packers = [in_worker(pack_hypercube_input, plan, relation) for relation in range(len(ordered))]
    return join_packed(ordered, packers, HypercubeJoin(plan), output, name)


def hypercube_plan(
    tree: JoinTree,
    schemas: Sequence[pa.Schema],
    sizes: Sequence[float],
    shards: int,
    names: Callable[[int], tuple[int, ...]],
    memory: int,
    sent: pa.Schema,
) -> HypercubePlan:
    """Return the plan of a join of several inputs in a grid of at most ``shards`` cells.

    ``names`` is a function that returns the names of a given number of shards; ``memory`` is for one task, in bytes.
    """
    classes = dimensions(tree)
    attributes = [
        tuple(
            Attribute(classes[EdgeEnd(relation, number)], tuple(map(schema.get_field_index, columns)))
            for number, columns in enumerate(tree.attributes[relation])
        )
        for relation, schema in enumerate(schemas)
    ]
    key_types = _key_types(tree, schemas, classes)
    dimensions_of = [frozenset(attribute.dimension for attribute in mine) for mine in attributes]
    parts = grid_parts(dimensions_of, sizes, len(key_types), shards)
    return HypercubePlan(
        inputs=tuple(tree.names),
        schemas=tuple(schema.serialize().to_pybytes() for schema in schemas),
        names=names(prod(parts)),
        memory=memory,
        sent=sent.serialize().to_pybytes(),
        attributes=tuple(attributes),
        key_types=tuple(types.serialize().to_pybytes() for types in key_types),
        parts=parts,
        steps=tuple(_steps(tree, attributes, relation) for relation in range(len(schemas))),
        output_places=tuple(tuple(tree.columns_out(relation, schema)) for relation, schema in enumerate(schemas)),
    )


def dimensions(tree: JoinTree) -> dict[EdgeEnd, int]:
    """Return the dimension of the grid for every attribute; attributes that conditions make equal share a dimension.

    >>> star = JoinTree.of([("a.x", "b.x"), ("a.x", "c.k"), ("c.y", "d.y")])
    >>> [(star.names[end.relation], dimension) for end, dimension in dimensions(star).items()]
    [('a', 0), ('b', 0), ('c', 0), ('c', 1), ('d', 1)]
    """
    groups: dict[EdgeEnd, EdgeEnd] = {}
    for edge in tree.edges:
        one, other = (groups.setdefault(end, end) for end in edge.ends)
        groups = {end: one if group == other else group for end, group in groups.items()}
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups.values()))}
    return {end: numbers[group] for end, group in groups.items()}


def _tree(frames: Mapping[str, DataFrame], on: Any) -> JoinTree:
    """Return the conditions as a tree, after checking that it connects all inputs and no others."""
    if not isinstance(on, list | tuple) or not on or any(isinstance(each, str) for each in on):
        raise ConfigError(f'on: expected a list of conditions ("input.column", "input.column"); got {on!r}')
    tree = JoinTree.of(list(on))
    banded = [edge.text for edge in tree.edges if edge.band is not None]
    if banded:
        raise ConfigError(
            f"on: {banded[0]} has a band, but named inputs are joined on equal columns only. Join two inputs with "
            "band=… first, then join the result with the others"
        )
    unknown = [each for each in tree.names if each not in frames]
    if unknown:
        raise ConfigError(f"on: there is no input {unknown[0]!r}; the inputs are {', '.join(frames)}")
    apart = [each for each in frames if each not in tree.names]
    if apart:
        raise ConfigError(f"on: no condition connects {', '.join(apart)} to the others")
    return tree


def _sizes(tree: JoinTree, sizes: Mapping[str, float] | None) -> list[float]:
    """Return the relative sizes of the inputs, in the tree's order; all 1 by default."""
    if sizes is None:
        return [1.0] * len(tree.names)
    if set(sizes) != set(tree.names):
        raise ConfigError(f"sizes: expected a number for each of {', '.join(tree.names)}; got {dict(sizes)!r}")
    for each, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < inf:
            raise ConfigError(f"sizes: expected a number above 0 for {each}; got {size!r}")
    return [float(sizes[each]) for each in tree.names]


def _joined_on(tree: JoinTree, relation: int) -> list[str]:
    return [column for columns in tree.attributes[relation] for column in columns]


def _key_types(tree: JoinTree, schemas: Sequence[pa.Schema], classes: dict[EdgeEnd, int]) -> list[pa.Schema]:
    """Return, for each dimension of the grid, a schema with the types in which its attributes are compared.

    ``classes`` gives the dimension of each attribute.
    """
    shared: dict[int, list[pa.DataType]] = {}
    for edge in tree.edges:
        number = classes[edge.ends[0]]
        for end, columns in zip(edge.ends, edge.columns, strict=True):
            mine = [schemas[end.relation].field(column).type for column in columns]
            so_far = shared.get(number, mine)
            both = [common_type(one, other) for one, other in zip(so_far, mine, strict=True)]
            if None in both:
                at = both.index(None)
                raise SchemaError(
                    f"on: {tree.names[end.relation]}.{columns[at]} is {mine[at]}, but by {edge.text} it must equal a "
                    f"column that is {so_far[at]}; cast one of them to the other's type"
                )
            shared[number] = both
    found = []
    for number in range(len(shared)):
        end = next(end for end, dimension in classes.items() if dimension == number)
        columns = tree.attributes[end.relation][end.attribute]
        KeyCoder(shared[number], [f"{tree.names[end.relation]}.{column}" for column in columns])
        found.append(pa.schema(list(zip(columns, shared[number], strict=True))))
    return found


def _steps(tree: JoinTree, attributes: list[tuple[Attribute, ...]], relation: int) -> tuple[JoinStep, ...]:
    """Return the steps that lead from the rows of one input to those of all others."""
    return tuple(
        JoinStep(
            step.origin.relation,
            attributes[step.origin.relation][step.origin.attribute],
            step.target.relation,
            attributes[step.target.relation][step.target.attribute],
        )
        for step in tree.order(relation, [0.0] * len(tree.edges))
    )


def _output(
    frames: Mapping[str, DataFrame], tree: JoinTree, schemas: Sequence[pa.Schema], suffix: str | None
) -> StructType:
    """Return the output's fields. Repeated names get the suffix or, without a suffix, the input's name as a prefix."""
    folded = name_folding(next(iter(frames.values())).sparkSession)
    fields: dict[str, StructField] = {}
    for relation, (each, df) in enumerate(frames.items()):
        for place in tree.columns_out(relation, schemas[relation]):
            field = df.schema[place]
            name = field.name
            if folded(name) in fields:
                name = f"{each}_{name}" if suffix is None else name + suffix
            if folded(name) in fields:
                raise SchemaError(f"output: there are two columns {name!r}; rename one, or choose another suffix")
            fields[folded(name)] = output_field(field, name, _joined_on(tree, relation))
    return StructType(list(fields.values()))
