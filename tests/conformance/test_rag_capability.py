"""Sections 4.4 to 4.6 of the specification, line by line, from a second node over HTTP."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import select
from tests.capabilities.file.conftest import Neighbours, move_in
from tests.capabilities.rag import papers
from tests.capabilities.rag.conftest import HashEmbedder
from tests.capabilities.rag.papers import BREAD, POWER, RAIN
from tests.community.node.conftest import House, Street

from accord.capabilities.rag import open_corpora, register
from accord.community.bus import Frame
from accord.community.errors import Code, CommunityError
from accord.community.rules import CommunityState, Level, capabilities, must_verify_answer
from accord.community.store import events
from accord.testing import VirtualClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = itertools.count()
CORPUS = "niederrhein-emergency"


@dataclass
class Readers:
    """Three neighbours with corpora: alice is an anchor, bob is trusted, carol a member."""

    street: Neighbours

    @property
    def alice(self) -> House:
        return self.street.alice

    @property
    def bob(self) -> House:
        return self.street.bob

    @property
    def carol(self) -> House:
        return self.street.carol

    async def call(
        self,
        caller: House,
        served: House,
        capability: str,
        given: dict[str, Any],
        corpus: str | None = CORPUS,
    ) -> dict[str, Any]:
        async with self.street.ask(caller, served) as client:
            params = {} if corpus is None else {"corpus": corpus}
            return await client.call(capability, params, given)

    async def share(self, data: bytes | str, house: House | None = None) -> str:
        raw = data.encode() if isinstance(data, str) else data
        return await self.street.share(house or self.alice, raw)

    async def ingest(
        self, data: bytes | str, corpus: str = CORPUS, **told: Any
    ) -> tuple[str, dict[str, Any]]:
        """Share a document on alice's node and let bob ingest it there."""
        cid = await self.share(data)
        given = {"doc_cid": cid, **told}
        return cid, await self.call(self.bob, self.alice, "rag.ingest", given, corpus)

    async def query(
        self, question: str, corpus: str = CORPUS, caller: House | None = None, **more: Any
    ) -> dict[str, Any]:
        given = {"query": question, **more}
        return await self.call(caller or self.carol, self.alice, "rag.query", given, corpus)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def readers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Readers]:
    """One street for all tests."""
    async with AsyncExitStack() as opened:
        street = Street(tmp_path_factory.mktemp("street"), VirtualClock(), opened)
        neighbours = await move_in(street)
        houses = {"alice": neighbours.alice, "bob": neighbours.bob, "carol": neighbours.carol}
        for name, house in houses.items():
            blobs = neighbours.blobs[house.id]
            corpora = await opened.enter_async_context(
                open_corpora(street.path / name / "stores", blobs, HashEmbedder())
            )
            register(house.node, street.clock, corpora, blobs)
        yield Readers(neighbours)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(readers: Readers) -> Readers:
    """The example's corpus, with three documents."""
    await readers.ingest(
        RAIN, title="Notfall-Trinkwasser", language="de", metadata={"author": "a", "year": 2024}
    )
    await readers.ingest(POWER, title="Stromausfall", language="de", metadata={"year": 1999})
    await readers.ingest(
        papers.pdf(["Bread is baked.", "The dough rests."]), title="Baking", language="en"
    )
    return readers


def name() -> str:
    return f"corpus-{next(NUMBERS)}"


async def refused(work: Any) -> CommunityError:
    with pytest.raises(CommunityError) as caught:
        await work
    return caught.value


def specified() -> dict[str, Any]:
    """The capabilities of the specification; a node may offer experimental ones beside them."""
    return {
        key: each
        for key, each in capabilities.load_descriptors("accord.capabilities.rag").items()
        if not key.startswith("experimental.")
    }


async def test_the_capabilities_are_described_as_the_table_says() -> None:
    described = specified()
    assert {key: each.trust for key, each in described.items()} == {
        "rag.query@1.0": Level.MEMBER,
        "rag.ingest@1.0": Level.TRUSTED,
        "rag.list_corpora@1.0": Level.MEMBER,
    }
    for descriptor in described.values():
        assert descriptor.stability == "stable"
        assert descriptor.idempotent
        assert not descriptor.streams
    assert Code.NOT_FOUND in described["rag.query@1.0"].errors
    assert Code.NOT_FOUND in described["rag.ingest@1.0"].errors
    assert must_verify_answer("rag.ingest")


