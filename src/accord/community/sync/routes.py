"""What a node answers those who sync with it.

Section 7.6 of the specification for those who know no better, and reconciliation for our own kind.
Owns who may do what: members read and write, whoever holds a standing invite may read and push its
own `joined`, nobody else anything. Events are on disk before they are acknowledged.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from starlette.routing import Route

from accord.community.bus import Bus, Guest
from accord.community.envelope import parse
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.community.fold.vouching import MAX_BYTES as MAX_SNAPSHOT
from accord.community.log import Log
from accord.community.log.upkeep import offered
from accord.community.reconcile import Body, Fetch, respond
from accord.community.reconcile.session import Answer
from accord.community.sync.holdings import Holdings
from accord.community.sync.meeting import RECONCILE, SNAPSHOT, take_stubs
from accord.kernel import canonical

_JOINED: Final = "community.member.joined"
_MAX_EVENTS: Final = 10_000


class Admission(Protocol):
    """What the routes ask about a community of the node's."""

    @property
    def holdings(self) -> Holdings:
        """What its log holds."""
        ...

    def level_of(self, node_id: str) -> Level:
        """How far it trusts a node."""
        ...

    def is_revoked(self, node_id: str) -> bool:
        """Whether it revoked a node."""
        ...

    def is_invited(self, node_id: str) -> bool:
        """Whether an invite for a node stands."""
        ...


def sync_routes(bus: Bus, communities: Mapping[str, Admission]) -> Sequence[Route]:
    """The routes of sync."""
    answering = _Answering(communities)

    def route(path: str, method: str, *, opaque: bool = False) -> Route:
        handler = answering.handlers[path]
        return bus.signed_route(path, handler, methods=[method], opaque=opaque, strangers=True)

    return (
        route("/sync/v1/heads", "GET"),
        route("/sync/v1/events", "POST"),
        route(RECONCILE, "POST", opaque=True),
        route(SNAPSHOT, "POST"),
    )


class _Answering:
    def __init__(self, communities: Mapping[str, Admission]) -> None:
        self._communities = communities
        self.handlers: dict[str, Callable[[Guest], Awaitable[Mapping[str, Any] | bytes]]] = {
            "/sync/v1/heads": self._heads,
            "/sync/v1/events": self._events,
            RECONCILE: self._reconcile,
            SNAPSHOT: self._snapshot,
        }

    async def _heads(self, guest: Guest) -> Mapping[str, Any]:
        caller = guest.request.caller
        self._admit(guest)
        return {
            community_id: each.holdings.log.head_lamport
            for community_id, each in sorted(self._communities.items())
            if each.level_of(caller) >= Level.MEMBER
        }

    async def _events(self, guest: Guest) -> Mapping[str, Any]:
        community = self._admit(guest)
        log = community.holdings.log
        raws = _raws(guest.body)
        _check_pushed(community, guest, raws)
        receipt = await log.receive(raws)
        return {
            "accepted": receipt.accepted,
            "duplicates": receipt.duplicates,
            "rejected": len(receipt.rejected),
            "rejected_reasons": [
                {"index": each.index, "error": each.code.value, "message": each.reason}
                for each in receipt.rejected
            ],
            "new_head_lamport": log.head_lamport,
        }

    async def _reconcile(self, guest: Guest) -> bytes:
        community = self._admit(guest)
        holdings = community.holdings
        index = holdings.index()
        raw = guest.body if isinstance(guest.body, bytes) else b""

        def work(fetch: Fetch) -> Answer:
            return respond(index, raw, fetch)

        answer = await holdings.with_bodies(work)
        await self._take(community, guest, holdings.log, answer.received)
        return answer.reply

    async def _take(
        self, community: Admission, guest: Guest, log: Log, bodies: Sequence[Body]
    ) -> None:
        raws = [body.raw for body in bodies if not body.is_stub]
        stubs = [body.raw for body in bodies if body.is_stub]
        _check_pushed(community, guest, [*raws, *stubs])
        await log.receive(raws)
        await take_stubs(log, stubs)

    async def _snapshot(self, guest: Guest) -> Mapping[str, Any]:
        log = self._admit(guest).holdings.log
        lamport = guest.body.get("lamport") if isinstance(guest.body, dict) else None
        snapshot = await offered(log, lamport if isinstance(lamport, int) else None)
        if snapshot is None:
            raise CommunityError(Code.NOT_FOUND, "this node has signed no such snapshot")
        told: dict[str, Any] = canonical.decode(snapshot.encode(), max_bytes=MAX_SNAPSHOT)
        return told

    def _admit(self, guest: Guest) -> Admission:
        caller = guest.request.caller
        community = self._communities.get(guest.request.community)
        if community is None:
            raise CommunityError(Code.NOT_FOUND, "this node is not in that community")
        if community.is_revoked(caller):
            raise CommunityError(Code.REVOKED, "the caller was revoked")
        if community.level_of(caller) < Level.MEMBER and not community.is_invited(caller):
            raise CommunityError(
                Code.UNAUTHORIZED,
                "the caller is no member, and not invited",
                mend="ask a member for an invite",
            )
        return community


def _raws(body: Any) -> list[bytes]:
    events = body.get("events") if isinstance(body, dict) else None
    if not isinstance(events, list) or len(events) > _MAX_EVENTS:
        raise CommunityError(
            Code.BAD_REQUEST, f"expected at most {_MAX_EVENTS} events", where="/events"
        )
    return [canonical.encode(event) for event in events]


def _check_pushed(community: Admission, guest: Guest, raws: Sequence[bytes]) -> None:
    """Let an invitee push its own `joined` and nothing else."""
    caller = guest.request.caller
    if community.level_of(caller) >= Level.MEMBER:
        return
    for raw in raws:
        event = parse(raw)
        if event.author != caller or event.event_type != _JOINED:
            raise CommunityError(
                Code.UNAUTHORIZED, "whoever is invited may push its own joining and nothing else"
            )
