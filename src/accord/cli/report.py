"""How every command speaks: results on stdout, everything else on stderr, and the exit code.

Owns the wording of failures, `--json`, tables and progress. Exit codes: 0 fine, 1 the thing
failed, 2 usage or configuration, 70 a mistake of ours. It never shows a traceback: the details of
an unexpected error go to a file.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import typer

from accord.kernel.errors import AccordError

FAILED = 1
MISUSED = 2
UNEXPECTED = 70


def run(app: typer.Typer) -> NoReturn:
    """Run the command line and leave with its exit code."""
    code = 0
    try:
        commands(app)()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else FAILED
    except AccordError as error:
        code = show_error(error)
    except Exception as error:  # noqa: BLE001 - the last stop: told in one line, kept in a file
        say(f"error: {type(error).__name__} was not expected; {_keep_details(error)}")
        code = UNEXPECTED
    _flush()
    raise SystemExit(code)


def commands(app: typer.Typer) -> Callable[..., object]:
    """The commands of an application; a flag shows no value in their help, for it takes none."""
    from typer.main import get_command

    root = get_command(app)
    context, waiting = typer.Context(root), [root]
    for each in waiting:
        waiting += getattr(each, "commands", {}).values()
        for option in each.get_params(context):
            if getattr(option, "is_flag", False):
                option.metavar = ""
    return root


def say(line: str) -> None:
    """Tell a person something that is not the result."""
    typer.echo(line, err=True)


def show_error(error: AccordError) -> int:
    """Print what is wrong, one line for each finding, and return the exit code for it."""
    from accord.station.errors import SettingsError

    for line in str(error).splitlines():
        say(f"error: {line}")
    return MISUSED if isinstance(error, SettingsError) else FAILED


def show_json(value: object) -> None:
    """Print a result for a program, on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a result for a person."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr while long work runs, on a terminal only.

    Yields:
        A function to call with what is done and what there is to do.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(work, completed=done, total=total)


def _keep_details(error: Exception) -> str:
    from accord.station.logs import scrub

    text = scrub("".join(traceback.format_exception(error)))
    try:
        descriptor, name = tempfile.mkstemp(prefix="accord-crash-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
    except OSError as unwritable:
        return f"the details could not be kept: {unwritable.strerror}"
    return f"the details are in {name}, please report them"


def _flush() -> None:
    """Let a reader that has gone, such as `head`, go without a word."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