async def test_a_node_lists_its_capabilities_with_the_hash_of_their_schemas(
    readers: Readers,
) -> None:
    manifest = readers.alice.node.presence.manifest(readers.alice.in_(readers.street.community))
    listed = {f"{each['name']}@{each['version']}": each for each in manifest["capabilities"]}
    for key, descriptor in specified().items():
        assert listed[key]["schema_hash"] == descriptor.schema_hash


# 4.4 rag.query


async def test_a_query_gives_the_best_chunks_with_where_they_are_from(filled: Readers) -> None:
    answer = await filled.query("Wie reinige ich Regenwasser?", k=5)
    chunks = answer["output"]["chunks"]
    assert [chunk["rank"] for chunk in chunks] == list(range(1, len(chunks) + 1))
    scores = [chunk["score"] for chunk in chunks]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    first = chunks[0]
    assert first.keys() == {"rank", "score", "text", "metadata"}
    assert "Regenwasser kann durch Filtration" in first["text"]
    metadata = first["metadata"]
    assert metadata["doc_cid"].startswith("blake3:")
    assert metadata["doc_title"] == "Notfall-Trinkwasser"
    assert metadata["heading"] == "Notfall-Trinkwasser"
    assert metadata["language"] == "de"
    assert metadata["chunk_id"].startswith("ch_")
    meta = answer["meta"]
    assert (meta["corpus"], meta["embedding_model"]) == (CORPUS, "hashes")
    assert meta["ms"] >= 0


async def test_a_chunk_of_a_pdf_has_its_page(filled: Readers) -> None:
    answer = await filled.query("bread dough", k=1)
    assert answer["output"]["chunks"][0]["metadata"]["page"] == 1


async def test_k_is_5_unless_it_is_said_and_at_most_20(readers: Readers) -> None:
    corpus = name()
    for number in range(7):
        await readers.ingest(f"Thing number {number} of many things", corpus)
    assert len((await readers.query("thing", corpus))["output"]["chunks"]) == 5
    assert len((await readers.query("thing", corpus, k=20))["output"]["chunks"]) == 7
    for k in (0, 21, 1.5, "5"):
        error = await refused(readers.query("thing", corpus, k=k))
        assert error.code is Code.BAD_REQUEST


async def test_a_filter_looks_at_what_was_told_of_documents(filled: Readers) -> None:
    question = "Wasser Strom bread"

    async def titles(**wanted: Any) -> set[str]:
        answer = await filled.query(question, filter=wanted)
        return {chunk["metadata"]["doc_title"] for chunk in answer["output"]["chunks"]}

    assert await titles(language="de", min_year=2000) == {"Notfall-Trinkwasser"}
    assert await titles(language="en") == {"Baking"}
    assert await titles(max_year=2000) == {"Stromausfall"}
    assert await titles(author="a") == {"Notfall-Trinkwasser"}
    assert await titles(author="b") == set()
    error = await refused(filled.query(question, filter={"author": ["a"]}))
    assert error.code is Code.BAD_REQUEST


async def test_text_is_left_out_on_request(filled: Readers) -> None:
    answer = await filled.query("Regenwasser", include_text=False)
    assert all("text" not in chunk for chunk in answer["output"]["chunks"])


async def test_a_corpus_that_does_not_exist_is_not_found(readers: Readers) -> None:
    assert (await refused(readers.query("a", name()))).code is Code.NOT_FOUND
    # On bob's node there is none, whatever there is on alice's.
    call = readers.call(readers.carol, readers.bob, "rag.query", {"query": "a"})
    assert (await refused(call)).code is Code.NOT_FOUND


@pytest.mark.parametrize("corpus", ["", "A", "a_b", "a" * 65, "../etc", "\u00e4"])
async def test_a_name_that_no_corpus_may_have_is_a_bad_request(
    readers: Readers, corpus: str
) -> None:
    assert (await refused(readers.query("a", corpus))).code is Code.BAD_REQUEST


async def test_an_empty_or_endless_question_is_a_bad_request(filled: Readers) -> None:
    for question in ("", "a" * 8193):
        assert (await refused(filled.query(question))).code is Code.BAD_REQUEST
    assert (await filled.query("?!"))["output"]["chunks"] is not None


# 4.5 rag.ingest


