import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accord.cli import app
from accord.contracts import ContractError, digest, normalize, project, render_sdk
from accord.contracts.export import render_page
from accord.contracts.manifest import RULES

Run = Callable[..., "subprocess.CompletedProcess[str]"]
KEY = "k7l1XTmjfAQVzTFFNy6Fq1e9HvBl4Nxwhs1e4Q2xWqs"


def contract(*words: str, stdin: str = "") -> Result:
    """Run `accord contract` in this process."""
    return CliRunner().invoke(app, ["contract", *words], input=stdin)


@pytest.fixture
def graph() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(contract("new", "graph@v1", "--json").stdout)
    return made


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], str]:
    def writer(name: str, value: Any) -> str:
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)

    return writer


@pytest.fixture
def file(graph: dict[str, Any], write: Callable[[str, Any], str]) -> str:
    return write("graph.json", graph)


def broken(graph: dict[str, Any]) -> dict[str, Any]:
    """A contract that asks for more, and has something that looks like a terminal's own words."""
    changed: dict[str, Any] = json.loads(json.dumps(graph))
    changed["schemas"]["GreetRequest"]["required"].append("\x1b[31m")
    return changed


@pytest.mark.parametrize("kind", ["service", "app", "agent", "device"])
def test_a_new_contract_is_valid(kind: str, write: Callable[[str, Any], str]) -> None:
    made = contract("new", "graph@v1", "--kind", kind)
    path = write("new.json", made.stdout)
    checked = contract("validate", path, "--json")
    assert (checked.exit_code, json.loads(checked.stdout)["ok"]) == (0, True)


def test_a_new_contract_needs_an_id_with_a_version(accord: Run) -> None:
    result = accord("contract", "new", "graph")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: graph: the contract is not valid: /id")


def test_validate_lists_every_finding_and_exits_1(
    graph: dict[str, Any], write: Callable[[str, Any], str]
) -> None:
    graph["rpc"]["\x1b[2J"] = {**graph["rpc"].pop("Greeting.Make"), "input": {"schema": "none"}}
    graph["subjects"] = {}
    path = write("bad.json", graph)
    as_json = contract("validate", path, "--json")
    found = json.loads(as_json.stdout)
    assert (as_json.exit_code, found["ok"], found["digest"]) == (1, False, None)
    assert [finding["rule"] for finding in found["findings"]] == [
        "manifest.unsupported-member",
        "reference.unknown-schema",
    ]
    as_text = contract("validate", path)
    assert as_text.exit_code == 1
    assert "/rpc/\\x1b[2J/input/schema: " in as_text.stdout
    assert "\x1b" not in as_text.output


def test_validate_reads_stdin(graph: dict[str, Any]) -> None:
    result = contract("validate", "-", stdin=json.dumps(graph))
    assert result.stdout == f"graph@v1 is valid; its digest is {digest(graph)}.\n"


def test_normalize_prints_the_supported_form_or_the_projection(
    graph: dict[str, Any], write: Callable[[str, Any], str]
) -> None:
    path = write("more.json", {**graph, "unknown": 1})
    assert json.loads(contract("normalize", path).stdout) == normalize(graph)
    assert json.loads(contract("normalize", path, "--json").stdout) == normalize(graph)
    assert json.loads(contract("normalize", path, "--projection").stdout) == project(graph)


def test_digest_prints_nothing_but_the_digest(file: str, graph: dict[str, Any]) -> None:
    assert contract("digest", file).stdout == f"{digest(graph)}\n"
    as_json = json.loads(contract("digest", file, "--json").stdout)
    assert as_json == {"id": "graph@v1", "digest": digest(graph)}


def test_compare_exits_1_on_a_breaking_change_and_shows_the_witness(
    file: str, graph: dict[str, Any], write: Callable[[str, Any], str]
) -> None:
    later = write("later.json", broken(graph))
    result = contract("compare", file, later)
    assert result.exit_code == 1
    assert result.stdout.startswith("not compatible (replacement); classification: migration\n")
    assert "  /rpc/Greeting.Make/input: " in result.stdout
    assert '    witness: {"name":' in result.stdout
    as_json = contract("compare", file, later, "--json", "--relation", "coexistence")
    report = json.loads(as_json.stdout)
    assert (as_json.exit_code, report["compatible"]) == (1, False)
    assert report["relation"] == "coexistence"


def test_compare_exits_0_where_nothing_breaks(
    file: str, graph: dict[str, Any], write: Callable[[str, Any], str]
) -> None:
    graph["rpc"]["Greeting.Again"] = {
        **graph["rpc"]["Greeting.Make"],
        "subject": "rpc.v1.Greeting.Again",
    }
    result = contract("compare", file, write("later.json", graph))
    assert result.exit_code == 0
    assert result.stdout.startswith("compatible (replacement); classification: update\n")


