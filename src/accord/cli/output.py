"""What commands share: their options, what they print, and the exit code.

A command takes an `Output`, a `Cli` or a class derived from them as its first parameter. Its fields
become options: they follow the positional parameters and precede the keyword-only ones, those of a
derived class come before those of its base, and `--json` is the last of all.

Results go to stdout, everything else to stderr. With `--json` stdout holds JSON and nothing else:
the result, or `{"error": ...}`. Exit codes: 0 fine, 1 it failed or the answer is no, 2 it cannot be
told (usage, settings, facts that cannot be read), 3 a contract needs a migration, 70 a bug. A
traceback is never shown: the details of an unexpected error go to a file.
"""

import dataclasses
import functools
import inspect
import itertools
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, ParamSpec

import typer

from accord.kernel.clock import format_time
from accord.kernel.errors import AccordError

if TYPE_CHECKING:
    from accord.station.settings import Settings

FAILED = 1
MISUSED = 2
"""Nothing was found out: wrong usage or settings, or facts that cannot be read."""
NEEDS_MIGRATION = 3
"""A change of a contract breaks nobody, and an operator has to decide on it."""
UNEXPECTED = 70

_JSON: Final = "--json"
_CAMEL: Final = re.compile(r"[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+", re.ASCII)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TIME: Final = re.compile(r"(?:.+_)?(?:at|until|since)", re.ASCII)
# Times are after 2001 in seconds and before 5138 in seconds, or after 1973 in milliseconds.
_FIRST_SECOND: Final = 10**9
_FIRST_MILLISECOND: Final = 10**11

Given = ParamSpec("Given")


@dataclass(frozen=True, slots=True)
class RawJson:
    """A document or payload whose form is laid down elsewhere: it is printed as it is.

    Manifests, events, policies, AsyncAPI documents, analyses of contracts, and what services,
    capabilities and queries answer.
    """

    value: Any


class UndecidedError(AccordError):
    """A question could not be answered: neither yes nor no."""

    def __init__(self, cause: AccordError) -> None:
        super().__init__(cause.what, where=cause.where, mend=cause.mend)
        self.cause = cause

    def __str__(self) -> str:
        return str(self.cause)


