"""What a page of the documentation asks its reader to do, as steps in order. Pure.

A page is written for people, and these are the only rules by which it is also run:

- A `console` block holds commands, each behind `$ `, and below it what the command says. A command
  goes on in the next line behind `\\`, and until the end of a here-document.
- A command that ends in `&` goes on until the end of the page.
- A command that ends in `# repeat until it says so` looks at what may not have come to pass yet.
- A block that begins with `# needs …` cannot be run just anywhere; the line tells the reader why.
- A block of another language that begins with a comment of nothing but a path is that file.
- A quotation that begins with a name, `> **ann** in #lobby: hello`, is written by that person in
  the web chat, or `to` a bot directly; one of another name below it is what is answered.

Every block says its language. Shell scripts are written as `console`, so that none is left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

REPEATED = "# repeat until it says so"
SCRIPTS = ("", "bash", "sh", "shell", "shell-session", "zsh")
"""Languages of blocks that could hide a command."""
FILES = ("python", "toml", "ts", "yaml")
"""Languages of blocks that may be a file, or a part of one."""

_FENCE = re.compile(r"^( *)```+ *(.*?) *$")
_PATH = re.compile(r"(?:#|//) ((?:~/|\.?\w)[\w./-]*\.\w+)")
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_SPOKEN = re.compile(
    r"\*\*(?P<who>[\w-]+)\*\*(?: (?P<how>in #|to )(?P<where>[\w-]+))?: (?P<text>.*)"
)


class PageError(ValueError):
    """A page cannot be run as it is written."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed, and the lines that are then read."""

    line: int
    text: str
    said: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether it is left running."""
        return self.text.endswith("&")

    @property
    def repeated(self) -> bool:
        """Whether it may be run again until the lines are there."""
        return self.text.endswith(REPEATED)


@dataclass(frozen=True, slots=True)
class File:
    """A file that the reader writes."""

    line: int
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a file, which says nothing about the rest of it."""

    line: int
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Left:
    """Commands that are not run, and what they need."""

    line: int
    needs: str
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Talk:
    """What somebody writes in the web chat, and what is answered."""

    line: int
    who: str
    where: str
    direct: bool
    text: str
    answered: tuple[str, ...]


Step = Command | File | Fragment | Left | Talk


def steps(page: str) -> list[Step]:
    """Read a page.

    Raises:
        PageError: A block is none that this module knows.
    """
    found: list[Step] = []
    for number, language, lines in _blocks(page):
        if language == ">":
            found += _talks(number, lines)
        elif language == "console":
            found += _console(number, lines)
        elif language in FILES:
            named = _PATH.fullmatch(lines[0].strip()) if lines else None
            text = "".join(f"{line}\n" for line in lines)
            found.append(
                File(number, named[1], text) if named else Fragment(number, language, text)
            )
    return found


def _blocks(page: str) -> Iterator[tuple[int, str, list[str]]]:
    """Every block and quotation: the number of its first line, its language, its lines."""
    lines = iter(enumerate(page.splitlines(), 1))
    quoted: list[str] = []
    for number, line in lines:
        if line.startswith(">"):
            quoted.append(line[1:].strip())
            continue
        if quoted:
            yield number - len(quoted), ">", quoted
            quoted = []
        if opened := _FENCE.match(line):
            indent, language = opened[1], opened[2]
            if language in SCRIPTS:
                raise PageError(
                    f"line {number}: a block of {language or 'no language'};"
                    " write commands as `console`, whatever else by its language, such as `text`"
                )
            block = []
            for _, inner in lines:
                if inner.startswith(f"{indent}```"):
                    break
                block.append(inner.removeprefix(indent))
            else:
                raise PageError(f"line {number}: a block that does not end")
            yield number + 1, language, block
    if quoted:
        yield len(page.splitlines()) + 1 - len(quoted), ">", quoted


def _console(number: int, lines: list[str]) -> list[Step]:
    if lines and lines[0].startswith("# needs "):
        commands = _commands(number + 1, lines[1:])
        return [Left(number, lines[0].removeprefix("# needs "), tuple(commands))]
    return list(_commands(number, lines))


def _commands(number: int, lines: list[str]) -> list[Command]:
    found: list[Command] = []
    rest = list(enumerate(lines, number))
    while rest:
        at, line = rest.pop(0)
        if not line.startswith("$ "):
            if not found:
                raise PageError(f"line {at}: a console block begins with `$ ` or `# needs …`")
            if line.strip():
                last = found[-1]
                found[-1] = Command(last.line, last.text, (*last.said, line.strip()))
            continue
        typed = [line.removeprefix("$ ")]
        while typed[-1].endswith("\\") and rest:
            typed.append(rest.pop(0)[1])
        if here := _HERE.search(typed[-1]):
            while rest and typed[-1].strip() != here[2]:
                typed.append(rest.pop(0)[1])
        found.append(Command(at, "\n".join(typed).rstrip()))
    return found


def _talks(number: int, lines: list[str]) -> list[Talk]:
    found: list[Talk] = []
    for at, line in enumerate(lines, number):
        spoken = _SPOKEN.fullmatch(line)
        if spoken and spoken["how"]:
            direct = spoken["how"] == "to "
            found.append(Talk(at, spoken["who"], spoken["where"], direct, spoken["text"], ()))
        elif found and line:
            last, text = found[-1], spoken["text"] if spoken else line
            answered = (*last.answered, text)
            found[-1] = Talk(last.line, last.who, last.where, last.direct, last.text, answered)
    return found