def git(folder: Path, *words: str) -> None:
    author = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def test_compare_takes_the_old_contract_from_an_earlier_commit(
    file: str, graph: dict[str, Any], write: Callable[[str, Any], str], tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "graph.json")
    git(tmp_path, "commit", "-q", "-m", "first")
    assert contract("compare", file, "--git", "HEAD").exit_code == 0
    write("graph.json", broken(graph))
    result = contract("compare", file, "--git", "HEAD")
    assert (result.exit_code, result.stdout.split("(")[0]) == (1, "not compatible ")


@pytest.mark.parametrize("revision", ["no-such", "HEAD"])
def test_compare_says_in_one_sentence_why_there_is_no_earlier_contract(
    accord: Run, graph: dict[str, Any], tmp_path: Path, revision: str
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "other").write_text("[]")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-q", "-m", "first")
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph))
    result = accord("contract", "compare", str(path), "--git", revision)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {path} at {revision}: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a"],
        ["a", "b", "c"],
        ["a", "--git", "HEAD", "--against", "home"],
        ["a", "--git", "-x"],
        ["-", "--git", "x"],
    ],
)
def test_compare_wants_two_contracts_or_one_and_a_revision(words: list[str]) -> None:
    assert contract("compare", *words).exit_code == 2


def test_compare_exits_2_on_what_is_neither_proved_nor_refuted(
    graph: dict[str, Any], write: Callable[[str, Any], str]
) -> None:
    many = [f"value {number:020}" for number in range(25_000)]

    def with_names(names: list[str]) -> dict[str, Any]:
        changed: dict[str, Any] = json.loads(json.dumps(graph))
        changed["schemas"]["GreetRequest"]["properties"]["name"] = {"not": {"enum": names}}
        return changed

    old, later = write("old.json", with_names(many)), write("later.json", with_names(many[1:]))
    result = contract("compare", old, later)
    assert (result.exit_code, "not proven" in result.stdout) == (2, True)


@pytest.mark.parametrize("broken_one", ["missing.json", "invalid.json", "no-json.json"])
def test_the_exit_code_of_a_question_that_cannot_be_answered_is_2(
    accord: Run, file: str, write: Callable[[str, Any], str], tmp_path: Path, broken_one: str
) -> None:
    write("invalid.json", {"format": "trellis.contract.v1"})
    write("no-json.json", "{")
    other = str(tmp_path / broken_one)
    for words in (("compare", file, other), ("compare", other, file), ("digest", other)):
        result = accord("contract", *words)
        assert (result.returncode, result.stdout) == (2, ""), words
        assert result.stderr.startswith("error: ")


def test_contains_tells_the_verdict_and_exits_1_where_a_witness_refutes_it(
    write: Callable[[str, Any], str],
) -> None:
    whole, number = write("a.json", {"type": "integer"}), write("b.json", {"type": "number"})
    fine = contract("contains", whole, number)
    assert (fine.exit_code, fine.stdout) == (0, "contained\n")
    refuted = contract("contains", number, whole, "--json")
    told = json.loads(refuted.stdout)
    assert (refuted.exit_code, told["status"]) == (1, "not_contained")
    assert told["witness"] % 1
    assert contract("contains", number, whole).stdout.startswith("not contained\nwitness: ")


def test_rules_lists_every_rule_with_its_purpose() -> None:
    listed = json.loads(contract("rules", "--json").stdout)
    assert {rule.id for rule in RULES} <= {row["rule"] for row in listed}
    assert {row["decides"] for row in listed} == {"validate", "compare", "union"}
    assert all(row["purpose"] for row in listed)
    text = contract("rules").stdout
    assert all(row["rule"] in text for row in listed)


def test_analyze_shows_permissions(file: str) -> None:
    assert json.loads(contract("analyze", file, "--json").stdout)["id"] == "graph@v1"
    assert "publish rpc.v1.Greeting.Make: rpc:call, needs graph::greet" in (
        contract("analyze", file).stdout
    )


def test_grants_show_each_subject_with_its_reasons(
    file: str, graph: dict[str, Any], write: Callable[[str, Any], str]
) -> None:
    caller = json.loads(contract("new", "me@v1", "--kind", "app", "--json").stdout)
    del caller["uses"]["required"]["auth"]
    caller["uses"]["required"]["graph"] = {
        "contract": "graph@v1",
        "rpc": {"call": ["Greeting.Make"]},
    }
    caller["resources"] = {"kv": {"k": {"purpose": "p", "schema": {"schema": "S"}}}}
    caller["schemas"] = {"S": True}
    words = ["grants", write("me.json", caller), "--session-key", KEY, "--active", file]
    without = contract(*words)
    assert without.exit_code == 0
    assert f"subscribe _INBOX.{KEY[:16]}.>\n" in without.stdout
    assert "withheld\n    /uses/required/graph/rpc/call/0: " in without.stdout
    held = contract(*words, "--capability", "graph::greet", "--json")
    assert list(json.loads(held.stdout)["publish"]) == ["rpc.v1.Greeting.Make"]
    bindings = write("bindings.json", {"kv": {"k": "acc_kv_1"}})
    service = contract(*words, "--role", "service", "--bindings", bindings)
    assert "acc_kv_1" in service.stdout


