"""Read the file of results that ``bench rivals`` writes, and write Markdown and a picture beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from millrace.core.errors import ConfigError, MillraceError
from millrace_bench.engines.engine_list import MILLRACE
from millrace_bench.rivals import page
from millrace_bench.rivals.cell import Cell, CellJournal
from millrace_bench.rivals.ratios import Matrix


def read_matrix(path: Path) -> Matrix:
    """Return the results in a file, whichever version of Millrace measured them."""
    found = list(CellJournal(path, every_version=True)) if path.is_file() else []
    if not found:
        raise ConfigError(f"peers: expected a file of results that `millrace bench rivals` wrote; got {path}")
    return Matrix.of(found, MILLRACE)


def show_and_write(wanted: Sequence[Cell], journal: CellJournal, console: Console, results: Path) -> None:
    """Show the results of some cells on the terminal; write Markdown and a picture beside the file ``results``."""
    cells = set(wanted)
    found = Matrix.of(((cell, one) for cell, one in journal if cell in cells), MILLRACE)
    if not any(one.rate for cell, one in journal if cell in cells):
        raise MillraceError("rivals: all measurements failed: " + next(iter({one.failed for _, one in journal})))
    page.show(console, found)
    picture = results.with_suffix(".png")
    picture.write_bytes(page.png(found.rates))
    results.with_suffix(".md").write_text(page.markdown(found, picture.name))
    console.print(f"{results}, {picture.name} and {results.with_suffix('.md').name} are written")
