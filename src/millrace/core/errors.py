"""The errors that Millrace raises.

All inherit from :class:`MillraceError` and from the builtin error that a caller would catch. A message names the
subject, where it was found, what was expected and what was found.

After any error in a call, except :class:`BudgetExceededError`, the join cannot go on; make a new join. (An error that
``push`` raises before it returns, for example about the batch's columns, changes nothing.)
"""

from __future__ import annotations

from collections.abc import Iterable


class MillraceError(Exception):
    """Base of all errors raised by Millrace."""


class ConfigError(MillraceError, ValueError):
    """An argument or option has a value that is not allowed."""


class BudgetTooSmallError(ConfigError):
    """The memory budget is too small; the operator needs at least ``minimum`` bytes."""

    def __init__(self, message: str, minimum: int) -> None:
        super().__init__(message)
        self.minimum = minimum

    def __reduce__(self) -> tuple[type[BudgetTooSmallError], tuple[str, int]]:
        return type(self), (str(self), self.minimum)  # so that the error can be pickled and sent to another process


class OutOfReachError(ConfigError):
    """No setting reaches the required value; ``nearest`` is the nearest value that can be reached."""

    def __init__(self, message: str, nearest: float) -> None:
        super().__init__(message)
        self.nearest = nearest

    def __reduce__(self) -> tuple[type[OutOfReachError], tuple[str, float]]:
        return type(self), (str(self), self.nearest)


class BudgetExceededError(MillraceError, MemoryError):
    """A part of the operator needs more bytes than the budget has left. Nothing was allocated."""


class SchemaError(MillraceError, TypeError):
    """Columns or types of the stream and the master do not fit together."""


class StateError(MillraceError, RuntimeError):
    """A method was called at a time when the operator does not allow it, or a snapshot cannot be restored."""


class StoreError(MillraceError, OSError):
    """A master store could not be read or written."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no master store at the path."""


class StoreExistsError(StoreError, FileExistsError):
    """There is already something at the path where a store was to be built."""


class CorruptStoreError(StoreError):
    """A file of the store is missing, damaged or truncated, or does not agree with the manifest."""


class StoreVersionError(StoreError):
    """The store was written in a format that this version of Millrace does not read."""


class SpillError(MillraceError, OSError):
    """Data of a join could not be written to disk, or had changed when it was read back."""


class SourceError(MillraceError, OSError):
    """An input of a join failed. ``source`` is its name; ``tuples`` and ``batches`` count what it delivered before."""

    def __init__(self, message: str, source: str = "", tuples: int = 0, batches: int = 0) -> None:
        super().__init__(message)
        self.source = source
        self.tuples = tuples
        self.batches = batches


def one_of(subject: str, value: object, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``, else raise an error that lists them.

    >>> one_of("how", "inner", ["inner", "left"])
    'inner'
    >>> one_of("how", "outer", ["inner", "left"])
    Traceback (most recent call last):
    millrace.core.errors.ConfigError: how: expected one of 'inner', 'left'; got 'outer'
    """
    allowed = list(choices)
    if not isinstance(value, str) or value not in allowed:
        listed = ", ".join(repr(choice) for choice in allowed)
        raise ConfigError(f"{subject}: expected one of {listed}; got {value!r}")
    return value
