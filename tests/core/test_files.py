"""Files and directories that take their names at once, and the leftovers of killed processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.core.files import atomic
from millrace.core.files.leftovers import WorkDirectory, remove_leftovers, remove_unused
from millrace.core.files.locks import locked
from millrace.testing.faults import in_child


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed and renamed, in order."""
    seen: list[str] = []

    def flush(descriptor: int) -> None:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        seen.append("flush folder" if os.path.isdir(place) else f"flush {os.path.getsize(place)} bytes")

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            seen.append(name)
            return call(*arguments)

        return wrapper

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", watched("rename", os.replace))
    monkeypatch.setattr(atomic, "_rename", watched("rename", atomic._rename))
    return seen


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, calls: list[str]) -> None:
    atomic.write_file(tmp_path / "a", b"12345")
    assert calls == ["flush 5 bytes", "rename", "flush folder"]
    calls.clear()
    atomic.write_file(tmp_path / "a", b"new", durable=False)
    assert calls == ["rename"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"new"}


def test_a_directorys_new_name_is_flushed(tmp_path: Path, calls: list[str]) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"in {name}").touch()
    atomic.take_new_name(tmp_path / "one", tmp_path / "new")
    atomic.swap_names(tmp_path / "new", tmp_path / "other")
    assert calls == ["rename", "flush folder"] * 2
    there = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("in *"))
    assert there == ["new/in other", "other/in one"]


@pytest.mark.parametrize("kind", ["file", "empty folder", "folder", "dangling link"])
def test_a_name_that_is_taken_is_left_alone(kind: str, tmp_path: Path) -> None:
    mine, target = tmp_path / "mine", tmp_path / "target"
    mine.mkdir()
    if kind == "file":
        target.touch()
    elif kind == "dangling link":
        target.symlink_to("nowhere")
    else:
        target.mkdir()
        if kind == "folder":
            (target / "precious").touch()
    with pytest.raises(OSError):  # noqa: PT011
        atomic.take_new_name(mine, target)
    assert mine.is_dir()
    assert os.path.lexists(target)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_file_that_is_not_finished_leaves_the_old_one(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def write() -> None:
        with atomic.replaced_file(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


def make_and_die(parent: Path) -> None:
    (WorkDirectory(parent, ".work-").path / "file").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)


def test_only_directories_of_killed_processes_with_the_prefix_are_leftovers(tmp_path: Path) -> None:
    assert in_child(make_and_die, tmp_path) == -signal.SIGKILL
    used, other = WorkDirectory(tmp_path, ".work-"), WorkDirectory(tmp_path, ".other-")
    other_name = other.path.name
    os.close(other._lock)  # as if its process had ended
    remove_leftovers(tmp_path, ".work-")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == sorted([other_name, used.path.name])
    used.remove()
    remove_leftovers(tmp_path, ".other-")
    assert not list(tmp_path.iterdir())


def test_a_lock_that_is_removed_before_it_is_held_is_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take a lock file that is not locked yet for a leftover; a second one is made then."""
    made: list[str] = []
    open_ = os.open

    def opened(path: Any, *arguments: Any) -> int:
        descriptor = open_(path, *arguments)
        if not made:
            os.unlink(path)
        made.append(os.fspath(path))
        return descriptor

    monkeypatch.setattr(os, "open", opened)
    work = WorkDirectory(tmp_path, ".work-")
    assert len(made) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [work.path.name, f"{work.path.name}.lock"]
    work.remove()


def test_a_fork_does_not_remove_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = WorkDirectory(tmp_path, ".work-")
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a forked process
    work.remove()
    assert work.path.is_dir()


def test_files_are_unused_after_some_time(tmp_path: Path) -> None:
    for name in ("old.copy", "new.copy", "old.other"):
        (tmp_path / name).touch()
    for name in ("old.copy", "old.other"):
        os.utime(tmp_path / name, (0, time.time() - 61))
    remove_unused(tmp_path, "*.copy", 60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.copy", "old.other"]
    remove_unused(tmp_path / "nowhere", "*", 60)


def hold(path: Path) -> None:
    with locked(path):
        (path.parent / "held").touch()
        time.sleep(0.5)
        (path.parent / "ended").touch()


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    other = threading.Thread(target=hold, args=(tmp_path / "lock",))  # whose open file is not ours
    other.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.005)
    with locked(tmp_path / "lock"):
        assert (tmp_path / "ended").exists()
    other.join()


def test_new_directories_keep_their_names_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(atomic, "flush", flushed.append)
    atomic.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert flushed == [tmp_path, tmp_path / "a"], "the name of each is in the directory above it"
    atomic.make_directory(tmp_path / "a" / "b")
    assert len(flushed) == 2, "what is there already is not made"
