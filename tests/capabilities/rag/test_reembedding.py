"""A corpus gets the vectors of another model, and is searched all the while."""

from contextlib import aclosing
from pathlib import Path

from tests.capabilities.rag.conftest import PLACE, HashEmbedder, Heard, Library, cid_of, opened
from tests.capabilities.rag.papers import BREAD, POWER, RAIN
from tests.fakes.embedding_server import embedding_server

from accord.capabilities import embed
from accord.capabilities.rag import CorpusId
from accord.capabilities.settings import ModelsSettings
from accord.community.errors import Code, CommunityError

PAPERS = {cid_of(said.encode()): said.encode() for said in (RAIN, POWER, BREAD)}


async def read(cid: str) -> bytes:
    if cid not in PAPERS:
        raise CommunityError(Code.NOT_FOUND, "this blob is not here", where=cid)
    return PAPERS[cid]


async def filled(folder: Path, heard: Heard) -> None:
    async with opened(folder, heard, HashEmbedder("before")) as library:
        for said in PAPERS.values():
            await library.ingest(said, metadata={"year": 2024})


async def meanings(library: Library, question: str) -> dict[str, float | None]:
    found = await library.corpora.query(PLACE, library.heard, question, 5)
    return {each.doc_cid: each.meaning for each in found or ()}


async def test_vectors_of_another_model_are_not_compared(tmp_path: Path) -> None:
    await filled(tmp_path, Heard())
    async with opened(tmp_path, embedder=HashEmbedder("after")) as library:
        found = await meanings(library, "Wie reinige ich Regenwasser?")
        assert found
        assert set(found.values()) == {0.0}, "found by words alone"


async def test_a_corpus_is_embedded_again_and_keeps_everything_else(tmp_path: Path) -> None:
    heard = Heard()
    await filled(tmp_path, heard)
    events = dict(heard.events)
    async with opened(tmp_path, heard, HashEmbedder("after")) as library:
        steps = [step async for step in library.corpora.reembed(PLACE, heard, read)]
        assert [(step.done, step.total) for step in steps] == [(0, 3), (1, 3), (2, 3), (3, 3)]
        found = await meanings(library, "Regenwasser kneading Abgas")
        assert len(found) == 3
        assert all(found.values())
        assert len(await library.ask("bread", min_year=2024)) == 3
        again = [step async for step in library.corpora.reembed(PLACE, heard, read)]
        assert [(step.done, step.total) for step in again] == [(3, 3)]
    assert heard.events == events, "nothing is announced again"


async def test_an_interrupted_one_goes_on_and_queries_find_all_documents_meanwhile(
    tmp_path: Path,
) -> None:
    heard = Heard()
    await filled(tmp_path, heard)
    async with opened(tmp_path, heard, HashEmbedder("after")) as library:
        before = set(await library.ask("Regenwasser bread Abgas"))
        async with aclosing(library.corpora.reembed(PLACE, heard, read)) as steps:
            async for step in steps:
                assert set(await library.ask("Regenwasser bread Abgas")) == before
                if step.done == 1:
                    break
    embedder = HashEmbedder("after")
    async with opened(tmp_path, heard, embedder) as library:
        steps = library.corpora.reembed(PLACE, heard, read)
        assert [step.done async for step in steps] == [1, 2, 3]
        assert embedder.texts == 2, "only those that were left"


async def test_another_model_under_the_same_name_is_another_model(tmp_path: Path) -> None:
    heard = Heard()
    await filled(tmp_path, heard)
    other = HashEmbedder("before")
    other.dimensions = 32
    async with opened(tmp_path, heard, other) as library:
        assert set((await meanings(library, "Regenwasser")).values()) == {0.0}
        steps = [step async for step in library.corpora.reembed(PLACE, heard, read)]
        assert steps[-1].done == 3
        assert any((await meanings(library, "Regenwasser")).values())


async def test_a_document_without_its_file_is_named_and_stays_findable(tmp_path: Path) -> None:
    heard = Heard()
    async with opened(tmp_path, heard, HashEmbedder("before")) as library:
        await library.ingest("a lost letter")
        await library.ingest(RAIN)
    async with opened(tmp_path, heard, HashEmbedder("after")) as library:
        steps = [step async for step in library.corpora.reembed(PLACE, heard, read)]
        assert steps[-1].failed == (cid_of(b"a lost letter"),)
        found = await library.corpora.query(PLACE, heard, "lost letter", 1)
        assert found
        assert found[0].text == "a lost letter"


async def test_an_embedder_that_fails_leaves_what_is_there(tmp_path: Path) -> None:
    heard = Heard()
    await filled(tmp_path, heard)
    with embedding_server() as server:
        settings = ModelsSettings(embedder=f"{server.url} polyglot")
        async with (
            embed.open_embedder(settings) as embedder,
            opened(tmp_path, heard, embedder) as library,
        ):
            server.status = 500
            try:
                async for step in library.corpora.reembed(PLACE, heard, read):
                    assert step.done == 0
            except CommunityError as error:
                assert error.code is Code.INTERNAL_ERROR
            else:
                raise AssertionError("it did not fail")
            found = await meanings(library, "Regenwasser")
            assert set(found.values()) == {None}, "by words while the server fails"
            server.status = 200
            steps = [step async for step in library.corpora.reembed(PLACE, heard, read)]
            assert steps[-1].done == 3
            assert (await library.ask("¿Cómo se limpia el agua?"))[0] == "Notfall-Trinkwasser"


async def test_a_withdrawn_document_is_not_found_and_can_come_again(tmp_path: Path) -> None:
    heard, elsewhere = Heard(), CorpusId(PLACE.community, "others")
    cid = cid_of(RAIN.encode())
    async with opened(tmp_path, heard, HashEmbedder()) as library:
        for said in (RAIN, BREAD):
            await library.ingest(said)
        await library.ingest(RAIN, place=elsewhere)
        assert await library.corpora.holding(PLACE.community, cid) == ["manuals", "others"]
        assert await library.corpora.withdraw(PLACE, cid)
        assert not await library.corpora.withdraw(PLACE, cid)
        assert await library.ask("Regenwasser bread") == ["Baking bread"]
        assert await library.ask("Regenwasser", place=elsewhere) == ["Notfall-Trinkwasser"]
    async with opened(tmp_path, heard, HashEmbedder()) as library:
        assert await library.ask("Regenwasser bread") == ["Baking bread"]
        await library.ingest(RAIN)
        assert (await library.ask("Regenwasser"))[0] == "Notfall-Trinkwasser"