async def test_ingesting_tells_how_much_was_indexed_and_publishes_an_event(
    readers: Readers,
) -> None:
    corpus = name()
    cid, answer = await readers.ingest(
        RAIN, corpus, title="Notfall-Trinkwasser", language="de", metadata={"year": 2024}
    )
    output, meta = answer["output"], answer["meta"]
    assert output["doc_cid"] == cid
    assert output["chunks_indexed"] == 1
    assert 20 < output["tokens_indexed"] < 100
    assert meta["corpus"] == corpus
    assert meta["ms"] >= 0
    log = readers.alice.in_(readers.street.community).log
    (listed,) = [each for each in await log.view(CommunityState.corpora) if each["name"] == corpus]
    (document,) = listed["documents"]
    assert document["doc_cid"] == cid
    assert document["title"] == "Notfall-Trinkwasser"
    assert document["language"] == "de"
    assert document["chunks"] == output["chunks_indexed"]
    assert document["ingester"] == readers.alice.id
    told = select(events.c.event_type, events.c.lamport).where(
        events.c.event_id == meta["ingest_event_id"]
    )
    (event,) = await log.store.read(lambda c: c.execute(told).all())
    assert event.event_type == "rag.document.ingested"


async def test_a_document_is_ingested_once_whoever_asks(readers: Readers) -> None:
    corpus = name()
    cid, first = await readers.ingest(POWER, corpus)
    for caller in (readers.bob, readers.alice):
        again = await readers.call(caller, readers.alice, "rag.ingest", {"doc_cid": cid}, corpus)
        assert again["output"] == first["output"]
        assert again["meta"]["ingest_event_id"] == first["meta"]["ingest_event_id"]
    both = [
        readers.call(readers.bob, readers.alice, "rag.ingest", {"doc_cid": cid}, corpus)
        for _ in range(2)
    ]
    assert [each["output"] for each in await asyncio.gather(*both)] == [first["output"]] * 2


async def test_a_second_node_has_the_document_under_the_same_event(readers: Readers) -> None:
    corpus = name()
    cid, first = await readers.ingest(BREAD, corpus)
    street = readers.street
    await readers.bob.node.sync(street.community)
    await street.blobs[readers.bob.id].put(BREAD.encode())
    there = await readers.call(readers.bob, readers.bob, "rag.ingest", {"doc_cid": cid}, corpus)
    assert there["output"] == first["output"]
    assert there["meta"]["ingest_event_id"] == first["meta"]["ingest_event_id"]


async def test_a_document_that_is_not_in_the_blob_store_is_not_found(readers: Readers) -> None:
    given = {"doc_cid": "blake3:" + "00" * 32}
    for caller in (readers.bob, readers.alice):
        call = readers.call(caller, readers.alice, "rag.ingest", given)
        assert (await refused(call)).code is Code.NOT_FOUND


async def test_what_the_caller_may_not_read_cannot_be_ingested(readers: Readers) -> None:
    private = await readers.street.blobs[readers.alice.id].put(b"A private diary.")
    given = {"doc_cid": private}
    call = readers.call(readers.bob, readers.alice, "rag.ingest", given)
    assert (await refused(call)).code is Code.NOT_FOUND
    await readers.call(readers.alice, readers.alice, "rag.ingest", given, name())


async def test_what_is_shared_with_one_member_cannot_be_ingested_for_all_by_that_one(
    readers: Readers,
) -> None:
    street = readers.street
    cid = await street.blobs[readers.alice.id].put(b"A letter to Bob.")
    share = {"cid": cid, "with": [readers.bob.id]}
    await readers.call(readers.alice, readers.alice, "experimental.file.share", share, None)
    call = readers.call(readers.bob, readers.alice, "rag.ingest", {"doc_cid": cid})
    assert (await refused(call)).code is Code.NOT_FOUND
    call = readers.call(readers.carol, readers.alice, "file.read", {"cid": cid}, None)
    assert (await refused(call)).code is Code.NOT_FOUND


async def test_a_node_gives_and_keeps_what_it_ingested_also_where_another_told_of_it_first(
    readers: Readers,
) -> None:
    street = readers.street
    text = b"Both of us have this document."
    corpus = name()
    cids = [await street.blobs[house.id].put(text) for house in (readers.alice, readers.bob)]
    cid = cids[0]
    await readers.call(readers.alice, readers.alice, "rag.ingest", {"doc_cid": cid}, corpus)
    street.clock.advance(10)
    await readers.alice.node.sync(street.community)
    call = readers.call(readers.carol, readers.bob, "file.read", {"cid": cid}, None)
    assert (await refused(call)).code is Code.NOT_FOUND
    await readers.call(readers.bob, readers.bob, "rag.ingest", {"doc_cid": cid}, corpus)
    frames = await street.stream(readers.carol, readers.bob, "file.read", {"cid": cid})
    assert frames[-1].event == "done"
    street.clock.advance(2 * 86_400)
    await readers.call(readers.bob, readers.bob, "experimental.file.gc", {}, None)
    assert street.blobs[readers.bob.id].has(cid)


