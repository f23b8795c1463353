"""All or nothing: whatever happens to a build, the name stands for a whole store or for what was there before."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.errors import CorruptStoreError, StoreError, StoreExistsError
from millrace.core.files import atomic
from millrace.master.store import MasterStore
from millrace.testing.faults import Interrupting, failing, files_of, full_disk, in_child, largest_file

TABLE = pa.table({"k": [i % 40 for i in range(100)], "s": [f"text {i}" for i in range(100)]})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "stores" / "store"


def built_at(target: Path, **other: Any) -> MasterStore:
    return MasterStore.build(TABLE, target, "k", **{"page_rows": 16, **other})


def interrupted(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(Interrupting(batches, after=3))


@pytest.mark.parametrize("old", [False, True], ids=["fresh", "overwrite"])
@pytest.mark.parametrize("fault", ["source fails", "interrupt", "disk full", "value error"])
def test_a_build_that_fails_leaves_nothing_and_keeps_what_was_there(fault: str, old: bool, target: Path) -> None:
    if old:
        built_at(target.parent / "store")
    else:
        target.parent.mkdir(parents=True)
    before = {path: path.read_bytes() for path in files_of(target.parent)}
    batches = TABLE.to_batches(max_chunksize=10)
    with pytest.raises((StoreError, KeyboardInterrupt, ZeroDivisionError)) as raised:
        build_with(fault, batches, target)
    if fault == "source fails":
        assert "could not be built: [Errno 104] the source went away" in str(raised.value)
    if fault == "disk full":
        assert "the disk is full; nothing was written there" in str(raised.value)
    assert {path: path.read_bytes() for path in files_of(target.parent)} == before
    assert len(list(target.parent.iterdir())) == int(old)
    if old:
        MasterStore.open(target).verify()


def build_with(fault: str, batches: list[pa.RecordBatch], target: Path) -> None:
    if fault == "source fails":
        built_from(failing(batches, 3), target)
    elif fault == "interrupt":
        built_from(interrupted(batches), target)
    elif fault == "value error":
        built_from(iter(Interrupting(batches, 3, ZeroDivisionError())), target)
    else:
        with full_disk(after=3):
            built_from(iter(batches), target)


def built_from(batches: Iterator[pa.RecordBatch], target: Path) -> MasterStore:
    return MasterStore.build(batches, target, "k", page_rows=16, shards=2, overwrite=True)


def build_too_large(target: Path) -> None:
    largest_file(20_000)
    wide = pa.table({"k": np.arange(100_000), "v": np.arange(100_000)})
    with pytest.raises(StoreError, match="could not be built") as raised:
        MasterStore.build(wide, target, "k", page_rows=1000)
    if getattr(raised.value.__cause__, "errno", None) == errno.EFBIG:
        os._exit(7)


def test_files_that_may_not_grow(target: Path) -> None:
    """A real error of the file system in the middle of writing, not a simulated one."""
    assert in_child(build_too_large, target) == 7
    assert not target.exists()
    assert not list(target.parent.iterdir())


def killed_at(batch: int, target: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for number, each in enumerate(TABLE.to_batches(max_chunksize=10)):
            if number == batch:
                os.kill(os.getpid(), signal.SIGKILL)
            yield each

    MasterStore.build(batches(), target, "k", overwrite=True)


@pytest.mark.parametrize("old", [False, True], ids=["fresh", "overwrite"])
def test_a_killed_builder_leaves_nothing_visible_and_the_next_build_tidies_up(old: bool, target: Path) -> None:
    if old:
        built_at(target)
    assert in_child(killed_at, 4, target) == -signal.SIGKILL
    left = [path.name for path in target.parent.iterdir() if path.name != "store"]
    assert len(left) == 2, "a directory and its lock"
    assert all(name.startswith(".") for name in left), "what is left is hidden"
    assert target.exists() == old
    if old:
        MasterStore.open(target).verify()
    MasterStore.build(TABLE, target, "k", overwrite=True)
    assert [path.name for path in target.parent.iterdir()] == ["store"]


def replace_and_die(target: Path, after: bool) -> None:
    """Replace a store, killed just before the new one takes the old one's place, or just after."""
    swap = atomic._rename

    def deadly(one: Path, other: Path, flag: int) -> None:
        if after:
            swap(one, other, flag)
        os.kill(os.getpid(), signal.SIGKILL)

    atomic._rename = deadly  # type: ignore[assignment]
    MasterStore.build(TABLE.slice(0, 7), target, "k", overwrite=True)


