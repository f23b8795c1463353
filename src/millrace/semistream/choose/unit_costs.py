"""What computing and reading take where nothing is modelled: as measured before, or else as on many a machine.

Measuring takes seconds, so nobody does it unasked: ``millrace tune`` does, and it is remembered.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace.cost.measured import MeasuredCosts
from millrace.cost.symbols import Disk, UnitCosts
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.semistream.choose.unit_cost_file import remembered

TYPICAL = UnitCosts(
    c_H=2e-9, c_O=2e-7, c_E=1e-7, c_S=5e-9, c_A=1e-7, c_F=8e-8, c_B=3e-5, c_R=2e-7, c_C=1.3e-7, c_step=5e-4, c_I=3e-4,
    c_L=4e-7, c_J=1e-7, c_Q=5e-7,
)  # fmt: skip
"""Two cores of a server; good to a factor of two or three."""
TYPICAL_PAGES = Disk(seek=2e-6, bandwidth=float("inf"))
"""A page found through the index, everything in the page cache."""


class Assumed(NamedTuple):
    """What a prediction is made with."""

    disk: Disk | None
    """None: as the device models it."""
    costs: UnitCosts | MeasuredCosts
    words: str


def assumed(master: MasterStore, device: Device) -> Assumed:
    """What is known without measuring: a modelled disk, what was measured before, or typical figures."""
    if device.disk is not None:
        return Assumed(None, UnitCosts(), f"the disk {device.name} as modelled, and no time for anything else")
    found = remembered(master)
    if found is not None:
        return Assumed(found.disk, found.costs, "unit costs as measured on this machine")
    return Assumed(TYPICAL_PAGES, TYPICAL, "unit costs of a typical machine; `millrace tune` measures yours")