async def test_ingesting_is_for_trusted_members(readers: Readers) -> None:
    cid = await readers.share("Something that a member would add")
    call = readers.call(readers.carol, readers.alice, "rag.ingest", {"doc_cid": cid})
    assert (await refused(call)).code is Code.UNAUTHORIZED


async def test_a_node_that_is_not_trusted_itself_keeps_nothing(readers: Readers) -> None:
    corpus = name()
    cid = await readers.share("A document on a member's node", readers.carol)
    call = readers.call(readers.bob, readers.carol, "rag.ingest", {"doc_cid": cid}, corpus)
    assert (await refused(call)).code is Code.UNAUTHORIZED
    call = readers.call(readers.bob, readers.carol, "rag.query", {"query": "document"}, corpus)
    assert (await refused(call)).code is Code.NOT_FOUND


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\x00\x00\x00",
        papers.archive({"paper.pdf": b"%PDF-1.7"}),
        papers.pdf([""] * 3),
        papers.entity_bomb(),
        b"",
        b"no \xff utf-8",
    ],
    ids=["picture", "zip called pdf", "scan", "bomb", "empty", "not utf-8"],
)
async def test_an_unsupported_or_damaged_document_is_a_bad_request(
    readers: Readers, data: bytes
) -> None:
    corpus = name()
    assert (await refused(readers.ingest(data, corpus))).code is Code.BAD_REQUEST
    assert (await refused(readers.query("a", corpus))).code is Code.NOT_FOUND
    log = readers.alice.in_(readers.street.community).log
    assert corpus not in {each["name"] for each in await log.view(CommunityState.corpora)}


@pytest.mark.parametrize(
    "told",
    [
        {"doc_cid": "blake3:no"},
        {"doc_cid": None},
        {"title": ""},
        {"title": "a\x00b"},
        {"title": "a" * 501},
        {"language": "Deutsch!"},
        {"metadata": {"list": [1]}},
        {"metadata": {"": 1}},
        {"metadata": {str(number): 1 for number in range(33)}},
        {"more": 1},
    ],
)
async def test_what_breaks_the_schema_is_a_bad_request(
    readers: Readers, told: dict[str, Any]
) -> None:
    given = {"doc_cid": "blake3:" + "ab" * 32, **told}
    call = readers.call(readers.bob, readers.alice, "rag.ingest", given)
    assert (await refused(call)).code is Code.BAD_REQUEST


# Names that are set apart (`personal`, `system`)


async def test_the_personal_corpus_never_leaves_the_node(readers: Readers) -> None:
    alice = readers.alice
    cid = await readers.street.blobs[alice.id].put(b"My diary: the cellar key is under the mat.")
    before = alice.in_(readers.street.community).state.lamport
    answer = await readers.call(alice, alice, "rag.ingest", {"doc_cid": cid}, "personal")
    assert "ingest_event_id" not in answer["meta"]
    assert alice.in_(readers.street.community).state.lamport == before
    own = await readers.query("cellar key", "personal", alice)
    assert "under the mat" in own["output"]["chunks"][0]["text"]
    for caller in (readers.bob, readers.carol):
        error = await refused(readers.query("cellar key", "personal", caller))
        assert error.code is Code.NOT_FOUND
        listed = await readers.call(caller, alice, "rag.list_corpora", {}, None)
        assert "personal" not in {each["name"] for each in listed["output"]["corpora"]}
    call = readers.call(readers.bob, alice, "rag.ingest", {"doc_cid": cid}, "personal")
    assert (await refused(call)).code is Code.UNAUTHORIZED
    listed = await readers.call(alice, alice, "rag.list_corpora", {}, None)
    assert "personal" in {each["name"] for each in listed["output"]["corpora"]}
    # It is kept, though no community names it.
    assert cid in readers.street.blobs[alice.id].pinned("rag-personal")


async def test_system_is_reserved(readers: Readers) -> None:
    error = await refused(readers.ingest(RAIN, "system"))
    assert error.code is Code.BAD_REQUEST
    assert (await refused(readers.query("a", "system"))).code is Code.NOT_FOUND


# 4.6 rag.list_corpora


