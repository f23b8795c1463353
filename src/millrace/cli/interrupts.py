"""Ctrl-C: it ends a command with exit code 130, after clean-up.

Python raises ``KeyboardInterrupt`` wherever the main thread happens to be. In a finalizer, a weak reference's callback
or a function called from C, that exception is discarded, and the command would go on. In the middle of a clean-up, it
would leave files or processes behind. So the command line raises the exception only when no clean-up or import is
running, and raises it again if it was discarded:

    no interrupt ──Ctrl-C──► pending ──raised──► propagating ──► the command has ended, exit code 130
                              ▲   │                   │
     not possible yet: wait ──┘   │                   └─ discarded: pending again
                                  └─ in a `Held` block: a function is called instead, which stops the work

While an interrupt is pending or propagating, a timer checks every 20 ms whether the exception can be raised where the
main thread is. The library installs no handlers; :func:`run` does, for the whole process. This module is imported
before the rest of the command line, so it imports only modules that load quickly.
"""

from __future__ import annotations

import atexit
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
"""Exit code of a command ended by Ctrl-C: 128 + SIGINT."""

_LOOK_SECONDS = 0.02
_GRACE_SECONDS = 2.0
"""Seconds after Ctrl-C in which the handling of another exception is not interrupted, as it may be clean-up."""

_PATIENCE_SECONDS = 5.0
"""Seconds after Ctrl-C in which pressing it again has no effect. Later, it interrupts even a clean-up that hangs."""

_WHOLE_FUNCTIONS = frozenset({"__enter__", "__exit__", "__del__", "rmtree", "_execute_child"})
"""Names of functions during which Ctrl-C is held back, because they acquire or release resources."""

_WHOLE_MODULES = frozenset({"importlib._bootstrap", "tempfile", "weakref"})
"""Modules during whose code Ctrl-C is held back, because they import modules, or create or remove temporary files."""


class Interrupted(KeyboardInterrupt):
    """The exception that Ctrl-C raises in a command; its class tells it apart from any other ``KeyboardInterrupt``."""


class Interrupts:
    """Raises :class:`Interrupted` in the main thread after Ctrl-C, and again whenever it was discarded."""

    def __init__(self) -> None:
        self.came = False
        self._installed = self._at_work = False
        self._settled = self._ended = False
        self._since = 0.0
        self._unraisable, self._uncaught = sys.unraisablehook, sys.excepthook

    def install(self) -> None:
        """Handle SIGINT until the process ends, unless the process was started with SIGINT ignored."""
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            return
        signal.signal(signal.SIGALRM, self._look)
        signal.signal(signal.SIGINT, self._press)
        self._installed = True
        sys.unraisablehook, sys.excepthook = self._discarded, self._printed
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # registered first, so it runs last

    @contextmanager
    def command(self) -> Iterator[None]:
        """Allow interrupts in this block; if Ctrl-C was pressed before the block, an interrupt is raised soon."""
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False

    def settle(self) -> None:
        """Record that the command ends because of the interrupt, so that the interrupt is not raised again."""
        if self._installed:
            self.came = self._settled = True
            self._since = time.monotonic()
            self._stop_looking()

    def end(self) -> None:
        """Stop raising interrupts for good."""
        self._ended = True
        if self._installed:
            self._stop_looking()
            signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        again, waited = self.came, time.monotonic() - self._since
        if again and waited < _PATIENCE_SECONDS:
            return
        self.came, self._since = True, time.monotonic()
        if again and self._ended:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        elif again and self._at_work:
            raise Interrupted
        else:
            self._raise_if_possible(sys._getframe(1))

    def _look(self, _number: int, _frame: FrameType | None) -> None:
        self._raise_if_possible(sys._getframe(1))

    def _raise_if_possible(self, frame: FrameType) -> None:
        if self._ended or self._settled:
            return
        signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS)
        if not self._at_work or signal.getsignal(signal.SIGINT) != self._press:
            return  # the command is starting or ending, or other code handles Ctrl-C for now
        if self._cleaning_up() or _is_within_whole(frame):
            return
        self._since = time.monotonic()
        raise Interrupted

    def _cleaning_up(self) -> bool:
        error = sys.exception()
        if error is None:
            return False
        if time.monotonic() - self._since < _GRACE_SECONDS:
            return True
        while error is not None:
            if isinstance(error, Interrupted):
                return True
            error = error.__context__
        return False

    def _stop_looking(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _discarded(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Interrupted):
            self._unraisable(unraisable)

    def _printed(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Print an exception unless it is :class:`Interrupted`: extension modules print those that they discard."""
        if not isinstance(error, Interrupted):
            self._uncaught(kind, error, trace)


def _is_within_whole(frame: FrameType | None) -> bool:
    """Return whether the frame is in a function that must not be interrupted, directly or further up the stack."""
    while frame is not None:
        if frame.f_code.co_name in _WHOLE_FUNCTIONS or frame.f_globals.get("__name__") in _WHOLE_MODULES:
            return True
        frame = frame.f_back
    return False


class Held:
    """Calls ``noted`` at the first Ctrl-C in a block instead of raising an exception, so that the block can end itself.

    It is for calls that must not be interrupted, such as those to Spark: after an interrupted call, the next call would
    receive the answer to the interrupted one.
    """

    def __init__(self, noted: Callable[[], None]) -> None:
        self.interrupted = False
        self._noted = noted
        self._since = 0.0

    def __enter__(self) -> Held:
        self._before = signal.signal(signal.SIGINT, self._press)
        if came():
            self._press(signal.SIGINT, None)  # Ctrl-C was pressed before the block
        return self

    def __exit__(self, *_: object) -> None:
        if self.interrupted:
            _of_process.settle()
        signal.signal(signal.SIGINT, self._before)

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        again, waited = self.interrupted, time.monotonic() - self._since
        if again and waited < _PATIENCE_SECONDS:
            return
        self.interrupted, self._since = True, time.monotonic()
        if again:
            raise Interrupted
        self._noted()


_of_process = Interrupts()  # a process has one handler of signals


def came() -> bool:
    """Return whether Ctrl-C was pressed in this process since :func:`run` began to handle it."""
    return _of_process.came


@contextmanager
def handler_kept() -> Iterator[None]:
    """Restore the current handler of SIGINT at the end of the block, because starting a Spark session replaces it."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def raised() -> Iterator[None]:
    """Let Ctrl-C raise :class:`Interrupted` in this block, in which a command does all of its work."""
    with _of_process.command():
        yield


def run(command: Callable[[], object]) -> NoReturn:
    """Run a command line, and exit the process with its exit code, or with 130 if Ctrl-C was pressed."""
    _of_process.install()
    code: Any = 0
    try:
        command()
    except SystemExit as end:
        code = end.code
    except BaseException:
        if not came():
            raise
    finally:
        _of_process.end()
    if came() and code != INTERRUPTED:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)