def yes_or_no(command: Callable[Given, None]) -> Callable[Given, None]:
    """Mark a command that answers yes (exit code 0) or no (1): every error is exit code 2."""

    @functools.wraps(command)
    def asked(*args: Given.args, **kwargs: Given.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except AccordError as error:
            raise UndecidedError(error) from error

    return asked


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = _JSON in given[: given.index("--") if "--" in given else len(given)]
    code = 0
    try:
        code = _run_as_json(app, given) if as_json else _run_as_text(app, given)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else FAILED
    except AccordError as error:
        code = show_error(error, as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the last stop: told in one line, kept in a file
        what = f"{type(error).__name__} was not expected"
        kept = _keep_details(error)
        if as_json:
            show_json({"error": _error("internal", what, mend=kept)})
        else:
            say(f"error: {what}; {kept}")
        code = UNEXPECTED
    _flush()
    raise SystemExit(code)


def _run_as_text(app: typer.Typer, given: list[str]) -> int:
    commands(app)(given)
    return 0


def _run_as_json(app: typer.Typer, given: list[str]) -> int:
    """Run a command whose usage errors are told as JSON, too."""
    from typer.exceptions import TyperException

    try:
        code = commands(app)(given, prog_name="accord", standalone_mode=False)
    except typer.Abort:
        show_json({"error": _error("stopped", "it was stopped")})
        return FAILED
    except TyperException as error:
        show_json({"error": _usage_error(error)})
        return MISUSED
    return code if isinstance(code, int) else 0


def _usage_error(error: Any) -> dict[str, Any]:
    words = error.ctx.command_path if error.ctx is not None else "accord"
    param = getattr(error, "param", None)
    hint = getattr(error, "param_hint", None) or (param.name if param is not None else None)
    return _error(
        "usage",
        (error.format_message() or "a command is missing").rstrip("."),
        where=hint if isinstance(hint, str) else None,
        mend=f"`{words} --help` shows its usage",
    )


def commands(app: typer.Typer) -> Callable[..., Any]:
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


def show_error(error: AccordError, *, as_json: bool = False) -> int:
    """Print what is wrong and return the exit code for it.

    A contract that cannot be read or is not valid leaves the question open, which is no "no".
    """
    from accord.contracts.errors import UnreadableError
    from accord.station.errors import SettingsError

    if as_json:
        show_json({"error": error_members(error)})
    else:
        for line in str(error).splitlines():
            say(f"error: {line}")
    is_open = isinstance(error, SettingsError | UnreadableError | UndecidedError)
    return MISUSED if is_open else FAILED


def error_members(error: AccordError) -> dict[str, Any]:
    """An error for a program, with `code`, `message`, `where`, `mend` and `findings`.

    `where` and `mend` may be null, and `findings` empty. An error that a service declared has its
    own members beside them, as the service sent them.
    """
    from accord.station.errors import SettingsError

    if isinstance(error, UndecidedError):
        return error_members(error.cause)
    code = getattr(error, "code", None)
    code = code.value if isinstance(code, Enum) else code
    findings = [
        {"rule": each.rule, "pointer": each.pointer, "message": each.message}
        for each in getattr(error, "findings", ())
    ]
    if isinstance(error, SettingsError):
        code = "settings"
        findings = [
            {"rule": "settings", "pointer": each.where or "", "message": each.what}
            for each in (error, *error.also)
        ]
    told = _error(code or "failed", error.what, where=error.where, mend=error.mend)
    told["findings"] = findings
    # Asked by its members, since most commands do not load the fabric.
    if (members := getattr(error, "members", None)) is None:
        return told
    said = {name: RawJson(value) for name, value in members().items()}
    identity = getattr(error, "id", None)
    named = {"code": code or getattr(error, "type", "failed")}
    return told | said | named | ({"id": identity} if identity else {})


def _error(
    code: str, message: str, *, where: str | None = None, mend: str | None = None
) -> dict[str, Any]:
    return {"code": code, "message": message, "where": where, "mend": mend, "findings": []}


def show_json(value: object) -> None:
    """Print a result for a program, on one line, in the form of `as_result`."""
    typer.echo(json.dumps(as_result(value), ensure_ascii=False))


def as_result(value: Any, name: str = "") -> Any:
    """A result in the one form of all commands.

    Members are in snake_case. A time, which is what a member holds whose name is or ends in `at`,
    `until` or `since`, is text of RFC 3339 in UTC. A `RawJson` stays as it is.
    """
    if isinstance(value, RawJson):
        return value.value
    if isinstance(value, Mapping):
        return {_snake(str(key)): as_result(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_result(each, name) for each in value]
    if isinstance(value, datetime):
        return format_time(value.astimezone(UTC).timestamp(), millis=True)
    if type(value) in (int, float) and value >= _FIRST_SECOND and _TIME.fullmatch(_snake(name)):
        seconds = value / 1000 if value >= _FIRST_MILLISECOND else value
        return format_time(seconds, millis=True)
    return value


def _snake(name: str) -> str:
    """A member's name in snake_case; names that are data, such as `bus.calls`, stay."""
    return _HUMP.sub("_", name).lower() if _CAMEL.fullmatch(name) else name


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below headings; cells that are too long for the terminal are wrapped."""

    columns: Sequence[str]
    rows: Iterable[Sequence[str]]


Line = str | Table | tuple[str, ...]
Text = str | Table | Iterable[Line]
"""What a person reads: lines, tables, and rows whose columns stand below each other."""


def show_text(text: Text) -> None:
    """Print a result for a person."""
    lines = [text] if isinstance(text, str | Table) else text
    for kind, group in itertools.groupby(lines, type):
        if kind is tuple:
            _show_rows([each for each in group if isinstance(each, tuple)])
            continue
        for each in group:
            if isinstance(each, Table):
                _show_table(each)
            else:
                typer.echo(each)


def _show_rows(rows: Sequence[tuple[str, ...]]) -> None:
    """Align the columns of rows; ids are never cut short."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(line).rstrip())


def _show_table(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    drawn = RichTable(*table.columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in table.rows:
        drawn.add_row(*map(RichText, row))
    Console().print(drawn)


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
    """Flush stdout; a reader that has closed the pipe, such as `head`, is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


Home = Annotated[
    Path | None,
    typer.Option("--home", help="The station's folder (default: $ACCORD_HOME, else ~/.accord)."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file (default: accord.toml in the home)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
JsonErrors = Annotated[
    bool, typer.Option("--json", help="Print errors as JSON, too; the result is JSON anyway.")
]


@dataclass(frozen=True)
class Output:
    """Where a command's result goes: text for a person, or JSON for a program."""

    as_json: Json = False

    def emit(self, result: object, text: Text = ()) -> None:
        """Print the result: `text`, or with --json `result`."""
        if self.as_json:
            show_json(result)
        else:
            show_text(text)

    def note(self, line: str) -> None:
        """Tell a person something beside the result; a program is not told."""
        if not self.as_json:
            say(line)


@dataclass(frozen=True)
class JsonOutput(Output):
    """The context of a command whose result is JSON anyway."""

    as_json: JsonErrors = False

    def emit(self, result: object, text: Text = ()) -> None:
        """Print the result."""
        del text
        show_json(result)


@dataclass(frozen=True)
class HomeCli(Output):
    """The context of a command that makes a home, whose settings are not there yet."""

    home: Home = None


@dataclass(frozen=True)
class Cli(HomeCli):
    """The context of a command that works on a home."""

    home: Home = None
    config: Config = None

    def settings(self) -> "Settings":
        """Read the settings; raises `SettingsError`."""
        from accord.station.settings import load

        return load(self.home, self.config)

    def station_settings(self) -> "Settings":
        """Read the settings of a home in which a station has run; raises `StationError`."""
        from accord.station.errors import StationError
        from accord.station.home import Home

        settings = self.settings()
        if not Home(settings.home).device_key.exists():
            raise StationError(
                "there is no station here yet",
                where=str(settings.home),
                mend="start it once with `accord up` or `accord relay serve`, "
                "or name it with --home",
            )
        return settings


class App(typer.Typer):
    """A group of commands; those that take an `Output` get its options."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Register a command, which stays callable as it was written."""
        register = super().command(name, **options)

        def add(function: Callable[..., None]) -> Callable[..., None]:
            register(with_options(function))
            return function

        return add


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """A command as Typer sees it: the fields of its `Output` are parameters of its own."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or not isinstance(kind := parameters[0].annotation, type):
        return function
    if not issubclass(kind, Output):
        return function
    fields = {each.name: each for each in dataclasses.fields(kind)}
    bases = [vars(base).get("__annotations__", ()) for base in kind.__mro__]
    names = sorted(dict.fromkeys(itertools.chain(*bases)), key=lambda name: name == "as_json")
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for name in names
        for each in (fields[name],)
    ]
    own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters[1:]]
    first = sum(each.kind is not inspect.Parameter.KEYWORD_ONLY for each in parameters[1:])
    everything = [*own[:first], *shared[:-1], *own[first:], shared[-1]]

    def command(**given: Any) -> None:
        context = kind(**{name: given.pop(name) for name in names})
        function(context, **given)

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__annotations__ = {each.name: each.annotation for each in everything}
    command.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
    return command
