"""Unit costs of computing and reading: those measured on this machine if there are any, else defaults.

Measuring takes seconds, so it is done only by ``millrace tune``, which saves the result.
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
"""Default unit costs in seconds, for two cores of a server; they may be wrong by a factor of two or three."""
TYPICAL_PAGES = Disk(seek=2e-6, bandwidth=float("inf"))
"""Default cost of reading a page that is found through the index, if all files are in the page cache."""


class Assumed(NamedTuple):
    """Costs with which predictions are made."""

    disk: Disk | None
    """Disk that predictions assume; None to use the disk that the join's device simulates."""
    costs: UnitCosts | MeasuredCosts
    words: str
    """Where the costs come from, in words."""


def assumed(master: MasterStore, device: Device) -> Assumed:
    """Return the costs known without measuring: those of a modelled disk, saved ones, or defaults."""
    if device.disk is not None:
        return Assumed(None, UnitCosts(), f"the disk {device.name} as modelled, and no time for anything else")
    found = remembered(master)
    if found is not None:
        return Assumed(found.disk, found.costs, "unit costs as measured on this machine")
    return Assumed(TYPICAL_PAGES, TYPICAL, "unit costs of a typical machine; `millrace tune` measures yours")
