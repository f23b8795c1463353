"""Mutants: which ones there are, and that a draw can be repeated."""

from __future__ import annotations

from tools.mutation import draw, mutants_of

SOURCE = b'''"""Some text."""

from typing import TYPE_CHECKING

LIMIT: "int" = 3

if TYPE_CHECKING:
    HINT = 5

def add(items: "list[1 < 2]", \xc3\xa9: int) -> "1 < 2":
    """Add 1 < 2."""
    total = 0
    for item in items:
        if item < \xc3\xa9 and not total:
            continue
        total += item
        items.append(item)
    if total == 7:
        raise ValueError(f"items: expected less than {7 + 1}; got {total - 1}")
    return total

class Thing:
    def __repr__(self) -> str:
        return "a" if 1 < 2 else "b"

    def check_invariants(self) -> None:
        assert 1 < 2
'''


def test_all_mutants_compile_and_differ() -> None:
    found = mutants_of("a.py", SOURCE)
    changed = {mutant.applied(SOURCE) for mutant in found}
    for text in changed:
        compile(text, "a.py", "exec")
    assert len(changed) == len(found) == len({mutant.id for mutant in found})
    assert SOURCE not in changed


def test_every_kind_of_change_is_made_in_code_only() -> None:
    found = {(mutant.line, mutant.operator) for mutant in mutants_of("a.py", SOURCE)}
    test = ["and/or", "comparison", "condition forced", "condition negated", "negation"]
    assert found == {
        (5, "constant"),
        (12, "constant"),
        *((14, operator) for operator in test),
        (15, "break/continue"),
        (16, "arithmetic"),
        (16, "statement dropped"),
        (17, "statement dropped"),
        (18, "comparison"),
        (18, "condition forced"),
        (18, "condition negated"),
        (18, "constant"),
        (20, "return value"),
    }


def test_a_function_that_loses_its_yield_stays_a_generator() -> None:
    source = b"def f(a):\n    yield from a\n"
    (mutant,) = mutants_of("a.py", source)
    names: dict[str, object] = {}
    exec(mutant.applied(source), names)
    made = names["f"]
    assert callable(made)
    assert list(made([1])) == []


def test_kernels_are_known_by_their_decorator() -> None:
    source = b"@kernel\ndef f(a):\n    return a + 1\n\ndef g(a):\n    return a + 1\n"
    assert {(mutant.function, mutant.kernel) for mutant in mutants_of("a.py", source)} == {("f", True), ("g", False)}


def test_a_draw_is_the_same_for_the_same_seed_and_takes_a_line_once() -> None:
    files = [("b.py", SOURCE), ("a.py", SOURCE)]
    first, second = draw(files, 9, seed=5), draw(reversed(files), 9, seed=5)
    assert first == second
    assert len({(mutant.file, mutant.line) for mutant in first}) == 9
    assert draw(files, 9, seed=6) != first
    assert len(draw(files, 1_000, seed=5)) == 16  # no more than there are lines
