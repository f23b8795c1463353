"""The least memory of a join: what its parts need, added up before any of them is made."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from millrace.core.errors import BudgetTooSmallError
from millrace.core.sizes import format_size
from millrace.core.spec import On
from millrace.cost.plan import LEAST_PAIRS, LOAD_ROW_BYTES, PAIR_BYTES, plan
from millrace.master.store import MasterStore
from millrace.rows.code_filter import LEAST_MATCHES, CodeFilter
from millrace.rows.columns import plain_schema
from millrace.semistream.arguments import JOIN_ARGUMENTS, JoinArguments
from millrace.semistream.binding import Binding, bind
from millrace.semistream.conditions.residual import Residual
from millrace.semistream.waiting.condition_room import ConditionRoom
from millrace.semistream.waiting.order_buffer import WAITING, OrderBuffer
from millrace.semistream.waiting.waiting_room import WaitingRoom

_FILTERS = 3  # the waiting room's, the cache's, and one of keys on their way into the cache
_SLACK = 1024

_NO_COLUMNS = pa.schema([])


def least_bytes(arguments: JoinArguments, binding: Binding | None, b: int | None = None) -> int:
    """Return the least budget in bytes of a join with loads of ``b`` rows.

    If ``binding`` is None, the stream's columns are not counted.
    """
    rest = _room_bytes(arguments, binding) + _SLACK
    if binding is not None and binding.residual is not None:
        rest += Residual.least_bytes(binding.residual, binding.stream, arguments.store.schema)
    rows = b or arguments.b or 1
    least = rest + rows * LOAD_ROW_BYTES + LEAST_PAIRS * PAIR_BYTES + _FILTERS * _filter_bytes(arguments, LEAST_MATCHES)
    while (needed := rest + _start_bytes(arguments, b, least)) > least:  # some parts take a share of the budget
        least = needed
    return least


def least_memory(
    master: MasterStore | str | os.PathLike[str], on: On | None, how: str, stream: pa.Schema | None, **arguments: Any
) -> int:
    """Return the least budget in bytes of a join with these arguments; if ``stream`` is None, ignore its columns.

    ``arguments`` are those of :class:`SemiStreamJoin <millrace.semistream.join.SemiStreamJoin>` except ``memory``.
    """
    own = {name: arguments.pop(name) for name in [*arguments] if name not in JOIN_ARGUMENTS}
    checked = JoinArguments.checked(master, on, how, options=own, **arguments)
    return least_bytes(checked, None if stream is None else bind(checked, plain_schema(stream)))


def check_least(arguments: JoinArguments, binding: Binding | None, b: int | None = None) -> None:
    """Raise an error that names the least budget if the join's budget is smaller."""
    least = least_bytes(arguments, binding, b)
    if arguments.memory < least:
        raise BudgetTooSmallError(
            f"memory: {format_size(arguments.memory)} is too little for {arguments.algorithm.name} "
            f"with b={b or arguments.b or 1}; the least is {least} bytes ({format_size(least)})"
            + ("" if binding else ", and more once the stream's columns are known"),
            least,
        )


def _start_bytes(arguments: JoinArguments, b: int | None, memory: int) -> int:
    """Return the bytes that the join needs before the first tuple; 0 if the policy reserves no memory for pages."""
    store, algorithm = arguments.store, arguments.algorithm
    if not algorithm.reserves_at_start:
        return 0
    sizes = plan(memory, store.rows, paged=algorithm.paged, b=b or arguments.b, threads=arguments.lanes.threads)
    filters = _FILTERS * _filter_bytes(arguments, sizes.matches)
    return sizes.load_bytes + filters + algorithm.start_bytes(store, sizes.b)


def _filter_bytes(arguments: JoinArguments, matches: int) -> int:
    return CodeFilter.least_bytes(arguments.lanes, matches)


def _room_bytes(arguments: JoinArguments, binding: Binding | None) -> int:
    """Return the bytes of a few tuples in the waiting room and, if output is ordered, in the order buffer."""
    stream = _NO_COLUMNS if binding is None else binding.stream
    if binding is not None and binding.search is not None:
        return ConditionRoom.least_bytes_of(binding.search, stream)
    if arguments.ordered:
        return WaitingRoom.least_bytes(WAITING, None) + OrderBuffer.least_bytes(stream)
    return WaitingRoom.least_bytes(stream, None if binding is None else binding.code_column)
