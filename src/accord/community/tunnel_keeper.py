"""The member's side of tunnels: it asks which anchors relay, and holds a tunnel to some of them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import structlog
from blake3 import blake3

from accord.community.communities import HostedCommunity
from accord.community.dialler import Links
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.peers import OwnManifests, known_urls
from accord.community.relays import RelayDialler, RelayRecord, RelayTable
from accord.community.rules import formats
from accord.community.rules.formats import Level
from accord.community.rules.gossip import order_addresses
from accord.community.rules.tunnels import HOLD, MAX_DATA, MEMBERS, retry_pause
from accord.community.tunnels import (
    MessageSocket,
    Tunnel,
    TunnelClosedError,
    TunnelStream,
    join_ends,
)
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)

MAX_HELD: Final = 2
"""How many anchors of a community a member holds a tunnel to."""

_LOOK_SECONDS: Final = 20.0
# How long an anchor that does not relay is not asked again.
_NO_RELAY_SECONDS: Final = 600.0
_MAX_ASKED: Final = 8
_MAX_LISTED: Final = 10_000
_MAX_STREAMS: Final = 256
# A tunnel that lived so long was a good one.
_LASTED_SECONDS: Final = 60.0


@dataclass(kw_only=True, eq=False, slots=True)
class TunnelKeeper:
    """Keeps the table of relays up to date, and this node's own tunnels open.

    Attributes:
        holds: Whether this node lets anchors relay for it.
        accept: Serves a connected socket as if it had come to the node's port; None while it does
            not listen.
    """

    own_id: str
    communities: Mapping[str, HostedCommunity]
    links: Links
    table: RelayTable
    dialler: RelayDialler
    presence: OwnManifests
    clock: Clock
    chance: Random
    holds: bool
    accept: Callable[[socket.socket], Awaitable[None]] | None = None
    _tasks: dict[tuple[str, str], "asyncio.Task[None]"] = field(default_factory=dict, init=False)
    _open: set[tuple[str, str]] = field(default_factory=set, init=False)
    _not_before: dict[tuple[str, str], float] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._open)

    def held(self, community_id: str) -> list[str]:
        """The anchors to which a tunnel is open."""
        return sorted(anchor for where, anchor in self._open if where == community_id)

    async def run(self) -> None:
        """Look around and hold tunnels until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(_LOOK_SECONDS * (1 - self.chance.random() / 4))
        finally:
            await self.close()

    async def look(self) -> None:
        """Ask the anchors of every community, and hold tunnels to some that relay."""
        asked = []
        for hosted in tuple(self.communities.values()):
            if hosted.is_member:
                asked += [self._ask(hosted, anchor) for anchor in self._anchors(hosted)]
        await asyncio.gather(*asked)
        wanted = self._wanted()
        for key in [each for each in self._tasks if each not in wanted]:
            self._tasks.pop(key).cancel()
        for key in wanted:
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._hold(*key), name="tunnel")

    async def close(self) -> None:
        """Close the tunnels."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _anchors(self, hosted: HostedCommunity) -> list[str]:
        """Anchors to ask now: the same few each time, others for other nodes."""
        now = self.clock.monotonic()
        found = [
            node
            for node, member in hosted.state.roster.members.items()
            if member.level is Level.ANCHOR
            and node != self.own_id
            and self._not_before.get((hosted.community_id, node), now) <= now
        ]
        return sorted(found, key=self._rank)[:_MAX_ASKED]

    def _rank(self, anchor: str) -> bytes:
        return blake3(f"{self.own_id} {anchor}".encode()).digest(length=8)

    async def _ask(self, hosted: HostedCommunity, anchor: str) -> None:
        community_id, book = hosted.community_id, self.links.book
        urls = dict.fromkeys(self.links.open_to(community_id, anchor))
        urls |= dict.fromkeys(known_urls(book, hosted, anchor))
        records = [book.address(community_id, url) for url in urls]
        addresses = order_addresses(records, now=self.clock.now())
        try:
            async with self.links.reach(community_id, addresses, anchor) as link:
                try:
                    answer = await link.client.get(MEMBERS)
                except CommunityError as error:
                    # It answers, so the link is good.
                    if error.code is Code.PARTITION:
                        raise
                    self.table.forget(community_id, anchor)
                    now = self.clock.monotonic()
                    self._not_before[community_id, anchor] = now + _NO_RELAY_SECONDS
                    return
                if link.way is None:
                    return
                self.table.learn(community_id, anchor, link.way, read_members(answer))
        except (CommunityError, TimeoutError) as error:
            _log.debug("an anchor was not asked whom it relays for", anchor=anchor, why=str(error))

    def _wanted(self) -> set[tuple[str, str]]:
        is_ready = self.holds and self.accept is not None
        if not is_ready or not any(each.certificate for each in self.presence.endpoints):
            return set()
        wanted = set()
        for community_id, hosted in self.communities.items():
            if hosted.is_member:
                anchors = sorted(self.table.anchors(community_id), key=self._rank)
                wanted |= {(community_id, anchor) for anchor in anchors[:MAX_HELD]}
        return wanted

    async def _hold(self, community_id: str, anchor: str) -> None:
        failures = 0
        while (record := self.table.get(community_id, anchor)) is not None:
            began = self.clock.monotonic()
            try:
                await self._hold_once(record, community_id, anchor)
            except CommunityError as error:
                _log.debug("a tunnel failed", anchor=anchor, code=error.code.value, why=error.what)
            lasted = self.clock.monotonic() - began
            failures = 1 if lasted >= _LASTED_SECONDS else failures + 1
            await asyncio.sleep(retry_pause(failures) * (1 - self.chance.random() / 4))
        self._tasks.pop((community_id, anchor), None)

    async def _hold_once(self, record: RelayRecord, community_id: str, anchor: str) -> None:
        key = community_id, anchor
        async with self.dialler.socket(record.way, community_id, anchor, HOLD) as connection:
            self._open.add(key)
            try:
                _log.info("this node can be reached through an anchor", anchor=anchor)
                await Tunnel(MessageSocket.of_client(connection), _MAX_STREAMS, self._serve).run()
            finally:
                self._open.discard(key)

    async def _serve(self, stream: TunnelStream) -> None:
        """Let the node's own server answer a relayed connection."""
        if self.accept is None:
            return
        ours, theirs = socket.socketpair()
        serving = asyncio.ensure_future(self.accept(theirs))
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                await join_ends(_inward(stream, writer), _outward(reader, stream))
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
        except OSError as error:
            _log.debug("a relayed connection failed", why=str(error))
        finally:
            # Without TLS by now, it ends with the socket that was just closed.
            await asyncio.gather(serving, return_exceptions=True)


def read_members(answer: Any) -> list[str]:
    """The members in an anchor's answer; raises `bad_request`."""
    listed = answer.get("members") if isinstance(answer, dict) else None
    if not isinstance(listed, list) or len(listed) > _MAX_LISTED:
        raise bad_request("this is no list of members")
    return [each for each in listed if isinstance(each, str) and formats.is_id(each)]


async def _inward(stream: TunnelStream, writer: asyncio.StreamWriter) -> None:
    while data := await stream.read():
        writer.write(data)
        await writer.drain()


async def _outward(reader: asyncio.StreamReader, stream: TunnelStream) -> None:
    with suppress(TunnelClosedError):
        while data := await reader.read(MAX_DATA):
            await stream.write(data)
