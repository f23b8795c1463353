"""Input of the cost model, taken from the arguments of a join."""

from __future__ import annotations

from millrace.core.errors import ConfigError
from millrace.cost.frequencies import Frequencies
from millrace.cost.measured import MeasuredCosts
from millrace.cost.symbols import Disk, UnitCosts
from millrace.cost.workload import Workload
from millrace.semistream.arguments import JoinArguments
from millrace.semistream.binding import Binding
from millrace.semistream.sizing.row_sizes import cached_row_bytes, waiting_tuple_bytes


def workload_of(
    arguments: JoinArguments,
    binding: Binding,
    frequencies: Frequencies,
    *,
    disk: Disk | None = None,
    costs: UnitCosts | MeasuredCosts | None = None,
    batch: int = 10_000,
    tuple_bytes: float | None = None,
) -> Workload:
    """Return the cost model's input for a join.

    ``disk`` is by default the one that the join's device models. ``tuple_bytes`` is the size of a waiting tuple, if it
    was measured; by default its size without strings.
    """
    store, device = arguments.store, arguments.device
    if disk is None:
        model = device.disk
        if model is None:
            raise ConfigError("disk: the join's device does not model a disk; pass one, such as calibrate(master).disk")
        disk = Disk(model.seek, model.bandwidth)
    rows_per_key = 1.0 if store.unique else store.rows / max(1, store.manifest.keys)
    return Workload(
        rows=store.rows,
        read_bytes=8.0 if device.reads == "columns" else store.row_bytes,
        tuple_bytes=waiting_tuple_bytes(arguments, binding) if tuple_bytes is None else tuple_bytes,
        disk=disk,
        frequencies=frequencies,
        cached_bytes=cached_row_bytes(arguments, binding) * rows_per_key,
        costs=costs or UnitCosts(),
        leave_early=(arguments.leave_early or arguments.algorithm.paged) and binding.single,
        threads=arguments.lanes.threads,
        rows_per_key=rows_per_key,
        read_row_bytes=store.row_bytes,
        batch=batch,
    )
