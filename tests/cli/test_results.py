"""What programs read of every command: exit codes, `--json`, and errors in one shape."""

import enum
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from accord.cli import app, output
from accord.kernel.clock import parse_time
from accord.kernel.errors import AccordError

# These run until they are told to stop; here only their usage is asked.
SERVERS = {
    "authority serve",
    "concierge run",
    "console link",
    "events tail",
    "relay gateway run",
    "relay serve",
    "service dev",
    "service run",
    "up",
}
# What these print has a form that is laid down elsewhere, and is printed as it is.
DOCUMENTS = {
    "authority catalog": "the catalog of the specification",
    "canon": "the document that was given",
    "community call": "what a capability answers",
    "community event": "signed events",
    "contract analyze": "an analysis of the specification",
    "contract asyncapi": "AsyncAPI",
    "contract normalize": "a manifest",
    "events tail": "payloads of services",
    "logs": "lines of the log",
    "pipeline sql": "rows as they were asked for",
    "rpc call": "payloads of services",
    "rpc run": "payloads of services",
    "rpc signal": "payloads of services",
}
CODES = {0, 1, 2}
_NAME = re.compile(r"[a-z][a-z0-9_]*|.*[^A-Za-z0-9].*|[A-Z0-9].*", re.ASCII)
_TIME = re.compile(r"(?:.+_)?(?:at|until|since)")


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command of the application that does something, by its words."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, each in inner.items():
        yield from walk(each, (*words, name))


ROOT = output.commands(app)
COMMANDS = dict(walk(ROOT))


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command as `accord` does: its exit code, stdout and stderr."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        output.run(app, words)
    said = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, said.out, said.err


def check_error(line: str) -> dict[str, Any]:
    told = json.loads(line)
    assert told.keys() == {"error"}, line
    error: dict[str, Any] = told["error"]
    assert {"code", "message", "where", "mend", "findings"} <= error.keys(), line
    assert isinstance(error["code"], str)
    assert error["message"]
    for finding in error["findings"]:
        assert finding.keys() == {"rule", "pointer", "message"}
    return error


def check_form(value: Any, path: str = "") -> None:
    """One case for members, one form for times."""
    if isinstance(value, list):
        for each in value:
            check_form(each, path)
    if isinstance(value, dict):
        for name, each in value.items():
            place = f"{path}/{name}"
            assert _NAME.fullmatch(name), place
            if _TIME.fullmatch(name) and each is not None:
                assert isinstance(each, str), f"{place}: {each}"
                parse_time(each)
            check_form(each, place)


def dummy(param: Any, place: Path) -> str:
    """A word that an argument takes, and that names nothing."""
    kind = param.type_descriptor.annotation
    if choices := get_args(kind):
        return str(choices[0]) if isinstance(choices[0], str) else "1"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return str(next(iter(kind)).value)
    if kind in (int, float):
        return "1"
    return str(place / "nothing") if kind is Path else "nothing"


