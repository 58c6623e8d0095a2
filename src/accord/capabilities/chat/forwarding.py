"""Bringing a message on its way: to its recipient, else to anchors that hold it for them.

A message is an event of the log, so to give a node a message is to meet it: afterwards it has, on
its disk, everything that the log held before. An anchor that took it passes it on whenever it meets
the recipient, who may come back when the sender is long away. What nobody took stays in this node's
log and travels with its rounds.
"""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import structlog

from accord.community.client import Client
from accord.community.discovery import Endpoint
from accord.community.envelope.names import Level
from accord.community.node import Hosted, Node
from accord.community.sync import meet
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

# For how long a node may stay silent before it counts as away.
_ANSWER_SECONDS: Final = 4.0
# One that answers may have missed much else that comes first.
_MEETING_SECONDS: Final = 20.0
_MOST_ANCHORS: Final = 16


class Way(StrEnum):
    """How far a message has come: section 4.15 of the specification."""

    DIRECT = "direct"
    FORWARDED = "forwarded"
    QUEUED = "queued"


@dataclass(slots=True, eq=False)
class _Errand:
    """The way to one node, and those who wait to hear whether it has everything."""

    waiting: "list[asyncio.Future[bool]]"
    task: "asyncio.Task[None] | None" = None


class Forwarding:
    """Brings messages on their way."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._errands: dict[tuple[str, str], _Errand] = {}

    async def deliver(self, hosted: Hosted, recipient: str) -> Way:
        """Bring everything that the log holds to a member, and say how far it came.

        Only another node's disk counts: an anchor that sends a message itself does not forward it
        by keeping it.
        """
        if recipient == hosted.own_id or await self._reach(hosted, recipient):
            return Way.DIRECT
        held = await self._reach_any(hosted, await self._anchors(hosted, recipient))
        return Way.FORWARDED if held else Way.QUEUED

    async def close(self) -> None:
        """Give up what is under way; it travels with the node's rounds."""
        tasks = [each.task for each in self._errands.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _anchors(self, hosted: Hosted, recipient: str) -> list[str]:
        """The other anchors, those that answered last first."""
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

    async def _reach_any(self, hosted: Hosted, node_ids: Iterable[str]) -> bool:
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

    async def _reach(self, hosted: Hosted, node_id: str) -> bool:
        """Whether a node now has all that the log held when this was asked."""
        asked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        key = hosted.community_id, node_id
        if key in self._errands:
            self._errands[key].waiting.append(asked)
        else:
            errand = self._errands[key] = _Errand([asked])
            errand.task = asyncio.create_task(self._run(hosted, node_id, errand), name="messages")
        return await asked

    async def _run(self, hosted: Hosted, node_id: str, errand: _Errand) -> None:
        """Meet a node for as long as somebody waits; a meeting answers all who asked before it."""
        served: list[asyncio.Future[bool]] = []
        try:
            async with AsyncExitStack() as opened:
                client = await self._dial(hosted, node_id, opened)
                while client is not None and errand.waiting:
                    served, errand.waiting = errand.waiting, []
                    if not await _meet(client, hosted):
                        break
                    _answer(served, reached=True)
        finally:
            del self._errands[hosted.community_id, node_id]
            _answer([*served, *errand.waiting], reached=False)

    async def _dial(self, hosted: Hosted, node_id: str, opened: AsyncExitStack) -> Client | None:
        for address in self._addresses(hosted, node_id):
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    client, _ = await self._node.dialler.dial(
                        address, hosted.community_id, opened, node_id=node_id
                    )
            except (AccordError, TimeoutError) as error:
                _log.debug("a node is not there", address=address, why=str(error))
                continue
            return client
        return None

    def _addresses(self, hosted: Hosted, node_id: str) -> list[str]:
        """Where a node was met last, and where the log says that it is."""
        met = self._node.book.peer(hosted.community_id, node_id)
        logged = hosted.state.content.manifests.get(node_id)
        endpoints = list(met.endpoints) if met is not None else []
        if logged is not None:
            endpoints += [Endpoint(*each) for each in logged.endpoints]
        return list(dict.fromkeys(endpoint.url for endpoint in endpoints))


async def _meet(client: Client, hosted: Hosted) -> bool:
    try:
        async with asyncio.timeout(_MEETING_SECONDS):
            await meet(client, hosted.holdings)
    except (AccordError, TimeoutError) as error:
        _log.debug("a meeting failed", node=client.node_id, why=str(error))
        return False
    return True


def _answer(asked: Iterable["asyncio.Future[bool]"], *, reached: bool) -> None:
    for each in asked:
        if not each.done():
            each.set_result(reached)
