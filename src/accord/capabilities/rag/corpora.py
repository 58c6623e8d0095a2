"""The corpora of a node: documents are ingested completely or not at all, queries find chunks.

A document is read, cut and embedded; stored as a draft in one commit; announced to the community;
and then published. Drafts are not found, and the next ingest resumes an interrupted one. A document
is announced once in a community, by whoever ingested it first.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from accord.capabilities.file import Blobs
from accord.capabilities.models import Embedder
from accord.capabilities.rag import prepared, store, words
from accord.capabilities.rag.documents import ReadPages, parse
from accord.capabilities.rag.prepared import IngestRequest, PreparedDocument
from accord.capabilities.rag.release import PERSONAL_PIN
from accord.capabilities.rag.rules import chunks
from accord.capabilities.rag.rules.chunks import ChunkedDocument
from accord.capabilities.rag.rules.search_index import Index, Segment
from accord.capabilities.rag.store import CorpusId, CorpusShare, FoundChunk, StoredDocument
from accord.capabilities.rag.words import Tokenizer
from accord.community.communities import HostedCommunity
from accord.community.errors import CommunityError
from accord.community.rules.content import CorpusDocument
from accord.community.store import events
from accord.storage import Store

_log = structlog.stdlib.get_logger(__name__)

_INGESTED: Final = "rag.document.ingested"


@dataclass(frozen=True, slots=True)
class Announcement:
    """A document was announced; by an event, unless the corpus is private."""

    event_id: str | None


class Announcer(Protocol):
    """Announces the documents of a corpus."""

    async def find(self, doc_cid: str) -> Announcement | None:
        """Return the announcement of a document, if there is one."""
        ...

    async def announce(self, document: StoredDocument) -> Announcement:
        """Announce a document; raises `CommunityError` if that is refused."""
        ...


@dataclass(frozen=True, slots=True)
class CommunityAnnouncer:
    """Announces documents in the log of a community."""

    hosted: HostedCommunity
    corpus: str

    async def find(self, doc_cid: str) -> Announcement | None:
        """Return the community's event for a document."""
        known = self.hosted.state.content.documents.get((self.corpus, doc_cid))
        if known is None:
            return None
        number = self.hosted.log.number
        return Announcement(await self.hosted.log.store.read(lambda c: _event_id(c, number, known)))

    async def announce(self, document: StoredDocument) -> Announcement:
        """Append the event."""
        data: dict[str, Any] = {
            "corpus": self.corpus,
            "doc_cid": document.doc_cid,
            "chunks": document.chunks,
        }
        if document.title is not None:
            data["title"] = document.title
        if document.language is not None:
            data["language"] = document.language
        try:
            event = await self.hosted.log.append(_INGESTED, data)
        except CommunityError:
            # Another member may have announced it first.
            announcement = await self.find(document.doc_cid)
            if announcement is None:
                raise
            return announcement
        return Announcement(event.event_id)


@dataclass(frozen=True, slots=True)
class PrivateAnnouncer:
    """Announces nothing and pins the blob."""

    blobs: Blobs

    async def find(self, doc_cid: str) -> Announcement | None:
        """Return None."""
        return None

    async def announce(self, document: StoredDocument) -> Announcement:
        """Pin the blob, since no community requires this node to keep it."""
        await asyncio.to_thread(self.blobs.pin, document.doc_cid, PERSONAL_PIN)
        return Announcement(None)


def _event_id(connection: Connection, community: int, known: CorpusDocument) -> str | None:
    """Return the id of the event that ingested a document."""
    query = select(events.c.event_id).where(
        events.c.community == community,
        events.c.lamport == known.lamport,
        events.c.author == known.ingester,
        events.c.event_type == _INGESTED,
    )
    found: str | None = connection.execute(query).scalars().first()
    return found


_EMBEDDED_TOGETHER = 64
# Reading a corpus again takes long; meanwhile what was replaced is found by words.
_SEEN_EVERY: Final = 256


@dataclass(frozen=True, slots=True)
class Reembedding:
    """How many documents of a corpus are embedded by the embedder of now, or were given up.

    Attributes:
        failed: The documents that are not on this node, and stay as they are.
    """

    done: int
    total: int
    failed: tuple[str, ...]


@dataclass(slots=True)
class _Corpus:
    """A corpus in memory: its index, and the numbers of its documents."""

    index: Index
    numbers: set[int]


