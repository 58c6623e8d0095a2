"""Corpora built on Spark: the very chunks and vectors of `rag.ingest`, loaded without embedding."""

import json
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from tests.capabilities.homes import Home
from tests.capabilities.rag import papers
from tests.capabilities.rag.papers import BREAD, POWER, RAIN
from tests.pipeline.corpus.nodes import CORPUS, load, reader, rows, told_documents
from tests.pipeline.folders import BRISK
from tests.pipeline.runner.test_clusters import connect, standalone
from typer.testing import CliRunner

from accord.cli import app
from accord.pipeline.corpus import builder, loader, sources, store
from accord.pipeline.errors import PipelineError
from accord.pipeline.runs import runner
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUESTIONS = ("How is dough kneaded?", "Was hilft bei einem Stromausfall?", "word 77")


def book(number: int, words: int = 3000) -> str:
    """A text of several chunks, each of several windows."""
    said = " ".join(f"word {(number + 1) * place % 997} turns." for place in range(words // 3))
    return f"# Book {number}\n\n{said}\n"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of every kind, one of them twice, one of them corrupt."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "deep").mkdir()
    papers.write(folder, "rain.md", RAIN)
    papers.write(folder, "power.md", POWER)
    papers.write(folder, "deep/book.txt", book(1))
    papers.write(folder, "bread.pdf", papers.pdf(["The baker kneads dough.", "Loaves are baked."]))
    papers.write(folder, "roof.docx", papers.docx([(None, "The roof keeps the rain out.")]))
    papers.write(folder, "page.html", "<html><body><h1>Bees</h1><p>Bees make honey.</p></body>")
    papers.write(folder, "zz-copy.md", RAIN)
    papers.write(folder, "zip.pdf", papers.archive({"a": b"b"}))
    (folder / "link.md").symlink_to(folder / "rain.md")
    return folder


TAKEN = ("bread.pdf", "deep/book.txt", "page.html", "power.md", "rain.md", "roof.docx")


@dataclass
class Built:
    out: Path
    outcome: builder.BuildOutcome


@pytest.fixture(scope="module")
def built(spark: "SparkSession", shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("built")
    return Built(
        out,
        builder.build_in_session(
            builder.BuildRequest(sources.source_of(shelf), CORPUS, out), spark
        ),
    )


def made_in(out: Path) -> dict[str, store.BuiltDocument]:
    """What a built corpus consists of, by name."""
    stands = store.usable(out)
    folder = store.parts_folder(out)
    found = [made for part in stands.parts for made in store.read_part(folder, part)]
    assert len(found) == stands.documents
    return {made.name: made for made in found}


async def test_chunks_and_vectors_are_those_of_rag_ingest_and_nothing_is_embedded_to_load_them(
    built: Built, shelf: Path, tmp_path: Path
) -> None:
    async with reader(tmp_path / "ingesting") as node:
        for name in TAKEN:
            await node.ingest(shelf / name)
        ingested, ingested_chunks = await rows(node.store)
        answers = [await node.ask(question) for question in QUESTIONS]
    async with reader(tmp_path / "loading") as node:
        told = await load(node, built.out)
        assert node.embedder.texts == 0
        loaded, loaded_chunks = await rows(node.store)
        found = [await node.ask(question) for question in QUESTIONS]
        assert node.embedder.texts == len(QUESTIONS), "a question is embedded, and nothing else"
        again = await load(node, built.out)
        assert again == told
        assert (await rows(node.store))[1] == loaded_chunks
        assert told_documents(node) == loaded.keys()
    assert told == loader.LoadResult(len(TAKEN), sum(map(len, ingested_chunks.values())))
    assert max(map(len, ingested_chunks.values())) > 3
    assert loaded_chunks == ingested_chunks
    for cid, document in ingested.items():
        vectors = document.pop("vectors")
        np.testing.assert_allclose(loaded[cid].pop("vectors"), vectors, rtol=0, atol=1e-6)
        # Everything else as well, but for the community that each node has founded.
        assert loaded[cid] | {"community": ""} == document | {"community": ""}
    for ours, theirs in zip(found, answers, strict=True):
        assert [each["metadata"] for each in ours] == [each["metadata"] for each in theirs]
        scores = [[each["score"] for each in either] for either in (ours, theirs)]
        assert scores[0] == pytest.approx(scores[1], abs=2e-4)


def test_a_corrupt_document_is_named_and_the_rest_is_built(built: Built) -> None:
    outcome = built.outcome
    assert set(made_in(built.out)) == set(TAKEN)
    assert (outcome.made, outcome.kept, outcome.same) == (len(TAKEN), 0, ("zz-copy.md",))
    (refused,) = outcome.refused
    assert refused.name == "zip.pdf"
    assert "unsupported media type" in refused.reason
    stands = store.usable(built.out)
    assert stands == outcome.published
    assert stands.refused == outcome.refused


def test_only_what_has_changed_is_made_again_and_what_is_gone_leaves_nothing(
    spark: "SparkSession", built: Built, shelf: Path, tmp_path: Path
) -> None:
    documents, out = tmp_path / "documents", tmp_path / "out"
    shutil.copytree(shelf, documents, symlinks=True)
    shutil.copytree(built.out, out)
    request = builder.BuildRequest(sources.source_of(documents), CORPUS, out)
    before = made_in(out)
    again = builder.build_in_session(request, spark)
    assert (again.made, again.kept) == (0, len(TAKEN))
    assert again.published == built.outcome.published
    papers.write(documents, "power.md", BREAD)
    (documents / "deep" / "book.txt").unlink()
    changed = builder.build_in_session(request, spark)
    assert (changed.made, changed.kept) == (1, len(TAKEN) - 2)
    after = made_in(out)
    assert set(after) == set(TAKEN) - {"deep/book.txt"}
    assert after["power.md"].content == BREAD.encode()
    assert after["rain.md"].built.vectors == before["rain.md"].built.vectors
    files = sorted(each.name for each in store.parts_folder(out).iterdir())
    assert files == list(store.usable(out).parts), "no other file has the old documents"


async def test_a_damaged_part_is_not_loaded_and_only_its_documents_are_made_again(
    spark: "SparkSession", built: Built, shelf: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(built.out, out)
    spoilt = store.parts_folder(out) / store.usable(out).parts[0]
    data = bytearray(spoilt.read_bytes())
    data[len(data) // 2] ^= 1
    spoilt.write_bytes(data)
    async with reader(tmp_path / "home") as node:
        with pytest.raises(PipelineError, match="gone or damaged; build the corpus again"):
            await load(node, out)
    mended = builder.build_in_session(
        builder.BuildRequest(sources.source_of(shelf), CORPUS, out), spark
    )
    assert mended.made == store.part_documents(spoilt.name)
    assert set(made_in(out)) == set(TAKEN)
    store._catalogue_path(out).write_bytes(b'{"form": 1')
    with pytest.raises(PipelineError, match="catalogue of the corpus is damaged"):
        store.usable(out)


async def test_a_part_whose_documents_are_not_what_they_say_is_refused(
    built: Built, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    folder = store.parts_folder(out)
    folder.mkdir(parents=True)
    honest = made_in(built.out)["rain.md"]
    stands = store.usable(built.out)
    lies = (
        replace(honest, content=b"something else"),
        replace(honest, built=replace(honest.built, vectors=b"")),
        replace(honest, built=replace(honest.built, terms=b"?")),
        replace(honest, built=replace(honest.built, chunks=())),
    )
    async with reader(tmp_path / "home") as node:
        for lie in lies:
            named = (store.write_part(folder, [lie]),)
            store.publish(out, replace(stands, parts=named, documents=1))
            with pytest.raises(PipelineError, match="is not what it says"):
                await load(node, out)
        assert (await rows(node.store))[0] == {}


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()], ids=["bytes", "text"])
def test_a_table_of_documents_is_built_like_a_folder_of_them(
    spark: "SparkSession", built: Built, tmp_path: Path, kind: pa.DataType
) -> None:
    given = {"file": ["rain.md", "power.md", None, "empty.md"], "body": [RAIN, POWER, "x", None]}
    table = pa.table({"file": given["file"], "body": pa.array(given["body"]).cast(kind)})
    pq.write_table(table, tmp_path / "documents.parquet")
    source = sources.source_of(tmp_path / "documents.parquet", "file", "body")
    assert isinstance(source, sources.TableSource)
    outcome = builder.build_in_session(
        builder.BuildRequest(source, CORPUS, tmp_path / "out"), spark
    )
    assert [each.name for each in outcome.refused] == ["", "empty.md"]
    found, same = made_in(tmp_path / "out"), made_in(built.out)
    assert set(found) == {"rain.md", "power.md"}
    for name, made in found.items():
        assert made.key == same[name].key
        assert made.built.chunks == same[name].built.chunks
    with pytest.raises(PipelineError, match="has no column 'content'"):
        builder.build_in_session(
            builder.BuildRequest(replace(source, contents="content"), CORPUS, tmp_path / "x"), spark
        )


def test_nothing_is_published_where_there_is_nothing_to_take(
    spark: "SparkSession", built: Built, tmp_path: Path
) -> None:
    out, documents = tmp_path / "out", tmp_path / "documents"
    documents.mkdir()
    shutil.copytree(built.out, out)
    request = builder.BuildRequest(sources.source_of(documents), CORPUS, out)
    with pytest.raises(PipelineError, match="there are no documents"):
        builder.build_in_session(request, spark)
    papers.write(documents, "zip.pdf", papers.archive({"a": b"b"}))
    assert builder.build_in_session(request, spark).published is None
    assert set(made_in(out)) == set(TAKEN), "what was published stands"
    with pytest.raises(PipelineError, match="cannot lie among its documents"):
        builder.build(replace(request, out=documents / "built"))
    with pytest.raises(PipelineError, match="no folder and no Parquet table"):
        sources.source_of(tmp_path / "missing")


def test_a_build_that_was_killed_publishes_nothing_and_the_next_goes_on(
    spark: "SparkSession", tmp_path: Path
) -> None:
    documents, out = tmp_path / "documents", tmp_path / "out"
    documents.mkdir()
    names = [f"book-{number:02}.txt" for number in range(24)]
    for number, name in enumerate(names):
        papers.write(documents, name, book(number, 900))
    folder = store.parts_folder(out)
    words = ["pipeline", "corpus", "build", str(documents), "--corpus", CORPUS, "--out", str(out)]
    for name, value in BRISK.items():
        words += ["--conf", f"{name}={value}"]
    with python_child("-m", "accord.cli", *words) as child:
        while not store.part_names(folder):
            assert psutil.pid_exists(child.pid)
            time.sleep(0.01)
        child.kill()
        child.assert_gone(within=60)
    assert store.published(out) is None
    left = sum(map(store.part_documents, store.part_names(folder)))
    assert 0 < left < len(names)
    (folder / "_draft-0123").write_bytes(b"half")
    outcome = builder.build_in_session(
        builder.BuildRequest(sources.source_of(documents), CORPUS, out), spark
    )
    assert (outcome.made, outcome.kept) == (len(names) - left, left)
    assert set(made_in(out)) == set(names)
    assert sorted(each.name for each in folder.iterdir()) == store.part_names(folder)


def test_the_commands_build_a_corpus_and_a_node_takes_it(
    spark: "SparkSession",
    built: Built,
    shelf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A session of their own, as the test above has it, takes long to start.
    monkeypatch.setattr(runner, "open_session", lambda *_given, **_more: nullcontext(spark))
    out = tmp_path / "out"
    shutil.copytree(built.out, out)
    words = ["pipeline", "corpus", "build", str(shelf), "--corpus", CORPUS, "--out", str(out)]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 1, "a document was refused"
    assert f"{len(TAKEN)} documents in" in shown.stdout
    assert "zip.pdf: unsupported media type" in shown.stderr
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (told["documents"], told["made"], told["kept"]) == (len(TAKEN), 0, len(TAKEN))
    for misused in (["--corpus", "system"], ["--language", "German!"], ["--conf", "x"]):
        assert CliRunner().invoke(app, [*words, *misused]).exit_code == 2
    home = Home(tmp_path / "home")
    assert "no node here yet" in home("rag", "load", str(out))
    home("community", "create", "Our street")
    assert "there is no built corpus" in home("rag", "load", str(tmp_path))
    assert home("rag", "load", str(out), "--json") == {
        "corpus": CORPUS,
        "documents": told["documents"],
        "chunks": told["chunks"],
    }
    (listed,) = home("rag", "list", "--json")["corpora"]
    assert (listed["name"], listed["chunks"]) == (CORPUS, told["chunks"])
    best = home("rag", "query", CORPUS, "Who kneads dough?", "--json")["chunks"][0]
    assert best["metadata"]["doc_title"] == "bread"


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", [standalone, connect], ids=["standalone", "connect"])
def test_another_spark_builds_the_same_corpus(
    built: Built, shelf: Path, tmp_path: Path, kind: type
) -> None:
    out = tmp_path / "out"
    words = [
        "pipeline",
        "corpus",
        "build",
        str(shelf),
        "--corpus",
        CORPUS,
        "--out",
        str(out),
        "--json",
    ]
    with kind(tmp_path) as url:
        words += ["--remote" if url.startswith("sc://") else "--master", url]
        with python_child("-m", "accord.cli", *words) as child:
            told = json.loads(child.read_line(within=300))
            child.wait(within=60)
    assert told["made"] == len(TAKEN)
    here, there = made_in(built.out), made_in(out)
    assert here.keys() == there.keys()
    for name, made in here.items():
        assert there[name].built.chunks == made.built.chunks
        ours, theirs = (vectors_of(each[name]) for each in (here, there))
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-6)


def vectors_of(made: store.BuiltDocument) -> NDArray[np.float32]:
    return np.frombuffer(made.built.vectors or b"", "<f4")
