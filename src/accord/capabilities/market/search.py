"""Search of posts by embeddings or, without an embedder, by shared words.

The score is the cosine between the vectors of post and query; vectors are cached by text. Without
an embedder, words are weighted by how rare they are.
"""

import asyncio
import heapq
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from accord.capabilities.market.rules import ShownPost
from accord.capabilities.models import Embedder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


EMBEDDINGS: Final = "embeddings"
WORDS: Final = "words"

_KEPT: Final = 20_000
_TOGETHER: Final = 64
# Vectors are compared in batches, since stacking those of a large market takes much memory.
_COMPARED: Final = 512
_WORD: Final = re.compile(r"\w+")


class PostSearch:
    """Searches posts; by words if `embedder` is None."""

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder
        self._vectors: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._embedding = asyncio.Lock()

    @property
    def ranking(self) -> str:
        """How posts are ranked: `embeddings` or `words`."""
        return WORDS if self._embedder is None else EMBEDDINGS

    async def best(self, query: str, posts: Sequence[ShownPost], k: int) -> list[ShownPost]:
        """Return the `k` posts that fit a query best, each with its score."""
        if not posts:
            return []
        texts = [_text(post) for post in posts]
        scores = (
            rank_by_words(query, texts)
            if self._embedder is None
            else await self._by_meaning(self._embedder, query, texts)
        )
        ranks = (
            # Of equal scores the newest first.
            (-round(score, 6), -posts[number]["lamport"], number)
            for number, score in enumerate(scores)
            if score > 0 or self._embedder is not None
        )
        return [
            {**posts[number], "score": -score} for score, _, number in heapq.nsmallest(k, ranks)
        ]

    async def _by_meaning(
        self, embedder: Embedder, query: str, texts: Sequence[str]
    ) -> list[float]:
        digests = [blake3(text.encode()).digest() for text in texts]
        (wanted,) = await embedder.embed([query])
        # One at a time, so that waiting searches reuse the vectors.
        async with self._embedding:
            new = {
                digest: text
                for digest, text in zip(digests, texts, strict=True)
                if digest not in self._vectors
            }
            await self._learn(embedder, new)
            vectors = [self._vectors[digest] for digest in digests]
            for digest in digests:
                self._vectors.move_to_end(digest)
            while len(self._vectors) > max(_KEPT, len(digests)):
                self._vectors.popitem(last=False)
        return await asyncio.to_thread(_cosines, vectors, wanted)

    async def _learn(self, embedder: Embedder, new: dict[bytes, str]) -> None:
        waiting = list(new.items())
        for start in range(0, len(waiting), _TOGETHER):
            some = waiting[start : start + _TOGETHER]
            vectors = await embedder.embed([text for _, text in some])
            for (digest, _), vector in zip(some, vectors, strict=True):
                self._vectors[digest] = vector


def rank_by_words(query: str, texts: Sequence[str]) -> list[float]:
    """Return for each text the weighted share of the query's words that it has, from 0 to 1."""
    asked = set(_words(query))
    held = [asked.intersection(_words(text)) for text in texts]
    found = Counter(word for words in held for word in words)
    weights = {word: math.log(1 + len(texts) / (0.5 + found[word])) for word in asked}
    whole = sum(weights.values())
    return [sum(weights[word] for word in words) / whole if whole else 0.0 for words in held]


def _cosines(vectors: "list[NDArray[np.float32]]", wanted: "NDArray[np.float32]") -> list[float]:
    import numpy as np

    found: list[float] = []
    for start in range(0, len(vectors), _COMPARED):
        some = np.stack(vectors[start : start + _COMPARED])
        found += np.clip(some @ wanted, -1.0, 1.0).tolist()
    return found


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _text(post: ShownPost) -> str:
    return "\n".join((post["title"], post["body"], " ".join(post.get("tags", ()))))