def test_grants_of_a_session_that_is_blocked_exit_1(file: str) -> None:
    result = contract("grants", file, "--session-key", KEY, "--json")
    assert result.exit_code == 1
    assert [one["rule"] for one in json.loads(result.stdout)["blocked"]] == [
        "uses.dependency-not-active"
    ]


@pytest.mark.parametrize(
    "bindings",
    [[], {"kv": 1}, {"other": {}}, {"jobs": {"a": {}}}, {"consumers": {"a": {"x": "y"}}}],
)
def test_bindings_of_the_wrong_shape_are_told_in_one_sentence(
    accord: Run, file: str, write: Callable[[str, Any], str], bindings: Any
) -> None:
    path = write("bindings.json", bindings)
    result = accord("contract", "grants", file, "--session-key", KEY, "--bindings", path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {path}: not bindings: ")
    assert result.stderr.count("\n") == 1


def test_asyncapi_takes_a_contract_or_a_catalog(
    file: str, graph: dict[str, Any], write: Callable[[str, Any], str]
) -> None:
    alone = json.loads(contract("asyncapi", file).stdout)
    assert list(alone["operations"]) == ["rpc.Greeting.Make"]
    entry = {"id": "graph@v1", "digest": digest(graph), "displayName": "", "description": ""}
    listing = {"format": "trellis.catalog.v1", "contracts": [entry]}
    together = contract("asyncapi", write("catalog.json", listing), file, "--json")
    assert len(json.loads(together.stdout)["operations"]) == 1


def test_sdk_writes_a_package_and_replaces_one_only_when_told(
    accord: Run, file: str, graph: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "a" / "b"
    made = accord("contract", "sdk", file, "--out", str(out), "--json")
    assert json.loads(made.stdout) == {"package": str(out / "graph_v1")}
    for path, text in render_sdk(graph).items():
        assert (out / path).read_text() == text
    assert [one.name for one in out.iterdir()] == ["graph_v1"]
    (out / "graph_v1" / "client.py").write_text("mine")
    again = accord("contract", "sdk", file, "--out", str(out))
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith(f"error: {out / 'graph_v1'}: it is there already")
    assert (out / "graph_v1" / "client.py").read_text() == "mine"
    (out / "graph_v1" / "notes.txt").write_text("mine too")
    assert accord("contract", "sdk", file, "--out", str(out), "--force").returncode == 0
    assert (out / "graph_v1" / "client.py").read_text() != "mine"
    assert (out / "graph_v1" / "notes.txt").read_text() == "mine too"


def test_sdk_that_cannot_be_written_is_one_sentence(accord: Run, file: str, tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    result = accord("contract", "sdk", file, "--out", str(tmp_path / "in-the-way" / "x"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "the package cannot be written here" in result.stderr
    assert result.stderr.count("\n") == 1


def test_docs_prints_the_page(file: str, graph: dict[str, Any]) -> None:
    assert contract("docs", file).stdout == render_page(graph)
    assert json.loads(contract("docs", file, "--json").stdout) == {"markdown": render_page(graph)}


READING = ("validate", "normalize", "digest", "analyze", "asyncapi", "docs")
BAD = {
    "missing": (None, "cannot be read (No such file or directory)"),
    "empty": ("", "the text ends too soon"),
    "broken": ('{"a": 1,}', "byte 8 (line 1, column 9): a member name"),
    "twice": ('{"a": 1, "a": 2}', "the member 'a' occurs twice"),
    "deep": ("[" * 4_000_000 + "]" * 4_000_000, "nested deeper than"),
    "large": (" " * 10_000_000, "larger than the 8388608 bytes"),
    "binary": ("\udcff\udcfe", "not UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("command", ["validate", "docs"])
def test_a_file_that_is_no_json_is_told_in_one_sentence(
    accord: Run, tmp_path: Path, command: str, case: str
) -> None:
    content, sentence = BAD[case]
    path = tmp_path / "contract.json"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    result = accord("contract", command, str(path))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {path}")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, {"id": {}}, [[[]]]])
@pytest.mark.parametrize("command", READING)
def test_json_that_is_no_contract_is_refused(
    command: str, value: Any, write: Callable[[str, Any], str]
) -> None:
    result = contract(command, write("value.json", value))
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit | ContractError)


def test_a_folder_is_told_in_one_sentence(accord: Run, tmp_path: Path) -> None:
    result = accord("contract", "digest", str(tmp_path))
    assert result.stderr == f"error: {tmp_path}: cannot be read (Is a directory)\n"


@pytest.mark.parametrize("command", ["grants", "sdk", "fly"])
def test_a_command_without_what_it_needs_is_a_misuse(file: str, command: str) -> None:
    assert contract(command, file).exit_code == 2
