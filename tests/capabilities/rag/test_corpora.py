"""A document is in a corpus whole or not at all, once, and as anybody else would have made it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import update
from tests.capabilities.rag import papers
from tests.capabilities.rag.conftest import (
    PLACE,
    HashEmbedder,
    Heard,
    Library,
    cid_of,
    opened,
    wanted,
)
from tests.capabilities.rag.papers import BREAD, POWER, RAIN, rows_of

from accord.capabilities import models
from accord.capabilities.file import Blobs
from accord.capabilities.rag import CorpusId, open_corpora, prepared, tables, words
from accord.capabilities.rag.rules import chunks, document_text
from accord.community.errors import Code, CommunityError
from accord.storage import StoreError, check
from accord.testing.servers import Server

NOTHING = {"documents": 0, "chunks": 0, "standing": 0}


async def test_what_was_ingested_is_found_in_either_language(library: Library) -> None:
    for said in (RAIN, POWER, BREAD):
        await library.ingest(said)
    assert (await library.ask("Wie reinige ich Regenwasser?"))[0] == "Notfall-Trinkwasser"
    assert (await library.ask("kneading doughs"))[0] == "Baking bread"
    assert (await library.ask("giftiges Abgas"))[0] == "Stromausfall"


async def test_a_document_that_comes_twice_is_there_once(library: Library) -> None:
    first = await library.ingest(RAIN)
    again = await library.ingest(RAIN, title="Another title")
    assert again == first
    assert len(library.heard.events) == 1
    assert (await rows_of(library.store))["documents"] == 1
    assert await library.ask("Regenwasser") == ["Notfall-Trinkwasser"]


async def test_many_who_bring_the_same_at_once_bring_it_once(library: Library) -> None:
    kept = await asyncio.gather(*(library.ingest(RAIN) for _ in range(8)))
    assert len(set(kept)) == 1
    assert (await rows_of(library.store))["documents"] == 1


async def test_many_documents_at_once_are_all_found(library: Library) -> None:
    await library.ingest(RAIN)
    await library.ask("water")  # the corpus is in memory from now on
    await asyncio.gather(*(library.ingest(f"about thing{n} alone") for n in range(30)))
    found = await asyncio.gather(
        *(library.corpora.query(PLACE, library.heard, f"thing{n}", 1) for n in range(30))
    )
    assert [each[0].text for each in found if each] == [f"about thing{n} alone" for n in range(30)]


async def test_corpora_are_kept_apart(library: Library) -> None:
    elsewhere = CorpusId("ed25519:elsewhere", "manuals")
    await library.ingest(RAIN)
    await library.ingest(BREAD, place=elsewhere)
    assert await library.ask("bread water") == ["Notfall-Trinkwasser"]
    assert await library.ask("bread water", place=elsewhere) == ["Baking bread"]
    assert await library.corpora.query(CorpusId("", "manuals"), library.heard, "bread", 5) is None


async def test_what_stands_is_found_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, embedder=HashEmbedder()) as before:
        for said in (RAIN, POWER, BREAD):
            await before.ingest(said, metadata={"year": 2024})
        expected = await before.corpora.query(PLACE, before.heard, "Wasser im Freien", 5)
    async with opened(tmp_path, embedder=HashEmbedder()) as after:
        assert await after.corpora.query(PLACE, after.heard, "Wasser im Freien", 5) == expected
        assert await after.ask("Wasser", min_year=2025) == []
    assert check(tmp_path, tables.SCHEMA).ok


async def test_it_is_the_same_on_postgresql(postgres: Server, tmp_path: Path) -> None:
    found = []
    for where in (tmp_path, postgres.url):
        async with opened(where, embedder=HashEmbedder()) as library:
            for said in (RAIN, POWER, BREAD):
                await library.ingest(said)
            await library.refused("")
            assert (await rows_of(library.store))["documents"] == 3
            found.append(await library.corpora.query(PLACE, library.heard, "Wasser", 5))
            shares = await library.corpora.shares([PLACE.community])
            assert {share.language: share.docs for share in shares} == {"de": 2, "en": 1}
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b" \n ",
        b"\xff\xfe\x00",
        b"\x80abc",
        b"\x89PNG\x00",
        papers.archive({"a.pdf": b"%PDF-"}),
        papers.entity_bomb(),
        papers.pdf([""]),
        papers.pdf(["some text"])[:300],
    ],
    ids=["empty", "blank", "utf-16", "latin", "png", "zip", "entities", "scan", "half"],
)
async def test_nothing_of_a_bad_document_stays(library: Library, bad: bytes) -> None:
    assert (await library.refused(bad)).code is Code.BAD_REQUEST
    assert await rows_of(library.store) == NOTHING
    assert library.heard.events == {}
    assert await library.corpora.query(PLACE, library.heard, "a", 5) is None


async def test_nothing_stays_of_what_the_community_does_not_take(library: Library) -> None:
    library.heard.refusal = CommunityError(Code.UNAUTHORIZED, "this node may not")
    assert (await library.refused(RAIN)).code is Code.UNAUTHORIZED
    assert await rows_of(library.store) == NOTHING


async def test_nothing_stays_where_there_is_no_room(tmp_path: Path) -> None:
    def full(wanted: int) -> None:
        assert wanted > len(RAIN)
        raise CommunityError(Code.CAPACITY_EXCEEDED, "there is no room")

    async with opened(tmp_path) as library:
        library.corpora._check_room = full
        assert (await library.refused(RAIN)).code is Code.CAPACITY_EXCEEDED
        assert await rows_of(library.store) == NOTHING


async def test_a_draft_is_not_found_and_the_next_ingest_goes_on_with_it(tmp_path: Path) -> None:
    heard, embedder = Heard(), HashEmbedder()
    async with opened(tmp_path, heard, embedder) as library:
        await library.ingest(BREAD)
        heard.refusal = asyncio.CancelledError()
        with pytest.raises(asyncio.CancelledError):
            await library.ingest(RAIN)
        assert (await rows_of(library.store))["documents"] == 2
        assert await library.ask("Regenwasser", k=1) == ["Baking bread"]
        heard.refusal = None
        embedded = embedder.texts
        await library.ingest(RAIN)
        assert embedder.texts == embedded
        assert await library.ask("Regenwasser", k=1) == ["Notfall-Trinkwasser"]


async def test_a_draft_that_nobody_was_told_of_is_gone_after_a_restart(tmp_path: Path) -> None:
    heard = Heard()
    heard.refusal = asyncio.CancelledError()
    async with opened(tmp_path, heard) as library:
        with pytest.raises(asyncio.CancelledError):
            await library.ingest(RAIN)
    async with opened(tmp_path, heard) as library:
        assert await library.corpora.query(PLACE, heard, "Regenwasser", 5) is None
        assert await rows_of(library.store) == NOTHING


async def test_a_draft_that_was_told_of_stands_after_a_restart(tmp_path: Path) -> None:
    heard = Heard()
    heard.refusal = asyncio.CancelledError()
    async with opened(tmp_path, heard) as library:
        with pytest.raises(asyncio.CancelledError):
            await library.ingest(RAIN)
    heard.events[cid_of(RAIN.encode())] = "event-0"
    async with opened(tmp_path, heard) as library:
        assert await library.ask("Regenwasser") == ["Notfall-Trinkwasser"]
        heard.refusal = None
        assert (await library.ingest(RAIN)).event_id == "event-0"


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.capabilities.rag.conftest import Heard, HashEmbedder, opened
from tests.capabilities.rag.papers import RAIN

class Killed(Heard):
    async def announce(self, document):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with opened(Path(sys.argv[1]), Killed(), HashEmbedder()) as library:
        await library.ingest(RAIN)

asyncio.run(main())
"""


