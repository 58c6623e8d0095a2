"""`market.list`, `post`, `expire` and `search` on the bus: sections 4.11 to 4.14.

Events carry this node's signature, so only its own clients post and end posts through it; others
are `unauthorized`. Posts that version 0.2 made for other members can still be ended by them.
"""

import asyncio
import heapq
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson
from blake3 import blake3
from sqlalchemy import Connection, select

from accord.capabilities.market.rules import (
    ShownPost,
    client_id_for,
    is_posted_for,
    matches,
    page,
    show_post,
)
from accord.capabilities.models import Embedder
from accord.community.bus import Call
from accord.community.communities import HostedCommunity
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.community.rules.content import DEFAULT_POST_TTL_SECONDS, MarketPost, client_key
from accord.community.rules.formats import Level
from accord.community.rules.state import CommunityState
from accord.community.store import events
from accord.kernel.clock import Clock

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
    """Ranks posts by the cosine with the query; vectors are cached by text.

    If `embedder` is None, by the words that they share with it, weighted by how rare they are.
    """

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


_CREATED: Final = "market.post.created"
_EXPIRED: Final = "market.post.expired"
_LIMIT: Final = 50
_K: Final = 10
# The first search after a start embeds every post.
_SEARCH_SECONDS: Final = 120.0
_AT_HOME: Final = "call your own node; its events reach this one"


def register(node: Node, clock: Clock, embedder: Embedder | None = None) -> None:
    """Offer the market on a node's bus; without an embedder, `market.search` compares words."""
    descriptors = capabilities.load_descriptors("accord.capabilities.market")
    serving = _MarketService(node, clock, PostSearch(embedder))
    offer = node.bus.registry.register
    offer(descriptors["market.list@1.0"], serving.list_posts)
    offer(descriptors["market.post@1.0"], serving.post)
    offer(descriptors["market.expire@1.0"], serving.expire)
    offer(descriptors["market.search@1.0"], serving.search, seconds=_SEARCH_SECONDS)


class _MarketService:
    def __init__(self, node: Node, clock: Clock, search: PostSearch) -> None:
        self._node = node
        self._clock = clock
        self._search = search
        self._writing = asyncio.Lock()

    async def list_posts(self, call: Call) -> Mapping[str, Any]:
        given = call.body["input"]
        posts, head = await self._current(call.community)
        since = given.get("since_lamport", -1)
        category, tags = given.get("category"), given.get("tags", ())
        fitting = [
            post for post in posts if post["lamport"] > since and matches(post, category, tags)
        ]
        some, max_lamport = page(fitting, given.get("limit", _LIMIT), head)
        output = {"posts": [show_post(post) for post in some], "max_lamport": max_lamport}
        return call.answer(output)

    async def post(self, call: Call) -> Mapping[str, Any]:
        hosted = self._node.community(call.community)
        call.check_own("post in its name", _AT_HOME)
        data = {"ttl_seconds": DEFAULT_POST_TTL_SECONDS, **call.body["input"]}
        async with self._writing:
            made = await _posted(hosted, data["client_id"])
            if made is None:
                event = await hosted.log.append(_CREATED, data)
                made = event.event_id, event.lamport
        return call.answer({"event_id": made[0], "lamport": made[1]})

    async def expire(self, call: Call) -> Mapping[str, Any]:
        hosted = self._node.community(call.community)
        given = call.body["input"]
        client_id = given["client_id"]
        if not call.own:
            client_id = client_id_for(call.caller, client_id)
        async with self._writing:
            posts = hosted.state.content.posts.get(given["event_id"], ())
            if not posts:
                raise CommunityError(
                    Code.NOT_FOUND, "there is no such post here", where=given["event_id"]
                )
            made = None
            if any(post.ended is not None for post in posts):
                made = await hosted.log.store.read(
                    lambda c: _ended(c, hosted, client_id, given["event_id"])
                )
            if made is None:
                self._check_ending(hosted, call, posts, given["reason"])
                data = {
                    "client_id": client_id,
                    "target_event_id": given["event_id"],
                    "reason": given["reason"],
                }
                event = await hosted.log.append(_EXPIRED, data)
                made = event.event_id, event.lamport
        return call.answer({"event_id": made[0], "lamport": made[1]})

    async def search(self, call: Call) -> Mapping[str, Any]:
        given = call.body["input"]
        posts, head = await self._current(call.community)
        best = await self._search.best(given["query"], posts, given.get("k", _K))
        output = {"posts": [show_post(post) for post in best], "max_lamport": max(head, 0)}
        return call.answer(output, ranking=self._search.ranking)

    def _check_ending(
        self, hosted: HostedCommunity, call: Call, posts: tuple[MarketPost, ...], reason: str
    ) -> None:
        """Check that the caller may end a post, and that this node's event would do it."""
        own = hosted.own_id
        theirs = [
            post
            for post in posts
            if post.author == own and (call.own or is_posted_for(call.caller, post.client_id))
        ]
        if not theirs:
            call.check_own("end posts in its name", _AT_HOME)
        moderates = hosted.level_of(own) >= Level.TRUSTED and reason != "user_request"
        if not theirs and not moderates:
            raise CommunityError(
                Code.UNAUTHORIZED,
                "only its author ends a post, or a trusted moderator who gives another reason than "
                "user_request",
            )
        if all(post.ended is not None for post in theirs or posts):
            raise CommunityError(Code.NOT_FOUND, "the post has ended already")

    async def _current(self, community: str) -> tuple[list[ShownPost], int]:
        now = self._clock.now()

        def look(state: CommunityState) -> tuple[list[ShownPost], int]:
            return state.market(now), state.lamport

        return await self._node.community(community).log.view(look)


async def _posted(hosted: HostedCommunity, client_id: str) -> tuple[str, int] | None:
    """Return the post that this node has made under a client id."""
    own = hosted.own_id
    if client_key("post", own, client_id) not in hosted.state.content.clients:
        return None

    def look(state: CommunityState) -> tuple[str, int] | None:
        for event_id, posts in state.content.posts.items():
            for post in posts:
                if (post.author, post.client_id) == (own, client_id):
                    return event_id, post.lamport
        return None

    return await hosted.log.view(look)


def _ended(
    connection: Connection, hosted: HostedCommunity, client_id: str, target: str
) -> tuple[str, int] | None:
    """Return the event by which this node has ended a post under a client id."""
    query = (
        select(events.c.event_id, events.c.lamport, events.c.body)
        .where(
            events.c.community == hosted.log.number,
            events.c.author == hosted.own_id,
            events.c.event_type == _EXPIRED,
            events.c.status == "accepted",
            events.c.body.is_not(None),
        )
        .order_by(events.c.lamport)
    )
    for row in connection.execution_options(yield_per=100).execute(query):
        data = orjson.loads(row.body)["data"]
        if (data["client_id"], data["target_event_id"]) == (client_id, target):
            return row.event_id, row.lamport
    return None
