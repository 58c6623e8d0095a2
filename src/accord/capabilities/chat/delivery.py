"""Delivery of messages to recipients or anchors, and delivery receipts.

A message is an event of the log, so a node has it after a sync. A receipt
(`chat.message.delivered`) is due for every message to this node that has none in the log, so a
restart neither forgets nor repeats one.
"""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

import structlog

from accord.capabilities.file import node_addresses
from accord.community.client import Client
from accord.community.communities import HostedCommunity
from accord.community.errors import CommunityError
from accord.community.log import LogUpdate
from accord.community.messages import undelivered
from accord.community.node import Node
from accord.community.rules.formats import Level
from accord.community.rules.verdicts import Status
from accord.community.sync import sync_with
from accord.kernel.clock import Clock, format_time
from accord.kernel.errors import AccordError
from accord.storage import StoreError

_log = structlog.stdlib.get_logger(__name__)

# A node that takes longer to answer counts as offline.
_ANSWER_SECONDS: Final = 4.0
# A sync may have to transfer many other events first.
_MEETING_SECONDS: Final = 20.0
_MOST_ANCHORS: Final = 16


class DeliveryState(StrEnum):
    """How far a message has come: section 4.15 of the specification."""

    DIRECT = "direct"
    FORWARDED = "forwarded"
    QUEUED = "queued"


@dataclass(slots=True, eq=False)
class _PendingSync:
    """A sync with one node, and the callers that wait for it."""

    waiting: "list[asyncio.Future[bool]]"
    task: "asyncio.Task[None] | None" = None


