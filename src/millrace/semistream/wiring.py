"""Construction of the parts of a join, with a share of the budget for each."""

from __future__ import annotations

from millrace.core.budget import MemoryBudget
from millrace.core.metrics import JoinMetrics
from millrace.core.space import HeapSpace, Space
from millrace.cost.plan import Plan, plan
from millrace.semistream.arguments import JoinArguments
from millrace.semistream.binding import Binding
from millrace.semistream.choose.auto import Auto
from millrace.semistream.conditions.residual import Residual
from millrace.semistream.context import JoinContext
from millrace.semistream.intake import Intake
from millrace.semistream.loop import JoinLoop
from millrace.semistream.output.index_answers import IndexAnswers
from millrace.semistream.output.ordered import OrderedOutput
from millrace.semistream.output.output_columns import JoinOutput
from millrace.semistream.output.output_order import OutputOrder
from millrace.semistream.output.parts import JoinParts
from millrace.semistream.output.unordered import UnorderedOutput
from millrace.semistream.row_numbers import NumberedRows
from millrace.semistream.waiting.condition_room import ConditionRoom
from millrace.semistream.waiting.order_buffer import WAITING, OrderBuffer
from millrace.semistream.waiting.waiting_room import WaitingRoom


def wire(
    arguments: JoinArguments,
    binding: Binding,
    budget: MemoryBudget,
    metrics: JoinMetrics,
    output: JoinOutput,
    auto: Auto | None,
) -> JoinLoop:
    """Divide the budget, make the parts of the join, and return the loop that runs them."""
    store, algorithm, space = arguments.store, arguments.algorithm, arguments.space or HeapSpace()
    if auto is not None and auto.nbytes:
        budget.reserve("statistics", auto.nbytes)
    threads = arguments.lanes.threads
    sizes = plan(budget.total, store.rows, paged=algorithm.paged, b=arguments.b, threads=threads)
    load = budget.reserve("load", sizes.load_bytes)
    buffer = OrderBuffer(binding.stream, budget, space, binding.rows_per_key) if arguments.ordered else None
    room = _room(arguments, binding, budget, space, sizes)
    residual = None
    if binding.residual is not None:
        residual = Residual(binding.residual, binding.stream, store.schema, binding.cached_columns, budget)
    numbered = NumberedRows(store)
    context = JoinContext(
        store=store,
        device=arguments.device,
        room=room,
        budget=budget,
        space=space,
        lanes=arguments.lanes,
        columns=binding.cached_columns,
        single=binding.single,
        matches=sizes.matches,
        b=sizes.b,
        w=arguments.w,
        metrics=metrics,
        step_rows=sizes.step_rows,
        numbered=numbered if arguments.ordered else None,
    )
    access, cache = algorithm.make(context, arguments.options)
    parts = JoinParts(
        store=store,
        spec=arguments.spec,
        binding=binding,
        budget=budget,
        metrics=metrics,
        intake=Intake(binding.keys, metrics, arguments.shedding, auto),
        cache=cache,
        access=access,
        room=room,
        output=output,
        residual=residual,
        numbered=numbered,
    )
    at_once = IndexAnswers(parts) if access.at_once else None
    order: OutputOrder = UnorderedOutput(parts, at_once) if buffer is None else OrderedOutput(parts, buffer, at_once)
    return JoinLoop(parts, order, load, sizes.pair_bytes)


def _room(arguments: JoinArguments, binding: Binding, budget: MemoryBudget, space: Space, sizes: Plan) -> WaitingRoom:
    store = arguments.store
    schema = WAITING if arguments.ordered else binding.stream
    sized = (schema, budget, space, arguments.lanes, store.rows, sizes.matches, sizes.pairs)
    if binding.search is not None:
        leave_early = arguments.leave_early and arguments.spec.how in ("semi", "anti")
        return ConditionRoom(binding.search, store, *sized, leave_early)
    code_column = None if arguments.ordered else binding.code_column
    return WaitingRoom(*sized, code_column, (arguments.leave_early or arguments.algorithm.paged) and binding.single)
