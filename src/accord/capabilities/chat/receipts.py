"""Saying in the log that messages have arrived: `chat.message.delivered`, once for each.

Owns no memory of its own: what is owed is whatever the log holds for this node without a receipt,
so nothing is forgotten over a restart and nothing is said twice.
"""

import asyncio
from contextlib import ExitStack
from functools import partial
from typing import Final

import structlog

from accord.capabilities.chat.messages import undelivered
from accord.community.errors import CommunityError
from accord.community.log import News
from accord.community.node import Hosted, Node
from accord.kernel.clock import Clock, format_time
from accord.storage import StoreError

_log = structlog.stdlib.get_logger(__name__)

SENT: Final = "chat.message.sent"
DELIVERED: Final = "chat.message.delivered"

# What no news told of, such as a community that was joined, is looked for this often.
_LOOK_SECONDS: Final = 1.0
_TOGETHER: Final = 64


class Receipts:
    """Gives receipts in all communities of a node."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._news = asyncio.Event()
        self._owed: dict[tuple[str, str], Hosted] = {}
        self._looked: dict[str, int] = {}

    async def run(self) -> None:
        """Give receipts until cancelled."""
        watched: set[str] = set()
        clock = asyncio.get_running_loop().time
        with ExitStack() as watching:
            while True:
                for community_id, hosted in tuple(self._node.communities.items()):
                    if community_id not in watched:
                        watched.add(community_id)
                        watching.callback(hosted.log.subscribe(partial(self._hear, hosted)))
                    if hosted.is_member and not hosted.log.is_recovering:
                        await self._look(hosted)
                await self._give_all()
                look_again = clock() + _LOOK_SECONDS
                while await self._has_news(look_again):
                    await self._give_all()

    async def _look(self, hosted: Hosted) -> None:
        """Find what no news told of, unless there are as many messages as last time."""
        count = len(hosted.state.content.messages)
        if self._looked.get(hosted.community_id) != count:
            self._looked[hosted.community_id] = count
            found = await hosted.log.view(partial(undelivered, own=hosted.own_id))
            self._owed |= {(hosted.community_id, event_id): hosted for event_id in found}

    def _hear(self, hosted: Hosted, news: News) -> None:
        for event in news.accepted:
            if event.event_type == SENT and event.data["recipient"] == hosted.own_id:
                self._owed[hosted.community_id, event.event_id] = hosted
                self._news.set()

    async def _has_news(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    async def _give_all(self) -> None:
        """Give what is owed."""
        waiting = [(hosted, event_id) for (_, event_id), hosted in self._owed.items()]
        self._owed.clear()
        for start in range(0, len(waiting), _TOGETHER):
            some = waiting[start : start + _TOGETHER]
            await asyncio.gather(*(self._give(*each) for each in some))

    async def _give(self, hosted: Hosted, event_id: str) -> None:
        receipt = {"target_event_id": event_id, "delivered_at": format_time(self._clock.now())}
        try:
            await hosted.log.append(DELIVERED, receipt)
        except (CommunityError, StoreError) as error:
            _log.debug("a receipt cannot be given now", event_id=event_id, why=error.what)
            self._looked.pop(hosted.community_id, None)
