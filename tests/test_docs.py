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


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
