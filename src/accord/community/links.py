"""Open connections to other members, and how fresh what they say of themselves is."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from accord.community.client import Client
from accord.community.communities import HostedCommunity
from accord.community.dialler import Dialler, addresses_of
from accord.community.errors import Code, CommunityError
from accord.community.peers import PeerBook
from accord.community.rules.formats import Level
from accord.community.rules.routing import FRESH_SECONDS, UNSENT
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)

_AT_ONCE: Final = 16
_MOST_LOOKS: Final = 32
_LOOK_AGAIN_SECONDS: Final = 10.0
_MOST_ADDRESSES: Final = 4
_REACH_SECONDS: Final = 15.0


@dataclass(eq=False, slots=True)
class _Link:
    client: Client
    opened: AsyncExitStack
    users: int = 0
    is_closing: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class NodeLinks:
    """Connections of one node to others; at most `most` stay open while nobody uses them."""

    own_id: str
    dialler: Dialler
    book: PeerBook
    communities: Mapping[str, HostedCommunity]
    clock: Clock
    most: int
    _links: dict[tuple[str, str], _Link] = field(default_factory=dict, init=False)
    _lost: dict[tuple[str, str], float] = field(default_factory=dict, init=False)
    _looked: dict[tuple[str, str], float] = field(default_factory=dict, init=False)
    _looking: dict[tuple[str, str], asyncio.Task[None]] = field(default_factory=dict, init=False)
    _places: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_AT_ONCE), init=False
    )

    @asynccontextmanager
    async def client(self, community_id: str, node_id: str) -> AsyncIterator[Client]:
        """Yield a client of a node; `partition` if it cannot be reached."""
        key = community_id, node_id
        link = self._links.get(key)
        if link is None:
            try:
                async with asyncio.timeout(_REACH_SECONDS):
                    link = await self._open(key)
            except TimeoutError:
                raise CommunityError(
                    Code.PARTITION,
                    f"the node was not reached within {_REACH_SECONDS:g} seconds",
                    details={UNSENT: True},
                ) from None
        link.users += 1
        try:
            yield link.client
        finally:
            link.users -= 1
            await self._close_idle()
            if link.is_closing and not link.users:
                await link.opened.aclose()

    def is_lost(self, community_id: str, node_id: str) -> bool:
        """Whether a node could not be reached since its last manifest."""
        lost = self._lost.get((community_id, node_id))
        peer = self.book.peer(community_id, node_id)
        return lost is not None and (peer is None or peer.seen <= lost)

    def lose(self, community_id: str, node_id: str) -> None:
        """Call a node no more until it shows a new manifest."""
        key = community_id, node_id
        self._lost.pop(key, None)
        self._lost[key] = self.clock.now()
        self._looked[key] = self.clock.monotonic()
        while len(self._lost) > self.most * 4:
            del self._lost[next(iter(self._lost))]
        self._drop(key)

    async def look(self, hosted: HostedCommunity, seconds: float) -> None:
        """Fetch the manifests of members that were not met lately, for at most `seconds`.

        What takes longer goes on in the background.
        """
        now, moment = self.clock.now(), self.clock.monotonic()
        community_id = hosted.community_id
        begun = []
        for node_id in tuple(hosted.state.roster.members):
            key = community_id, node_id
            peer = self.book.peer(community_id, node_id)
            is_fresh = (
                peer is not None
                and now - peer.seen <= FRESH_SECONDS / 2
                and not self.is_lost(community_id, node_id)
            )
            if node_id == self.own_id or is_fresh:
                continue
            if key in self._looking:
                begun.append(self._looking[key])
            elif (
                moment - self._looked.get(key, -_LOOK_AGAIN_SECONDS) >= _LOOK_AGAIN_SECONDS
                and len(self._looking) < _MOST_LOOKS
            ):
                self._looked[key] = moment
                task = asyncio.create_task(self._look_at(hosted, node_id), name="look at a node")
                self._looking[key] = task
                task.add_done_callback(partial(self._looked_at, key))
                begun.append(task)
        if len(self._looked) > self.most * 16:
            self._looked.clear()
        if begun and seconds > 0:
            await asyncio.wait(begun, timeout=seconds)

    async def aclose(self) -> None:
        """Close every connection."""
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            await link.opened.aclose()

    def _looked_at(self, key: tuple[str, str], _task: "asyncio.Task[None]") -> None:
        self._looking.pop(key, None)

    async def _look_at(self, hosted: HostedCommunity, node_id: str) -> None:
        key = hosted.community_id, node_id
        async with self._places:
            try:
                made = await self._open(key)
            except CommunityError as error:
                _log.debug("a member cannot be reached", node=node_id, why=error.what)
                return
        await self._close_idle()
        if made.is_closing and not made.users:
            await made.opened.aclose()

    async def _open(self, key: tuple[str, str]) -> _Link:
        """Dial a node, and put its manifest into the book."""
        community_id, node_id = key
        failure = CommunityError(Code.PARTITION, "the node has no known address")
        for address in self._addresses(community_id, node_id):
            opened = AsyncExitStack()
            try:
                client, manifest = await self.dialler.dial(
                    address, community_id, opened, node_id=node_id
                )
                hosted = self.communities[community_id]
                is_member = hosted.level_of(node_id) >= Level.MEMBER
                known = self.book.peer(community_id, node_id)
                if known is None or known.manifest != manifest or known.failures:
                    self.book.admit(manifest, community_id, is_member=is_member, now=self._now())
            except CommunityError as error:
                await opened.aclose()
                failure = error
                continue
            except BaseException:
                await opened.aclose()
                raise
            self._drop(key)
            self._lost.pop(key, None)
            link = self._links[key] = _Link(client, opened)
            return link
        # Nothing was sent, whatever went wrong.
        raise CommunityError(
            Code.PARTITION,
            f"the node cannot be reached: {failure.what}",
            where=failure.where,
            mend=failure.mend,
            details={UNSENT: True},
        )

    def _now(self) -> float:
        return self.clock.now()

    def _addresses(self, community_id: str, node_id: str) -> list[str]:
        hosted = self.communities.get(community_id)
        if hosted is None:
            return []
        found = addresses_of(self.dialler, self.book, hosted, node_id, now=self._now())
        return found[:_MOST_ADDRESSES]

    def _drop(self, key: tuple[str, str]) -> None:
        """Give up a link; its last user closes it."""
        link = self._links.pop(key, None)
        if link is not None:
            link.is_closing = True
            if not link.users:
                # Closing sends nothing, and nobody waits for it.
                task = asyncio.create_task(link.opened.aclose(), name="close a link")
                _closing.add(task)
                task.add_done_callback(_closing.discard)

    async def _close_idle(self) -> None:
        while len(self._links) > self.most:
            idle = next((key for key, link in self._links.items() if not link.users), None)
            if idle is None:
                return
            await self._links.pop(idle).opened.aclose()


_closing: set["asyncio.Task[None]"] = set()