async def test_nothing_stays_of_a_process_that_was_killed(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
    )
    assert done.returncode == -signal.SIGKILL
    async with opened(tmp_path, embedder=HashEmbedder()) as library:
        assert (await rows_of(library.store))["standing"] == 0
        assert await library.ask("Regenwasser") == []
        assert await rows_of(library.store) == NOTHING
        await library.ingest(RAIN)
        assert await library.ask("Regenwasser") == ["Notfall-Trinkwasser"]


async def test_what_was_built_elsewhere_is_what_ingest_would_have_made(tmp_path: Path) -> None:
    embedder, counted = HashEmbedder(), words.word_tokens()
    data = RAIN.encode()
    document = document_text.read_text(RAIN)
    told = wanted(data, title=document.title, metadata={"year": 2024})
    split = chunks.split(told.doc_cid, document, counted.spans, counted.cut)
    windows = [chunks.to_embed(chunk, told.title) for chunk in split.chunks]
    rows = await embedder.embed([each for window in windows for each in window])
    built = prepared.prepare(
        told,
        split,
        counted.cut,
        size_bytes=len(data),
        model=embedder.model,
        vectors=prepared.pool(rows, [len(each) for each in windows]),
    )
    kept = []
    for name in ("ingested", "loaded"):
        async with opened(tmp_path / name, embedder=embedder) as library:
            before = embedder.texts
            if name == "ingested":
                await library.ingest(data, title=document.title, metadata={"year": 2024})
            else:
                await library.corpora.load_built(PLACE, library.heard, built)
                assert embedder.texts == before
            # Ingesting what was loaded does nothing more.
            await library.ingest(data)
            kept.append(
                await library.store.read(
                    lambda c: c.execute(tables.documents.select()).mappings().one()
                )
            )
    assert kept[0] == kept[1]


