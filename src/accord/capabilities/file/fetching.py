"""Getting a blob from whoever holds it, for the owner of this node.

Who holds what is told by the log, and by nodes that say so themselves (`file.advertise`); the
latter is a hint that is remembered for as long as this node runs.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Final

import structlog

from accord.capabilities.file.blobs import Blobs
from accord.capabilities.file.transfer import pull
from accord.community.discovery import Endpoint
from accord.community.errors import Code, CommunityError
from accord.community.fold import State
from accord.community.node import Hosted, Node

_log = structlog.stdlib.get_logger(__name__)

_HOLDERS: Final = 16


class Hints:
    """Which nodes have said that they hold a blob; the oldest hint makes room for the newest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: OrderedDict[tuple[str, str], dict[str, None]] = OrderedDict()

    def add(self, community: str, cid: str, holder: str) -> None:
        """Remember that a node holds a blob."""
        holders = self._holders.setdefault((community, cid), {})
        holders.pop(holder, None)
        holders[holder] = None
        if len(holders) > _HOLDERS:
            del holders[next(iter(holders))]
        self._holders.move_to_end((community, cid))
        if len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def holders(self, community: str, cid: str) -> list[str]:
        """Who has said so, the last first."""
        return list(self._holders.get((community, cid), ()))[::-1]


class Fetching:
    """Gets blobs from other nodes."""

    def __init__(self, node: Node, blobs: Blobs, hints: Hints) -> None:
        self._node = node
        self._blobs = blobs
        self._hints = hints

    async def fetch(self, hosted: Hosted, cid: str) -> AsyncGenerator[tuple[int, int], None]:
        """Get a blob from the first holder that gives it; yields how many bytes are here.

        Raises:
            CommunityError: Nobody who can be reached has it: `not_found`; there is no room.
        """
        for holder in await self._holders(hosted, cid):
            for address in self._addresses(hosted, holder):
                try:
                    async with AsyncExitStack() as opened:
                        client, _ = await self._node.dialler.dial(
                            address, hosted.community_id, opened, node_id=holder
                        )
                        pulling = aclosing(pull(client, self._blobs, cid))
                        async for progress in await opened.enter_async_context(pulling):
                            yield progress
                except CommunityError as error:
                    if _is_ours(error):
                        raise
                    # The next may do better.
                    _log.info("a holder did not give a blob", holder=holder, why=error.what)
                    continue
                return
        raise CommunityError(
            Code.NOT_FOUND, "it is not here, and nobody who can be reached has it", where=cid
        )

    async def _holders(self, hosted: Hosted, cid: str) -> list[str]:
        def look(state: State) -> list[str]:
            shared = {by for known, by in state.content.files if known == cid}
            sent = {
                message.author
                for messages in state.content.messages.values()
                for message in messages
                if any(attached == cid for attached, _ in message.attachments)
            }
            return sorted(shared | sent)

        told = await hosted.log.view(look)
        everybody = dict.fromkeys([*self._hints.holders(hosted.community_id, cid), *told])
        return [each for each in everybody if each != hosted.own_id]

    def _addresses(self, hosted: Hosted, holder: str) -> list[str]:
        met = self._node.book.peer(hosted.community_id, holder)
        logged = hosted.state.content.manifests.get(holder)
        endpoints = list(met.endpoints) if met is not None else []
        if logged is not None:
            endpoints += [Endpoint(*each) for each in logged.endpoints]
        return list(dict.fromkeys(endpoint.url for endpoint in endpoints))


def _is_ours(error: CommunityError) -> bool:
    """Whether this node's disk is at fault, so that no other holder helps."""
    local = error.code in (Code.CAPACITY_EXCEEDED, Code.INTERNAL_ERROR)
    return local and isinstance(error.__cause__, OSError)
