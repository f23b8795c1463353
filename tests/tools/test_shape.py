"""The shape of small trees whose figures are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.shape import shape


def tree(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


PART = """
from dataclasses import dataclass

@dataclass
class Counts:
    seen: int = 0
    lost: int = 0
    more: int = 0
    most: int = 0

class Part:
    hint: int
    LIMIT = 3

    def __init__(self) -> None:
        self.a, (self.b, *self.c) = 1, (2, 3)

    def grow(self) -> None:
        self.a += 1

class Whole(Part, Exception):
    def __init__(self, part: Part, counts: Counts) -> None:
        super().__init__()
        self.part = part
        self.part.b = 7
        counts.seen += 1
"""


def test_state_and_methods_count_inherited_ones_once(tmp_path: Path) -> None:
    maxima = shape(tree(tmp_path, p__in__part=PART))["maxima"]
    assert maxima["state attributes of a class"] == 5  # hint, a, b, c, part
    assert maxima["methods of a class"] == 2
    assert maxima["depth of inheritance"] == 2
    assert maxima["longest module"] == len(PART.splitlines())


def test_plain_data_is_apart(tmp_path: Path) -> None:
    found = shape(tree(tmp_path, p__in__part=PART))
    assert [each["class"] for each in found["classes"] if each["plain"]] == ["Counts"]
    assert found["totals"]["plain data"] == 1


def test_attributes_set_from_outside_name_their_class(tmp_path: Path) -> None:
    outside = "from p.part import Part\n\ndef change(part: Part, other) -> None:\n    part.a = 1\n    other.shape = 2\n"
    found = shape(tree(tmp_path, p__in__part=PART, p__in__outside=outside))
    assert [(each["target"], each["of"]) for each in found["set from outside"]] == [("part.a", "Part")]
    assert [each["target"] for each in found["plain data set"]] == ["counts.seen"]


@pytest.mark.parametrize(
    "statement",
    [
        "from p.a.one import x",
        "from p.a import one",
        "import p.a.one",
        "from .one import x",
        "def f() -> None:\n    from p.a.one import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a.one import x",
    ],
)
def test_a_cycle_is_found_however_it_is_imported(tmp_path: Path, statement: str) -> None:
    files = {"p__in__a__in____init__": "", "p__in__a__in__one": "from p.a import two\nx = 1", "p__in____init__": ""}
    found = shape(tree(tmp_path, **files, p__in__a__in__two=statement))
    assert found["cycles"] == [{"level": "modules", "members": ["p.a.one", "p.a.two"]}]


def test_folders_can_form_a_cycle_that_their_modules_do_not(tmp_path: Path) -> None:
    files = {"p__in__a__in__one": "import p.b.one", "p__in__b__in__two": "import p.a.two"}
    found = shape(tree(tmp_path, **files, p__in__a__in__two="", p__in__b__in__one=""))
    assert found["cycles"] == [{"level": "p", "members": ["p.a", "p.b"]}]
    assert found["maxima"]["import cycles of modules"] == 0
    assert found["maxima"]["file names that occur twice"] == 2
