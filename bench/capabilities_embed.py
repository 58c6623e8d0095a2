"""Embeddings per second, beside raw onnxruntime on the same batches.

Ours begins with texts and ends with normalised rows: tokenizing, putting together by length, the
queue, the thread. The baseline is the same session on the same batches, tokenized and padded
before. Nothing is remembered, so every text is computed every time. The last figure is 32 callers
who bring one text each, at once and one after the other.
"""

import asyncio
import time
from collections.abc import Iterator

from accord.capabilities import embed, models
from accord.capabilities.embed import MiniLM
from bench.figure import Figure

ROUNDS = 4
COUNT = 128
CALLERS = 32
VOCABULARY = (
    "water rain filter roof clean boil minutes store barrel neighbour ladder bread recipe engine "
    "wing flow pressure layer heat transfer plate speed sound measure result method theory"
)
WORDS = VOCABULARY.split()


def texts(length: int) -> list[str]:
    """Texts of about so many words, no two alike."""
    return [
        " ".join(WORDS[(number * 7 + place * (number + 3)) % len(WORDS)] for place in range(words))
        for number in range(COUNT)
        for words in [max(1, length // 2 + (number * 13) % length)]
    ]


async def measure(model: MiniLM, length: int) -> tuple[float, float]:
    """Texts per second of ours and of the baseline, taken in turns; the best of each counts."""
    given = texts(length)
    batches = list(model.batches(given))
    best = [float("inf"), float("inf")]
    async with embed.open_batcher(model, remembered=0) as embedder:
        for _ in range(ROUNDS):
            start = time.perf_counter()
            await embedder.embed(given)
            best[0] = min(best[0], time.perf_counter() - start)
            start = time.perf_counter()
            for batch in batches:
                model.run(batch)
            best[1] = min(best[1], time.perf_counter() - start)
    return COUNT / best[0], COUNT / best[1]


async def share(model: MiniLM) -> tuple[float, float]:
    """Calls per second when all come at once, and when each waits for the one before."""
    given = texts(20)[:CALLERS]
    best = [float("inf"), float("inf")]
    async with embed.open_batcher(model, remembered=0) as embedder:
        for _ in range(ROUNDS):
            start = time.perf_counter()
            await asyncio.gather(*(embedder.embed([text]) for text in given))
            best[0] = min(best[0], time.perf_counter() - start)
            start = time.perf_counter()
            for text in given:
                await embedder.embed([text])
            best[1] = min(best[1], time.perf_counter() - start)
    return CALLERS / best[0], CALLERS / best[1]


def run() -> Iterator[Figure]:
    """Load the model and measure it."""
    model = MiniLM(models.embedding_model(), threads=models.threads(0))
    for length, name in ((12, "short texts"), (120, "paragraphs")):
        ours, baseline = asyncio.run(measure(model, length))
        raw = "raw onnxruntime, same batches"
        yield Figure(f"embed, {name}", "texts/s", ours, baseline, raw, 0.9)
    ours, baseline = asyncio.run(share(model))
    yield Figure(f"embed, {CALLERS} callers", "texts/s", ours, baseline, "one after the other")
