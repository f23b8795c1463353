"""The device that counts what is read, and the wheel that reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.clock import VirtualClock
from millrace.core.errors import ConfigError
from millrace.master.device import DISKS, Device, DiskModel
from millrace.master.read.wheel import Load, Wheel
from millrace.master.store import MasterStore
from millrace.testing.cases import JoinCase
from millrace.testing.conformance import built


def test_the_device_counts_pages_bytes_and_seeks() -> None:
    device = Device("none", page_bytes=100)
    device.read(0, 250)
    device.read(250, 10)
    device.read(0, 0)
    device.read(0, 100)
    assert (device.calls, device.bytes_read, device.pages_read, device.seeks) == (3, 360, 5, 2)
    assert device.clock.now() == 0.0


@pytest.mark.parametrize("name", [name for name in DISKS if name != "none"])
def test_a_modelled_disk_takes_its_time_on_a_virtual_clock(name: str) -> None:
    clock = VirtualClock()
    disk = DISKS[name]
    assert disk is not None
    device = Device(name, clock=clock)
    device.read(0, 1_000_000)
    device.read(1_000_000, 500_000)
    assert clock.now() == pytest.approx(disk.seek + 1_500_000 / disk.bandwidth)
    device.read(0, 1)
    assert clock.now() == pytest.approx(2 * disk.seek + 1_500_001 / disk.bandwidth)


def test_disks_of_ones_own_and_unknown_ones() -> None:
    device = Device(DiskModel(seek=1.0, bandwidth=10.0))
    device.read(0, 20)
    assert (device.name, device.clock.now()) == ("custom", 3.0)
    with pytest.raises(ConfigError, match=r"device: expected one of 'none', 'hdd-2007'.*got 'tape'"):
        Device("tape")
    with pytest.raises(ConfigError, match="reads: expected one of 'columns', 'rows'; got 'cells'"):
        Device(reads="cells")  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 90), st.integers(1, 4), st.lists(st.integers(1, 30), min_size=1), st.integers(1, 20))
def test_the_wheel_meets_every_row_once_a_turn(rows: int, shards: int, loads: list[int], pages: int) -> None:
    case = JoinCase(master_rows=rows, domain=40, shards=shards, page_rows=pages, nulls=False)
    with built(case) as store:
        device = Device()
        wheel = Wheel(store, device)
        met: list[tuple[int, int]] = []
        turn = 0
        while store.rows and wheel.turned < 3 * store.rows:
            before = wheel.turned
            load = wheel.next_load(loads[turn % len(loads)])
            turn += 1
            assert 0 < len(load.codes) <= loads[(turn - 1) % len(loads)]
            assert wheel.turned == before + len(load.codes)
            assert (load.codes == store.codes(load.shard)[load.first : load.first + len(load.codes)]).all()
            met += [(load.shard, load.first + i) for i in range(len(load.codes))]
        every = sorted((shard, row) for shard in range(shards) for row in range(len(store.codes(shard))))
        for turned in range(3):
            assert sorted(met[turned * len(every) : (turned + 1) * len(every)]) == every
        assert device.bytes_read == 8 * len(met)
        assert wheel.cycles == (3.0 if store.rows else 0.0)


def test_a_row_store_is_charged_for_whole_rows(tmp_path: Path) -> None:
    table = pa.table({"k": range(100), "s": [f"text {i}" for i in range(100)]})
    store = MasterStore.build(table, tmp_path / "store", "k")
    device = Device(reads="rows")
    Wheel(store, device).next_load(100)
    assert device.bytes_read == 100 * round(store.row_bytes)


@pytest.mark.parametrize(("shards", "most"), [(1, 7), (3, 7), (2, 1000)])
def test_a_turn_of_the_wheel_is_one_seek(shards: int, most: int, tmp_path: Path) -> None:
    """Loads follow one another on the disk, over all shards; only the first of every turn goes elsewhere."""
    store = MasterStore.build(pa.table({"k": range(100)}), tmp_path / "store", "k", shards=shards)
    device = Device()
    wheel = Wheel(store, device)
    for turn in (1, 2, 3):
        while wheel.turned < turn * store.rows:
            wheel.next_load(most)
        assert device.seeks == turn


def test_rows_narrower_than_their_code_are_charged_for_the_code(tmp_path: Path) -> None:
    store = MasterStore.build(pa.table({"k": pa.array(range(64), pa.int8())}), tmp_path / "store", "k")
    assert store.row_bytes < 8
    device = Device(reads="rows")
    Wheel(store, device).next_load(64)
    assert device.bytes_read == 64 * 8


def test_places_of_a_load_are_rows_of_the_shard() -> None:
    codes = np.array([5, 6, 7, 8])
    places = np.array([3, 0, 0], np.int32)
    assert Load(0, 40, codes).rows_at(places).tolist() == [43, 40, 40]
    assert Load(0, 0, codes, rows=np.array([9, 2, 30, 4])).rows_at(places).tolist() == [4, 9, 9]
