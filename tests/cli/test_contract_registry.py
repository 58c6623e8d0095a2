"""`accord contract push`, `pull`, `list`, `log` and `compare --against`, here and over HTTP."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.authorities import served_authority
from typer.testing import CliRunner, Result

from accord.cli import app, output
from accord.contracts import digest
from accord.kernel.errors import AccordError
from accord.station.home import Home, ensure_device_key, hold_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home in which a station has run once."""
    made = Home(tmp_path / "home")
    with ExitStack() as undo, hold_home(made, "nowhere", undo):
        ensure_device_key(made, undo)
        undo.pop_all()
    return made.path


@pytest.fixture(params=["home", "url"])
def registry(request: pytest.FixtureRequest, home: Path, tmp_path: Path) -> Iterator[list[str]]:
    """The options that name a registry: that of a home, or one at a URL with a token."""
    if request.param == "home":
        yield ["--home", str(home)]
        return
    with served_authority(tmp_path / "elsewhere", push=True) as (url, token):
        file = tmp_path / "token"
        file.write_text(token)
        yield ["--registry", url, "--token-file", str(file)]


def run(*words: str, **given: Any) -> Result:
    return CliRunner().invoke(app, ["contract", *words], **given)


def ask(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
    return json.loads(result.stdout)


def against(registry: list[str]) -> list[str]:
    """The same registry for `compare`."""
    if registry[0] == "--home":
        return ["--against", "home", *registry]
    return ["--against", *registry[1:]]


Write = Callable[[Any], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(value: Any) -> str:
        path = tmp_path / f"{digest(value)[:8]}.json"
        path.write_text(json.dumps(value, indent=2))
        return str(path)

    return writer


@pytest.fixture
def graph() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(run("new", "graph@v1", "--json").stdout)
    return made


def with_rpc(graph: dict[str, Any], name: str) -> dict[str, Any]:
    changed = copy.deepcopy(graph)
    changed["rpc"][name] = {**changed["rpc"]["Greeting.Make"], "subject": f"rpc.v1.{name}"}
    return changed


def without_rpc(graph: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(graph)
    del changed["rpc"]["Greeting.Make"]
    return changed


def with_cache(graph: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(graph)
    kept = {"purpose": "Keep greetings.", "schema": {"schema": "Greeting"}, "required": True}
    changed["resources"] = {"kv": {"cache": kept}}
    return changed


def test_a_version_is_pushed_listed_pulled_and_logged(
    registry: list[str], graph: dict[str, Any], write: Write, tmp_path: Path
) -> None:
    grown = with_rpc(graph, "Greeting.Count")
    pushed = ask("push", write(graph), "--note", "The first one", *registry)
    assert (pushed["is_new"], pushed["version"]["number"]) == (True, 1)
    assert ask("push", write(graph), *registry)["is_new"] is False
    assert "pushed as version 2" in run("push", write(grown), *registry).stdout
    assert [each["number"] for each in ask("list", "graph@v1", *registry)["versions"]] == [2, 1]
    assert ask("list", *registry)["contracts"][0]["digest"] == digest(grown)
    assert ask("pull", "graph@v1", "--version", "1", *registry) == graph
    out = tmp_path / "pulled.json"
    assert run("pull", "graph@v1", "--out", str(out), *registry).exit_code == 0
    assert json.loads(out.read_text()) == grown
    log = ask("log", "graph@v1", *registry)["log"]
    assert [each["act"] for each in log] == ["pushed", "pushed"]
    assert log[0]["why"] == "The first one"


def test_comparing_with_a_registry_has_an_exit_code_for_each_verdict(
    registry: list[str], graph: dict[str, Any], write: Write
) -> None:
    place = against(registry)
    assert run("compare", write(graph), *place).stdout.startswith(
        "graph@v1: there is no version to compare with"
    )
    run("push", write(with_cache(graph)), *registry)
    same = run("compare", write(with_rpc(with_cache(graph), "More")), *place)
    assert (same.exit_code, same.stdout.split("\n")[0]) == (
        0,
        "graph@v1: compatible with 1 version (full)",
    )
    broken = run("compare", write(without_rpc(with_cache(graph))), *place)
    assert broken.exit_code == 1
    assert "the RPC Greeting.Make is gone [surface.removed]" in broken.stdout
    moved = run("compare", write(graph), *place)
    assert moved.exit_code == output.NEEDS_MIGRATION == 3
    assert run("compare", write(graph), "--level", "source", *place).exit_code == 0


def test_the_last_version_alone_does_not_show_what_earlier_ones_lose(
    registry: list[str], graph: dict[str, Any], write: Write
) -> None:
    for step in (with_rpc(graph, "Gone"), graph):
        run("push", write(step), *registry)
    place = against(registry)
    assert run("compare", write(graph), *place).exit_code == 0
    all_of_them = run("compare", write(graph), "--versions", "all", *place)
    assert all_of_them.exit_code == 1
    assert "the RPC Gone is gone" in all_of_them.stdout


def test_an_exception_lets_one_break_pass_until_it_ends(
    home: Path, graph: dict[str, Any], write: Write, tmp_path: Path
) -> None:
    run("push", write(graph), "--home", str(home))
    policy = tmp_path / "policy.toml"
    today = datetime.now(UTC).date()

    def excepted(until: Any) -> Result:
        policy.write_text(
            f'[[exceptions]]\nrule = "surface.removed"\ncontract = "graph@v1"\nowner = "ann"\n'
            f'reason = "nobody calls it"\nexpires = {until}\n'
        )
        words = ["compare", write(without_rpc(graph)), "--against", "home", "--home", str(home)]
        return run(*words, "--policy", str(policy))

    passing = excepted(today + timedelta(days=7))
    assert passing.exit_code == 0
    assert "by ann: nobody calls it" in passing.stdout
    ended = excepted(today - timedelta(days=1))
    assert isinstance(ended.exception, output.UndecidedError)
    assert output.show_error(ended.exception) == 2
    assert "policy.expired" in str(ended.exception)


@pytest.mark.parametrize("form", ["json", "sarif", "github", "gitlab"])
def test_every_form_of_output_has_the_finding(
    home: Path, graph: dict[str, Any], write: Write, tmp_path: Path, form: str
) -> None:
    run("push", write(graph), "--home", str(home))
    words = ["compare", write(without_rpc(graph)), "--against", "home", "--home", str(home)]
    shown = run(*words, "--format", form)
    assert (shown.exit_code, "surface.removed" in shown.stdout) == (1, True)
    if form != "github":
        json.loads(shown.stdout)
    out = tmp_path / "result"
    both = run(*words, "--format", form, "--out", str(out))
    assert both.exit_code == 1
    assert both.stdout.startswith("graph@v1: breaking with 1 version (full)")
    assert out.read_text() == shown.stdout


def test_a_folder_of_manifests_is_a_registry_to_compare_with(
    graph: dict[str, Any], write: Write, tmp_path: Path
) -> None:
    folder = tmp_path / "released"
    folder.mkdir()
    (folder / "1.json").write_text(json.dumps(graph))
    (folder / "other.json").write_text(run("new", "paper@v1", "--json").stdout)
    result = run("compare", write(without_rpc(graph)), "--against", str(folder))
    assert (result.exit_code, result.stdout.count("other.json")) == (1, 0)
    missing = run("compare", write(graph), "--against", str(tmp_path / "nowhere"))
    assert "no such folder, file or registry" in str(missing.exception)


def test_a_registry_elsewhere_needs_a_token_and_tls(
    graph: dict[str, Any], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACCORD_REGISTRY_TOKEN", raising=False)
    bare = run("push", write(graph), "--registry", "https://registry.example")
    assert "a token is needed" in str(bare.exception)
    monkeypatch.setenv("ACCORD_REGISTRY_TOKEN", "secret-token")
    for url, said in (
        ("http://registry.example", "can read the token"),
        ("https://ann:secret@registry.example", "no password"),
        ("ftp://registry.example", "not a URL"),
        ("http://127.0.0.1:9", "does not answer"),
    ):
        refused = run("push", write(graph), "--registry", url)
        assert isinstance(refused.exception, AccordError)
        assert said in str(refused.exception)
        assert "secret" not in str(refused.exception)


def test_a_token_that_reads_compares_and_does_not_push(
    graph: dict[str, Any], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_authority(tmp_path / "elsewhere", push=False) as (url, token):
        monkeypatch.setenv("ACCORD_REGISTRY_TOKEN", token)
        refused = run("push", write(graph), "--registry", url)
        assert "not good for that" in str(refused.exception)
        assert run("compare", write(graph), "--against", url).exit_code == 0


def test_tokens_are_made_listed_and_revoked(home: Path) -> None:
    def token(*words: str) -> Result:
        return CliRunner().invoke(app, ["authority", "registry-token", *words, "--home", str(home)])

    made = token("new", "ci", "--push", "--days", "7")
    secret = made.stdout.strip()
    assert secret.startswith("registry_")
    assert "push and read" in token("list").stdout
    assert secret not in token("list").stdout
    assert token("revoke", "ci").stdout == "ci is refused from now on.\n"
    assert "revoked" in token("list").stdout
    assert isinstance(token("revoke", "ci").exception, AccordError)
