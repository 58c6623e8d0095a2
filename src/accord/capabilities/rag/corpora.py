"""The corpora of a node: documents go in whole or not at all, questions find chunks.

Owns the order of ingesting: read, cut, embedded; then written as a draft in one commit; then told
to the community; then standing. Whatever happens in between, a document that does not stand is not
found, and the next ingest goes on where this one stopped. Who may do what is decided elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from accord.capabilities.embedding import Embedder
from accord.capabilities.rag import building, chunks, records, words
from accord.capabilities.rag.building import Built, Wanted
from accord.capabilities.rag.chunks import Split
from accord.capabilities.rag.documents.parsing import parse
from accord.capabilities.rag.index import Index, Segment
from accord.capabilities.rag.records import Found, Kept, Place, Share
from accord.capabilities.rag.telling import Telling
from accord.capabilities.rag.tokens import Tokens
from accord.community.errors import CommunityError
from accord.storage import Store

_EMBEDDED_TOGETHER = 64


@dataclass(slots=True)
class _Corpus:
    """A corpus in memory: its index, and which documents are in it."""

    index: Index
    numbers: set[int]


class Corpora:
    """What a node has for retrieval.

    Args:
        store: An open store of `tables.SCHEMA`.
        tokens: Whose tokens are counted.
        embedder: What gives texts their vectors; without one, words have to do.
        check_room: Raises where so many bytes cannot be kept.
    """

    def __init__(
        self,
        store: Store,
        tokens: Tokens,
        embedder: Embedder | None = None,
        *,
        check_room: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._embedder = embedder
        self._check_room = check_room
        self._corpora: dict[Place, _Corpus] = {}
        self._locks: WeakValueDictionary[object, asyncio.Lock] = WeakValueDictionary()

    @property
    def model(self) -> str | None:
        """The model that gives texts their vectors."""
        return None if self._embedder is None else self._embedder.model

    @property
    def recipe(self) -> str:
        """How documents are cut and embedded now."""
        return building.recipe(self._tokens.cut, self.model)

    async def ingest(
        self,
        place: Place,
        telling: Telling,
        wanted: Wanted,
        read: Callable[[], Awaitable[bytes]],
    ) -> Kept:
        """Add a document to a corpus, unless it is there.

        Args:
            place: Which corpus.
            telling: Whom it tells.
            wanted: The document.
            read: Gives its bytes.

        Raises:
            CommunityError: It cannot be read, or may not be told; nothing of it stays.
            StoreError: The store failed; nothing is found that was not before.
        """

        async def make() -> Built:
            return await self._build(wanted, await read())

        return await self._add(place, telling, wanted.doc_cid, self.recipe, make)

    async def load_built(self, place: Place, telling: Telling, built: Built) -> Kept:
        """Add a document that was made ready elsewhere (see `building.build`), as it is.

        Raises:
            CommunityError: It may not be told; nothing of it stays.
            StoreError: The store failed; nothing is found that was not before.
        """

        async def make() -> Built:
            return built

        return await self._add(place, telling, built.doc_cid, built.recipe, make)

    async def query(
        self,
        place: Place,
        telling: Telling,
        question: str,
        k: int,
        wanted: Mapping[str, Any] | None = None,
    ) -> list[Found] | None:
        """The chunks that answer a question best; None when there is no such corpus."""
        corpus = await self._opened(place, telling)
        if corpus is None:
            return None
        index = corpus.index
        vector: NDArray[np.float32] | None = None
        if self._embedder is not None:
            vector = (await self._embedder.embed([question]))[0]
        asked = await asyncio.to_thread(words.asked, question, index.stemmings)
        hits = await asyncio.to_thread(index.search, asked, vector, k, wanted)
        return await self._store.read(lambda c: records.texts(c, hits))

    async def shares(self, communities: Collection[str]) -> list[Share]:
        """How much of what stands is where."""
        return await self._store.read(lambda c: records.shares(c, communities))

    async def _build(self, wanted: Wanted, data: bytes) -> Built:
        document = await parse(data)
        titled = replace(wanted, title=wanted.title or document.title)
        tokens = self._tokens
        split = await asyncio.to_thread(
            chunks.split, wanted.doc_cid, document, tokens.spans, tokens.cut
        )
        vectors = await self._embed(split, titled.title)
        return await asyncio.to_thread(
            lambda: building.build(
                titled,
                split,
                tokens.cut,
                size_bytes=len(data),
                model=self.model,
                vectors=vectors,
            )
        )

    async def _embed(self, split: Split, title: str | None) -> NDArray[np.float32] | None:
        if self._embedder is None:
            return None
        windows = [chunks.to_embed(chunk, title) for chunk in split.chunks]
        texts = [text for each in windows for text in each]
        rows = [
            # A few at a time, so that a question need not wait for a whole book.
            await self._embedder.embed(texts[start : start + _EMBEDDED_TOGETHER])
            for start in range(0, len(texts), _EMBEDDED_TOGETHER)
        ]
        return building.pool(np.concatenate(rows), [len(each) for each in windows])

    async def _add(
        self,
        place: Place,
        telling: Telling,
        doc_cid: str,
        recipe: str,
        make: Callable[[], Awaitable[Built]],
    ) -> Kept:
        async with self._lock((place, doc_cid)):
            await self._opened(place, telling)
            kept = await self._store.read(lambda c: records.find(c, place, doc_cid))
            if kept is None or kept.recipe != recipe:
                built = await make()
                await asyncio.to_thread(self._check_room, built.weight)
                kept = await self._store.write(lambda c: records.draft(c, place, built))
                if kept.is_standing:
                    await self._forget(place)  # another stood in its place
            if not kept.is_standing:
                kept = await self._let_stand(kept, telling)
                await self._index(place, kept.number)
            return kept

    async def _let_stand(self, kept: Kept, telling: Telling) -> Kept:
        try:
            told = await telling.told(kept.doc_cid) or await telling.tell(kept)
        except CommunityError:
            await self._store.write(lambda c: records.remove(c, kept.number))
            raise
        await self._store.write(lambda c: records.stand(c, kept.number, told.event_id))
        return replace(kept, is_standing=True, event_id=told.event_id)

    async def _opened(self, place: Place, telling: Telling) -> _Corpus | None:
        """A corpus in memory; None when nothing stands in it."""
        corpus = self._corpora.get(place)
        if corpus is not None:
            return corpus
        async with self._lock(place):
            corpus = self._corpora.get(place)
            if corpus is None:
                await self._settle(place, telling)
                segment = await self._store.read(lambda c: self._load(c, place))
                if segment is None:
                    return None
                numbers = {entry.number for entry in segment.entries}
                corpus = self._corpora[place] = _Corpus(Index((segment,)), numbers)
            return corpus

    async def _settle(self, place: Place, telling: Telling) -> None:
        """End what a crash left: drafts that were told of stand, others go."""
        for kept in await self._store.read(lambda c: records.drafts(c, place)):
            if self._is_locked((place, kept.doc_cid)):
                continue  # it is being ingested now
            told = await telling.told(kept.doc_cid)

            def end(connection: Connection, kept: Kept = kept, told: Any = told) -> None:
                if told is None:
                    records.remove(connection, kept.number)
                else:
                    records.stand(connection, kept.number, told.event_id)

            await self._store.write(end)

    async def _index(self, place: Place, number: int) -> None:
        async with self._lock(place):
            corpus = self._corpora.get(place)
            if corpus is None or number in corpus.numbers:
                return
            segment = await self._store.read(lambda c: self._load(c, place, number))
            if segment is not None:
                corpus.index = await asyncio.to_thread(corpus.index.add, segment)
                corpus.numbers.add(number)

    async def _forget(self, place: Place) -> None:
        """Let a corpus be read from the store when it is asked next."""
        async with self._lock(place):
            self._corpora.pop(place, None)

    def _load(
        self, connection: Connection, place: Place, number: int | None = None
    ) -> Segment | None:
        dimensions = 0 if self._embedder is None else self._embedder.dimensions
        return records.load(
            connection, place, model=self.model, dimensions=dimensions, number=number
        )

    def _lock(self, key: object) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def _is_locked(self, key: object) -> bool:
        lock = self._locks.get(key)
        return lock is not None and lock.locked()
