"""Calling the node's own bus for an ordinary client.

Owns the way from a door to the bus: signed with the node's key, in one community, without a
socket. So every check, limit and record of the bus holds for doors, too.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, cast

from accord.community.bus import Frame, Offer
from accord.community.client import Client, LocalTransport, Retry
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.kernel.clock import Clock


class Caller:
    """This node, calling itself.

    Args:
        node: The node.
        clock: The time.
        community: In which community; empty for the first that it is in.
    """

    def __init__(self, node: Node, clock: Clock, community: str = "") -> None:
        self._node = node
        self._clock = clock
        self._community = community
        self._transport = LocalTransport(node.application())
        self._clients: dict[str, Client] = {}

    def offers(self) -> dict[str, Offer]:
        """What the node offers, the newest version of each, by name."""
        registry = self._node.bus.registry
        names = [listing["name"] for listing in registry.listings()]
        found = {name: registry.serving(name, None) for name in names}
        return {name: offer for name, offer in found.items() if offer is not None}

    def models(self, capability: str) -> list[str]:
        """The models under a capability."""
        offer = self.offers().get(capability)
        return [] if offer is None else [str(each) for each in offer.params.get("models", ())]

    async def call(
        self, capability: str, params: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Call a capability that answers at once.

        Raises:
            CommunityError: With the node's code.
        """
        return await self._client().call(capability, params, given)

    async def stream(
        self, capability: str, params: Mapping[str, Any], given: Mapping[str, Any]
    ) -> AsyncGenerator[Frame]:
        """Call a capability that answers by a stream.

        Raises:
            CommunityError: With the node's code.
        """
        frames = self._client().stream(capability, params, given, acks=False)
        async with aclosing(cast("AsyncGenerator[Frame]", frames)) as closing:
            async for frame in closing:
                yield frame

    async def aclose(self) -> None:
        """Close what was opened."""
        for client in self._clients.values():
            await client.__aexit__()
        self._clients.clear()

    def _client(self) -> Client:
        community = self._community or next(
            (each.community_id for each in self._node.communities.values() if each.is_member), ""
        )
        if community not in self._node.communities:
            raise CommunityError(
                Code.PARTITION,
                "this node is in no community yet",
                mend="found one with accord community create, or join one",
            )
        if community not in self._clients:
            self._clients[community] = Client(
                "http://node",
                self._node.key,
                community,
                self._node.key.id,
                transport=self._transport,
                retry=Retry(attempts=1),
                clock=self._clock,
            )
        return self._clients[community]
