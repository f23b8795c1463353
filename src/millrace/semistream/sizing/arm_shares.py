"""Division of one budget among the arms of a star join, each of which joins the stream with one master.

With M bytes an arm answers M / v tuples in one pass over its R master rows, where a waiting tuple takes v bytes. So a
tuple costs R · v / M there, and the sum over all arms is least, for a given sum of all M, if

        M  ∝  √(R · v)

Where n joins share the M bytes of an arm, each with R rows, a tuple costs n times as much, so n is a factor like R. An
arm needs at most the memory that holds its whole master. Where no tuple waits, the least memory is enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.core.budget import MemoryBudget
from millrace.core.errors import BudgetTooSmallError
from millrace.core.sizes import format_size
from millrace.master.store import MasterStore

_ROUNDS = 100


@dataclass(frozen=True)
class Need:
    """How much memory an arm needs at least, and how much it can use."""

    name: str
    least: int
    weight: float = 0.0
    """Weight when memory is divided; 0 if the arm has no use for more than ``least``.

    It is √(number of joins that share the arm's memory · master rows · bytes per tuple).
    """
    enough: float = math.inf
    """Bytes that hold the whole master; more would be of no use."""
    fixed: int | None = None
    """Bytes that the user has set for the arm; None if the star decides."""


class BoundJoin(Protocol):
    """Attributes of an arm's join that determine the arm's share of the memory.

    The join has been made with the least budget, and it knows the columns of its stream.
    """

    @property
    def budget(self) -> MemoryBudget: ...
    @property
    def store(self) -> MasterStore: ...
    @property
    def waits(self) -> bool: ...
    @property
    def whole_bytes(self) -> float | None: ...
    @property
    def tuple_bytes(self) -> float: ...


def need_of(name: str, join: BoundJoin, fixed: int | None, joins: int = 1) -> Need:
    """Return the memory that an arm needs and can use if ``joins`` joins share it.

    ``fixed`` is the number of bytes that the user has set for the arm; None if the user has set none.
    """
    if not join.waits:
        return Need(name, joins * join.budget.total, fixed=fixed)
    rows = join.store.rows
    whole = join.whole_bytes
    enough = math.inf if whole is None else 1.1 * (whole + 8 * rows) + join.budget.total  # total: load and filters
    weight = math.sqrt(joins * rows * join.tuple_bytes)
    return Need(name, joins * join.budget.total, weight, joins * enough, fixed)


def split(total: int, needs: Sequence[Need]) -> list[int]:
    """Return the bytes that each arm gets, together at most ``total``.

    >>> split(100, [Need("big", 10, 3.0), Need("small", 10, 1.0), Need("index", 20)])
    [60, 20, 20]
    >>> split(100, [Need("big", 10, 3.0), Need("small", 10, 1.0, enough=15), Need("mine", 10, 9.0, fixed=25)])
    [60, 15, 25]
    """
    _check_least(total, needs)
    growing = [need for need in needs if need.fixed is None and need.weight > 0]
    left = total - sum(need.least if need.fixed is None else need.fixed for need in needs if need not in growing)
    level = _level(left, growing)
    shares = [_at(level, need) if need in growing else need.fixed or need.least for need in needs]
    rest, weights = total - sum(shares), sum(need.weight for need in growing)
    return [
        share + int(rest * need.weight / weights) if need in growing else share
        for share, need in zip(shares, needs, strict=True)
    ]


def _at(level: float, need: Need) -> int:
    """Return an arm's bytes: ``level`` times its weight, but at least what it needs and at most what it can use."""
    return max(need.least, int(min(need.enough, level * need.weight)))


def _level(left: int, growing: Sequence[Need]) -> float:
    """Return the largest number of bytes per unit of weight with which all these arms fit into ``left`` bytes."""
    low, high = 0.0, left / min((need.weight for need in growing), default=1.0)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if sum(_at(middle, need) for need in growing) <= left:
            low = middle
        else:
            high = middle
    return low


def _check_least(total: int, needs: Sequence[Need]) -> None:
    for need in needs:
        if need.fixed is not None and need.fixed < need.least:
            raise BudgetTooSmallError(
                f"arm {need.name!r}: share: {format_size(need.fixed)} is too little; "
                f"the least is {need.least} bytes ({format_size(need.least)})",
                need.least,
            )
    least = [need.least if need.fixed is None else need.fixed for need in needs]
    if sum(least) > total:
        listed = ", ".join(f"{need.name} {format_size(nbytes)}" for need, nbytes in zip(needs, least, strict=True))
        raise BudgetTooSmallError(
            f"memory: {format_size(total)} is too little for {len(needs)} arms; "
            f"the least is {sum(least)} bytes ({format_size(sum(least))}): {listed}",
            sum(least),
        )
