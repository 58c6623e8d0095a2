"""Serving `market.list`, `post`, `expire` and `search`: sections 4.11 to 4.14.

Events are this node's own. A member that calls another's node posts through it: the post bears the
node's signature, and the caller may end it there as its own. Whether an event stands is the fold's
to say.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import orjson
from sqlalchemy import Connection, select

from accord.capabilities.embedding import Embedder
from accord.capabilities.market.posts import Shown, client_id_for, fits, is_for, page, shown
from accord.capabilities.market.search import Search
from accord.community.bus import Call
from accord.community.envelope import schemas
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.community.fold import State, views
from accord.community.fold.content import DEFAULT_TTL_SECONDS, Post, used
from accord.community.log.tables import events
from accord.community.node import Hosted, Node
from accord.kernel.clock import Clock

_CREATED: Final = "market.post.created"
_EXPIRED: Final = "market.post.expired"
_LIMIT: Final = 50
_K: Final = 10
# The first search after a start gives every post its vector.
_SEARCH_SECONDS: Final = 120.0


def register(node: Node, clock: Clock, embedder: Embedder | None = None) -> None:
    """Offer the market on a node's bus.

    Args:
        node: The node.
        clock: The time.
        embedder: What `market.search` finds meanings with; without one it compares words.
    """
    descriptors = schemas.load("accord.capabilities.market")
    serving = _Serving(node, clock, Search(embedder))
    offer = node.bus.registry.register
    offer(descriptors["market.list@1.0"], serving.list_posts)
    offer(descriptors["market.post@1.0"], serving.post)
    offer(descriptors["market.expire@1.0"], serving.expire)
    offer(descriptors["market.search@1.0"], serving.search, seconds=_SEARCH_SECONDS)


class _Serving:
    def __init__(self, node: Node, clock: Clock, search: Search) -> None:
        self._node = node
        self._clock = clock
        self._search = search
        self._writing = asyncio.Lock()

    async def list_posts(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        given = call.body["input"]
        posts, head = await self._current(call.community)
        since = given.get("since_lamport", -1)
        category, tags = given.get("category"), given.get("tags", ())
        fitting = [post for post in posts if post["lamport"] > since and fits(post, category, tags)]
        some, max_lamport = page(fitting, given.get("limit", _LIMIT), head)
        output = {"posts": [shown(post) for post in some], "max_lamport": max_lamport}
        return {"output": output, "meta": {"ms": self._ms(began)}}

    async def post(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        hosted = self._node.community(call.community)
        data = {"ttl_seconds": DEFAULT_TTL_SECONDS, **call.body["input"]}
        if not call.own:
            data["client_id"] = client_id_for(call.caller, data["client_id"])
        async with self._writing:
            made = await _posted(hosted, data["client_id"])
            if made is None:
                event = await hosted.log.append(_CREATED, data)
                made = event.event_id, event.lamport
        return self._answer(made, began)

    async def expire(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
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
        return self._answer(made, began)

    async def search(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        given = call.body["input"]
        posts, head = await self._current(call.community)
        best = await self._search.best(given["query"], posts, given.get("k", _K))
        output = {"posts": [shown(post) for post in best], "max_lamport": max(head, 0)}
        return {
            "output": output,
            "meta": {"ms": self._ms(began), "ranking": self._search.ranking},
        }

    def _check_ending(
        self, hosted: Hosted, call: Call, posts: tuple[Post, ...], reason: str
    ) -> None:
        """Check that the caller may end a post, and this node's event would do it."""
        own = hosted.own_id
        theirs = [
            post
            for post in posts
            if post.author == call.caller
            or (post.author == own and (call.own or is_for(call.caller, post.client_id)))
        ]
        moderates = call.level >= Level.TRUSTED and reason != "user_request"
        if not theirs and not moderates:
            raise CommunityError(
                Code.UNAUTHORIZED,
                "only its author ends a post, or a trusted moderator who gives another reason than "
                "user_request",
            )
        if all(post.ended is not None for post in theirs or posts):
            raise CommunityError(Code.NOT_FOUND, "the post has ended already")
        if not any(post.author == own for post in posts) and (
            hosted.level_of(own) < Level.TRUSTED or reason == "user_request"
        ):
            raise CommunityError(
                Code.UNAUTHORIZED,
                "this node may not end another's post for that reason",
                mend="ask the node that posted it",
            )

    async def _current(self, community: str) -> tuple[list[Shown], int]:
        now = self._clock.now()

        def look(state: State) -> tuple[list[Shown], int]:
            return views.market(state, now), state.lamport

        return await self._node.community(community).log.view(look)

    def _answer(self, made: tuple[str, int], began: float) -> Mapping[str, Any]:
        output = {"event_id": made[0], "lamport": made[1]}
        return {"output": output, "meta": {"ms": self._ms(began)}}

    def _ms(self, began: float) -> int:
        return int((self._clock.monotonic() - began) * 1000)


async def _posted(hosted: Hosted, client_id: str) -> tuple[str, int] | None:
    """The post that this node has made under a client id."""
    own = hosted.own_id
    if used("post", own, client_id) not in hosted.state.content.clients:
        return None

    def look(state: State) -> tuple[str, int] | None:
        for event_id, posts in state.content.posts.items():
            for post in posts:
                if (post.author, post.client_id) == (own, client_id):
                    return event_id, post.lamport
        return None

    return await hosted.log.view(look)


def _ended(
    connection: Connection, hosted: Hosted, client_id: str, target: str
) -> tuple[str, int] | None:
    """The event by which this node has ended a post under a client id."""
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
