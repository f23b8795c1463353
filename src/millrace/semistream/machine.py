"""What computing and reading take where nothing is modelled: as measured in this process, or else as on many a machine.

Measuring takes seconds, so nobody does it unasked: ``calibrated`` does, once for a master, and whoever asks for
``assumed`` afterwards gets what it found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millrace.cost.symbols import Disk, UnitCosts
from millrace.master.device import Device
from millrace.master.store import MasterStore
from millrace.semistream.asked import check_master

if TYPE_CHECKING:
    from millrace.semistream.calibration import Calibration

TYPICAL = UnitCosts(c_H=2e-9, c_O=7e-7, c_E=3e-7, c_S=1e-9, c_A=2e-7, c_B=1e-8)
"""Two cores of a server; good to a factor of two or three."""
TYPICAL_PAGES = Disk(seek=2e-4, bandwidth=float("inf"))
"""A page found through the index, everything in the page cache."""

_measured: dict[str, Calibration] = {}  # by the master's snapshot


class Assumed(NamedTuple):
    """What a prediction is made with."""

    disk: Disk | None
    """None: as the device models it."""
    costs: UnitCosts
    words: str


def calibrated(master: MasterStore) -> Calibration:
    """The unit costs of this machine with this master, measured the first time, which takes some seconds."""
    from millrace.semistream.calibration import calibrate

    check_master(master)
    snapshot = master.manifest.snapshot
    if snapshot not in _measured:
        _measured[snapshot] = calibrate(master)
    return _measured[snapshot]


def assumed(master: MasterStore, device: Device) -> Assumed:
    """What is known without measuring: a modelled disk, what was measured before, or typical figures."""
    if device.disk is not None:
        return Assumed(None, UnitCosts(), f"the disk {device.name} as modelled, and no time for anything else")
    found = _measured.get(master.manifest.snapshot)
    if found is not None:
        return Assumed(found.disk, found.costs, "unit costs as measured on this machine")
    return Assumed(TYPICAL_PAGES, TYPICAL, "unit costs of a typical machine; `millrace tune` measures yours")
