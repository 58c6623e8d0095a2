"""What the node's owner asks of it: found, join, act, look.

Only the node's own key, from this machine, is heard here; the command line and the console use it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from starlette.routing import Route

from accord.community.bus import Bus, Guest
from accord.community.errors import Code, CommunityError

PREFIX: Final = "/node/v1"


class Controlled(Protocol):
    """What a node does for its owner."""

    async def status(self) -> Mapping[str, Any]:
        """Who it is, and its communities."""
        ...

    async def found(self, name: str, policy: Mapping[str, Any]) -> Mapping[str, Any]:
        """Found a community."""
        ...

    async def join(self, link: str) -> Mapping[str, Any]:
        """Join by an invite."""
        ...

    async def act(
        self, community_id: str, event_type: str, data: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Write an event."""
        ...

    async def peers(self, community_id: str) -> Mapping[str, Any]:
        """Who was met."""
        ...

    async def sync(self, community_id: str) -> Mapping[str, Any]:
        """Meet everybody now."""
        ...


def control_routes(bus: Bus, node: Controlled) -> Sequence[Route]:
    """The routes of control."""

    def route(
        name: str, method: str, work: Callable[[Guest, Mapping[str, Any]], Awaitable[Any]]
    ) -> Route:
        async def handle(guest: Guest) -> Mapping[str, Any]:
            if not guest.own:
                raise CommunityError(
                    Code.UNAUTHORIZED, "only the node's owner, on its own machine, may ask this"
                )
            body = guest.body if method == "POST" else {}
            if not isinstance(body, dict):
                raise CommunityError(Code.BAD_REQUEST, "expected a JSON object")
            found: Mapping[str, Any] = await work(guest, body)
            return found

        return bus.signed_route(f"{PREFIX}/{name}", handle, methods=[method], strangers=True)

    return (
        route("status", "GET", lambda _guest, _body: node.status()),
        route(
            "found",
            "POST",
            lambda _guest, body: node.found(_text(body, "name"), _object(body, "policy")),
        ),
        route("join", "POST", lambda _guest, body: node.join(_text(body, "link"))),
        route(
            "act",
            "POST",
            lambda guest, body: node.act(
                guest.request.community, _text(body, "event_type"), _object(body, "data")
            ),
        ),
        route("peers", "GET", lambda guest, _body: node.peers(guest.request.community)),
        route("sync", "POST", lambda guest, _body: node.sync(guest.request.community)),
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise CommunityError(Code.BAD_REQUEST, "expected a text", where=f"/{name}")
    return value


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise CommunityError(Code.BAD_REQUEST, "expected an object", where=f"/{name}")
    return value
