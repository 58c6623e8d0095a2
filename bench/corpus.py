"""Corpora on Spark: documents a second on one core and on two, beside `rag.ingest` on a node.

Documents have 500 words. A build is measured from the first look to the catalogue, in a session
whose workers have loaded the model; starting both is a figure of its own. The node's model has one
thread, as a worker's has. The best of some turns counts. Then: a build that finds everything made,
and a node that loads what was built.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from accord.capabilities import embed, models
from accord.capabilities.embed import MiniLM
from accord.capabilities.file import Blobs
from accord.capabilities.rag import words
from accord.capabilities.rag.corpora import Corpora
from accord.capabilities.rag.prepared import IngestRequest
from accord.capabilities.rag.tables import SCHEMA
from accord.pipeline.corpus import builder, loader
from accord.pipeline.corpus.builder import BuildRequest
from accord.pipeline.corpus.sources import source_of
from accord.pipeline.session import open_session
from accord.storage import open_store
from bench.capabilities_embed import WORDS
from bench.capabilities_rag import PLACE, Nobody
from bench.figure import Figure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENTS: Final = 64
WARMING: Final = 8
LENGTH: Final = 500
TURNS: Final = 2
CORES: Final = (1, 2)
INGEST: Final = "rag.ingest, one thread"


def run() -> Iterator[Figure]:
    """Measure the node, then Spark on one core and on two."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as name:
        folder = Path(name)
        documents = written(folder / "documents", DOCUMENTS)
        files = sorted(documents.iterdir())
        warming = written(folder / "warming", WARMING)
        node = max(asyncio.run(ingested(folder / f"node-{n}", files)) for n in range(TURNS))
        rates, again = {}, 0.0
        for count in CORES:
            started = time.perf_counter()
            with open_session(folder / "session", f"local[{count}]") as spark:
                build(spark, warming, folder / f"warm-{count}")
                seconds = time.perf_counter() - started
                rates[count] = max(
                    build(spark, documents, folder / f"built-{count}-{turn}")
                    for turn in range(TURNS)
                )
                again = build(spark, documents, folder / f"built-{count}-0")
            yield Figure(f"start-up, {count} workers", "s", seconds, seconds, "itself")
            yield Figure(f"build on {count} cores", "docs/s", rates[count], node, INGEST)
        yield Figure("build, two cores", "docs/s", rates[2], rates[1], "one core")
        yield Figure("build, nothing has changed", "docs/s", again, rates[2], "build on 2 cores")
        loaded = asyncio.run(load(folder / "built-1-0", folder / "loading"))
        yield Figure("accord rag load", "docs/s", loaded, node, INGEST)


def written(folder: Path, count: int) -> Path:
    """A folder with documents that say different things."""
    folder.mkdir()
    for number in range(count):
        said = " ".join(Random(number).choices(WORDS, k=LENGTH))
        (folder / f"paper-{number}.md").write_text(f"# Paper {number}\n\n{said}.\n")
    return folder


def build(spark: "SparkSession", documents: Path, out: Path) -> float:
    """Documents a second of one build."""
    start = time.perf_counter()
    outcome = builder.build_in_session(BuildRequest(source_of(documents), "bench", out), spark)
    assert outcome.published is not None
    return outcome.published.documents / (time.perf_counter() - start)


async def ingested(home: Path, files: Sequence[Path]) -> float:
    """Documents a second that a node ingests."""
    weights = models.embedding_model()
    model, counted = MiniLM(weights, threads=1), words.model_tokens(weights)
    async with (
        open_store(home, SCHEMA) as store,
        embed.open_batcher(model, remembered=0) as embedder,
    ):
        corpora = Corpora(store, counted, embedder)
        blobs = Blobs(home / "blobs")
        start = time.perf_counter()
        for file in files:
            await _ingest(corpora, blobs, file)
        return len(files) / (time.perf_counter() - start)


async def _ingest(corpora: Corpora, blobs: Blobs, file: Path) -> None:
    cid = await blobs.put(file)

    async def read() -> bytes:
        return b"".join([part async for part in blobs.read(cid)])

    await corpora.ingest(PLACE, Nobody(), IngestRequest(cid, file.stem, None, {}), read)


async def load(out: Path, home: Path) -> float:
    """Documents a second that a node loads."""
    async with open_store(home, SCHEMA) as store:
        corpora = Corpora(store, words.word_tokens())
        blobs = Blobs(home / "blobs")
        start = time.perf_counter()
        loaded = await loader.load(out, corpora, blobs, PLACE, Nobody())
        return loaded.documents / (time.perf_counter() - start)
