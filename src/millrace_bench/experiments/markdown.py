"""Write results as Markdown: totals by paper, all claims, and the reasons for differences."""

from __future__ import annotations

from typing import Any

from millrace_bench.experiments.report import EVERY, by_paper, verdicts


def totals(results: dict[str, Any]) -> str:
    """Return a Markdown table with the number of claims that have each verdict, by paper and in all."""
    figures = results["experiments"]
    lines = ["| paper | claims | " + " | ".join(EVERY) + " |", "|---|" + "---|" * (1 + len(EVERY))]
    for paper, names in by_paper(figures).items():
        found = verdicts({name: figures[name] for name in names})
        lines.append(f"| {paper} | {found.total()} | " + " | ".join(str(found[each]) for each in EVERY) + " |")
    found = verdicts(figures)
    lines.append(f"| all | {found.total()} | " + " | ".join(str(found[each]) for each in EVERY) + " |")
    return "\n".join(lines) + "\n"


def markdown(results: dict[str, Any]) -> str:
    """Return Markdown with a table of totals, a table of all claims, and a list of reasons for differences."""
    figures = results["experiments"]
    lines = [totals(results), "| figure | the paper | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {claim['says']} | {claim['measured']} | {claim['verdict']} |"
        for name, figure in figures.items()
        for claim in figure["claims"]
    ]
    reasons: dict[str, list[str]] = {}
    for name, figure in figures.items():
        for claim in figure["claims"]:
            if claim["verdict"] in ("partly", "not reproduced"):
                where = reasons.setdefault(claim["because"].split("; ", 1)[-1], [])
                where += [name] if name not in where else []
    lines += ["", *(f"- **{', '.join(names)}**: {reason}." for reason, names in reasons.items())]
    return "\n".join(lines) + "\n"
