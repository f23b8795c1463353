"""Write all results as one self-contained page: each figure beside the paper's claims and their verdicts."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from millrace_bench.experiments.figures import png
from millrace_bench.experiments.results import write_whole
from millrace_bench.rivals import page
from millrace_bench.rivals.ratios import Matrix

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2a31; margin: 2rem auto; max-width: 1080px; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 3rem; border-bottom: 2px solid #1f6f8b; }
.quiet { color: #5f6f78; font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #e6e9eb; vertical-align: top; }
section { display: grid; grid-template-columns: minmax(0, 11fr) minmax(0, 10fr); gap: 1.5rem; margin: 2.2rem 0;
  break-inside: avoid; }
img { max-width: 100%; } section img { width: 100%; }
h3 { margin: 0 0 .3rem; } blockquote { margin: .2rem 0 .8rem; padding-left: .8rem;
  border-left: 3px solid #c9d3d8; } .claim { margin-bottom: .6rem; } .because { font-size: 13px; color: #5f6f78; }
.verdict { display: inline-block; border-radius: 3px; padding: 0 .45em; font-size: 12.5px; color: white;
  white-space: nowrap; }
.reproduced { background: #3f7d3f; } .partly { background: #b98a1d; } .not { background: #b0413e; }
.unmeasured { background: #8a979e; } td.number, th.number { text-align: right; } dt { float: left; clear: left;
  font-weight: 600; margin-right: .5em; } dd { margin: 0 0 .2rem 9rem; } h4 { margin: 2rem 0 .4rem; }
@media (max-width: 760px) { section { grid-template-columns: 1fr; } }
"""
EVERY = ("reproduced", "partly", "not reproduced", "not measured")
"""All verdicts, in the order in which the page shows them."""
_WORDS = {
    "R": "the master data, on disk; the stream is joined with it",
    "load": "rows of R that are read at a time",
    "turn": "one pass over all of R",
    "skew": "the exponent of a Zipf law: 0 is even, 1 is the usual one",
    "memory, % of R, of all inputs": "the budget for everything the join holds",
    "online": "before all inputs have ended",
    "MaxNewArr": "rows that may wait before a join leaves the disk for them",
    "MaxOuterMem": "blocks that DINER holds in memory while it joins blocks on disk",
}
_FIXED = {
    "share": "memory {} %",
    "megabytes": "memory {} MB",
    "tuples": "memory of {} tuples",
    "page": "pages of {} of R",
    "rate": "{} tuples per second",
    "z_R": "skew of R {}",
    "band": "matches within a band",
    "delay": "delays of {} %",
    "result_us": "{} µs for a result",
    "max_outer_blocks": "MaxOuterMem {} blocks",
}
"""Texts that show a fixed parameter's value; parameters without a text are shown by name."""
_MODEL = (
    "Joins run on a modelled disk with a virtual clock: rates are tuples per second of device time, tuples always "
    "available unless an arrival rate is given, after the join has settled. Only the disk takes time, so these "
    "figures are the same on any machine. Loads transfer whole rows, and in MESHJOIN and its kin a tuple stays for a "
    "whole turn, as in the papers. Adaptive joins have arrivals on a virtual clock, on which rows, results and blocks "
    "take the time that is given with each figure."
)
_MACHINE = (
    "Joins run on this machine in wall time: no disk is modelled, R is in the page cache, only keys are scanned, and "
    "tuples leave when they are answered. In the papers the disk is the bottleneck, here the processor is, so effects "
    "of seeks and transfers do not show."
)
_PEERS = (
    "<p>Without a disk model, every engine in a process of its own with its files in memory. A number in brackets "
    "is the rate of the best of Millrace over the peer's: below 1 the peer is ahead.</p>"
)


def html(results: dict[str, Any], pictures: Mapping[str, bytes], peers: Mapping[str, Matrix] | None = None) -> str:
    """Return the HTML page, with a picture for each figure, and with the comparison with peers if there is one."""
    figures = results["experiments"]
    papers = by_paper(figures)
    parts = [_head(results), _totals(figures), _explained(), _summary(figures)]
    for paper, names in papers.items():
        reference = figures[names[0]]["reference"]
        parts.append(f"<h2 id='{escape(paper)}'>{escape(paper)}</h2><p class=quiet>{escape(reference)}</p>")
        parts += [_section(name, figures[name], pictures[name]) for name in names]
    for name, matrix in (peers or {}).items():
        parts.append(f"<h2>Beside its peers: {escape(name)}</h2>{_PEERS}{page.html(matrix, name)}")
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang=en><head><meta charset="utf-8"><meta name=viewport content="width=device-width">'
        f"<title>Millrace: the papers' experiments</title><style>{_STYLE}</style></head>"
        f"<body>\n{body}\n</body></html>\n"
    )


def write(results: dict[str, Any], path: Path, peers: Mapping[str, Matrix] | None = None) -> Path:
    """Write the page to ``path`` and the pictures to a folder beside it; return the folder."""
    pictures = {name: png(figure) for name, figure in results["experiments"].items()}
    folder = path.with_name(f"{path.stem}-figures")
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        write_whole(folder / f"{name}.png", picture)
    write_whole(path, html(results, pictures, peers).encode())
    return folder


