"""The ``millrace`` command and the table of its commands. A command's module is imported when the command runs."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Final

import typer

from millrace.cli.command_group import ErrorsInOneLine
from millrace.core.errors import ConfigError

COMMANDS = {
    "generate": ("millrace.cli.generate_command:app", "Make seeded data: streams, masters, TPC-H tables."),
    "master": ("millrace.cli.master_command:app", "Build, describe and check stores of master data."),
    "join": ("millrace.cli.join_command:join", "Join a stream with a store under one byte budget."),
    "run": (
        "millrace.cli.run_command:run",
        "Run a pipeline on Spark: source, master, join and sink from one file. After Ctrl-C, run it again to continue.",
    ),
    "tune": (
        "millrace.cli.tune_command:tune",
        "Predict service rates, choose the algorithm and its parameters, and explain the choice.",
    ),
    "algorithms": (
        "millrace.cli.algorithms_command:algorithms",
        "List the algorithms, what each does, what it needs of the master, and its options.",
    ),
}
"""The commands of this package, each with the location of its function and with its help in one line."""

BENCH_COMMANDS = {
    "demo": "Watch a warehouse on Spark take in orders and enrich them with customers, inside a small budget.",
    "embedded-demo": "Watch two joins work without Spark on generated data, see that they are exact, and compare them.",
    "bench": "The papers' experiments, and Millrace beside its peers.",
}
"""The commands of the package ``millrace_bench``, which is installed separately, and their help in one line."""

ENTRY_POINTS = "millrace.commands"
"""The group of entry points by which other packages add commands."""

_EXAMPLE = """From nothing to an enriched stream:

    millrace generate master customers.parquet --rows 1_000_000
    millrace generate stream orders.parquet --rows 2_000_000
    millrace master build customers.parquet customers --key key
    millrace join orders.parquet customers out.parquet --on key --memory 1%

"""
_OPTIONS = "`millrace COMMAND --help` shows the options of a command"
_DEMOS = "Or watch it work on generated data first: `millrace demo` on Spark, `millrace embedded-demo` without"
_MARKUP: Final = "markdown"


def _available() -> dict[str, EntryPoint]:
    """Return the commands of this package, then those that other installed packages add, without importing any."""
    found = {name: EntryPoint(name, where, ENTRY_POINTS) for name, (where, _) in COMMANDS.items()}
    for added in entry_points(group=ENTRY_POINTS):
        found.setdefault(added.name, added)
    return found


AVAILABLE = _available()


class LazyCommands(ErrorsInOneLine):
    """Lists commands with help texts from :data:`COMMANDS`; imports a command when it runs or shows its own help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in BENCH_COMMANDS and args[0] not in AVAILABLE:
            raise ConfigError(
                f"{args[0]}: needs the package millrace_bench, which is not installed: "
                "run `pip install ./src/millrace_bench` in a copy of Millrace's repository"
            )
        name, listed, rest = super().resolve_command(ctx, args)
        return name, imported(name) if name in AVAILABLE else listed, rest


def imported(name: str) -> Any:
    """Import an available command and return it as a command or a group of commands."""
    command = AVAILABLE[name].load()
    parent = typer.Typer(rich_markup_mode=_MARKUP)
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=name)
    else:
        parent.command(name)(command)
    return typer.main.get_group(parent).commands[name]


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    rich_markup_mode=_MARKUP,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog=_EXAMPLE + (_DEMOS if "demo" in AVAILABLE else _OPTIONS),
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        from millrace.cli.display import out

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


def _help(command: EntryPoint) -> str:
    if command.name in COMMANDS:
        return COMMANDS[command.name][1]
    package = command.dist.name if command.dist is not None else command.module
    return BENCH_COMMANDS.get(command.name, f"A command of the package {package}.")


def _listed_only() -> None:
    """Do nothing. This is a placeholder, so that a command can be listed before its module is imported."""


for _command in AVAILABLE.values():
    app.command(_command.name, help=_help(_command))(_listed_only)
