"""Corpora over a real store, with an embedder that is quick and always says the same."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from blake3 import blake3
from numpy.typing import NDArray

from accord.capabilities.models import Embedder
from accord.capabilities.rag import (
    Announcement,
    Corpora,
    CorpusId,
    IngestRequest,
    StoredDocument,
    tables,
    words,
)
from accord.community.errors import CommunityError
from accord.storage import Store, open_store

PLACE = CorpusId("ed25519:here", "manuals")


class HashEmbedder:
    """Gives every word a direction of its own."""

    def __init__(self, model: str = "hashes") -> None:
        self.model = model
        self.dimensions = 64
        self.texts = 0

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.texts += len(texts)
        rows = np.array([self._row(text) for text in texts], np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        normal: NDArray[np.float32] = rows / np.maximum(lengths, 1e-9)
        return normal

    def _row(self, text: str) -> NDArray[np.float32]:
        found = np.zeros(self.dimensions, np.float32)
        for word in words.split(text):
            seed = np.frombuffer(blake3(word.encode()).digest(length=self.dimensions), np.int8)
            found += seed
        return found


class Heard:
    """Announces documents to the test only."""

    def __init__(self) -> None:
        self.events: dict[str, str] = {}
        self.refusal: BaseException | None = None

    async def find(self, doc_cid: str) -> Announcement | None:
        event_id = self.events.get(doc_cid)
        return None if event_id is None else Announcement(event_id)

    async def announce(self, document: StoredDocument) -> Announcement:
        if self.refusal is not None:
            raise self.refusal
        self.events[document.doc_cid] = f"event-{len(self.events)}"
        return Announcement(self.events[document.doc_cid])


class Library:
    """Corpora, their store, and whom they tell."""

    def __init__(self, corpora: Corpora, store: Store, heard: Heard) -> None:
        self.corpora = corpora
        self.store = store
        self.heard = heard

    async def ingest(
        self, data: bytes | str, place: CorpusId = PLACE, **told: object
    ) -> StoredDocument:
        raw = data.encode() if isinstance(data, str) else data

        async def read() -> bytes:
            return raw

        return await self.corpora.ingest(place, self.heard, wanted(raw, **told), read)

    async def refused(self, data: bytes | str, **told: object) -> CommunityError:
        with pytest.raises(CommunityError) as caught:
            await self.ingest(data, **told)  # type: ignore[arg-type]
        return caught.value

    async def ask(
        self, question: str, k: int = 5, place: CorpusId = PLACE, **wanted: object
    ) -> list[str | None]:
        """The titles of what is found, the best first."""
        found = await self.corpora.query(place, self.heard, question, k, wanted)
        return [each.doc_title for each in found or ()]


def cid_of(data: bytes) -> str:
    """A name for some bytes; how a blob gets its real one is not looked at here."""
    return "blake3:" + blake3(data).hexdigest()


def wanted(data: bytes, **told: object) -> IngestRequest:
    given: dict[str, object] = {"title": None, "language": None, "metadata": {}, **told}
    return IngestRequest(cid_of(data), **given)  # type: ignore[arg-type]


Opened: TypeAlias = Callable[..., AbstractAsyncContextManager[Library]]


@asynccontextmanager
async def opened(
    where: str | Path, heard: Heard | None = None, embedder: Embedder | None = None
) -> AsyncIterator[Library]:
    async with open_store(where, tables.SCHEMA) as store:
        corpora = Corpora(store, words.word_tokens(), embedder)
        yield Library(corpora, store, heard or Heard())


@pytest.fixture
async def library(tmp_path: Path) -> AsyncIterator[Library]:
    async with opened(tmp_path, embedder=HashEmbedder()) as made:
        yield made