@pytest.mark.parametrize(("after", "rows"), [(False, 100), (True, 7)], ids=["before", "after"])
def test_a_builder_killed_while_it_replaces_a_store_loses_neither(after: bool, rows: int, target: Path) -> None:
    """At whatever moment it dies, the old store or the new one can be opened, and the next build clears up."""
    built_at(target)
    assert in_child(replace_and_die, target, after) == -signal.SIGKILL
    assert MasterStore.open(target).rows == rows
    MasterStore.open(target).verify()
    built_at(target, overwrite=True)
    assert [path.name for path in target.parent.iterdir()] == [target.name]


# others at the same place


def test_what_appears_at_the_target_meanwhile_is_left_alone(target: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        target.mkdir()
        (target / "precious").write_text("x")
        yield TABLE.to_batches()[0]

    with pytest.raises(StoreExistsError, match="made by another process meanwhile"):
        MasterStore.build(batches(), target, "k")
    assert [path.name for path in target.parent.iterdir()] == ["store"]
    assert (target / "precious").read_text() == "x"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_only_stores_are_replaced(kind: str, target: Path) -> None:
    target.parent.mkdir()
    if kind == "file":
        target.write_text("precious")
    else:
        target.mkdir()
        (target / "manifest.json").write_text('{"name": "my web app"}')
    with pytest.raises(StoreExistsError, match="not a master store, so it is not replaced"):
        MasterStore.build(TABLE, target, "k", overwrite=True)
    assert target.read_text() == "precious" if kind == "file" else (target / "manifest.json").is_file()
    assert [path.name for path in target.parent.iterdir()] == ["store"]


def test_a_damaged_store_can_be_replaced(target: Path) -> None:
    built_at(target)
    manifest = target / "manifest.json"
    manifest.write_text(manifest.read_text()[:400])
    built_at(target, overwrite=True).verify()


def test_a_build_does_not_touch_one_of_a_similar_name(target: Path) -> None:
    dated = target.with_name("store-20240101")

    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        built_at(target)
        yield TABLE.to_batches()[0]

    MasterStore.build(batches(), dated, "k").verify()


def test_a_store_opened_while_it_is_replaced_is_one_or_the_other(target: Path) -> None:
    tables = [pa.table({"k": np.roll(np.arange(1000), shift)}) for shift in (0, 1)]
    MasterStore.build(tables[0], target, "k")
    over = threading.Event()

    def replace() -> None:
        for turn in range(60):
            MasterStore.build(tables[turn % 2], target, "k", overwrite=True)
        over.set()

    thread = threading.Thread(target=replace)
    thread.start()
    opened = 0
    while not over.is_set():
        store = MasterStore.open(target)
        assert (store.codes(0) == store.to_table()["k"].to_numpy()).all(), "codes of one store, rows of another"
        opened += 1
    thread.join()
    assert opened


def test_a_store_behind_a_link_is_replaced_where_it_is(target: Path) -> None:
    built_at(target)
    link = target.with_name("link")
    link.symlink_to(target)
    MasterStore.build(TABLE.slice(0, 7), link, "k", overwrite=True)
    assert link.is_symlink()
    assert MasterStore.open(target).rows == 7
    assert sorted(path.name for path in target.parent.iterdir()) == ["link", "store"]


def test_a_handle_of_a_replaced_store_says_so(target: Path) -> None:
    store = built_at(target)
    MasterStore.build(TABLE.slice(0, 7), target, "k", overwrite=True)
    assert store.rows == 100
    with pytest.raises(StoreError, match="another store has taken its place"):
        store.verify()


@pytest.mark.parametrize("where", ["largest_group", "rows", "page_rows", "crc32", "key", "schema"])
def test_a_changed_manifest_is_noticed(where: str, target: Path) -> None:
    built_at(target)
    manifest = target / "manifest.json"
    body = json.loads(manifest.read_text())
    if where in ("crc32", "rows", "largest_group"):
        shard = body["shards"][0]
        inner = shard["data"] if where == "crc32" else shard
        inner[where] = 1
    else:
        body[where] = {"page_rows": 0, "key": ["nothing"], "schema": "AAAA"}[where]
    manifest.write_text(json.dumps(body))
    with pytest.raises(CorruptStoreError, match="changed after it was written"):
        MasterStore.open(target)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOLCK, "no locks")], ids=["interrupt", "no lock"]
)
def test_an_error_before_the_first_row_leaves_nothing(
    error: BaseException, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise error

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises((KeyboardInterrupt, StoreError)):
        built_at(target)
    assert list(target.parent.iterdir()) == []


def test_a_parent_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="could not be built"):
        MasterStore.build(TABLE, tmp_path / "file" / "below" / "store", "k")
    with pytest.raises(StoreError):
        MasterStore.build(TABLE, tmp_path / ("long" * 100), "k")