def test_a_document_is_built_with_one_vector_for_each_chunk() -> None:
    cut = words.word_tokens().cut
    split = chunks.split("blake3:x", document_text.read_text(RAIN), words.word_tokens().spans, cut)
    with pytest.raises(ValueError, match="one vector"):
        prepared.prepare(
            wanted(b"x"),
            split,
            cut,
            size_bytes=1,
            model="m",
            vectors=np.zeros((len(split.chunks) + 1, 4), np.float32),
        )


async def test_another_model_makes_a_document_anew_when_it_comes_again(tmp_path: Path) -> None:
    heard = Heard()
    async with opened(tmp_path, heard) as library:
        first = await library.ingest(RAIN)
    async with opened(tmp_path, heard, HashEmbedder("newer")) as library:
        assert await library.ask("Regenwasser") == ["Notfall-Trinkwasser"]
        anew = await library.ingest(RAIN)
        assert anew.event_id == first.event_id
        assert anew.recipe != first.recipe
        assert (await rows_of(library.store)) == {"documents": 1, "chunks": 1, "standing": 1}
        assert await library.ask("Regenwasser") == ["Notfall-Trinkwasser"]
        assert await library.ask("nothing of it") == ["Notfall-Trinkwasser"]


async def test_without_a_model_words_are_enough(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        for said in (RAIN, POWER, BREAD):
            await library.ingest(said)
        assert library.corpora.model is None
        assert await library.ask("Aggregate") == []
        assert await library.ask("Notstromaggregate") == ["Stromausfall"]


async def test_damage_is_noticed(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        await library.ingest(RAIN)
        damage = update(tables.documents).values(terms=b"12345678", checksum=b"x" * 32)
        await library.store.write(lambda c: c.execute(damage).close())
        with pytest.raises(StoreError, match="damaged"):
            await library.ask("Regenwasser")


async def test_the_migrations_make_the_tables_that_are_declared(tmp_path: Path) -> None:
    async with opened(tmp_path) as library:
        found = await library.store.read(
            lambda c: compare_metadata(MigrationContext.configure(c), tables.SCHEMA.metadata)
        )
    assert found == []


async def test_a_long_document_is_found_by_its_chunks(library: Library) -> None:
    pages = [f"page{number} " + "filler word again " * 400 for number in range(6)]
    kept = await library.ingest("\n\n".join(pages), title="Long")
    assert kept.chunks > 6
    found = await library.corpora.query(PLACE, library.heard, "page4", 1)
    assert found is not None
    assert "page4" in found[0].text


@pytest.mark.parametrize("library_name", ["numpy", "Stemmer", "pypdf", "defusedxml"])
async def test_a_missing_library_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library_name: str
) -> None:
    monkeypatch.setitem(sys.modules, library_name, None)
    with pytest.raises(CommunityError, match=r"accord\[models\]") as caught:
        async with open_corpora(tmp_path, Blobs(tmp_path / "blobs")):
            pass
    assert caught.value.code is Code.NOT_IMPLEMENTED


def test_without_the_tokens_of_a_model_words_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(models, "embedding_model", lambda _: tmp_path)
    assert words.find_tokens().name == "words"
