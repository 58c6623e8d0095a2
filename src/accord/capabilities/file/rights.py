"""Who may read a blob here, and what keeps it.

Both follow from acts of this node alone: a file it shared, a document it ingested, a message it
sent with an attachment. Events of others grant nothing: CIDs in the log are public, so naming one
must not give the right to read it.
"""

import asyncio
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from accord.capabilities.file.shares import ShareMark, Shares
from accord.community.communities import HostedCommunity
from accord.community.log import LogUpdate
from accord.community.rules.event import Event
from accord.community.rules.state import CommunityState

_CIDS: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_EVERYBODY: Final = ""


def blobs_to_keep(
    state: CommunityState, holder: str, as_of: float, withdrawn: AbstractSet[str] = frozenset()
) -> set[str]:
    """Return the blobs that a node's own events in a community require it to keep.

    These are the ones it advertised, those it ingested or attached and has not withdrawn, and those
    that its current posts mention.
    """
    advertised = {cid for cid, by in state.content.files if by == holder}
    mentioned = {
        cid
        for post in state.market(as_of)
        if post["author"] == holder
        for text in (post["title"], post["body"])
        for cid in _CIDS.findall(text)
    }
    opened = {cid for cid, _ in _opened_blobs(state, holder)}
    return advertised | mentioned | (opened - withdrawn)


def received_blobs(state: CommunityState, own: str) -> tuple[set[str], set[str]]:
    """Return what others have sent to a node, and the documents that others have ingested."""
    content = state.content
    attached = {
        cid
        for messages in content.messages.values()
        for message in messages
        if message.recipient == own
        for cid, _ in message.attachments
    }
    return attached, {
        cid for (_, cid), document in content.documents.items() if document.ingester != own
    }


class ReadRights:
    """Who may read which blobs of this node in one community, kept up to date with its log."""

    def __init__(self, hosted: HostedCommunity, shares: Shares) -> None:
        self.hosted = hosted
        self._shares = shares
        # Rights by own messages and ingestions; shares and advertised files are looked up each
        # time.
        self._readers: dict[str, set[str]] = {}
        self._is_loaded = False
        self._loading = asyncio.Lock()

    async def may_read(self, cid: str, caller: str) -> bool:
        """Whether a member may read a blob here."""
        readers = (await self._known()).get(cid, set())
        if (cid, self.hosted.own_id) in self.hosted.state.content.files:
            return True
        return await asyncio.to_thread(self._may_read, cid, caller, frozenset(readers))

    async def may_everybody_read(self, cid: str) -> bool:
        """Whether every member may read a blob here."""
        return await self.may_read(cid, _EVERYBODY)

    async def readable(self, caller: str) -> set[str]:
        """Return every CID that a member may read, whether or not the blob is here."""
        own, community = self.hosted.own_id, self.hosted.community_id
        named = {
            cid
            for cid, readers in (await self._known()).items()
            if not readers.isdisjoint((_EVERYBODY, caller))
        }
        advertised = await self.hosted.log.view(
            lambda state: {cid for cid, by in state.content.files if by == own}
        )

        def shared() -> set[str]:
            return (
                {cid for cid, share in self._shares.all(community).items() if share.is_for(caller)}
                | self._shares.marked(community, ShareMark.DOCUMENT)
                | (named - self._shares.marked(community, ShareMark.WITHDRAWN))
            )

        return advertised | await asyncio.to_thread(shared)

    async def names(self, cid: str) -> bool:
        """Whether own messages or ingestions in the log name a blob."""
        return cid in await self._known()

    def _may_read(self, cid: str, caller: str, readers: frozenset[str]) -> bool:
        community = self.hosted.community_id
        share = self._shares.get(community, cid)
        if share is not None and share.is_for(caller):
            return True
        if self._shares.is_marked(community, ShareMark.DOCUMENT, cid):
            return True
        if readers.isdisjoint((_EVERYBODY, caller)):
            return False
        return not self._shares.is_marked(community, ShareMark.WITHDRAWN, cid)

    async def _known(self) -> dict[str, set[str]]:
        async with self._loading:
            if not self._is_loaded:
                self.hosted.log.subscribe(self._hear)
                await self.hosted.log.view(self._load)
                self._is_loaded = True
        return self._readers

    def _load(self, state: CommunityState) -> None:
        for cid, reader in _opened_blobs(state, self.hosted.own_id):
            self._readers.setdefault(cid, set()).add(reader)

    def _hear(self, news: LogUpdate) -> None:
        for event in news.accepted:
            if event.author == self.hosted.own_id:
                for cid, reader in _blobs_opened_by(event):
                    self._readers.setdefault(cid, set()).add(reader)


def _opened_blobs(state: CommunityState, own: str) -> Iterator[tuple[str, str]]:
    """Yield the blobs that a node's messages and ingestions let others read, and their readers."""
    for (_, cid), document in state.content.documents.items():
        if document.ingester == own:
            yield cid, _EVERYBODY
    for messages in state.content.messages.values():
        for message in messages:
            if message.author == own:
                for cid, _ in message.attachments:
                    yield cid, message.recipient


def _blobs_opened_by(event: Event) -> Iterator[tuple[str, str]]:
    """Yield the blobs that an event of this node lets others read, and their readers."""
    if event.event_type == "rag.document.ingested":
        yield event.data["doc_cid"], _EVERYBODY
    elif event.event_type == "chat.message.sent":
        for attachment in event.data.get("attachments", ()):
            yield attachment["cid"], event.data["recipient"]
