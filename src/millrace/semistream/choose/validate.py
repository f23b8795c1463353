"""Checks of the arguments of ``choose``, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millrace.core.errors import ConfigError, SchemaError, one_of
from millrace.core.numeric import is_number
from millrace.cost.engine import PREDICTED
from millrace.cost.frequencies import Frequencies
from millrace.cost.measured import MeasuredCosts
from millrace.cost.symbols import Disk, UnitCosts
from millrace.master.device import Device
from millrace.master.store import MasterStore

MOST_RATE = 1e12
"""Highest rate that may be required, in tuples per second; no machine reaches it."""


def check_master(master: Any) -> None:
    """Raise an error unless ``master`` is a store that is not empty."""
    if not isinstance(master, MasterStore):
        raise ConfigError(f"master: expected a MasterStore, such as MasterStore.open(path); got {master!r}")
    if not master.rows:
        raise ConfigError(f"master: {master.path} is empty; there is nothing to predict")


def check_goal(memory: Any, rate: Any) -> None:
    """Raise an error unless either memory or a possible rate is given; memory is parsed and checked later."""
    if (memory is None) == (rate is None):
        got = "neither" if memory is None else f"memory={memory!r} and rate={rate!r}"
        raise ConfigError(f"memory, rate: expected exactly one of the two; got {got}")
    if rate is not None and not (is_number(rate) and 0 < rate <= MOST_RATE):
        raise ConfigError(f"rate: expected tuples per second, above 0 and at most {MOST_RATE:g}; got {rate!r}")


def check_given(frequencies: Any, device: Any, disk: Any, costs: Any, stream: Any) -> None:
    """Raise an error unless the inputs of the cost model have the right types."""
    for name, value, kind, such_as in (
        ("frequencies", frequencies, Frequencies, "Frequencies, such as Frequencies.zipf(1.0, keys)"),
        ("device", device, Device, "a Device, such as Device('hdd-2013')"),
        ("disk", disk, Disk | None, "a Disk, such as Disk(seek, bandwidth), or None"),
        ("costs", costs, UnitCosts | MeasuredCosts | None, "unit costs, such as calibrate(master).costs, or None"),
    ):
        if not isinstance(value, kind):
            raise ConfigError(f"{name}: expected {such_as}; got {value!r}")
    if device.disk is None and disk is None:
        raise ConfigError("disk: the device does not model a disk; pass one, such as calibrate(master).disk")
    if stream is not None and not isinstance(stream, pa.Schema):
        raise SchemaError(f"stream: expected a pyarrow.Schema; got {type(stream).__name__}")


def check_algorithms(algorithms: Any) -> None:
    """Raise an error unless ``algorithms`` are names of algorithms that have a cost model."""
    if isinstance(algorithms, str) or not isinstance(algorithms, Sequence) or not algorithms:
        raise ConfigError(f"algorithms: expected a list of at least one of {', '.join(PREDICTED)}; got {algorithms!r}")
    for name in algorithms:
        one_of("algorithms", name, PREDICTED)
