"""Serving `rag.query`, `rag.ingest` and `rag.list_corpora`: sections 4.4 to 4.6.

Owns who may do what: `personal` is for the node's owner alone, nobody may use `system`, and only
what the caller may read can be ingested, since everybody in the community may then find it.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from accord import tracing
from accord.capabilities.file import Blobs
from accord.capabilities.file.naming import Naming
from accord.community.bus import Call
from accord.community.envelope import schemas
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.kernel.clock import Clock
from accord.storage import StoreError

if TYPE_CHECKING:
    from accord.capabilities.rag.corpora import Corpora
    from accord.capabilities.rag.records import Found, Place, Share
    from accord.capabilities.rag.telling import Telling

_K: Final = 5
# A book takes its time; the first question after a start reads the whole corpus.
_INGEST_SECONDS: Final = 900.0
_QUERY_SECONDS: Final = 120.0


def register(node: Node, clock: Clock, corpora: "Corpora", blobs: Blobs) -> None:
    """Offer the corpora of a node on its bus."""
    descriptors = schemas.load("accord.capabilities.rag")
    serving = _Serving(node, clock, corpora, blobs)
    offer = node.bus.registry.register
    offer(descriptors["rag.query@1.0"], serving.query, max_concurrent=32, seconds=_QUERY_SECONDS)
    offer(descriptors["rag.ingest@1.0"], serving.ingest, max_concurrent=8, seconds=_INGEST_SECONDS)
    offer(descriptors["rag.list_corpora@1.0"], serving.list_corpora)


class _Serving:
    def __init__(self, node: Node, clock: Clock, corpora: "Corpora", blobs: Blobs) -> None:
        self._node = node
        self._clock = clock
        self._corpora = corpora
        self._blobs = blobs
        self._naming: dict[str, Naming] = {}

    async def query(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        corpus = call.body["params"]["corpus"]
        given = call.body["input"]
        place, telling = self._place(call, corpus)
        found = None
        if call.own or place.community:
            wanted = given.get("k", _K)
            with tracing.step("rag query", wanted=wanted):
                found = await self._corpora.query(
                    place, telling, given["query"], wanted, given.get("filter")
                )
                tracing.tell(found=None if found is None else len(found))
        if found is None:
            raise CommunityError(
                Code.NOT_FOUND,
                "there is no such corpus here",
                where=corpus,
                mend="rag.list_corpora names those that there are",
            )
        shown = given.get("include_text", True)
        meta: dict[str, Any] = {"corpus": corpus, "ms": self._ms(began)}
        if self._corpora.model is not None:
            meta["embedding_model"] = self._corpora.model
        output = {
            "chunks": [_chunk(rank, each, shown=shown) for rank, each in enumerate(found, start=1)]
        }
        return {"output": output, "meta": meta}

    async def ingest(self, call: Call) -> Mapping[str, Any]:
        from accord.capabilities.rag.building import Wanted

        began = self._clock.monotonic()
        corpus = call.body["params"]["corpus"]
        given = call.body["input"]
        self._check_corpus(call, corpus)
        cid = given["doc_cid"]
        await self._check_document(call, cid)
        wanted = Wanted(cid, given.get("title"), given.get("language"), given.get("metadata", {}))

        async def read() -> bytes:
            return b"".join([part async for part in self._blobs.read(cid)])

        place, telling = self._place(call, corpus)
        try:
            kept = await self._corpora.ingest(place, telling, wanted, read)
        except StoreError as error:
            raise CommunityError(
                Code.INTERNAL_ERROR, f"the document cannot be kept: {error.what}"
            ) from error
        output = {"doc_cid": cid, "chunks_indexed": kept.chunks, "tokens_indexed": kept.tokens}
        meta = {"corpus": corpus, "ms": self._ms(began)}
        if kept.event_id is not None:
            meta["ingest_event_id"] = kept.event_id
        return {"output": output, "meta": meta}

    async def list_corpora(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        seen = [call.community, ""] if call.own else [call.community]
        shares = await self._corpora.shares(seen)
        return {"output": {"corpora": _corpora(shares)}, "meta": {"ms": self._ms(began)}}

    def _place(self, call: Call, corpus: str) -> tuple["Place", "Telling"]:
        """Which corpus is meant, and whom it tells."""
        from accord.capabilities.rag.names import PERSONAL
        from accord.capabilities.rag.records import Place
        from accord.capabilities.rag.telling import InCommunity, ToNobody

        if corpus == PERSONAL:
            return Place("", corpus), ToNobody(self._blobs)
        hosted = self._node.community(call.community)
        return Place(call.community, corpus), InCommunity(hosted, corpus)

    def _check_corpus(self, call: Call, corpus: str) -> None:
        from accord.capabilities.rag.names import PERSONAL, SYSTEM

        if corpus == SYSTEM:
            raise CommunityError(
                Code.BAD_REQUEST,
                "the corpus system is reserved",
                where="/params/corpus",
                mend="choose another name",
            )
        if corpus == PERSONAL and not call.own:
            raise CommunityError(
                Code.UNAUTHORIZED, "the corpus personal is for the node's owner alone"
            )

    async def _check_document(self, call: Call, cid: str) -> None:
        """Check that a document is here, is not too long, and may be read by the caller."""
        from accord.capabilities.rag.documents.parsing import check_size

        names = self._naming.get(call.community)
        if names is None:
            names = Naming(self._node.community(call.community))
            self._naming[call.community] = names
        if not (call.own or await names.may_read(cid, call.caller)):
            raise _no_blob(cid)
        if not await asyncio.to_thread(self._blobs.has, cid):
            raise _no_blob(cid)
        check_size((await asyncio.to_thread(self._blobs.manifest, cid)).size_bytes)

    def _ms(self, began: float) -> int:
        return int((self._clock.monotonic() - began) * 1000)


def _chunk(rank: int, found: "Found", *, shown: bool) -> dict[str, Any]:
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


def _corpora(shares: "list[Share]") -> list[dict[str, Any]]:
    """Each corpus once, with the language that most of its documents have."""
    found: dict[str, list[Share]] = {}
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


def _no_blob(cid: str) -> CommunityError:
    return CommunityError(
        Code.NOT_FOUND,
        "the document is not in this node's blob store",
        where=cid,
        mend="put it there first, with file.put",
    )
