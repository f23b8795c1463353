"""The ledger: nobody reserves more than there is, and the parts add up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.budget import MemoryBudget
from millrace.core.errors import BudgetExceededError, ConfigError


def test_a_refusal_changes_nothing_and_names_the_part() -> None:
    budget = MemoryBudget(1000)
    cache = budget.reserve("cache", 900)
    expected = r"queue: needs 200 B more memory, but only 100 B of the budget of 1\.0 kB are left"
    with pytest.raises(BudgetExceededError, match=expected):
        budget.reserve("queue", 200)
    assert budget.parts() == {"cache": 900}
    assert not cache.try_resize(1001)
    assert (cache.nbytes, budget.used, budget.peak) == (900, 900, 900)
    budget.check_invariants()


def test_parts_of_one_name_are_shown_together() -> None:
    budget = MemoryBudget(100)
    budget.reserve("load", 10)
    second = budget.reserve("load", 20)
    assert budget.parts() == {"load": 30}
    second.release()
    assert budget.parts() == {"load": 10}


def test_errors_are_what_a_caller_would_catch() -> None:
    with pytest.raises(MemoryError):
        MemoryBudget(1).reserve("a", 2)
    with pytest.raises(ValueError, match="at least one byte; got 0"):
        MemoryBudget(0)
    with pytest.raises(ConfigError, match="a: expected a reservation of at least 0 bytes; got -1"):
        MemoryBudget(1).reserve("a").resize(-1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 300))), st.integers(1, 500))
def test_any_order_of_resizing_keeps_the_ledger_sound(changes: list[tuple[int, int]], total: int) -> None:
    budget = MemoryBudget(total)
    parts = [budget.reserve(f"part {i}") for i in range(5)]
    held = [0] * 5
    for part, nbytes in changes:
        fits = sum(held) - held[part] + nbytes <= total
        assert parts[part].try_resize(nbytes) == fits
        held[part] = nbytes if fits else held[part]
        assert [each.nbytes for each in parts] == held
        assert budget.available == total - sum(held)
        budget.check_invariants()
    for part_ in parts:
        part_.release()
    assert budget.used == 0
