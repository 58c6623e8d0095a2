"""Sync over the bus: a session with another node, and the routes that answer one.

Received events are on disk before the next request, so an interrupted session loses nothing. A log
that lacks what others have pruned starts over from a snapshot: membership events are never pruned,
so the log eventually proves who the anchors are, and a snapshot is trusted only for pruned content,
and only if two anchors signed it (one where there is only one).

Members read and write; the holder of an open invite may read and push its own `joined` event.
Section 7.6 of the specification is implemented too.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection
from starlette.routing import Route

from accord.community.bus import AdmittedRequest, Bus
from accord.community.client import Client
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.intake import IntakeReceipt
from accord.community.log import EventLog, LogUpdate
from accord.community.peers import Endpoint, PeerBook
from accord.community.retention import adopt_snapshot, receive_stubs
from accord.community.rules.event import parse_event
from accord.community.rules.formats import Level
from accord.community.rules.reconcile import (
    SALT_BYTES,
    FetchBodies,
    SyncBody,
    SyncIndex,
    SyncInitiator,
    SyncItem,
    SyncReply,
    respond_sync,
)
from accord.community.rules.snapshots import Snapshot, choose_snapshot
from accord.community.rules.state import CommunityState, read_state
from accord.community.snapshots import SNAPSHOT, SnapshotServer, fetch_snapshot, fetch_voucher
from accord.community.store import sync_bodies, sync_items
from accord.kernel import canonical

if TYPE_CHECKING:
    from accord.community.communities import HostedCommunity
    from accord.community.dialler import Dialler

T = TypeVar("T")


class LogHoldings:
    """The reconciliation index of one log, kept up to date."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._index = SyncIndex()
        self._arrived: list[SyncItem] = []
        self._end = log.subscribe(self._take)

    async def load(self) -> None:
        """Read what the log holds already."""
        number = self.log.number
        self._index = await self.log.store.read(lambda c: SyncIndex(sync_items(c, number)))

    def close(self) -> None:
        """Stop following the log."""
        self._end()

    def index(self) -> SyncIndex:
        """A snapshot of the index."""
        self._index.insert(self._arrived)
        self._arrived = []
        return self._index.snapshot()

    async def with_bodies(self, work: Callable[[FetchBodies], T]) -> T:
        """Run a reconciliation step in a thread, with bodies from the store."""

        def run(connection: Connection) -> T:
            def fetch(wanted: Sequence[SyncItem]) -> Iterator[SyncBody | None]:
                return sync_bodies(connection, self.log.number, wanted)

            return work(fetch)

        return await self.log.store.read(run)

    def _take(self, news: LogUpdate) -> None:
        self._arrived += news.arrived


# Replies that are verified and stored while the next one is awaited.
_UNDER_WAY: Final = 2
# Stubs that are written together.
_STUBS: Final = 500

SESSION_SECONDS: Final = 60.0
"""How long all replies of one meeting may take; the next meeting goes on from there."""

ANSWER_SECONDS: Final = 15.0
"""How long the first reply may take: whoever sleeps is not waited for as long as a long sync."""

RECONCILE: Final = "/sync/v1/reconcile"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of a sync session.

    Attributes:
        lacking: Events that the other node has pruned and this log never had.
        is_complete: Whether the logs were equal at the end; False if time ran out.
    """

    received: int = 0
    rejected: int = 0
    lacking: int = 0
    rounds: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    is_complete: bool = True


async def sync_with(
    client: Client, holdings: LogHoldings, *, seconds: float = SESSION_SECONDS
) -> SyncResult:
    """Reconcile with the client's node; `seconds` is one deadline for all replies.

    Raises if the node refuses, is unreachable or breaks the protocol, and `timeout` if nothing new
    arrived in time. What arrived before is stored, and the next session continues from there.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + seconds
    log = holdings.log
    index = holdings.index()
    taking = _Receiver(log, index)
    fetching = _BodyFetcher()
    session = SyncInitiator(index, secrets.token_bytes(SALT_BYTES), fetching)
    sent_bytes = received_bytes = 0
    is_complete = True
    try:
        while (request := await fetching.during(holdings, session.request)) is not None:
            first = now() + ANSWER_SECONDS if not received_bytes else deadline
            try:
                async with asyncio.timeout_at(min(first, deadline)):
                    reply = await client.post_bytes(RECONCILE, request)
            except TimeoutError:
                is_complete = False
                break
            sent_bytes += len(request)
            received_bytes += len(reply)
            await taking.take(await asyncio.to_thread(session.receive, reply))
        await taking.finish()
    finally:
        taking.close()
    if not is_complete and not taking.received:
        raise CommunityError(Code.TIMEOUT, "nothing new arrived in time")
    return SyncResult(
        taking.received,
        taking.rejected,
        taking.lacking,
        session.rounds,
        sent_bytes,
        received_bytes,
        is_complete,
    )


