"""The examples of the README and of docs/ run as they stand; the blocks of a page share their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Relative paths lead to a folder of the test's own, also those of a Spark that was started elsewhere."""
    monkeypatch.chdir(tmp_path)
    spark = SparkSession.getActiveSession()
    if spark is None:
        yield
        return
    hadoop: Any = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    files = hadoop.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(tmp_path)))
    yield
    files.setWorkingDirectory(before)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path) -> None:
    names: dict[str, Any] = {"__name__": page.stem}
    for block in _BLOCK.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), names)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them; a heading in a block of code is none."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
            if target.startswith("http"):
                continue
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(there), f"{page.name}: {target}#{anchor}"


def test_every_page_is_in_the_index_once() -> None:
    """The index has every page of the documentation, and no page is in two parts of it."""
    index = ROOT / "docs" / "README.md"
    links = re.findall(r"\]\(([^)#\s]+)\)", index.read_text())
    assert sorted(links) == sorted(str(page.relative_to(index.parent)) for page in PAGES[1:] if page != index)


def test_pages_that_the_text_names_exist() -> None:
    """Pages are also named without a link, in the changelog and in docstrings."""
    folders = [ROOT / "src" / "millrace_bench", ROOT / "tools", ROOT / "examples"]
    named = [ROOT / "CHANGELOG.md", ROOT / "Makefile", *(file for folder in folders for file in folder.rglob("*.py"))]
    for file in named:
        for page in re.findall(r"docs/[\w/-]+\.md", file.read_text()):
            assert (ROOT / page).exists(), f"{file.name}: {page}"


def test_the_readme_counts_the_claims_as_they_were_measured() -> None:
    """The table on the page of the experiments is made from results; the README has its last line in words."""
    table = (ROOT / "docs" / "reference" / "experiments.md").read_text()
    totals = re.search(r"^\| all \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", table, re.MULTILINE)
    assert totals is not None
    claims, reproduced, partly, missed = totals.groups()
    counts = f"{reproduced} are reproduced on a modelled disk, {partly} partly, {missed} not."
    assert f"Of {claims} claims of the papers, {counts}" in (ROOT / "README.md").read_text()
