"""The options that commands share, and how a command prints its result.

A command takes an `Output`, a `Cli` or a class derived from them as its first parameter. Its fields
become options: they follow the positional parameters and precede the keyword-only ones, those of a
derived class come before those of its base, and `--json` is the last of all.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import output

if TYPE_CHECKING:
    from accord.station.settings import Settings

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

    def emit(self, result: object, text: "output.Text" = ()) -> None:
        """Print the result: `text`, or with --json `result`."""
        if self.as_json:
            output.show_json(result)
        else:
            output.show_text(text)

    def note(self, line: str) -> None:
        """Tell a person something beside the result; a program is not told."""
        if not self.as_json:
            output.say(line)


@dataclass(frozen=True)
class JsonOutput(Output):
    """The context of a command whose result is JSON anyway."""

    as_json: JsonErrors = False

    def emit(self, result: object, text: "output.Text" = ()) -> None:
        """Print the result."""
        del text
        output.show_json(result)


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