async def test_corpora_are_listed_with_what_is_in_them(readers: Readers) -> None:
    corpus = name()
    documents = [RAIN, POWER, BREAD]
    made = [(await readers.ingest(said, corpus))[1]["output"] for said in documents]
    answer = await readers.call(readers.carol, readers.alice, "rag.list_corpora", {}, None)
    assert answer.keys() == {"output", "meta"}
    assert answer["meta"].keys() == {"ms"}
    (listed,) = [each for each in answer["output"]["corpora"] if each["name"] == corpus]
    assert listed == {
        "name": corpus,
        "docs": 3,
        "chunks": sum(each["chunks_indexed"] for each in made),
        "size_bytes": sum(len(said.encode()) for said in documents),
        "language_majority": "de",
    }
    names = [each["name"] for each in answer["output"]["corpora"]]
    assert names == sorted(names)


async def test_listing_takes_nothing(readers: Readers) -> None:
    call = readers.call(readers.carol, readers.alice, "rag.list_corpora", {"a": 1}, None)
    assert (await refused(call)).code is Code.BAD_REQUEST


# Withdrawal, which the specification does not have


async def test_a_withdrawn_document_is_nowhere_on_the_node(readers: Readers) -> None:
    corpus, alice = name(), readers.alice
    cid, _ = await readers.ingest(f"About {corpus}.", corpus)
    community, blobs = readers.street.community, readers.street.blobs[alice.id]
    given = {"doc_cid": cid}
    for caller in (readers.bob, readers.carol):
        error = await refused(
            readers.call(caller, alice, "experimental.rag.withdraw", given, corpus)
        )
        assert error.code is Code.UNAUTHORIZED
    withdrawn = await readers.call(alice, alice, "experimental.rag.withdraw", given, corpus)
    assert withdrawn["output"] == {"doc_cid": cid, "file": "deleted"}
    error = await refused(readers.query("About", corpus))
    assert error.code is Code.NOT_FOUND
    assert not blobs.has(cid)
    state = alice.node.community(community).state
    assert (cid, alice.id) not in state.content.files, "the community knows that it is gone"
    assert (corpus, cid) in state.content.documents, "no event takes an ingestion back"
    error = await refused(readers.call(alice, alice, "experimental.rag.withdraw", given, corpus))
    assert error.code is Code.NOT_FOUND


async def test_a_file_that_is_needed_otherwise_outlives_its_document(readers: Readers) -> None:
    first, second, alice = name(), name(), readers.alice
    blobs = readers.street.blobs[alice.id]
    cid, _ = await readers.ingest(f"About {first}.", first)
    await readers.call(readers.bob, alice, "rag.ingest", {"doc_cid": cid}, second)
    kept = []
    for corpus in (first, second):
        if corpus == second:
            share = {"cid": cid, "name": "a.txt"}
            await readers.call(alice, alice, "experimental.file.share", share, None)
        answer = await readers.call(
            alice, alice, "experimental.rag.withdraw", {"doc_cid": cid}, corpus
        )
        kept.append(answer["output"]["kept_for"])
        assert blobs.has(cid)
        assert (await refused(readers.query("About", corpus))).code is Code.NOT_FOUND
    assert kept == ["corpus", "share"]


async def test_a_personal_document_is_withdrawn_with_its_pin(readers: Readers) -> None:
    alice = readers.alice
    blobs = readers.street.blobs[alice.id]
    cid = await blobs.put(b"The spare key is in the shed.")
    given = {"doc_cid": cid}
    await readers.call(alice, alice, "rag.ingest", given, "personal")
    answer = await readers.call(alice, alice, "experimental.rag.withdraw", given, "personal")
    assert answer["output"]["file"] == "deleted"
    assert cid not in blobs.pinned()


async def test_only_the_owner_embeds_a_corpus_again(readers: Readers) -> None:
    corpus, alice = name(), readers.alice
    await readers.ingest(f"About {corpus}.", corpus)

    async def reembedded(caller: House) -> list[Frame]:
        async with readers.street.ask(caller, alice) as client:
            stream = client.stream("experimental.rag.reembed", {"corpus": corpus}, {})
            return [frame async for frame in stream]

    assert (await refused(reembedded(readers.carol))).code is Code.UNAUTHORIZED
    frames = await reembedded(alice)
    assert frames[0].data == {"current": 1, "total": 1, "stage": "embedding"}
    assert frames[-1].data["documents"] == 1
    assert frames[-1].data["model"] == "hashes"