@pytest.fixture(autouse=True)
def ready_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands, which take a while to be put together, only once."""
    monkeypatch.setattr(output, "commands", lambda _app: ROOT)


def test_every_command_has_json() -> None:
    assert len(COMMANDS) > 140
    for words, command in COMMANDS.items():
        flags = {name for param in command.params for name in getattr(param, "opts", ())}
        assert "--json" in flags, words
    assert COMMANDS.keys() >= {*SERVERS, *DOCUMENTS}


@pytest.mark.parametrize("words", sorted(COMMANDS))
def test_wrong_usage_is_told_as_json_with_code_2(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, *words.split(), "--no-such-option", "--json")
    assert (code, err) == (2, "")
    assert check_error(out)["code"] == "usage"
    assert check_error(out)["mend"].startswith(f"`accord {words} --help`")
    text_code, out, err = ran(capsys, *words.split(), "--no-such-option")
    assert (text_code, out) == (2, "")
    assert "--no-such-option" in err


@pytest.mark.parametrize("words", sorted(COMMANDS.keys() - SERVERS))
def test_where_nothing_is_every_command_tells_it_in_one_form(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ACCORD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[words]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    needed = [each for each in command.params if each.required]
    given = [dummy(each, tmp_path) for each in needed if each.param_type_name == "argument"]
    for each in needed:
        if each.param_type_name == "option":
            is_flag = getattr(each, "is_flag", False)
            given += [each.opts[0]] if is_flag else [each.opts[0], dummy(each, tmp_path)]
    code, out, _ = ran(capsys, *words.split(), *given, "--json")
    assert code in CODES
    lines = out.splitlines()
    assert lines or words in ("logs", "audit", "canon")
    for line in lines:
        if "error" in json.loads(line):
            check_error(line)
            assert code != 0
        elif words not in DOCUMENTS:
            check_form(json.loads(line))


MANIFEST: dict[str, Any] = {
    "format": "trellis.contract.v1",
    "id": "shop@v1",
    "displayName": "Shop",
    "description": "Sells.",
    "kind": "service",
    "schemas": {"Nothing": {"type": "object"}},
    "exports": {"schemas": ["Nothing"]},
}

# A home in which something has happened, and all that can be asked of it.
STORY: tuple[tuple[str, ...], ...] = (
    ("community create", "Our street"),
    ("community list",),
    ("community show",),
    ("community members",),
    ("community policy",),
    ("community log",),
    ("community verify",),
    ("community peers",),
    ("community sync",),
    ("community export", "street.jsonl"),
    ("market post", "Ladder to lend"),
    ("market list",),
    ("file add", "note.txt"),
    ("file list",),
    ("file gc",),
    ("relay token new", "--instance", "echo"),
    ("relay token list",),
    ("relay instances",),
    ("relay scope route", "webchat", "G1"),
    ("relay chat space", "lobby"),
    ("relay chat list",),
    ("relay why",),
    ("relay deadletters list",),
    ("authority deploy", "shop", "shop.json", "--accept"),
    ("authority plans", "--state", "all"),
    ("authority history",),
    ("authority offers",),
    ("authority status",),
    ("authority instance add", "shop", "--key-file", "shop.key"),
    ("authority instance list",),
    ("authority people add", "Ann"),
    ("authority people list",),
    ("authority people link", "Ann"),
    ("authority session list",),
    ("authority portal set", "login", "shop@v1", "https://me.example"),
    ("authority portal list",),
    ("audit",),
    ("config show",),
    ("config check",),
    ("upgrade", "--check"),
    ("contract validate", "shop.json"),
    ("contract compare", "shop.json", "shop.json"),
    ("contract rules",),
    ("keys new", "a.key"),
    ("pipeline export",),
)


def test_results_have_one_case_and_one_form_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCORD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note.txt").write_text("The shed is open on Saturdays.")
    (tmp_path / "shop.json").write_text(json.dumps(MANIFEST))
    times = 0
    for words, *more in STORY:
        code, out, _ = ran(capsys, *words.split(), *more, "--json")
        assert code == 0, (words, out)
        for line in out.splitlines():
            check_form(json.loads(line))
            times += len(re.findall(r'_?at": "\d{4}-', line))
    assert times > 10


def test_a_manifest_is_printed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.json"
    file.write_text(json.dumps(MANIFEST))
    code, out, _ = ran(capsys, "contract", "normalize", str(file), "--json")
    assert code == 0
    assert json.loads(out)["displayName"] == "Shop"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"contractId": 1, "already_snake": 2, "bus.calls": 3}, None),
        ({"created_at": 1_794_968_253_775}, {"created_at": "2026-11-18T02:17:33.775Z"}),
        ({"expiresAt": 1_794_968_253.5}, {"expires_at": "2026-11-18T02:17:33.500Z"}),
        ({"until": None, "looked_at": 3, "stat": 1_794_968_253}, None),
        ({"at": datetime(2026, 5, 26, 8, tzinfo=UTC)}, {"at": "2026-05-26T08:00:00.000Z"}),
        ({"a": [{"oldUntil": 1_794_968_253}]}, {"a": [{"old_until": "2026-11-18T02:17:33.000Z"}]}),
        (output.RawJson({"sentAt": 1_794_968_253}), {"sentAt": 1_794_968_253}),
        ({"event": output.RawJson({"theId": 1})}, {"event": {"theId": 1}}),
    ],
)
def test_a_result_gets_its_form(value: Any, shown: Any) -> None:
    names = {"contractId": "contract_id"}
    expected = shown or {names.get(name, name): each for name, each in value.items()}
    assert output.as_result(value) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z]{1,4}([A-Z][a-z]{1,3}|_[a-z]{1,3}){0,2}"), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_a_form_that_is_right_stays(value: Any) -> None:
    once = output.as_result(value)
    assert output.as_result(once) == once
    json.dumps(once)


class _CodedError(AccordError):
    code = enum.Enum("Code", {"GONE": "gone"}).GONE  # type: ignore[attr-defined]


def test_an_error_tells_code_message_place_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    told = output.error_members(_CodedError("it is gone", where="here", mend="make another"))
    assert told == {
        "code": "gone",
        "message": "it is gone",
        "where": "here",
        "mend": "make another",
        "findings": [],
    }
    assert output.show_error(AccordError("no"), as_json=True) == 1
    assert check_error(capsys.readouterr().out)["code"] == "failed"


def test_what_was_not_expected_is_told_as_json_with_code_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = typer.Typer()

    @broken.command()
    def fail(as_json: bool = typer.Option(False, "--json")) -> None:
        raise ZeroDivisionError(as_json)

    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        output.run(broken, ["--json"])
    assert left.value.code == output.UNEXPECTED
    assert check_error(capsys.readouterr().out)["code"] == "internal"


@pytest.mark.parametrize("words", ["store check", "community verify"])
def test_a_question_that_cannot_be_answered_is_neither_yes_nor_no(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ACCORD_HOME", str(tmp_path / "home"))
    assert ran(capsys, *words.split())[0] == 2
    assert ran(capsys, *words.split(), "--json")[0] == 2


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_failed_reconciliation_is_a_failure(
    flags: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = {"reconciled": [{"deployment": "shop", "status": "failed", "why": "NATS is away"}]}
    monkeypatch.setattr("accord.cli.authority.ask_authority", lambda *_args, **_given: told)
    assert ran(capsys, "authority", "reconcile", *flags)[0] == 1


def test_settings_that_cannot_be_used_are_2_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCORD_HOME", str(tmp_path))
    (tmp_path / "accord.toml").write_text("[station]\nport = 'many'\n")
    for words in ("status", "community list", "market list", "config show", "up"):
        code, out, _ = ran(capsys, *words.split(), "--json")
        assert code == 2, words
        error = check_error(out)
        assert error["code"] == "settings"
        assert "port" in error["findings"][0]["pointer"]
