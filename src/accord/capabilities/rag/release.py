"""What a node did so that others may read a document, taken back when the document is withdrawn.

The log has no event that takes `rag.document.ingested` back. So the ingestion stays in the history
of the community; this node alone stops answering from the document and giving it away.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from accord.capabilities.file import Blobs
from accord.capabilities.file.shares import ShareMark, attached_to_messages, blobs_to_keep
from accord.capabilities.rag.store import CorpusId
from accord.community.communities import HostedCommunity
from accord.community.messages import is_attached
from accord.community.node import Node
from accord.kernel.clock import Clock

PERSONAL_PIN: Final = "rag-personal"
"""The owner of the pins of documents in the corpus `personal`."""
_ADOPTED_PIN: Final = "rag"
_UNPINNED: Final = "file.cid.unpinned"


@dataclass(frozen=True, slots=True)
class DocumentRelease:
    """Ends what keeps a document's file on a node."""

    node: Node
    clock: Clock
    blobs: Blobs

    async def take_back(self, place: CorpusId, cid: str) -> None:
        """Take back the rights that come from a corpus, which is the last one with the document.

        A file that the owner shares or attached to a message stays readable by that. May raise
        `CommunityError` before anything has changed.
        """
        if not place.community:
            await asyncio.to_thread(self.blobs.unpin, cid, PERSONAL_PIN)
            return
        hosted, shares = self.node.community(place.community), self.blobs.shares
        own = hosted.own_id
        if await asyncio.to_thread(shares.get, place.community, cid) is None:
            if (cid, own) in hosted.state.content.files:
                await hosted.log.append(_UNPINNED, {"cid": cid})
            if not await _is_attached(hosted, cid):
                await asyncio.to_thread(shares.mark, place.community, ShareMark.WITHDRAWN, cid)
        await asyncio.to_thread(shares.unmark, place.community, ShareMark.DOCUMENT, cid)
        await asyncio.to_thread(self.blobs.unpin, cid, _ADOPTED_PIN)

    async def delete(self, cid: str) -> str | None:
        """Delete a file, or return for what it is kept."""
        if cid in await asyncio.to_thread(self.blobs.pinned):
            return "pin"
        shares = self.blobs.shares
        if cid in await asyncio.to_thread(shares.referenced):
            return "share"
        for hosted in tuple(self.node.communities.values()):
            if await _is_attached(hosted, cid):
                withdrawn = await asyncio.to_thread(
                    shares.is_marked, hosted.community_id, ShareMark.WITHDRAWN, cid
                )
                if not withdrawn:
                    return "message"
            marked = await asyncio.to_thread(
                shares.marked, hosted.community_id, ShareMark.WITHDRAWN
            )
            keep = partial(
                blobs_to_keep,
                attached=await attached_to_messages(hosted),
                holder=hosted.own_id,
                as_of=self.clock.now(),
                withdrawn=marked,
            )
            if cid in await hosted.log.view(keep):
                return "community"
        await asyncio.to_thread(self.blobs.delete, cid)
        return None


async def _is_attached(hosted: HostedCommunity, cid: str) -> bool:
    """Whether a message of this node has the file attached."""
    return await hosted.log.store.read(
        lambda c: is_attached(c, hosted.log.number, hosted.own_id, cid)
    )
