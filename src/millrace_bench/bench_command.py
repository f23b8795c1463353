"""Run, report and compare the papers' experiments: ``millrace bench``."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from millrace.cli.display import err, out, say
from millrace.core.errors import ConfigError, one_of
from millrace.core.sizes import format_size

if TYPE_CHECKING:
    from millrace_bench.experiments.experiment import Size

app = typer.Typer(no_args_is_help=True, help="The papers' experiments, and Millrace beside its peers.")

Directory = Annotated[Path, typer.Option(help="Folder of the inputs, reused by later runs.")]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
SizeOption = Annotated[str, typer.Option(help="small, default, or paper: as published, where that fits on the disk.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments or papers; all by default.")]


@app.command("list")
def list_() -> None:
    """List the papers' figures that can be measured, with the data and the algorithms of each."""
    from rich.table import Table

    from millrace_bench.experiments.catalogue import EXPERIMENTS

    for source, figures in groupby(EXPERIMENTS.values(), lambda experiment: experiment.source):
        out().print(f"[bold]{source.name}[/bold]  {source.reference}", highlight=False)
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
        table.add_column(no_wrap=True)
        for figure in figures:
            algorithms = ", ".join(dict.fromkeys(series.algorithm for series in figure.series))
            table.add_row(figure.name, f"{figure.title} [dim]({figure.parameters['data']}; {algorithms})")
        out().print(table)
    say("`millrace bench run NAME` runs one, or all of a paper; `millrace bench rivals` is about Millrace's peers")


@app.command()
def run(
    names: Names = None,
    size: SizeOption = "small",
    directory: Directory = Path("bench-data"),
    to: Out = Path("build/bench"),
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of the streams, such as 11,12,13; by default those of the size.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="How many points to run at a time; by default as many as there are cores.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run all points, even those that have results.")] = False,
    machine: Annotated[
        bool,
        typer.Option("--machine", help="Measure wall time on this machine, without a disk model, one point at a time."),
    ] = False,
) -> None:
    """Run experiments and write their results and a report.

    Finished points are kept: stop the run with Ctrl-C, and run the same command again to continue.

        millrace bench run ssbj-5a sscj --size default
    """
    from millrace_bench.experiments import report as page
    from millrace_bench.experiments import results, runner
    from millrace_bench.experiments.catalogue import EXPERIMENTS, chosen
    from millrace_bench.experiments.experiment import without_disk_model

    wanted, chosen_size, numbers = chosen(names or []), _size(size), _seeds(seeds)
    every = list(EXPERIMENTS.values())
    if machine:
        wanted, every = ([here for e in some if (here := without_disk_model(e))] for some in (wanted, every))
        if not wanted:
            raise ConfigError(
                "machine: expected experiments that measure joins' rates or cache hits, and none of the chosen ones "
                "does; choose others, or leave out --machine"
            )
    wanted, too_large = runner.fitting(wanted, chosen_size, directory)
    for name, nbytes in too_large.items():
        say(f"left out: {name}: its data takes about {format_size(nbytes)}, more than is free on the disk")
    if not wanted:
        raise ConfigError(f"directory: the data of each chosen experiment is too large for the disk of {directory}")
    for name, folder in (("directory", directory), ("to", to)):
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{name}: expected a directory; {folder} is a file")
    kind = f"{chosen_size}-machine" if machine else chosen_size
    points_file = to / f"points-{kind}.jsonl"
    journal = runner.OutcomeJournal(points_file)
    points = runner.points_of(wanted, chosen_size, directory, numbers)
    if fresh:
        journal.forget(points)
    elif old := journal.of_other_code(points):
        say(f"{old} of {len(points)} points were measured with another version of the code; --fresh runs them again")
    try:
        at_a_time = 1 if machine else processes or os.cpu_count() or 1
        done = runner.run(wanted, chosen_size, directory, journal, seeds=numbers, processes=at_a_time, console=err())
    except KeyboardInterrupt:
        say(f"stopped; {len(journal)} outcomes are kept in {points_file}; run the same command again to continue")
        raise
    found = results.collect(wanted, chosen_size, directory, journal, numbers, also=every)
    path, html = to / f"results-{kind}.json", to / f"report-{kind}.html"
    results.write(found, path)
    pictures = page.write(found, html)
    _claims(found, [experiment.name for experiment in wanted])
    if chosen_size == "small":
        say("size small only shows that everything runs; it is too small to compare with a paper")
    say(f"{done} points were run; results: {path}; report: {html}; pictures: {pictures}")