async def take_stubs(log: EventLog, raws: list[bytes]) -> int:
    """Store stubs that a retention floor covers.

    Returns how many are not covered: this log lacks events that others have pruned.
    """
    left = 0
    for start in range(0, len(raws), _STUBS):
        some = raws[start : start + _STUBS]
        try:
            await receive_stubs(log, some)
        except CommunityError:
            # One by one: a stub that no floor covers must not affect the others.
            for raw in some:
                try:
                    await receive_stubs(log, [raw])
                except CommunityError:
                    left += 1
    return left


class _Receiver:
    """Stores what replies bring while the next request is on its way."""

    def __init__(self, log: EventLog, index: SyncIndex) -> None:
        self.received = 0
        self.rejected = 0
        self.lacking = 0
        self._log = log
        self._index = index
        self._arrived: list[SyncItem] = []
        self._stubs: list[bytes] = []
        self._under_way: deque[asyncio.Task[IntakeReceipt]] = deque()
        self._end = log.subscribe(self._note)

    async def take(self, bodies: Sequence[SyncBody]) -> None:
        """Start storing the bodies of a reply; waits only if too many are in progress."""
        self._stubs += (body.raw for body in bodies if body.is_stub)
        raws = [body.raw for body in bodies if not body.is_stub]
        if raws:
            self._under_way.append(asyncio.create_task(self._log.receive(raws)))
        await self._settle(_UNDER_WAY)

    async def finish(self) -> None:
        """Wait until everything is stored, then store the stubs that are covered."""
        await self._settle(0)
        self.lacking = await take_stubs(self._log, self._stubs)

    def close(self) -> None:
        """Stop following the log, which finishes what it has accepted."""
        self._end()
        for task in self._under_way:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _settle(self, most: int) -> None:
        while len(self._under_way) > most:
            receipt = await self._under_way[0]
            self._under_way.popleft()
            self.received += receipt.accepted
            self.rejected += len(receipt.rejected)
        self._index.insert(self._arrived)
        self._arrived = []

    def _note(self, news: LogUpdate) -> None:
        self._arrived += news.arrived


class _BodyFetcher:
    """Fetches bodies for a session over changing connections."""

    def __init__(self) -> None:
        self._fetch: FetchBodies | None = None

    def __call__(self, wanted: Sequence[SyncItem]) -> Iterable[SyncBody | None]:
        assert self._fetch is not None
        return self._fetch(wanted)

    async def during(self, holdings: LogHoldings, step: Callable[[], T]) -> T:
        def work(fetch: FetchBodies) -> T:
            self._fetch = fetch
            return step()

        return await holdings.with_bodies(work)


_JOINED: Final = "community.member.joined"
_MAX_EVENTS: Final = 10_000


async def sync_or_begin(
    hosted: "HostedCommunity", client: Client, dialler: "Dialler"
) -> SyncResult:
    """Sync with a node; if it has pruned events that this log lacks, start over from a snapshot.

    Raises what `sync_with` raises, and `unauthorized` if too few anchors signed a snapshot.
    """
    met = await sync_with(client, hosted.holdings)
    if met.lacking == 0:
        return met
    snapshot = await begin_with_snapshot(hosted, client, dialler)
    if snapshot is None:
        return met
    while not (again := await sync_with(client, hosted.holdings)).is_complete:
        pass  # each such sync brought something new
    await finish_beginning(hosted, snapshot)
    return again


async def begin_with_snapshot(
    hosted: "HostedCommunity", client: Client, dialler: "Dialler"
) -> Snapshot | None:
    """Start a log from a snapshot if the other node has pruned its own; None if not needed.

    Raises `unauthorized` if too few anchors signed one: by this log where this node is a member,
    else by the snapshot itself, which `finish_beginning` checks.
    """
    first = await fetch_snapshot(client, None, folder=hosted.log.folder)
    if first is None:
        return None
    state = await asyncio.to_thread(read_state, first.state)
    if not state.roster.floors:
        return None
    # A member's own log says who the anchors are; in a snapshot anybody could name itself one.
    told = await hosted.log.view(_anchors) if hosted.is_member else _anchors(state)
    anchors = told - {hosted.own_id}
    snapshots = [first]
    for node_id in sorted(anchors - {first.author}):
        if len(snapshots) > 1:
            break
        snapshots += await _ask_anchor(hosted, state, node_id, first, dialler)
    agreed = await asyncio.to_thread(choose_snapshot, snapshots, anchors)
    await adopt_snapshot(hosted.log, agreed, frozenset(anchors))
    return agreed


def _anchors(state: CommunityState) -> set[str]:
    members = state.roster.members.items()
    return {node_id for node_id, member in members if member.level is Level.ANCHOR}


async def finish_beginning(hosted: "HostedCommunity", snapshot: Snapshot) -> None:
    """Fold the log after a snapshot start; raises `unauthorized` if the signer was no anchor."""
    await hosted.log.refold()
    if hosted.level_of(snapshot.author) is not Level.ANCHOR:
        raise CommunityError(
            Code.UNAUTHORIZED,
            "the snapshot that this log began with was not signed by an anchor",
            where=snapshot.author,
            mend="remove the community's log and join through another node",
        )


