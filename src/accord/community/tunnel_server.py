"""The anchor's side of tunnels: who holds one, and the streams that callers open to them."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog
from starlette.routing import BaseRoute
from starlette.websockets import WebSocket

from accord.community.bus import AdmittedRequest, Bus
from accord.community.communities import HostedCommunity
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import formats
from accord.community.rules.formats import Level
from accord.community.rules.tunnels import (
    CONNECT,
    HOLD,
    MAX_DATA,
    MEMBERS,
    Pace,
    TunnelLimits,
)
from accord.community.tunnels import (
    MessageSocket,
    Tunnel,
    TunnelClosedError,
    TunnelStream,
    join_ends,
)
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)

# How often it is checked that both ends are members still.
_CHECK_SECONDS: Final = 15.0


class TunnelServer:
    """Carries connections to members that hold a tunnel; only where this node is an anchor."""

    def __init__(
        self,
        own_id: str,
        communities: Mapping[str, HostedCommunity],
        clock: Clock,
        limits: TunnelLimits | None,
    ) -> None:
        self._own_id = own_id
        self._communities = communities
        self._clock = clock
        self._limits = limits
        self._held: dict[tuple[str, str], Tunnel] = {}
        self._callers: Counter[str] = Counter()
        self._paces: dict[str, Pace] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def streams(self) -> int:
        """How many connections pass now."""
        return self._callers.total()

    def routes(self, bus: Bus) -> Sequence[BaseRoute]:
        """The routes of an anchor that relays; none if this node does not."""
        if self._limits is None:
            return ()
        return (
            bus.signed_route(MEMBERS, self._members),
            bus.signed_socket(HOLD, self._hold),
            bus.signed_socket(CONNECT, self._connect),
        )

    async def _members(self, guest: AdmittedRequest) -> Mapping[str, Any]:
        community = self._anchored(guest)
        held = sorted(node for where, node in self._held if where == community.community_id)
        return {"members": held}

    async def _hold(self, guest: AdmittedRequest, socket: WebSocket) -> None:
        limits, community = self._allowed(), self._anchored(guest)
        caller = guest.request.caller
        key = community.community_id, caller
        if key not in self._held and len(self._held) >= limits.members:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                "this anchor carries connections for as many members as it may",
                mend="ask another anchor",
            )
        await socket.accept()
        tunnel = Tunnel(MessageSocket.of_server(socket), limits.streams)
        # A member that lost its connection comes with a new one before the old one is noticed.
        if (previous := self._held.get(key)) is not None:
            previous.replaced.set()
        self._held[key] = tunnel
        _log.info("a member holds a tunnel", node=caller)
        try:
            await join_ends(
                join_ends(tunnel.run(), self._while_members(community, caller)),
                tunnel.replaced.wait(),
            )
        finally:
            if self._held.get(key) is tunnel:
                del self._held[key]

    async def _connect(self, guest: AdmittedRequest, socket: WebSocket) -> None:
        limits, community = self._allowed(), self._anchored(guest)
        caller = guest.request.caller
        target = _target(socket)
        tunnel = self._held.get((community.community_id, target))
        if tunnel is None or community.level_of(target) < Level.MEMBER:
            raise CommunityError(
                Code.NOT_FOUND, "no such member holds a tunnel to this anchor", where=target
            )
        if self._callers[caller] >= limits.streams:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                "this caller has as many connections as it may have",
                mend="close one of them",
            )
        self._callers[caller] += 1
        pace = self._paces.setdefault(caller, Pace(limits.bytes_per_second))
        try:
            stream = await _opened(tunnel, caller, target)
            try:
                await socket.accept()
                passing = _Passage(MessageSocket.of_server(socket), stream, pace, self._clock)
                await join_ends(
                    passing.run(limits.idle_seconds),
                    self._while_members(community, caller, target),
                )
            finally:
                await stream.close()
        finally:
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller], self._paces[caller]

    async def _while_members(self, community: HostedCommunity, *nodes: str) -> None:
        while True:
            if any(community.level_of(node) < Level.MEMBER for node in nodes):
                return
            await asyncio.sleep(_CHECK_SECONDS)

    def _allowed(self) -> TunnelLimits:
        assert self._limits is not None, "without limits there are no routes"
        return self._limits

    def _anchored(self, guest: AdmittedRequest) -> HostedCommunity:
        community = self._communities.get(guest.request.community)
        if community is None or community.level_of(self._own_id) is not Level.ANCHOR:
            raise CommunityError(Code.NOT_FOUND, "this node is no anchor, and relays for nobody")
        return community


class _Passage:
    """The bytes between a caller's WebSocket and a stream."""

    def __init__(
        self, caller: MessageSocket, stream: TunnelStream, pace: Pace, clock: Clock
    ) -> None:
        self._caller = caller
        self._stream = stream
        self._pace = pace
        self._clock = clock
        self._moved = asyncio.Event()

    async def run(self, idle_seconds: float) -> None:
        """Pass bytes on until either side ends, or nothing passes for long."""
        await join_ends(join_ends(self._inward(), self._outward()), self._watch(idle_seconds))

    async def _inward(self) -> None:
        while True:
            data = await self._caller.receive()
            if not isinstance(data, bytes) or len(data) > MAX_DATA:
                return
            await self._count(data)
            await self._stream.write(data)

    async def _outward(self) -> None:
        while data := await self._stream.read():
            await self._count(data)
            await self._caller.send(data)

    async def _count(self, data: bytes) -> None:
        self._moved.set()
        if pause := self._pace.passed(len(data), self._clock.monotonic()):
            await asyncio.sleep(pause)

    async def _watch(self, seconds: float) -> None:
        with suppress(TimeoutError):
            while True:
                self._moved.clear()
                async with asyncio.timeout(seconds):
                    await self._moved.wait()


async def _opened(tunnel: Tunnel, caller: str, target: str) -> TunnelStream:
    try:
        return await tunnel.open(caller)
    except TunnelClosedError:
        raise CommunityError(
            Code.PARTITION, "the member's tunnel has just ended", where=target
        ) from None


def _target(socket: WebSocket) -> str:
    target = socket.query_params.get("to", "")
    if not formats.is_id(target):
        raise bad_request("name the member to connect to", where="/to")
    return target
