"""What pages only show is right as far as that can be told without doing it."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
import yaml
from tests.docs.pages import File, Fragment, Left, steps
from tests.docs.reading import ROOT
from tests.docs.test_guides import PAGES
from typer.core import TyperGroup

from accord.cli import app
from accord.station import SettingsError, load

_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(accord [^`]+)`")
commands = cache(typer.main.get_command)


def read(page: str) -> str:
    return (ROOT / page).read_text()


def written(language: str) -> Iterator[tuple[str, str]]:
    """Every file and fragment of a language, with its place."""
    for page in PAGES:
        for step in steps(read(page)):
            kind = ""
            if isinstance(step, Fragment):
                kind = step.language
            elif isinstance(step, File):
                kind = {".py": "python", ".toml": "toml", ".ts": "ts"}.get(
                    Path(step.path).suffix, "yaml"
                )
            if kind == language and isinstance(step, Fragment | File):
                yield f"{page}:{step.line}", step.text


def shown() -> Iterator[tuple[str, str]]:
    """Every command of ours that pages name and do not run."""
    for page in PAGES:
        for step in steps(read(page)):
            if isinstance(step, Left):
                yield from ((page, each.text) for each in step.commands)
        # A command may be wrapped in the middle.
        prose = " ".join(_FENCED.sub("", read(page)).split())
        yield from ((page, command) for command in _INLINE.findall(prose))


def problem(text: str) -> str | None:
    """What is wrong with a command of ours; nothing where it is another's."""
    words = text.replace("\\\n", " ").partition(" # ")[0].split()
    if words[:1] != ["accord"]:
        return None
    command, place = commands(app), 1
    while isinstance(command, TyperGroup) and place < len(words):
        if words[place].startswith(("-", "<", "…")):
            return None
        if words[place] not in command.commands:
            return f"there is no {words[place]!r}"
        command, place = command.commands[words[place]], place + 1
    known = {"--", "--help"}.union(*(each.opts + each.secondary_opts for each in command.params))
    named = {word.partition("=")[0] for word in words[place:] if word.startswith("--")}
    return f"it has no {sorted(named - known)}" if named - known else None


def test_python_of_the_pages_can_be_read_and_imports_what_there_is() -> None:
    for where, text in written("python"):
        tree = compile(text, where, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("accord"):
                module = importlib.import_module(node.module or "")
                for name in node.names:
                    assert hasattr(module, name.name), f"{where}: {node.module} has no {name.name}"


def test_settings_of_the_pages_are_settings(tmp_path: Path) -> None:
    file = tmp_path / "accord.toml"
    for where, text in written("toml"):
        # What a page does not know is short in it; ids of platforms are numbers.
        file.write_text(re.sub(r"\d…", "1", text))
        try:
            load(tmp_path / "home", file)
        except SettingsError as error:
            pytest.fail(f"{where}: {error}")


def test_yaml_of_the_pages_is_yaml() -> None:
    for where, text in written("yaml"):
        assert list(yaml.safe_load_all(text)), where


def test_commands_that_pages_name_exist_with_their_options() -> None:
    problems = [f"{page}: `{text}`: {why}" for page, text in shown() if (why := problem(text))]
    assert problems == []


@pytest.mark.parametrize(
    "text",
    ["accord nonsense", "accord relay nonsense", "accord up --nonsense", "accord up --port=1 --no"],
)
def test_a_command_that_does_not_exist_is_noticed(text: str) -> None:
    assert problem(text) is not None


@pytest.mark.parametrize("text", ["accord up", "accord relay …", "accord up --port=1", "make up"])
def test_a_command_that_exists_is_no_problem(text: str) -> None:
    assert problem(text) is None
