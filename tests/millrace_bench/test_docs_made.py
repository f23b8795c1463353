"""The documentation says what the committed results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.core.errors import ConfigError
from millrace_bench import make_docs

DOCS = Path(__file__).parents[2] / "docs"


def test_parts_that_are_made_from_results_are_as_the_results() -> None:
    for page in make_docs.pages(DOCS):
        text = page.read_text()
        assert make_docs.remake(text, DOCS) == text, f"{page.name}: `python -m millrace_bench docs` makes it anew"


def test_every_part_is_on_some_page() -> None:
    every = "".join(page.read_text() for page in make_docs.pages(DOCS))
    assert all(f"<!-- made: {name} -->" in every for name in make_docs.MAKERS)
    assert every.count("<!-- made: ") == every.count("<!-- end -->")


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ConfigError, match="made: expected one of"):
        make_docs.remake("<!-- made: nothing -->\n<!-- end -->", DOCS)