@app.command()
def report(
    results_file: Annotated[Path, typer.Argument(metavar="RESULTS", help="A file that `bench run` wrote.")] = Path(
        "build/bench/results-small.json"
    ),
    to: Annotated[Path | None, typer.Option(help="The page to write; by default beside the results.")] = None,
    peers: Annotated[
        list[Path] | None,
        typer.Option(help="A file of `bench rivals --results` to show on the page too; may be repeated."),
    ] = None,
    tables: Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown instead of a page.")] = False,
) -> None:
    """Write a page that shows all figures beside the papers' claims, and write each picture to a file.

    millrace bench report build/bench/results-default.json --peers build/rivals.jsonl
    """
    from millrace_bench.experiments import report as page
    from millrace_bench.experiments import results
    from millrace_bench.experiments.markdown import markdown
    from millrace_bench.rivals.result_files import read_matrix

    if tables:
        typer.echo(markdown(results.read(results_file)), nl=False)
        return
    target = to or results_file.with_name(results_file.stem.replace("results", "report") + ".html")
    if target.suffix != ".html":
        raise ConfigError(f"to: expected a name that ends in .html; got {target}")
    pictures = page.write(results.read(results_file), target, {str(path): read_matrix(path) for path in peers or []})
    say(f"report: {target}; pictures: {pictures}")


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def rivals(context: typer.Context) -> None:
    """Compare Millrace with DuckDB, Polars, SQLite, pandas, and Spark's own joins; `--help` lists the options."""
    from millrace_bench.rivals import rivals_command

    rivals_command.main(context.args)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="Results from before.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="Results to compare with them.")],
    tolerance: Annotated[float, typer.Option(help="Changes below this share do not count.")] = 0.03,
) -> None:
    """Show points that changed by more than different seeds explain; exit with 1 if a point or a claim got worse."""
    from rich.table import Table

    from millrace_bench.experiments import results
    from millrace_bench.experiments.compare import compare as compared
    from millrace_bench.experiments.compare import left_out, verdicts_lost
    from millrace_bench.experiments.verdict import few

    old, new = results.read(before), results.read(after)
    changes = compared(old, new, tolerance)
    worse = [change for change in changes if change.regression]
    table = Table(box=None, pad_edge=False)
    for column in ("experiment", "series", "at", "before", "after", ""):
        table.add_column(column)
    for change in changes:
        if change.regression or change.improvement:
            word = "[red]worse" if change.regression else "[green]better"
            values = (f"{change.x:g}", few(change.before), few(change.after))
            table.add_row(change.experiment, change.series, *values, f"{word}: {change.factor}")
    if table.row_count:
        out().print(table)
    lost = verdicts_lost(old, new)
    for line in lost:
        say(f"no longer reproduced: {line}")
    for line in left_out(old, new):
        say(line)
    better = sum(change.improvement for change in changes)
    say(f"{len(changes)} points: {len(worse)} worse, {better} better, the others as before")
    if worse or lost:
        raise typer.Exit(1)


def _claims(found: dict[str, Any], names: list[str]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("experiment", "the paper", "measured", ""):
        table.add_column(column)
    colours = {"reproduced": "green", "partly": "yellow", "not reproduced": "red", "not measured": "dim"}
    for name in names:
        for claim in found["experiments"].get(name, {"claims": []})["claims"]:
            verdict = claim["verdict"]
            table.add_row(name, claim["says"], claim["measured"], f"[{colours[verdict]}]{verdict}")
    out().print(table)


def _size(size: str) -> Size:
    from millrace_bench.experiments.experiment import SIZES

    return cast("Size", one_of("size", size, SIZES))


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"seeds: expected whole numbers such as 11,12,13; got {text!r}")
    return list(dict.fromkeys(int(part) for part in parts))