async def _ask_anchor(
    hosted: "HostedCommunity",
    state: CommunityState,
    node_id: str,
    first: Snapshot,
    dialler: "Dialler",
) -> list[Snapshot]:
    manifest = state.content.manifests.get(node_id)
    for endpoint in manifest.endpoints if manifest is not None else ():
        try:
            async with AsyncExitStack() as opened:
                address = Endpoint(*endpoint).url
                client, _ = await dialler.dial(
                    address, hosted.community_id, opened, node_id=node_id
                )
                found = await fetch_voucher(client, first)
        except CommunityError:
            continue  # another endpoint or another anchor may answer
        if found is not None:
            return [found]
    return []


def sync_routes(
    bus: Bus, communities: Mapping[str, "HostedCommunity"], book: PeerBook
) -> Sequence[Route]:
    """The HTTP routes of sync; `book` learns who calls."""
    answering = _SyncServer(communities, book)

    def route(path: str, method: str, *, opaque: bool = False) -> Route:
        handler = answering.handlers[path]
        return bus.signed_route(path, handler, methods=[method], opaque=opaque, strangers=True)

    return (
        route("/sync/v1/heads", "GET"),
        route("/sync/v1/events", "POST"),
        route(RECONCILE, "POST", opaque=True),
        route(SNAPSHOT, "POST"),
    )


class _SyncServer:
    def __init__(self, communities: Mapping[str, "HostedCommunity"], book: PeerBook) -> None:
        self._communities = communities
        self._book = book
        self._snapshots = SnapshotServer()
        self.handlers: dict[
            str, Callable[[AdmittedRequest], Awaitable[Mapping[str, Any] | bytes]]
        ] = {
            "/sync/v1/heads": self._heads,
            "/sync/v1/events": self._events,
            RECONCILE: self._reconcile,
            SNAPSHOT: self._snapshot,
        }

    async def _heads(self, guest: AdmittedRequest) -> Mapping[str, Any]:
        caller = guest.request.caller
        await self._admit(guest)
        return {
            community_id: each.holdings.log.head_lamport
            for community_id, each in sorted(self._communities.items())
            if each.level_of(caller) >= Level.MEMBER
        }

    async def _events(self, guest: AdmittedRequest) -> Mapping[str, Any]:
        community = await self._admit(guest)
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

    async def _reconcile(self, guest: AdmittedRequest) -> bytes:
        community = await self._admit(guest)
        holdings = community.holdings
        index = holdings.index()
        raw = guest.body if isinstance(guest.body, bytes) else b""

        def work(fetch: FetchBodies) -> SyncReply:
            return respond_sync(index, raw, fetch)

        answer = await holdings.with_bodies(work)
        await self._take(community, guest, holdings.log, answer.received)
        return answer.reply

    async def _take(
        self,
        community: "HostedCommunity",
        guest: AdmittedRequest,
        log: EventLog,
        bodies: Sequence[SyncBody],
    ) -> None:
        raws = [body.raw for body in bodies if not body.is_stub]
        stubs = [body.raw for body in bodies if body.is_stub]
        _check_pushed(community, guest, [*raws, *stubs])
        await log.receive(raws)
        await take_stubs(log, stubs)

    async def _snapshot(self, guest: AdmittedRequest) -> Mapping[str, Any]:
        log = (await self._admit(guest)).holdings.log
        return await self._snapshots.answer(log, guest.body)

    async def _admit(self, guest: AdmittedRequest) -> "HostedCommunity":
        caller = guest.request.caller
        community = self._communities.get(guest.request.community)
        if community is None:
            raise CommunityError(Code.NOT_FOUND, "this node is not in that community")
        if community.is_revoked(caller):
            raise CommunityError(Code.REVOKED, "the caller was revoked")
        if community.level_of(caller) < Level.MEMBER:
            if not community.is_invited(caller):
                raise CommunityError(
                    Code.UNAUTHORIZED,
                    "the caller is no member, and not invited",
                    mend="ask a member for an invite",
                )
            await community.witness(caller)
        self._book.heard(community.community_id, caller, now=community.log.clock.now())
        return community


def _raws(body: Any) -> list[bytes]:
    events = body.get("events") if isinstance(body, dict) else None
    if not isinstance(events, list) or len(events) > _MAX_EVENTS:
        raise bad_request(f"expected at most {_MAX_EVENTS} events", where="/events")
    return [canonical.encode(event) for event in events]


def _check_pushed(
    community: "HostedCommunity", guest: AdmittedRequest, raws: Sequence[bytes]
) -> None:
    """Allow an invitee to push its own `joined` event and nothing else."""
    caller = guest.request.caller
    if community.level_of(caller) >= Level.MEMBER:
        return
    for raw in raws:
        event = parse_event(raw)
        if event.author != caller or event.event_type != _JOINED:
            raise CommunityError(
                Code.UNAUTHORIZED, "an invited node may push only its own joined event"
            )
