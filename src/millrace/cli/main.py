"""The ``millrace`` command: its groups, put together."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

from millrace.cli import algorithms, generate, join, master, run, tune
from millrace.cli.display import ErrorsInOneLine, out

_EXAMPLE = """From nothing to an enriched stream:

    millrace generate master customers.parquet --rows 1_000_000
    millrace generate stream orders.parquet --rows 2_000_000
    millrace master build customers.parquet customers --key key
    millrace join orders.parquet customers out.parquet --on key --memory 1%

Or watch it work on generated data first: `millrace demo` on Spark, `millrace embedded-demo` without
"""

app = typer.Typer(
    cls=ErrorsInOneLine,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog=_EXAMPLE,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        out().print(f"millrace {version('millrace')}", highlight=False)
        raise typer.Exit


@app.callback()
def millrace(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop."),
    ] = False,
) -> None:
    """Join a fast stream with master data on disk, exactly and inside one byte budget.

    The master is built once into a **store**. A **join** then reads the stream in batches while it reads the
    store in cycles, round and round like a mill wheel: every tuple meets every master row it could match,
    frequent keys are answered from a cache, and the memory used never passes the budget.
    """


app.add_typer(generate.app, name="generate")
app.add_typer(master.app, name="master")
app.command("join")(join.join)
app.command("run")(run.run)
app.command("tune")(tune.tune)
app.command("algorithms")(algorithms.algorithms)
for plugin in entry_points(group="millrace.commands"):
    command = plugin.load()
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=plugin.name)
    else:
        app.command(plugin.name)(command)
