from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba.core import caching

from millrace.core.jit import interrupts_wait, kernel


@pytest.fixture(autouse=True)
def python_handles_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(log: list[str], error: Exception | None = None) -> None:
    with interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        log.append("went on")
        if error:
            raise error


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(log)
    assert log == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_the_block_goes_before_the_interrupt() -> None:
    with pytest.raises(ValueError, match="mine"):
        interrupted([], ValueError("mine"))


def test_other_threads_leave_the_handler_alone() -> None:
    seen: list[object] = []

    def look() -> None:
        with interrupts_wait():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_kernel_is_compiled_to_its_end_when_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel
    def doubled(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return values * 2

    load: Any = caching.Cache.load_overload

    def load_interrupted(*arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return load(*arguments)

    monkeypatch.setattr(caching.Cache, "load_overload", load_interrupted)
    with pytest.raises(KeyboardInterrupt):
        doubled(np.arange(3))
    assert len(doubled.overloads) == 1  # type: ignore[attr-defined]
    assert doubled(np.arange(3)).tolist() == [0, 2, 4]
