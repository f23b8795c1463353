"""Binds a join to a stream: works out what follows from the join's arguments and the stream's columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.rows.keyed_rows import holds_its_code
from millrace.semistream.arguments import JoinArguments
from millrace.semistream.conditions.condition import Condition
from millrace.semistream.stream_keys import StreamKeys
from millrace.semistream.waiting.condition_room import ConditionSearch


@dataclass(frozen=True)
class Binding:
    """How a stream with known columns is joined with the master; nothing here depends on the memory budget."""

    stream: pa.Schema
    output: pa.Schema
    """Columns of the output."""
    keys: StreamKeys
    code_column: int | None
    """Place of the stream column whose values are the key codes themselves; None if there is none."""
    search: ConditionSearch | None
    """Search for waiting tuples by the condition, in a join without a key; None in a join with a key."""
    residual: Condition | None
    """Condition that is tested on every pair that was found by key or by search; None if there is none."""
    single: bool
    """Whether one master row per key is enough: keys do not repeat, or one match decides (semi and anti joins)."""
    cached_columns: list[int]
    """Places of the cached columns in the master: the output's columns, then those that verify a match."""
    cached_keys: range
    """Places of the key columns among the cached columns; empty where equal key codes mean equal keys."""
    rows_per_key: float | None
    """Average number of master rows per key, as an estimate of the matches that ordered output keeps for a tuple.

    None if ordered output never keeps more than one match for a tuple.
    """


def bind(arguments: JoinArguments, stream: pa.Schema) -> Binding:
    """Check that the stream's columns can be joined, and return the binding; columns must not be dictionary-encoded."""
    store, spec, where = arguments.store, arguments.spec, arguments.where
    spec.check_keys(stream, store.schema, store.key)
    if where is not None:
        where.check(stream, store.schema)
    output = spec.output_schema(stream, store.schema)
    keys = StreamKeys(spec, stream, store)
    search = ConditionSearch(where, stream, store.schema) if where is not None and not spec.stream_key else None
    residual = where if search is None else search.rest
    code_column = None
    if len(keys.columns) == 1 and holds_its_code(stream.field(keys.columns[0]).type, store.coder.exact):
        code_column = keys.columns[0]
    one_match_decides = spec.how in ("semi", "anti") and store.coder.exact and where is None
    single = search is None and (store.unique or one_match_decides)
    repeats = spec.emits_master and not (store.unique or one_match_decides)
    cached = list(spec.master_columns(store.schema))
    cached_keys = range(0)
    if not store.coder.exact:
        cached_keys = range(len(cached), len(cached) + len(keys.master_columns))
        cached += keys.master_columns
    if residual is not None:
        tested = [store.schema.get_field_index(name) for name in residual.master]
        cached += [column for column in tested if column not in cached]
    return Binding(
        stream=stream,
        output=output,
        keys=keys,
        code_column=code_column,
        search=search,
        residual=residual,
        single=single,
        cached_columns=cached,
        cached_keys=cached_keys,
        rows_per_key=store.rows / max(1, store.manifest.keys) if repeats else None,
    )
