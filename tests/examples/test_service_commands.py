"""`accord service | rpc | events | jobs`: what is refused before anybody is asked."""

import json
from pathlib import Path

import pytest
from examples import library
from typer.testing import CliRunner

from accord.cli import app
from accord.kernel.errors import AccordError
from accord.kernel.signing import SigningKey

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def contract(tmp_path: Path) -> str:
    file = tmp_path / "library.json"
    file.write_bytes(library.contract().to_json())
    return str(file)


def refused(*words: str, home: Path) -> str:
    """The sentence of a refusal."""
    result = CliRunner().invoke(app, [*words, "--home", str(home)])
    assert result.exit_code in (1, 2), result.output
    assert result.stdout == ""
    if isinstance(result.exception, AccordError):
        return str(result.exception)
    return result.stderr


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("library", "expected MODULE:NAME"),
        ("examples.nothing:library", "the module cannot be imported (ModuleNotFoundError"),
        ("examples.library:nothing", "the module has no 'nothing'"),
        ("examples.library:contract", "this makes no service"),
        ("examples.library:BOOKS", "this makes no service"),
    ],
)
def test_what_is_no_service_is_not_run(tmp_path: Path, target: str, why: str) -> None:
    assert why in refused("service", "run", target, home=tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_a_module_that_fails_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_service.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    said = refused("service", "run", "failing_service:it", home=tmp_path / "home")
    assert "(ZeroDivisionError: division by zero)" in said
    assert said.startswith("failing_service.py:1: ")
    assert "\n" not in said


def test_the_line_of_a_mistake_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = {
        "misspelt_service.py": "x = 1\ny = (\n",
        "helped_service.py": "import json\nimport helping_part\n",
        "helping_part.py": "\n\njson_text = __import__('json').loads('{')\n",
        "undeclared_service.py": "from accord.fabric import TypedService\n"
        "service = TypedService('it@v1', 'It.')\n"
        "service.contract.kv('bucket')\n",
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text)

    def said(name: str) -> str:
        return refused("service", "run", name, home=tmp_path / "home")

    assert said("misspelt_service.py").startswith("misspelt_service.py:2: ")
    assert said("helped_service.py").startswith("helping_part.py:3: ")
    assert said("undeclared_service.py").startswith("undeclared_service.py:3: ")
    assert "check that Python can import it" in said("nowhere_service.py")


def test_a_name_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    words = ("service", "run", "examples.library:library", "--name", "../../elsewhere")
    assert "letters, digits" in refused(*words, home=tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "open.key"
    SigningKey.create(key)
    key.chmod(0o644)
    words = ("service", "run", "examples.library:library", "--key-file", str(key))
    assert "may be read by others" in refused(*words, home=tmp_path / "home")


def test_a_shell_without_a_key_is_told_the_one_step(tmp_path: Path, contract: str) -> None:
    for words in (
        ("rpc", "call", contract, "Library.Find"),
        ("events", "tail", contract, "Library.Lent"),
        ("jobs", "list"),
    ):
        assert "run `accord rpc allow` once" in refused(*words, home=tmp_path / "home")


def test_what_the_contract_does_not_have_is_not_called(tmp_path: Path, contract: str) -> None:
    home = tmp_path / "home"
    assert "'Library.Burn'" in refused("rpc", "call", contract, "Library.Burn", home=home)
    assert "'Library.Lend'" in refused("rpc", "run", contract, "Library.Lend", home=home)
    assert "'Library.Lend'" in refused("events", "tail", contract, "Library.Lend", home=home)
    nowhere = str(tmp_path / "nowhere.json")
    assert nowhere in refused("rpc", "call", nowhere, "Library.Find", home=home)


@pytest.mark.parametrize("payload", ["{", '{"a": NaN}', "@/nowhere/at/all", "[" * 100_000])
def test_a_payload_that_is_no_json_is_refused(tmp_path: Path, contract: str, payload: str) -> None:
    said = refused("rpc", "call", contract, "Library.Find", payload, home=tmp_path / "home")
    assert said.startswith("the payload ")
    assert len(said) < 500


def test_a_condition_that_is_none_is_a_misuse(tmp_path: Path, contract: str) -> None:
    words = ("events", "tail", contract, "Library.Lent", "--where", "reader")
    assert "POINTER=VALUE" in refused(*words, home=tmp_path / "home")


def test_an_authority_that_is_not_there_is_told_of(tmp_path: Path, contract: str) -> None:
    key = tmp_path / "mine.key"
    SigningKey.create(key)
    words = ("rpc", "call", contract, "Library.Find", '{"book": "Emma"}', "--key-file", str(key))
    where = ("--authority", NOWHERE, "--wait", "0")
    said = refused(*words, *where, home=tmp_path / "home")
    assert "error: BootstrapError: " in said
    assert "cannot be reached" in said
    result = CliRunner().invoke(app, [*words, *where, "--json", "--home", str(tmp_path / "home")])
    assert json.loads(result.stdout)["error"]["code"] == "unreachable"
