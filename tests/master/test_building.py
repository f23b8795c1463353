"""All or nothing: whatever happens to a build, the name stands for a whole store or for what was there before."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
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


# what a power cut leaves


@pytest.mark.parametrize("index", [False, True], ids=["scanned", "indexed"])
@pytest.mark.parametrize("old", [False, True], ids=["fresh", "overwrite"])
def test_a_power_cut_leaves_the_whole_new_store_once_its_name_is_there(
    old: bool,
    index: bool,
    target: Path,
    tmp_path: Path,
    power_cut: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every file and folder is flushed before the rename, and the rename itself before the build returns."""
    if old:
        built_at(target)
    swap = atomic._rename
    kept = []

    def watched(source: Path, place: Path, flag: int) -> None:
        swap(source, place, flag)
        kept.append(power_cut(target.parent, tmp_path / "early", renamed=True) / "store")

    monkeypatch.setattr(atomic, "_rename", watched)
    MasterStore.build(TABLE.slice(0, 50), target, "k", page_rows=16, shards=2, index=index, overwrite=True)
    kept.append(power_cut(target.parent, tmp_path / "late") / "store")
    assert len(kept) == 2
    for store in map(MasterStore.open, kept):
        store.verify()
        assert (store.rows, store.indexed, store.info()["records"]) == (50, index, index)


def test_a_power_cut_after_an_index_was_added_leaves_it(
    target: Path, tmp_path: Path, power_cut: Callable[..., Path]
) -> None:
    built_at(target, index=False)
    MasterStore.add_index(target)
    kept = MasterStore.open(power_cut(target.parent, tmp_path / "kept") / "store")
    kept.verify()


# others at the same place


def test_of_two_builds_of_one_store_that_which_began_first_may_end_last(target: Path) -> None:
    """The second neither takes the first's files for leftovers of a killed one nor is replaced by it."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        built_at(target)
        yield TABLE.to_batches()[0]

    with pytest.raises(StoreExistsError, match="made by another process meanwhile; it was left alone"):
        MasterStore.build(batches(), target, "k")
    left_whole(target, 100)


def test_of_two_builds_of_one_store_that_which_began_first_may_end_first(target: Path) -> None:
    other_reads, first_ended = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def others() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        other_reads.set()
        assert first_ended.wait(60)
        yield TABLE.to_batches()[0]

    def build_other() -> None:
        try:
            MasterStore.build(others(), target, "k")
        except StoreError as error:
            errors.append(error)

    thread = threading.Thread(target=build_other)

    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        thread.start()
        assert other_reads.wait(60)

    try:
        assert MasterStore.build(batches(), target, "k").rows == 100
    finally:
        first_ended.set()
        thread.join()
    assert [type(error) for error in errors] == [StoreExistsError]
    assert "made by another process meanwhile; it was left alone" in str(errors[0])
    left_whole(target, 100)


def test_of_two_builds_that_replace_a_store_the_last_to_end_remains(target: Path) -> None:
    built_at(target)

    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        assert built_at(target, overwrite=True).rows == 100
        yield TABLE.to_batches()[0]

    assert MasterStore.build(batches(), target, "k", overwrite=True).rows == 200
    left_whole(target, 200)


def left_whole(target: Path, rows: int) -> None:
    """The store can be opened, is sound and alone in its folder."""
    store = MasterStore.open(target)
    store.verify()
    assert store.rows == rows
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("old", [False, True], ids=["fresh", "overwrite"])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_takes_the_place_of_a_store_meanwhile_is_not_replaced(kind: str, old: bool, target: Path) -> None:
    """With ``overwrite`` too: what is replaced is looked at again when the build ends."""
    if old:
        built_at(target)

    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        if old:
            target.rename(target.with_name("elsewhere"))
        if kind == "folder":
            target.mkdir()
        (target / "precious" if kind == "folder" else target).write_text("x")

    with pytest.raises(StoreExistsError, match="exists and is not a master store, so it is not replaced"):
        MasterStore.build(batches(), target, "k", overwrite=True)
    assert (target / "precious" if kind == "folder" else target).read_text() == "x"
    assert sorted(path.name for path in target.parent.iterdir()) == (["elsewhere"] if old else []) + ["store"]


@pytest.fixture
def no_renameat2(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that cannot swap two folders in one call."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())


def test_a_system_without_swapping_replaces_a_store_too(target: Path, no_renameat2: None) -> None:
    built_at(target)
    MasterStore.build(TABLE.slice(0, 7), target, "k", overwrite=True)
    left_whole(target, 7)


def test_a_system_without_swapping_leaves_a_store_made_meanwhile_alone(target: Path, no_renameat2: None) -> None:
    test_of_two_builds_of_one_store_that_which_began_first_may_end_last(target)


def test_a_system_without_swapping_leaves_an_empty_folder_made_meanwhile_alone(
    target: Path, no_renameat2: None
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        target.mkdir()

    with pytest.raises(StoreExistsError, match="made by another process meanwhile"):
        MasterStore.build(batches(), target, "k")
    assert list(target.iterdir()) == []
    assert [path.name for path in target.parent.iterdir()] == ["store"]


def test_a_system_without_swapping_keeps_the_old_store_until_the_new_one_is_there(
    target: Path, no_renameat2: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_at(target)
    rename = Path.rename
    rows = []

    def watched(self: Path, other: Path) -> Path:
        done = rename(self, other)
        stores = [path for path in target.parent.iterdir() if (path / "manifest.json").exists()]
        rows.append(sorted(MasterStore.open(path).rows for path in stores))
        return done

    monkeypatch.setattr(Path, "rename", watched)
    MasterStore.build(TABLE.slice(0, 7), target, "k", overwrite=True)
    assert rows
    assert all(there == [7, 100] for there in rows), "both are somewhere until the new one has the name"


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


def test_only_leftovers_of_builds_are_tidied_up(target: Path) -> None:
    """Names as builds of this store give them are removed if nothing works there; others that look alike stay."""
    target.parent.mkdir()
    dead, alike = ".building-store-0123456789ab", [".building-store-notes", ".building-store2-0123456789ab"]
    for name in (dead, *alike):
        target.with_name(name).mkdir()
        target.with_name(f"{name}.lock").touch()
    built_at(target)
    left = {path.name for path in target.parent.iterdir()}
    assert left == {"store", *alike, *(f"{name}.lock" for name in alike)}


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
    with pytest.raises(StoreError, match="the store was replaced after it was opened"):
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
