"""What the node's owner asks of it: found, join, act, look, and long work.

Only the node's own key, from this machine, is heard here; the command line and the console use it.
Owns the routes and the forms of what is asked; what is done stands elsewhere.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from starlette.routing import Route

from accord.community.bus import Bus, Guest
from accord.community.envelope import forms
from accord.community.errors import Code, CommunityError
from accord.community.node import reading
from accord.community.node.hosted import Hosted
from accord.community.node.working import Working

PREFIX: Final = "/node/v1"
_MAX_COUNT: Final = 2**53 - 1


class Controlled(Protocol):
    """What a node does for its owner."""

    @property
    def working(self) -> Working:
        """Its long work."""
        ...

    def community(self, community_id: str) -> Hosted:
        """A community that it is in."""
        ...

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

    async def act(guest: Guest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await node.act(
            guest.request.community, _text(body, "event_type"), _object(body, "data")
        )

    async def show(guest: Guest, _body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await reading.community(node.community(guest.request.community))

    async def members(guest: Guest, _body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"members": await reading.members(node.community(guest.request.community))}

    async def chain(guest: Guest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        hosted = node.community(guest.request.community)
        seq = _count(body, "seq", _MAX_COUNT) if "seq" in body else None
        return await reading.chain(hosted, _id(body, "node_id"), seq)

    async def log(guest: Guest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        found = await reading.entries(
            node.community(guest.request.community),
            limit=_count(body, "limit", reading.MAX_ENTRIES),
            author=_id(body, "author") if "author" in body else None,
            event_type=_text(body, "event_type") if "event_type" in body else None,
            refused=body.get("refused") is True,
        )
        return {"entries": found}

    async def event(guest: Guest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        hosted = node.community(guest.request.community)
        return {"events": await reading.named(hosted, _text(body, "name"))}

    async def files(guest: Guest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        hosted = node.community(guest.request.community)
        return {"files": await reading.files(hosted, _texts(body, "cids"))}

    async def work(guest: Guest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        path = _text(body, "path") if "path" in body else ""
        return await node.working.ask(guest.request.community, _text(body, "kind"), path)

    return (
        route("status", "GET", lambda _guest, _body: node.status()),
        route(
            "found",
            "POST",
            lambda _guest, body: node.found(_text(body, "name"), _object(body, "policy")),
        ),
        route("join", "POST", lambda _guest, body: node.join(_text(body, "link"))),
        route("act", "POST", act),
        route("peers", "GET", lambda guest, _body: node.peers(guest.request.community)),
        route("sync", "POST", lambda guest, _body: node.sync(guest.request.community)),
        route("community", "GET", show),
        route("members", "GET", members),
        route("chain", "POST", chain),
        route("log", "POST", log),
        route("event", "POST", event),
        route("files", "POST", files),
        route("work", "POST", work),
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise CommunityError(Code.BAD_REQUEST, "expected a text", where=f"/{name}")
    return value


def _texts(body: Mapping[str, Any], name: str) -> list[str]:
    value = body.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise CommunityError(Code.BAD_REQUEST, "expected a list of texts", where=f"/{name}")
    return value


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise CommunityError(Code.BAD_REQUEST, "expected an object", where=f"/{name}")
    return value


def _id(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not forms.is_id(value):
        raise CommunityError(Code.BAD_REQUEST, "expected the full id of a node", where=f"/{name}")
    return str(value)


def _count(body: Mapping[str, Any], name: str, most: int) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise CommunityError(
            Code.BAD_REQUEST, f"expected a whole number from 0 to {most}", where=f"/{name}"
        )
    return value
