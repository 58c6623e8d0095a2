"""Calls to the node's own bus for a local client.

Signed with the node's key and without a socket; all checks and limits of the bus apply.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, cast

from accord.community.bus import Frame, Offer
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.community.rules.routing import RetryPolicy
from accord.kernel.clock import Clock


class BusCaller:
    """Calls a node's own bus in a community; empty means the node's current one."""

    def __init__(self, node: Node, clock: Clock, community: str = "") -> None:
        self._node = node
        self._clock = clock
        self._community = community
        self._transport = LocalTransport(node.application())
        self._clients: dict[str, Client] = {}

    def offers(self) -> dict[str, Offer]:
        """Return the newest version of each capability that the node offers, by name."""
        registry = self._node.bus.registry
        names = [listing["name"] for listing in registry.listings()]
        found = {name: registry.serving(name, None) for name in names}
        return {name: offer for name, offer in found.items() if offer is not None}

    def models(self, capability: str) -> list[str]:
        """Return the models that a capability offers."""
        offer = self.offers().get(capability)
        return [] if offer is None else [str(each) for each in offer.params.get("models", ())]

    def built_in(self, capability: str) -> list[str]:
        """Return those models of a capability that come with Accord."""
        offer = self.offers().get(capability)
        return [] if offer is None else [str(each) for each in offer.params.get("built_in", ())]

    async def call(
        self, capability: str, params: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Call a capability that does not stream; raises the error of the bus."""
        return await self._client().call(capability, params, given)

    async def stream(
        self, capability: str, params: Mapping[str, Any], given: Mapping[str, Any]
    ) -> AsyncGenerator[Frame]:
        """Call a capability that streams; raises the error of the bus."""
        frames = self._client().stream(capability, params, given, acks=False)
        async with aclosing(cast("AsyncGenerator[Frame]", frames)) as closing:
            async for frame in closing:
                yield frame

    async def aclose(self) -> None:
        """Close all clients."""
        for client in self._clients.values():
            await client.__aexit__()
        self._clients.clear()

    def _client(self) -> Client:
        current = self._node.current
        community = self._community or ("" if current is None else current.community_id)
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
                retry=RetryPolicy(attempts=1),
                clock=self._clock,
            )
        return self._clients[community]