class Corpora:
    """The corpora of a node.

    Args:
        store: An open store of `tables.SCHEMA`.
        tokens: The tokenizer that sizes chunks.
        embedder: None to search by words only.
        check_room: Raises if so many bytes cannot be stored.
        read_pages: Recognises the text of pages that are pictures; None if nothing here does.
    """

    def __init__(
        self,
        store: Store,
        tokens: Tokenizer,
        embedder: Embedder | None = None,
        *,
        check_room: Callable[[int], None] = lambda _: None,
        read_pages: ReadPages | None = None,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._embedder = embedder
        self._check_room = check_room
        self._read_pages = read_pages
        self._corpora: dict[CorpusId, _Corpus] = {}
        self._locks: WeakValueDictionary[object, asyncio.Lock] = WeakValueDictionary()

    @property
    def model(self) -> str | None:
        """The embedding model."""
        return None if self._embedder is None else self._embedder.model

    @property
    def recipe(self) -> str:
        """How documents are cut and embedded now."""
        dimensions = None if self._embedder is None else self._embedder.dimensions
        return prepared.recipe(self._tokens.cut, self.model, dimensions)

    async def ingest(
        self,
        place: CorpusId,
        announcer: Announcer,
        wanted: IngestRequest,
        read: Callable[[], Awaitable[bytes]],
    ) -> StoredDocument:
        """Add a document to a corpus, unless it is there.

        Args:
            announcer: Announces the document.
            read: Returns its bytes.

        Raises:
            CommunityError: It cannot be read, or its announcement is refused; nothing of it stays.
            StoreError: The store failed; no new document is found.
        """

        async def make() -> PreparedDocument:
            return await self._build(wanted, await read())

        return await self._add(place, announcer, wanted.doc_cid, self.recipe, make)

    async def load_built(
        self, place: CorpusId, announcer: Announcer, built: PreparedDocument
    ) -> StoredDocument:
        """Add a document that `prepared.prepare` made elsewhere; raises as `ingest` does."""

        async def make() -> PreparedDocument:
            return built

        return await self._add(place, announcer, built.doc_cid, built.recipe, make)

    async def query(
        self,
        place: CorpusId,
        announcer: Announcer,
        question: str,
        k: int,
        wanted: Mapping[str, Any] | None = None,
    ) -> list[FoundChunk] | None:
        """Return the chunks that answer a question best; None if there is no such corpus.

        While the embedder's server is away, they are found by words, and have no `meaning`.
        """
        corpus = await self._opened(place, announcer)
        if corpus is None:
            return None
        index = corpus.index
        vector: NDArray[np.float32] | None = None
        if self._embedder is not None:
            try:
                vector = (await self._embedder.embed([question]))[0]
            except CommunityError as error:
                _log.warning("searched by words only", why=str(error))
        asked = await asyncio.to_thread(words.asked, question, index.stemmings)
        hits = await asyncio.to_thread(index.search, asked, vector, k, wanted)
        return await self._store.read(lambda c: store.texts(c, hits))

    async def shares(self, communities: Collection[str]) -> list[CorpusShare]:
        """Count the published documents by corpus and language."""
        return await self._store.read(lambda c: store.shares(c, communities))

    async def withdraw(self, place: CorpusId, doc_cid: str) -> bool:
        """Remove a document from a corpus; False if it is not there."""
        async with self._lock((place, doc_cid)):
            document = await self._store.read(lambda c: store.find(c, place, doc_cid))
            if document is None:
                return False
            await self._store.write(lambda c: store.remove(c, document.number))
            await self._forget(place)
        return True

    async def holding(self, community: str, doc_cid: str) -> list[str]:
        """Return the corpora of a community that have a document."""
        return await self._store.read(lambda c: store.holding(c, community, doc_cid))

    async def reembed(
        self,
        place: CorpusId,
        announcer: Announcer,
        read: Callable[[str], Awaitable[bytes]],
    ) -> AsyncGenerator[Reembedding]:
        """Cut and embed again what was made by another recipe, document by document.

        Each document is replaced in one commit, so whoever stops goes on where it was by asking
        again. Queries find the others by words until it is their turn.

        Args:
            read: Returns the bytes of a document by its CID.

        Yields:
            How far it is, at the start and after each document.

        Raises:
            CommunityError: The embedder cannot be used; what was replaced stays.
            StoreError: The store failed.
        """
        recipe = self.recipe
        await self._opened(place, announcer)
        total = await self._store.read(lambda c: store.count(c, place))
        wanted = await self._store.read(lambda c: store.outdated(c, place, recipe))
        done = total - len(wanted)
        failed: list[str] = []
        yield Reembedding(done, total, ())
        unseen = 0
        try:
            for each in wanted:
                try:
                    data = await read(each.doc_cid)
                except CommunityError as error:
                    _log.warning("document not embedded again", cid=each.doc_cid, why=str(error))
                    failed.append(each.doc_cid)
                else:
                    if await self._replace(place, each, data):
                        unseen += 1
                done += 1
                if unseen >= _SEEN_EVERY:
                    unseen = 0
                    await self._forget(place)
                yield Reembedding(done, total, tuple(failed))
        finally:
            if unseen:
                await self._forget(place)

    async def _replace(self, place: CorpusId, wanted: IngestRequest, data: bytes) -> bool:
        """Make a document again; False if it was withdrawn or made again meanwhile."""
        async with self._lock((place, wanted.doc_cid)):
            before = await self._store.read(lambda c: store.find(c, place, wanted.doc_cid))
            if before is None or before.recipe == self.recipe:
                return False
            built = await self._build(wanted, data)
            await asyncio.to_thread(self._check_room, built.weight)
            await self._store.write(lambda c: store.draft(c, place, built))
            return True

    async def _build(self, wanted: IngestRequest, data: bytes) -> PreparedDocument:
        document = await parse(data, read_pages=self._read_pages)
        titled = replace(wanted, title=wanted.title or document.title)
        tokens = self._tokens
        split = await asyncio.to_thread(
            chunks.split, wanted.doc_cid, document, tokens.spans, tokens.cut
        )
        vectors = await self._embed(split, titled.title)
        return await asyncio.to_thread(
            lambda: prepared.prepare(
                titled,
                split,
                tokens.cut,
                size_bytes=len(data),
                model=self.model,
                vectors=vectors,
            )
        )

    async def _embed(self, split: ChunkedDocument, title: str | None) -> NDArray[np.float32] | None:
        if self._embedder is None:
            return None
        windows = [chunks.to_embed(chunk, title) for chunk in split.chunks]
        texts = [text for each in windows for text in each]
        rows = [
            # A few at a time, so that a query need not wait for a whole book.
            await self._embedder.embed(texts[start : start + _EMBEDDED_TOGETHER])
            for start in range(0, len(texts), _EMBEDDED_TOGETHER)
        ]
        return prepared.pool(np.concatenate(rows), [len(each) for each in windows])

    async def _add(
        self,
        place: CorpusId,
        announcer: Announcer,
        doc_cid: str,
        recipe: str,
        make: Callable[[], Awaitable[PreparedDocument]],
    ) -> StoredDocument:
        async with self._lock((place, doc_cid)):
            await self._opened(place, announcer)
            document = await self._store.read(lambda c: store.find(c, place, doc_cid))
            if document is None or document.recipe != recipe:
                built = await make()
                await asyncio.to_thread(self._check_room, built.weight)
                document = await self._store.write(lambda c: store.draft(c, place, built))
                if document.is_standing:
                    await self._forget(place)  # another stood in its place
            if not document.is_standing:
                document = await self._let_stand(document, announcer)
                await self._index(place, document.number)
            return document

    async def _let_stand(self, document: StoredDocument, announcer: Announcer) -> StoredDocument:
        try:
            announcement = await announcer.find(document.doc_cid) or await announcer.announce(
                document
            )
        except CommunityError:
            await self._store.write(lambda c: store.remove(c, document.number))
            raise
        await self._store.write(lambda c: store.stand(c, document.number, announcement.event_id))
        return replace(document, is_standing=True, event_id=announcement.event_id)

    async def _opened(self, place: CorpusId, announcer: Announcer) -> _Corpus | None:
        """Load a corpus; None if nothing is published in it."""
        corpus = self._corpora.get(place)
        if corpus is not None:
            return corpus
        async with self._lock(place):
            corpus = self._corpora.get(place)
            if corpus is None:
                await self._settle(place, announcer)
                segment = await self._store.read(lambda c: self._load(c, place))
                if segment is None:
                    return None
                numbers = {entry.number for entry in segment.entries}
                corpus = self._corpora[place] = _Corpus(Index((segment,)), numbers)
            return corpus

    async def _settle(self, place: CorpusId, announcer: Announcer) -> None:
        """Finish after a crash: drafts that were announced are published, others removed."""
        for document in await self._store.read(lambda c: store.drafts(c, place)):
            if self._is_locked((place, document.doc_cid)):
                continue  # it is being ingested now
            announcement = await announcer.find(document.doc_cid)

            def end(
                connection: Connection,
                document: StoredDocument = document,
                announcement: Any = announcement,
            ) -> None:
                if announcement is None:
                    store.remove(connection, document.number)
                else:
                    store.stand(connection, document.number, announcement.event_id)

            await self._store.write(end)

    async def _index(self, place: CorpusId, number: int) -> None:
        async with self._lock(place):
            corpus = self._corpora.get(place)
            if corpus is None or number in corpus.numbers:
                return
            segment = await self._store.read(lambda c: self._load(c, place, number))
            if segment is not None:
                corpus.index = await asyncio.to_thread(corpus.index.add, segment)
                corpus.numbers.add(number)

    async def _forget(self, place: CorpusId) -> None:
        """Have a corpus read from the store again on its next use."""
        async with self._lock(place):
            self._corpora.pop(place, None)

    def _load(
        self, connection: Connection, place: CorpusId, number: int | None = None
    ) -> Segment | None:
        dimensions = 0 if self._embedder is None else self._embedder.dimensions
        return store.load(connection, place, model=self.model, dimensions=dimensions, number=number)

    def _lock(self, key: object) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def _is_locked(self, key: object) -> bool:
        lock = self._locks.get(key)
        return lock is not None and lock.locked()
