"""Make parts of the documentation from committed results: ``python -m millrace_bench docs``.

A page marks such a part with ``<!-- made: NAME -->`` and ``<!-- end -->``. A test checks that the marked parts of all
pages agree with the results.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.core.errors import one_of
from millrace_bench.experiments import results
from millrace_bench.experiments.figures import sheet
from millrace_bench.experiments.markdown import markdown, totals
from millrace_bench.experiments.report import by_paper
from millrace_bench.rivals import page, ratios
from millrace_bench.rivals.result_files import read_matrix

_PART = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_IMAGES = "../images"
"""Folder of the pictures, relative to the pages that show them, which are in subfolders of docs/."""


def _rivals(docs: Path, name: str) -> str:
    return page.markdown(read_matrix(docs / "results" / f"{name}.jsonl"), f"{_IMAGES}/{name}.png")


def _peers(docs: Path) -> str:
    """Return a Markdown table of the engines without Spark: their rates at skew 1 with batches of 100,000 tuples."""
    found = read_matrix(docs / "results" / "rivals.jsonl")
    some = {s: here for s, here in found.rates.items() if (s.skew, s.batch_rows) == (1.0, 100_000)}
    names = page.engines(some)
    lines = [f"| master rows | {' | '.join(f'`{name}`' if name in found.mine else name for name in names)} |"]
    lines.append("|---" * (1 + len(names)) + "|")
    for rows in dict.fromkeys(setting.rows for setting in some):
        ((_, _, texts),) = ratios.table(some, names, found.mine, rows)
        lines.append(f"| {ratios.amount(rows)} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _experiments(docs: Path) -> dict[str, Any]:
    return results.read(docs / "results" / "experiments.json")


def _sheets(docs: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the figures of each paper, keyed by the file name of the picture that shows them all."""
    figures = _experiments(docs)["experiments"]
    papers = by_paper(figures).items()
    return {f"figures-{paper.lower()}.png": {name: figures[name] for name in names} for paper, names in papers}


def _figures(docs: Path) -> str:
    lines = (f"![{', '.join(figures)}]({_IMAGES}/{picture})\n" for picture, figures in _sheets(docs).items())
    return "\n".join(lines)


MAKERS: dict[str, Callable[[Path], str]] = {
    "claims": lambda docs: totals(_experiments(docs)),
    "experiments": lambda docs: markdown(_experiments(docs)),
    "figures": _figures,
    "peers": _peers,
    "rivals": lambda docs: _rivals(docs, "rivals"),
    "rivals-spark": lambda docs: _rivals(docs, "rivals-spark"),
}
"""Functions that return the Markdown of a marked part, by the part's name; each takes the documentation folder."""


def remake(text: str, docs: Path) -> str:
    """Return the text of a page with its marked parts replaced by ones made from the current results.

    >>> remake("no such part", Path("docs"))
    'no such part'
    """

    def made(part: re.Match[str]) -> str:
        return f"{part[1]}{MAKERS[one_of('made', part[2], MAKERS)](docs)}{part[3]}"

    return _PART.sub(made, text)


def pages(docs: Path) -> list[Path]:
    """Return the README and all Markdown pages of the documentation: the pages that may have marked parts."""
    return [docs.parent / "README.md", *sorted(docs.rglob("*.md"))]


def write(docs: Path) -> list[Path]:
    """Make the marked parts of all pages and the pictures they show; return the pages that changed."""
    for name in ("rivals", "rivals-spark"):
        (docs / "images" / f"{name}.png").write_bytes(page.png(read_matrix(docs / "results" / f"{name}.jsonl").rates))
    for picture, figures in _sheets(docs).items():
        (docs / "images" / picture).write_bytes(sheet(figures))
    changed = []
    for path in pages(docs):
        text = path.read_text()
        new = remake(text, docs)
        if new != text:
            path.write_text(new)
            changed.append(path)
    return changed
