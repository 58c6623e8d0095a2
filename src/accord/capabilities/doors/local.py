"""Routed calls for the local APIs, signed with the node's key; all limits of the bus apply."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import cache
from importlib.resources import files
from typing import Any

from accord.community.bus import Frame
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.community.rules.capabilities import CapabilityDescriptor, schema_hash
from accord.community.rules.formats import display_id
from accord.community.rules.routing import OfferedModel


@cache
def descriptions() -> dict[str, dict[str, Any]]:
    """Return every description by schema hash."""
    found: dict[str, dict[str, Any]] = {}
    for folder in files("accord.capabilities").iterdir():
        data = folder.joinpath("data")
        for file in data.iterdir() if data.is_dir() else ():
            if file.name.endswith(".json"):
                form = json.loads(file.read_bytes())
                digest = schema_hash(
                    form["name"],
                    form["version"],
                    form["request_schema"],
                    form.get("response_schema"),
                    form.get("stream_schema"),
                )
                found[digest] = form
    return found


class BusCaller:
    """Calls the capabilities of a community for a node's owner; empty means the current one.

    The node's router chooses the node that serves a call.
    """

    def __init__(self, node: Node, community: str = "") -> None:
        self._node = node
        self._named = community

    def descriptors(self) -> dict[str, CapabilityDescriptor]:
        """Return what can be called, by name: the newest version on this node or another."""
        community = self._known_community()
        if community is None:
            registry = self._node.bus.registry
            names = [listing["name"] for listing in registry.listings()]
            found = {name: registry.serving(name, None) for name in names}
            return {name: offer.descriptor for name, offer in found.items() if offer is not None}
        return self._node.router.offered(community)

    async def models(self, capability: str) -> dict[str, OfferedModel]:
        """Return the models of a capability in the community, by name, the best first."""
        community = self._known_community()
        if community is None:
            return {}
        return {each.name: each for each in await self._node.router.models(community, capability)}

    def node_name(self, node_id: str) -> str:
        """Return the display name of a node."""
        community = self._known_community()
        if node_id == self._node.key.id or community is None:
            return "accord"
        peer = self._node.book.peer(community, node_id)
        return display_id(node_id) if peer is None else str(peer.manifest["display_name"])

    async def call(
        self, capability: str, params: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Call a capability that does not stream; raises the error of the bus."""
        return await self._node.router.call(self._community(), capability, params, given)

    async def stream(
        self, capability: str, params: Mapping[str, Any], given: Mapping[str, Any]
    ) -> AsyncGenerator[Frame]:
        """Call a capability that streams; raises the error of the bus."""
        frames = self._node.router.stream(self._community(), capability, params, given)
        async with aclosing(frames) as closing:
            async for frame in closing:
                yield frame

    def _known_community(self) -> str | None:
        current = self._node.current
        community = self._named or ("" if current is None else current.community_id)
        return community if community in self._node.communities else None

    def _community(self) -> str:
        community = self._known_community()
        if community is None:
            raise CommunityError(
                Code.PARTITION,
                "this node is in no community yet",
                mend="found one with accord community create, or join one",
            )
        return community
