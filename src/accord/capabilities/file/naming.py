"""What a community's log says about blobs: which it names, and who may read them here.

Owns the answers; the log decides. A blob that a community does not name is not shown to it, so what
a node keeps for another community, or for its owner alone, stays there.
"""

import asyncio
import re
from collections.abc import Iterator
from typing import Final

from accord.community.envelope import Event
from accord.community.fold import State, views
from accord.community.log import News
from accord.community.node import Hosted

_CIDS: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_EVERYBODY: Final = ""


def named(state: State, holder: str, as_of: float) -> set[str]:
    """Every blob that a community wants this node to keep.

    Those that it has said it holds, the documents of every corpus, what is attached to messages,
    and what current posts mention.
    """
    content = state.content
    held = {cid for cid, by in content.files if by == holder}
    documents = {cid for _, cid in content.documents}
    attached = {
        cid
        for messages in content.messages.values()
        for message in messages
        for cid, _ in message.attachments
    }
    mentioned = {
        cid
        for post in views.market(state, as_of)
        for text in (post["title"], post["body"])
        for cid in _CIDS.findall(text)
    }
    return held | documents | attached | mentioned


class Naming:
    """Who may read what in one community, kept up with its log.

    Files that this node holds are looked up in the state. Documents and attachments, which are
    many and never taken back, are remembered as they come.
    """

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted
        self._readers: dict[str, set[str]] = {}
        self._is_loaded = False
        self._loading = asyncio.Lock()

    async def may_read(self, cid: str, caller: str) -> bool:
        """Whether a member may read a blob here."""
        readers = await self._known()
        if (cid, self._hosted.own_id) in self._hosted.state.content.files:
            return True
        return not readers.get(cid, set()).isdisjoint((_EVERYBODY, caller))

    async def readable(self, caller: str) -> set[str]:
        """Every blob that a member may read, wherever it is."""
        readers = await self._known()
        own = self._hosted.own_id
        held = await self._hosted.log.view(
            lambda state: {cid for cid, by in state.content.files if by == own}
        )
        return held | {
            cid for cid, who in readers.items() if not who.isdisjoint((_EVERYBODY, caller))
        }

    async def _known(self) -> dict[str, set[str]]:
        async with self._loading:
            if not self._is_loaded:
                self._hosted.log.subscribe(self._hear)
                await self._hosted.log.view(self._load)
                self._is_loaded = True
        return self._readers

    def _load(self, state: State) -> None:
        for _, cid in state.content.documents:
            self._add(cid, _EVERYBODY)
        for messages in state.content.messages.values():
            for message in messages:
                for cid, _ in message.attachments:
                    self._add(cid, message.author)
                    self._add(cid, message.recipient)

    def _hear(self, news: News) -> None:
        for event in news.accepted:
            for cid, reader in _told(event):
                self._add(cid, reader)

    def _add(self, cid: str, reader: str) -> None:
        self._readers.setdefault(cid, set()).add(reader)


def _told(event: Event) -> Iterator[tuple[str, str]]:
    """Which blobs an event opens to whom."""
    if event.event_type == "rag.document.ingested":
        yield event.data["doc_cid"], _EVERYBODY
    elif event.event_type == "chat.message.sent":
        for attachment in event.data.get("attachments", ()):
            yield attachment["cid"], event.author
            yield attachment["cid"], event.data["recipient"]
