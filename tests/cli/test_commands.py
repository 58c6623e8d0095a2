import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.markup import render
from typer.testing import CliRunner

from accord import __version__
from accord.cli import app, output
from accord.kernel.errors import AccordError

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def commands(group: typer.Typer = app, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and group."""
    yield path
    for command in group.registered_commands:
        assert command.callback
        yield (*path, command.name or command.callback.__name__)
    for inner in group.registered_groups:
        assert inner.typer_instance
        yield from commands(inner.typer_instance, (*path, str(inner.name)))


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_the_help_of_every_command_has_an_example(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert "Example: " in result.output
    shown = " ".join(result.output.split())
    assert " ".join(["accord", *words]) in shown
    assert " . " not in shown, "something in brackets was taken for markup"


def helps(command: Any) -> Iterator[str]:
    """Every text of the help of a command and of all below it."""
    yield from (text for text in (command.help, command.epilog) if text)
    for parameter in command.params:
        if text := getattr(parameter, "help", None):
            yield text
    for inner in getattr(command, "commands", {}).values():
        yield from helps(inner)


def test_no_word_of_the_help_is_taken_for_markup() -> None:
    texts = list(helps(typer.main.get_command(app)))
    assert len(texts) > 300
    assert [text for text in texts if render(text).plain != text] == []


def test_the_nouns_and_verbs_are_all_there() -> None:
    found = {" ".join(words) for words in commands()}
    assert found >= {
        "up",
        "doctor",
        "canon",
        "keys new",
        "keys show",
        "store",
        "config check",
        "config show",
    }


def test_the_version_is_told(accord: Run) -> None:
    result = accord("--version")
    assert (result.returncode, result.stdout) == (0, f"accord {__version__}\n")


def test_the_version_is_told_without_loading_what_only_commands_need() -> None:
    program = (
        "import sys; sys.argv = ['accord', '--version']\n"
        "from accord.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('pydantic', 'sqlalchemy', 'uvicorn', 'starlette', 'structlog', 'rich', 'nacl')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[1] == "[]"


def test_an_unknown_command_or_option_is_a_misuse(accord: Run) -> None:
    for words in (["fly"], ["up", "--wings"], ["up", "--port", "70000"], ["keys", "show"]):
        result = accord(*words)
        assert result.returncode == 2, words
        assert result.stdout == ""
        assert "Traceback" not in result.stderr


def test_canon_writes_canonical_bytes_and_nothing_else(accord: Run) -> None:
    result = accord("canon", stdin='{"b": 1.0, "a": [ "\\u00e9" ]}\n')
    assert (result.returncode, result.stdout, result.stderr) == (0, '{"a":["é"],"b":1}', "")


@pytest.mark.parametrize("document", ["", "{", '{"a":1,"a":2}', "[NaN]", "1 2"])
def test_canon_refuses_a_bad_document_in_one_sentence(accord: Run, document: str) -> None:
    result = accord("canon", stdin=document)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_new_key_is_private_and_only_its_id_is_shown(accord: Run, tmp_path: Path) -> None:
    path = tmp_path / "alice.ed25519"
    made = accord("keys", "new", str(path))
    assert made.returncode == 0
    assert made.stdout.startswith("ed25519:")
    assert path.stat().st_mode & 0o777 == 0o600
    shown = accord("keys", "show", str(path))
    assert shown.stdout == made.stdout
    as_json = json.loads(accord("keys", "show", str(path), "--json").stdout)
    assert as_json == {"id": made.stdout.strip(), "path": str(path)}
    seed = path.read_bytes()
    assert seed.hex() not in made.stdout + shown.stdout


def test_a_key_that_exists_is_not_replaced(accord: Run, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"precious")
    result = accord("keys", "new", str(path))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {path}: ")
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("content", "mode"), [(b"short", 0o600), (b"x" * 32, 0o640)])
def test_a_bad_key_file_is_told_in_one_sentence(
    accord: Run, tmp_path: Path, content: bytes, mode: int
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    result = accord("keys", "show", str(path))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {path}: ")
    assert result.stderr.count("\n") == 1


def test_config_check_tells_each_finding_in_its_line_and_exits_2(
    accord: Run, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[station]\nprot = 1\nport = "x"\n')
    result = accord("config", "check", "--config", str(file))
    assert (result.returncode, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"error: {file}: [station] p") for line in lines)
    as_json = accord("config", "check", "--config", str(file), "--json")
    assert as_json.returncode == 2
    assert len(json.loads(as_json.stdout)["findings"]) == 2


def test_config_check_of_good_settings_is_fine(accord: Run, tmp_path: Path) -> None:
    assert accord("config", "check").returncode == 0
    as_json = json.loads(accord("config", "check", "--json").stdout)
    assert as_json == {"ok": True, "home": str(tmp_path / "home"), "findings": []}
    assert list(tmp_path.iterdir()) == []


def test_config_show_hides_secrets_and_can_be_read_back(accord: Run, tmp_path: Path) -> None:
    env = {"ACCORD_STORE__URL": "postgresql://me:hunter2@db/x", "ACCORD_STATION__NAME": 'a"b\\'}
    for arguments in (["config", "show"], ["config", "show", "--json"]):
        result = accord(*arguments, env=env)
        assert result.returncode == 0
        assert "hunter2" not in result.stdout + result.stderr
        assert "*****" in result.stdout
    file = tmp_path / "again.toml"
    file.write_text(accord("config", "show", env={"ACCORD_STATION__NAME": 'a"b\\'}).stdout)
    again = json.loads(accord("config", "show", "--json", "--config", str(file)).stdout)
    assert again["station"]["name"] == 'a"b\\'


def test_doctor_says_for_each_check_what_was_seen(accord: Run, tmp_path: Path) -> None:
    result = accord("doctor", "--json", env={"ACCORD_STATION__PORT": "0"})
    body = json.loads(result.stdout)
    assert (result.returncode, body["ok"]) == (0, True)
    names = [check["name"] for check in body["checks"]]
    for name in ("python", "java", "settings", "home", "port", "disk", "clock"):
        assert name in names
    assert list(tmp_path.iterdir()) == []


def test_doctor_exits_1_when_something_fails(accord: Run) -> None:
    result = accord("doctor", env={"ACCORD_STATION__PORT": "x"})
    assert result.returncode == 1
    assert "fail" in result.stdout
    assert "to do:" in result.stdout


def test_a_reader_that_goes_away_is_not_worth_a_word() -> None:
    for words in (["config", "show"], ["doctor", "--json"], ["canon"]):
        read, write = os.pipe()
        os.close(read)
        try:
            result = subprocess.run(
                [sys.executable, "-m", "accord.cli", *words],
                input=b"[1]",
                env={**os.environ, "PYTHONUNBUFFERED": ""},
                stdout=write,
                stderr=subprocess.PIPE,
                timeout=60,
                check=False,
            )
        finally:
            os.close(write)
        assert result.stderr == b"", words


def broken_app(error: Exception) -> typer.Typer:
    broken = typer.Typer(pretty_exceptions_enable=False)

    @broken.command()
    def fail() -> None:
        raise error

    return broken


def outcome(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["accord"])
    with pytest.raises(SystemExit) as caught:
        output.run(broken_app(error))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_an_unexpected_error_is_one_line_with_the_details_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert outcome(ValueError("password=hunter2"), monkeypatch) == 70
    (details,) = tmp_path.iterdir()
    assert capsys.readouterr().err == (
        f"error: ValueError was not expected; the details are in {details}, please report them\n"
    )
    assert "Traceback" in details.read_text()
    assert "hunter2" not in details.read_text()
    assert details.stat().st_mode & 0o777 == 0o600


def test_an_expected_error_is_its_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = AccordError("the wheel is flat", where="car", mend="pump it up")
    assert outcome(error, monkeypatch) == 1
    assert capsys.readouterr().err == "error: car: the wheel is flat; pump it up\n"


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("copying") as step:
        step(1, 2)
    assert capsys.readouterr() == ("", "")
