"""A real node with the real model that ingests documents, loads built corpora and is asked."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from accord.capabilities import embed
from accord.capabilities.embed import Batcher
from accord.capabilities.file import Blobs
from accord.capabilities.rag import (
    CommunityAnnouncer,
    Corpora,
    CorpusId,
    open_corpora,
    register,
    tables,
)
from accord.capabilities.settings import ModelsSettings
from accord.community.client import Client, LocalTransport
from accord.community.node import Node, open_node
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.pipeline.corpus import loader
from accord.storage import Store

CLOCK = SystemClock()
KEY = SigningKey.from_seed(bytes([7]) * 32)
CORPUS = "manuals"


class Counting:
    """An embedder that counts what it is asked for."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self.model = batcher.model
        self.dimensions = batcher.dimensions
        self.texts = 0

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.texts += len(texts)
        return await self._batcher.embed(texts)


@dataclass
class Reader:
    """A real node with the real model, and a client of it."""

    node: Node
    client: Client
    blobs: Blobs
    corpora: Corpora
    embedder: Counting

    async def ingest(self, file: Path) -> dict[str, Any]:
        given = {"doc_cid": await self.blobs.put(file), "title": file.stem}
        return await self.client.call("rag.ingest", {"corpus": CORPUS}, given)

    async def ask(self, question: str) -> list[dict[str, Any]]:
        given = {"query": question, "k": 5}
        answer = await self.client.call("rag.query", {"corpus": CORPUS}, given)
        return list(answer["output"]["chunks"])

    @property
    def store(self) -> Store:
        return self.corpora._store


@asynccontextmanager
async def reader(folder: Path) -> AsyncIterator[Reader]:
    (folder / "keys").mkdir(parents=True)
    blobs = Blobs(folder / "blobs")
    async with (
        embed.open_embedder(ModelsSettings(threads=1)) as batcher,
        open_node(KEY, home=folder, stores=folder / "stores", clock=CLOCK) as node,
    ):
        embedder = Counting(batcher)
        async with open_corpora(folder / "stores", blobs, embedder) as corpora:
            register(node, CLOCK, corpora, blobs)
            made = await node.found("Readers", {})
            community = str(made["community_id"])
            transport = LocalTransport(node.application())
            async with Client("http://node", KEY, community, KEY.id, transport=transport) as client:
                yield Reader(node, client, blobs, corpora, embedder)


async def load(reader: Reader, out: Path) -> loader.LoadResult:
    (community,) = reader.node.communities
    telling = CommunityAnnouncer(reader.node.community(community), CORPUS)
    place = CorpusId(community, CORPUS)
    return await loader.load(out, reader.corpora, reader.blobs, place, telling)


async def rows(store: Store) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """What a node keeps: each document, and its chunks, without what is the store's own."""
    own = ("number", "document", "checksum", "vectors")

    def plain(row: Any) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in own}

    found, cut = {}, {}
    for row in await store.read(lambda c: c.execute(select(tables.documents)).mappings().all()):
        found[row["doc_cid"]] = {**plain(row), "vectors": np.frombuffer(row["vectors"], "<f4")}
        number = row["number"]
        query = (
            select(tables.chunks)
            .where(tables.chunks.c.document == number)
            .order_by(tables.chunks.c.position)
        )
        kept = await store.read(lambda c, query=query: c.execute(query).mappings().all())  # type: ignore[misc]
        cut[row["doc_cid"]] = [plain(each) for each in kept]
    return found, cut


def told_documents(reader: Reader) -> set[str]:
    """The documents of the corpus that the community was told of."""
    (hosted,) = reader.node.communities.values()
    return {cid for corpus, cid in hosted.state.content.documents if corpus == CORPUS}