def by_paper(figures: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of the figures of each paper, by the paper's name."""
    papers: dict[str, list[str]] = {}
    for name, figure in figures.items():
        papers.setdefault(figure["paper"], []).append(name)
    return papers


def verdicts(figures: dict[str, Any]) -> Counter[str]:
    """Return the number of claims with each verdict."""
    return Counter(claim["verdict"] for figure in figures.values() for claim in figure["claims"])


def _head(results: dict[str, Any]) -> str:
    seeds = results["seeds"]
    counts = {len(p["values"]) for f in results["experiments"].values() for line in f["series"].values() for p in line}
    fewest, most = min(counts, default=0), max(counts, default=0)
    runs = f"{most} runs of each point" if fewest == most else f"{fewest} to {most} runs of each point"
    runs = f"{runs}, with 95 % confidence intervals" if most > 1 else "one run of each point, so no intervals"
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    found = verdicts(results["experiments"])
    said = ", ".join(f"{found[verdict]} {verdict}" for verdict in EVERY if found[verdict])
    warning = ""
    if results["size"] == "small":
        warning = "<p><b>Size small only checks that everything runs; it is too small to compare with a paper.</b></p>"
    return (
        "<h1>The papers' experiments</h1>"
        f"<p class=quiet>size {escape(results['size'])}; {runs} (seeds {', '.join(map(str, seeds))}); "
        f"{escape(versions)}; {escape(machine)}</p>"
        f"<p>{_MACHINE if results.get('on') == 'machine' else _MODEL} R and what goes with it are scaled down to the "
        f"size; axes show the paper's numbers.</p>{warning}<p><b>{sum(found.values())} claims: {said}.</b></p>"
    )


def _totals(figures: dict[str, Any]) -> str:
    """Return an HTML table of each paper's number of claims by verdict, with links to the papers' sections."""
    lines = []
    for paper, names in by_paper(figures).items():
        found = verdicts({name: figures[name] for name in names})
        cells = "".join(f"<td class=number>{found[verdict] or '–'}</td>" for verdict in EVERY)
        link = f"<a href='#{escape(paper)}'>{escape(paper)}</a>"
        lines.append(
            f"<tr><td>{link}</td><td class=number>{len(names)}</td><td class=number>{found.total()}</td>{cells}</tr>"
        )
    heads = "".join(f"<th class=number>{_badge(verdict)}</th>" for verdict in EVERY)
    return (
        "<table><tr><th>paper</th><th class=number>figures</th><th class=number>claims</th>"
        f"{heads}</tr>{''.join(lines)}</table>"
    )


def _explained() -> str:
    """Return HTML that explains the verdicts and the words on the axes."""
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(means)}</dd>" for word, means in _WORDS.items())
    return (
        f"<p>{_badge('reproduced')} is within the paper's number or range and the tolerance of the claim. "
        f"{_badge('partly')} has at least a third of the effect and at most three times it, in logarithms, or is right "
        f"at some places only. Shares and counts are {_badge('reproduced')} or {_badge('not reproduced')}. Ratios are "
        "taken seed by seed. Where a claim differs, the reason is below it.</p>"
        f"<h4>Words</h4><dl class=quiet>{words}</dl><h4>Figures</h4>"
    )


def _summary(figures: dict[str, Any]) -> str:
    lines = []
    for name, figure in figures.items():
        marks = " ".join(_badge(claim["verdict"]) for claim in figure["claims"])
        title = f"{figure['paper']} {figure['figure']}"
        lines.append(
            f"<tr><td><a href='#{escape(name)}'>{escape(title)}</a></td>"
            f"<td>{escape(figure['title'])}</td><td>{marks}</td></tr>"
        )
    return f"<table><tr><th>figure</th><th></th><th>claims</th></tr>{''.join(lines)}</table>"


def _section(name: str, figure: dict[str, Any], drawn: bytes) -> str:
    picture = base64.b64encode(drawn).decode()
    claims = "".join(_claim(claim) for claim in figure["claims"])
    missing = "" if figure["complete"] else "<p class=because>Not all of its points have been run.</p>"
    return (
        f"<section id='{escape(name)}'><div><img alt='{escape(figure['title'])}' src='data:image/png;base64,{picture}'>"
        f"<p class=quiet>{escape(_shown(figure))}</p></div>"
        f"<div><h3>{escape(figure['figure'])}. {escape(figure['title'])}</h3>"
        f"<blockquote>The paper: {escape(figure['says'])}</blockquote>{claims}{missing}</div></section>"
    )


def _shown(figure: dict[str, Any]) -> str:
    """Return a figure's data, the size of the data, the disk and the fixed parameters in words."""
    low, high = figure["rows"]
    rows = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    size = "as in the paper" if figure["factor"] == 1 else f"1/{1 / figure['factor']:,.0f} of the paper's"
    fixed = ", ".join(
        _FIXED.get(name, f"{name} {{}}").format(f"{value:g}" if isinstance(value, float) else f"{value:,}")
        for name, value in figure["fixed"].items()
        if name not in ("rows", "disk", figure["varies"])
    )
    fixed = f" Fixed, in the paper's numbers: {fixed}." if fixed else ""
    data = "; ".join(figure["data"])
    return f"Data: {data}. {figure['rows_of']} has {rows} rows, {size}. Disk: {figure['disk']}.{fixed}"


def _claim(claim: dict[str, Any]) -> str:
    measured = f"measured {escape(claim['measured'])} " if claim["measured"] else ""
    because = f"<div class=because>because {escape(claim['because'])}</div>" if claim["because"] else ""
    return f"<div class=claim><b>{escape(claim['says'])}</b>: {measured}{_badge(claim['verdict'])}{because}</div>"


def _badge(verdict: str) -> str:
    style = "unmeasured" if verdict == "not measured" else verdict.split()[0]
    return f"<span class='verdict {style}'>{escape(verdict)}</span>"
