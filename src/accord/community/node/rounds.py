"""What a node does by itself, again and again: meet others, stay fresh, keep its logs in order.

Owns the rhythm. Every wait is spread by chance, so that nodes started together do not stay in
step; a new event cuts the wait short, so that it travels at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from random import Random
from typing import Final

import structlog

from accord.community.bus import Topics
from accord.community.discovery import Endpoint, PeerBook
from accord.community.envelope.manifests import REPUBLISH_SECONDS
from accord.community.envelope.names import Level
from accord.community.errors import CommunityError
from accord.community.log import News
from accord.community.log.upkeep import maintain
from accord.community.node.beginning import meet_from
from accord.community.node.dialing import Dialler
from accord.community.node.figures import Meetings
from accord.community.node.hosted import Hosted
from accord.community.node.presence import Presence
from accord.community.node.settings import NodeSettings
from accord.community.sync import Met
from accord.kernel.clock import Clock
from accord.storage import StoreError

_log = structlog.stdlib.get_logger(__name__)

_UPKEEP_SECONDS: Final = 60.0
# Events that come close together travel together.
_GATHER_SECONDS: Final = 0.05
_AT_ONCE: Final = 4


class Rounds:
    """The background work of one node.

    Attributes:
        meetings: How meetings went, for the figures.
    """

    def __init__(
        self,
        own_id: str,
        communities: Mapping[str, Hosted],
        *,
        book: PeerBook,
        dialler: Dialler,
        presence: Presence,
        topics: Topics,
        log_manifest: Callable[[Hosted], Awaitable[None]],
        settings: NodeSettings,
        clock: Clock,
        chance: Random,
    ) -> None:
        self._own_id = own_id
        self._communities = communities
        self._book = book
        self._dialler = dialler
        self._presence = presence
        self._topics = topics
        self._log_manifest = log_manifest
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._news = asyncio.Event()
        self.meetings = Meetings()

    def notice(self, _news: News) -> None:
        """Something is new in a log: others should have it."""
        self._news.set()

    async def run(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(self._meet_all, self._settings.sync_seconds, self._news))
            group.create_task(self._again(self._publish, REPUBLISH_SECONDS))
            group.create_task(self._again(self._maintain, _UPKEEP_SECONDS))

    async def _again(
        self,
        work: Callable[[], Awaitable[None]],
        seconds: float,
        early: asyncio.Event | None = None,
    ) -> None:
        while True:
            await work()
            # The manifest must not grow old: waits are shortened by chance, never lengthened.
            wait = seconds * (1 - self._chance.random() / 4)
            if early is None:
                await asyncio.sleep(wait)
                continue
            try:
                async with asyncio.timeout(wait):
                    await early.wait()
                await asyncio.sleep(_GATHER_SECONDS)
            except TimeoutError:
                pass
            early.clear()

    async def _meet_all(self) -> None:
        for hosted in tuple(self._communities.values()):
            if hosted.state.is_founded:
                await self.meet(hosted)

    async def meet(self, hosted: Hosted) -> dict[str, Met | CommunityError]:
        """Meet every node of a community that can be reached now."""
        outcomes: dict[str, Met | CommunityError] = {}
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(address: str, node_id: str | None) -> None:
            async with limit:
                outcomes[node_id or address] = await self._meet_one(hosted, address, node_id)

        targets = await self._targets(hosted)
        async with asyncio.TaskGroup() as group:
            for address, node_id in targets:
                group.create_task(one(address, node_id))
        return outcomes

    async def _targets(self, hosted: Hosted) -> list[tuple[str, str | None]]:
        now = self._clock.now()
        known = {
            endpoint.url: peer.node_id
            for peer in self._book.peers(hosted.community_id)
            for endpoint in peer.endpoints
        }
        targets: dict[str, str | None] = {
            peer.endpoints[0].url: peer.node_id
            for peer in self._book.due(hosted.community_id, now=now)
            if peer.endpoints
        }
        logged = await hosted.log.view(lambda state: dict(state.content.manifests))
        for node_id, manifest in logged.items():
            peer = self._book.peer(hosted.community_id, node_id)
            if node_id == self._own_id or not manifest.endpoints:
                continue
            url = Endpoint(*manifest.endpoints[0]).url
            # Not met since this node started, or gone from where it was met: the log tells more.
            if peer is None or (peer.failures and url not in known):
                targets.setdefault(url, node_id)
        for hint in self._book.hints(now=now):
            if hint.endpoint.url not in known:
                targets.setdefault(hint.endpoint.url, hint.node_id)
        for address in self._settings.peers:
            if address.rstrip("/") not in known:
                targets.setdefault(address.rstrip("/"), None)
        return sorted(targets.items())

    async def _meet_one(
        self, hosted: Hosted, address: str, node_id: str | None
    ) -> Met | CommunityError:
        community_id = hosted.community_id
        try:
            async with AsyncExitStack() as opened:
                client, manifest = await self._dialler.dial(
                    address, community_id, opened, node_id=node_id
                )
                is_member = hosted.level_of(client.node_id) >= Level.MEMBER
                self._book.admit(manifest, community_id, is_member=is_member, now=self._clock.now())
                if not is_member:
                    return Met()
                met = await meet_from(hosted, client, self._dialler)
        except CommunityError as error:
            if node_id is not None:
                self._book.failed(community_id, node_id, now=self._clock.now())
            self.meetings.failed(community_id)
            _log.debug("a meeting failed", address=address, code=error.code.value, why=error.what)
            return error
        await hosted.log.recovered()
        self.meetings.met(community_id, client.node_id, met)
        if met.received or met.rejected:
            _log.info(
                "met a node", node=client.node_id, received=met.received, rejected=met.rejected
            )
        return met

    async def _publish(self) -> None:
        for hosted in tuple(self._communities.values()):
            if not hosted.is_member:
                continue
            await self._log_manifest(hosted)
            manifest = self._presence.manifest(hosted)
            self._topics.publish("node.manifest.updated", manifest, community=hosted.community_id)

    async def _maintain(self) -> None:
        for hosted in tuple(self._communities.values()):
            try:
                await maintain(hosted.log)
            except (CommunityError, StoreError) as error:
                _log.warning("upkeep failed", community=hosted.community_id, why=str(error))
