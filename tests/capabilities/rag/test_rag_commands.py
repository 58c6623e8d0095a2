"""`accord rag`, run in this process against a real node, with the real model."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.capabilities.rag import papers
from tests.capabilities.rag.papers import BREAD, POWER, RAIN
from tests.fakes.embedding_server import embedding_server
from typer.testing import CliRunner

from accord.cli import app as everything
from accord.cli import rag as commands
from accord.kernel.errors import AccordError


class Home:
    """A home, and the commands on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.code = 0

    def __call__(self, *words: str, app: typer.Typer = commands.app) -> Any:
        result = CliRunner().invoke(app, [*words, "--home", str(self.home)])
        self.code = result.exit_code
        if isinstance(result.exception, AccordError):
            return f"error: {result.exception}"
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if "--json" in words:
            return json.loads(result.stdout)
        return result.stdout + result.stderr


@pytest.fixture(scope="module")
def accord(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose node has founded a community and has a corpus of three documents."""
    folder = tmp_path_factory.mktemp("founded")
    home = Home(folder / "home")
    home("community", "create", "Our street", app=everything)
    manuals = folder / "manuals"
    manuals.mkdir()
    papers.write(manuals, "power.md", POWER)
    papers.write(manuals, "rain.md", RAIN)
    papers.write(manuals, "zip.pdf", papers.archive({"a": b"b"}))
    added = home("add", "manuals", str(manuals), "--language", "de", "--year", "2024", "--json")
    assert home.code == 1
    assert [Path(each["name"]).name for each in added["documents"]] == [
        *("power.md", "rain.md", "zip.pdf")
    ]
    assert [each.get("chunks_indexed") for each in added["documents"]] == [1, 1, None]
    assert "unsupported media type" in added["documents"][2]["error"]
    return home


def test_what_was_added_is_found_and_listed(accord: Home) -> None:
    found = accord("query", "manuals", "Wie reinige ich Regenwasser?", "--json")
    assert found["chunks"][0]["metadata"]["doc_title"] == "rain"
    assert found["embedding_model"] == "all-MiniLM-L6-v2"
    shown = accord("query", "manuals", "Stromausfall", "-k", "1")
    assert shown.startswith("1. ")
    assert "power, Stromausfall" in shown
    (listed,) = accord("list", "--json")["corpora"]
    assert (listed["name"], listed["docs"], listed["language_majority"]) == ("manuals", 2, "de")
    assert "2 documents" in accord("list")


def test_questions_may_be_narrowed(accord: Home) -> None:
    assert accord("query", "manuals", "Wasser", "--min-year", "2025", "--json")["chunks"] == []
    assert accord("query", "manuals", "Wasser", "--language", "en", "--json")["chunks"] == []


def test_a_title_may_be_given(accord: Home, tmp_path: Path) -> None:
    paper = papers.write(tmp_path, "x.txt", BREAD)
    added = accord("add", "recipes", str(paper), "--title", "Loaves")
    assert "1 chunks" in added
    assert accord("query", "recipes", "dough", "--json")["chunks"][0]["metadata"]["doc_title"] == (
        "Loaves"
    )


def test_mistakes_are_told_in_a_sentence(accord: Home, tmp_path: Path) -> None:
    assert "no such corpus" in accord("query", "nothing", "a")
    assert "reserved" in accord("add", "system", str(papers.write(tmp_path, "a.md", RAIN)))
    assert "a-z, 0-9 and -" in accord("add", "Manuals!", str(tmp_path))
    assert accord.code == 2
    papers.write(tmp_path, "b.md", POWER)
    for misused in ([str(tmp_path / "missing")], [str(tmp_path), "--title", "Both"]):
        accord("add", "manuals", *misused)
        assert accord.code == 2


@pytest.mark.slow
def test_a_document_is_withdrawn_by_its_id(accord: Home, tmp_path: Path) -> None:
    paper = papers.write(tmp_path, "x.txt", "Old rules of the house.")
    added = accord("add", "rules", str(paper), "--json")
    cid = added["documents"][0]["doc_cid"]
    assert f"{cid}: withdrawn, file deleted" in accord("withdraw", "rules", cid)
    assert "no such corpus" in accord("query", "rules", "house")
    assert "no such document" in accord("withdraw", "rules", cid)


@pytest.mark.slow
def test_a_corpus_is_embedded_again_by_the_model_of_a_server(
    accord: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in ("rain.md", "loaves.txt"):
        papers.write(tmp_path, said, RAIN if said == "rain.md" else BREAD)
    accord("add", "languages", str(tmp_path))
    with embedding_server() as server:
        monkeypatch.setenv("ACCORD_MODELS__EMBEDDER", f"{server.url} polyglot")
        before = accord("query", "languages", "¿Cómo se limpia el agua?", "--json")
        assert before["chunks"] == [], "no word is shared, and no vector can be compared"
        assert "languages: 2 documents by polyglot" in accord("reembed", "languages")
        found = accord("query", "languages", "¿Cómo se limpia el agua?", "--json")
        assert found["chunks"][0]["metadata"]["doc_title"] == "rain"
        assert found["embedding_model"] == "polyglot"
        assert accord("reembed", "languages", "--json")["documents"] == 2