class MessageDelivery:
    """Brings messages to their recipients by syncing with them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._pending: dict[tuple[str, str], _PendingSync] = {}

    async def deliver(self, hosted: HostedCommunity, recipient: str) -> DeliveryState:
        """Sync the log with a member, else with anchors, and return how far it came.

        Only another node's disk counts: an anchor does not forward its own message by storing it.
        """
        if recipient == hosted.own_id or await self._reach(hosted, recipient):
            return DeliveryState.DIRECT
        held = await self._reach_any(hosted, await self._anchors(hosted, recipient))
        return DeliveryState.FORWARDED if held else DeliveryState.QUEUED

    async def close(self) -> None:
        """Cancel pending syncs; the node's regular rounds carry the events later."""
        tasks = [each.task for each in self._pending.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _anchors(self, hosted: HostedCommunity, recipient: str) -> list[str]:
        """The other anchors, most recently seen first."""
        anchors = await hosted.log.view(
            lambda state: {
                node_id
                for node_id, member in state.roster.members.items()
                if member.level is Level.ANCHOR
            }
        )
        met = [peer.node_id for peer in self._node.book.peers(hosted.community_id)]
        ordered = dict.fromkeys([*met, *sorted(anchors)])
        return [
            each for each in ordered if each in anchors and each not in (hosted.own_id, recipient)
        ]

    async def _reach_any(self, hosted: HostedCommunity, node_ids: Iterable[str]) -> bool:
        tasks = [
            asyncio.create_task(self._reach(hosted, node_id), name="forward a message")
            for node_id in list(node_ids)[:_MOST_ANCHORS]
        ]
        try:
            for done in asyncio.as_completed(tasks):
                if await done:
                    return True
            return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _reach(self, hosted: HostedCommunity, node_id: str) -> bool:
        """Whether a node has everything that the log held at the time of this call."""
        asked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        key = hosted.community_id, node_id
        if key in self._pending:
            self._pending[key].waiting.append(asked)
        else:
            pending = self._pending[key] = _PendingSync([asked])
            pending.task = asyncio.create_task(self._run(hosted, node_id, pending), name="messages")
        return await asked

    async def _run(self, hosted: HostedCommunity, node_id: str, pending: _PendingSync) -> None:
        """Sync while callers wait; one sync serves all that asked before it began."""
        served: list[asyncio.Future[bool]] = []
        try:
            async with AsyncExitStack() as opened:
                client = await self._dial(hosted, node_id, opened)
                while client is not None and pending.waiting:
                    served, pending.waiting = pending.waiting, []
                    if not await _sync_once(client, hosted):
                        break
                    _set_result(served, reached=True)
        finally:
            del self._pending[hosted.community_id, node_id]
            _set_result([*served, *pending.waiting], reached=False)

    async def _dial(
        self, hosted: HostedCommunity, node_id: str, opened: AsyncExitStack
    ) -> Client | None:
        for address in node_addresses(self._node, hosted, node_id):
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    client, _ = await self._node.dialler.dial(
                        address, hosted.community_id, opened, node_id=node_id
                    )
            except (AccordError, TimeoutError) as error:
                _log.debug("node not reachable", address=address, why=str(error))
                continue
            return client
        return None


async def _sync_once(client: Client, hosted: HostedCommunity) -> bool:
    try:
        async with asyncio.timeout(_MEETING_SECONDS):
            met = await sync_with(client, hosted.holdings)
    except (AccordError, TimeoutError) as error:
        _log.debug("sync failed", node=client.node_id, why=str(error))
        return False
    return met.is_complete


def _set_result(asked: Iterable["asyncio.Future[bool]"], *, reached: bool) -> None:
    for each in asked:
        if not each.done():
            each.set_result(reached)


SENT: Final = "chat.message.sent"
DELIVERED: Final = "chat.message.delivered"

# How often to look for messages that no update announced, as after joining a community.
_SCAN_SECONDS: Final = 1.0
_TOGETHER: Final = 64


class DeliveryReceipts:
    """Writes delivery receipts in all communities of a node."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._changed = asyncio.Event()
        self._due: dict[tuple[str, str], HostedCommunity] = {}
        self._scanned: dict[str, int] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        watched: set[str] = set()
        clock = asyncio.get_running_loop().time
        with ExitStack() as watching:
            while True:
                for community_id, hosted in tuple(self._node.communities.items()):
                    if community_id not in watched:
                        watched.add(community_id)
                        watching.callback(hosted.log.subscribe(partial(self._on_update, hosted)))
                    if hosted.is_member and not hosted.log.is_recovering:
                        await self._scan(hosted)
                await self._write_all()
                next_scan = clock() + _SCAN_SECONDS
                while await self._has_changed(next_scan):
                    await self._write_all()

    async def _scan(self, hosted: HostedCommunity) -> None:
        """Look for messages without a receipt if something was accepted since the last look."""
        count = hosted.state.content.counts[Status.ACCEPTED]
        if self._scanned.get(hosted.community_id) != count:
            self._scanned[hosted.community_id] = count
            found = await hosted.log.store.read(
                lambda c: undelivered(c, hosted.log.number, hosted.own_id)
            )
            self._due |= {(hosted.community_id, event_id): hosted for event_id in found}

    def _on_update(self, hosted: HostedCommunity, update: LogUpdate) -> None:
        for event in update.accepted:
            if event.event_type == SENT and event.data["recipient"] == hosted.own_id:
                self._due[hosted.community_id, event.event_id] = hosted
                self._changed.set()

    async def _has_changed(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def _write_all(self) -> None:
        waiting = [(hosted, event_id) for (_, event_id), hosted in self._due.items()]
        self._due.clear()
        for start in range(0, len(waiting), _TOGETHER):
            some = waiting[start : start + _TOGETHER]
            await asyncio.gather(*(self._write(*each) for each in some))

    async def _write(self, hosted: HostedCommunity, event_id: str) -> None:
        receipt = {"target_event_id": event_id, "delivered_at": format_time(self._clock.now())}
        try:
            await hosted.log.append(DELIVERED, receipt)
        except (CommunityError, StoreError) as error:
            _log.debug("delivery receipt not written", event_id=event_id, why=error.what)
            self._scanned.pop(hosted.community_id, None)
