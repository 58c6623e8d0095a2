"""Whom a corpus tells of its documents: the community whose it is, or nobody.

A document is told of once in a community (the fold takes no second event for it), by whichever
member ingested it first.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import Connection, select

from accord.capabilities.file import Blobs
from accord.capabilities.rag.records import Kept
from accord.community.errors import CommunityError
from accord.community.fold.content import Document
from accord.community.log.tables import events
from accord.community.node import Hosted

_INGESTED: Final = "rag.document.ingested"
_OWNER: Final = "rag-personal"


@dataclass(frozen=True, slots=True)
class Told:
    """A document was told of, by an event where there is one."""

    event_id: str | None


class Telling(Protocol):
    """Tells of the documents of a corpus."""

    async def told(self, doc_cid: str) -> Told | None:
        """What told of a document; None when nothing has."""
        ...

    async def tell(self, kept: Kept) -> Told:
        """Tell of a document.

        Raises:
            CommunityError: It may not be told; it must not stand then.
        """
        ...


class InCommunity:
    """Tells a community, in its log."""

    def __init__(self, hosted: Hosted, corpus: str) -> None:
        self._hosted = hosted
        self._corpus = corpus

    async def told(self, doc_cid: str) -> Told | None:
        """The event that the community has of a document."""
        known = self._hosted.state.content.documents.get((self._corpus, doc_cid))
        if known is None:
            return None
        number = self._hosted.log.number
        return Told(await self._hosted.log.store.read(lambda c: _event_id(c, number, known)))

    async def tell(self, kept: Kept) -> Told:
        """Write the event."""
        data: dict[str, Any] = {
            "corpus": self._corpus,
            "doc_cid": kept.doc_cid,
            "chunks": kept.chunks,
        }
        if kept.title is not None:
            data["title"] = kept.title
        if kept.language is not None:
            data["language"] = kept.language
        try:
            event = await self._hosted.log.append(_INGESTED, data)
        except CommunityError:
            # Another member's event may have come first.
            told = await self.told(kept.doc_cid)
            if told is None:
                raise
            return told
        return Told(event.event_id)


class ToNobody:
    """Tells nobody; the blob is kept all the same."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def told(self, doc_cid: str) -> Told | None:
        """Nothing."""
        return None

    async def tell(self, kept: Kept) -> Told:
        """Pin the blob, which no community asks this node to keep."""
        await asyncio.to_thread(self._blobs.pin, kept.doc_cid, _OWNER)
        return Told(None)


def _event_id(connection: Connection, community: int, known: Document) -> str | None:
    """The id of the event that ingested a document."""
    query = select(events.c.event_id).where(
        events.c.community == community,
        events.c.lamport == known.lamport,
        events.c.author == known.ingester,
        events.c.event_type == _INGESTED,
    )
    found: str | None = connection.execute(query).scalars().first()
    return found
