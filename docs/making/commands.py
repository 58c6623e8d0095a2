"""The pages of the command line: every command with its arguments, options, defaults and example.

What a command is called and takes comes from the parser that Typer builds, of which types from the
signature of its function. No command is run.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from docs.making.markdown import bounds, code, fenced, join, meaning, sentence, table

STATION: Final = "station"
"""The name of the page with the commands that have no noun."""

_KINDS: Final = {str: "text", int: "integer", float: "number", Path: "path", bool: "flag"}
_EXAMPLE: Final = "Example: "


@dataclass(frozen=True, slots=True)
class Command:
    """One command, as it is typed.

    Attributes:
        words: From the name of the program to the verb.
        parsed: What Typer makes of it.
    """

    words: tuple[str, ...]
    parsed: Any

    @property
    def name(self) -> str:
        """As it is typed."""
        return " ".join(self.words)

    @property
    def page(self) -> str:
        """The name of the page that it is on."""
        return self.words[1] if len(self.words) > 2 else STATION

    @property
    def anchor(self) -> str:
        """The place on that page."""
        return "-".join(self.words)


def commands(app: typer.Typer, name: str = "accord") -> tuple[Command, ...]:
    """Every command of an application, in its order."""
    return tuple(_walk(typer.main.get_command(app), (name,)))


class Noun(NamedTuple):
    """The commands of a noun: what they are about, and each of them."""

    about: str
    body: str


def nouns(app: typer.Typer) -> Mapping[str, Noun]:
    """Every noun by its name, and `station` for the verbs without one."""
    root: Any = typer.main.get_command(app)
    grouped: dict[str, list[Command]] = {}
    for command in commands(app):
        grouped.setdefault(command.page, []).append(command)
    made = {}
    for page, members in grouped.items():
        about = "The station as a whole." if page == STATION else root.commands[page].help
        told = sentence(meaning(about, f"accord {page}"))
        shared = "" if page == STATION else _shared(page, root.commands[page])
        made[page] = Noun(told, join([shared, *map(_command, members)]))
    return made


def _shared(page: str, group: Any) -> str:
    """The options that are given before any command of a noun."""
    taken = [each for each in getattr(group, "params", ()) if each.name != "help"]
    if not taken:
        return ""
    noun = Command(("accord", page), group)
    annotations = get_type_hints(group.callback, include_extras=True)
    rows = [_row(noun, each, annotations.get(each.name)) for each in taken]
    head = f"Given between {code(f'accord {page}')} and the command:"
    return join([head, table(("takes", "type", "default", "what it is"), rows)])


def overview(app: typer.Typer) -> str:
    """Every command with its sentence, by noun."""
    grouped: dict[str, list[Command]] = {}
    for command in commands(app):
        grouped.setdefault(command.page, []).append(command)
    parts = []
    for page, members in grouped.items():
        rows = [
            (f"[{code(each.name)}](cli/{page}.md#{each.anchor})", _first_line(each))
            for each in members
        ]
        heading = "The station" if page == STATION else f"accord {page}"
        parts.append(join([f"## {heading}", table(("command", "does"), rows)]))
    return join(parts)


def _walk(parsed: Any, words: tuple[str, ...]) -> Iterator[Command]:
    below = getattr(parsed, "commands", None)
    if below is None:
        yield Command(words, parsed)
        return
    for name, each in below.items():
        yield from _walk(each, (*words, name))


def _first_line(command: Command) -> str:
    told = inspect.cleandoc(command.parsed.help or "").partition("\n\n")[0]
    return meaning(told, command.name)


def _command(command: Command) -> str:
    paragraphs = inspect.cleandoc(command.parsed.help or "").split("\n\n")
    about = [meaning(each, command.name) for each in paragraphs]
    example = meaning(command.parsed.epilog, f"the example of {command.name}")
    taken = [each for each in command.parsed.params if each.name != "help"]
    annotations = get_type_hints(command.parsed.callback, include_extras=True)
    rows = [_row(command, each, annotations.get(each.name)) for each in taken]
    return join(
        [
            f"## {command.name}",
            *about,
            fenced("$ " + example.removeprefix(_EXAMPLE), "console"),
            table(("takes", "type", "default", "what it is"), rows) if rows else "",
        ]
    )


def _row(command: Command, taken: Any, annotation: Any) -> tuple[str, str, str, str]:
    told = meaning(taken.help, f"{command.name}: {taken.name}")
    kind, repeated = _kind(annotation)
    return _spelling(taken, repeated=repeated), kind, _default(taken), told


def _spelling(taken: Any, *, repeated: bool) -> str:
    if taken.param_type_name == "argument":
        name = taken.name.upper() + ("..." if repeated else "")
        return code(taken.metavar or (name if taken.required else f"[{name}]"))
    spelled = [*taken.opts, *taken.secondary_opts]
    return ", ".join(code(each) for each in spelled)


def _kind(annotation: Any) -> tuple[str, bool]:
    """The words for a type, and whether what it is for may be repeated."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        low, high = (getattr(arguments[1], each, None) for each in ("min", "max"))
        kind, repeated = _kind(arguments[0])
        return join([kind, bounds(low, high)], ", "), repeated
    if origin in (Union, UnionType):
        (kept,) = [each for each in arguments if each is not NoneType]
        return _kind(kept)
    if origin is list:
        return f"{_kind(arguments[0])[0]}, repeatable", True
    if origin is tuple:
        return " and ".join(_kind(each)[0] for each in arguments), False
    if origin is Literal:
        return ", ".join(code(each) for each in arguments), False
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(code(each.value) for each in annotation), False
    return _KINDS.get(annotation, "text"), False


def _default(taken: Any) -> str:
    if taken.required:
        return "must be given"
    value = taken.default
    if value is None or value == () or value == [] or callable(value):
        return ""
    if isinstance(value, bool):
        return "" if not taken.secondary_opts else code(_switch(taken, on=value))
    return code(value.value if isinstance(value, Enum) else value) if value != "" else "empty"


def _switch(taken: Any, *, on: bool) -> str:
    return str((taken.opts if on else taken.secondary_opts)[0])
