"""A bridge from a signed webhook to the market: what a shop's program posts becomes an offer.

    accord relay gateway run --agent examples.hook_to_market:Bridge --here shop --front webhook:shop

The relay proves the signature and keeps the message before it answers the shop. This agent posts it
on the market: it calls the station's own node over the bus, on the same machine and with the
station's own key, because a node posts only for itself, and answers with the id of the post or with
what was wrong. `MARKET_NODE` is the node's address and `MARKET_KEY` the file of its key;
examples/README.md shows the whole.

However often a message comes, it is one post: the relay takes a `webhook-id` once and the gateway a
`message_id`, and the market posts once under a `client_id`, which is made of the shop's ids here;
so a post is not repeated either when this process dies before it could answer.
"""

import os
from pathlib import Path
from typing import Any

import httpx

from accord.community.client import Client
from accord.community.errors import CommunityError
from accord.kernel import canonical
from accord.kernel.canonical import sha256
from accord.kernel.signing import SigningKey
from accord.relay.gateway import Turn

EXAMPLE = '{"title": "Ladder to lend", "body": "Three metres.", "tags": ["tools"]}'


def offer(turn: Turn) -> dict[str, Any]:
    """What a message offers, as the market takes it; the node checks its members.

    Raises:
        CanonicalError: The text is no JSON.
        TypeError: It is no object.
    """
    told = canonical.decode(turn.event.text.encode())
    # Two shops may number their messages alike.
    name = f"{turn.source.user_id} {turn.event.message_id}"
    return {"body": "", **told, "category": "offer", "client_id": str(sha256(name.encode()))}


class Bridge:
    """The agent."""

    def __init__(self) -> None:
        self._node = os.environ["MARKET_NODE"]
        self._key = SigningKey.load(Path(os.environ["MARKET_KEY"]))

    async def __call__(self, turn: Turn) -> str:
        """Post what a message offers, once."""
        try:
            given = offer(turn)
        except (canonical.CanonicalError, TypeError) as error:
            return f"Not posted: {error}. Write it like {EXAMPLE}"
        try:
            async with await self._client() as client:
                answer = await client.call("market.post", {}, given, idempotent=True)
        except (CommunityError, httpx.HTTPError) as error:
            return f"Not posted: {error}"
        return f"Posted as {answer['output']['event_id']}."

    async def _client(self) -> Client:
        """A client of the node, which says itself who it is and in which community."""
        async with httpx.AsyncClient(base_url=self._node, trust_env=False) as http:
            known = (await http.get("/manifest")).raise_for_status().json()
        return Client(self._node, self._key, known["community_id"], known["node_id"])
