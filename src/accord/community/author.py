"""Signing this node's own events.

Signed events are written to the marker file before they are stored. A node whose store knows less
than its marker must sync with others before it signs again.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, select

from accord.community.errors import Code, CommunityError
from accord.community.rules.event import MAX_EVENT_BYTES, Event, compose_event, parse_event
from accord.community.store import events
from accord.kernel.clock import Clock, format_time
from accord.kernel.files import sync_folder, write_private
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey

_LARGEST: Final = 64 * MAX_EVENT_BYTES


class RestoreNote:
    """A marker file: the community's folder was restored, and no other member was reached since."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "restored"

    @property
    def exists(self) -> bool:
        """Whether the marker exists."""
        return self._path.exists()

    def create(self) -> None:
        """Create the marker if it does not exist."""
        if not self.exists:
            write_private(self._path, b"")
            sync_folder(self._path.parent)

    def remove(self) -> None:
        """Remove the marker, once another member was reached."""
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SigningMarker:
    """The file with the events that one author signed last, in the order of its chain."""

    path: Path

    def write(self, events: Sequence[Event]) -> None:
        """Replace the content and fsync; if this raises, the events must not be stored."""
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            try:
                write_private(draft, b"".join(event.encode() + b"\n" for event in events))
                draft.replace(self.path)
            finally:
                draft.unlink(missing_ok=True)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._unusable("cannot be written", error) from error

    def read(self) -> list[Event]:
        """The events signed last, empty if there are none; raises if the file is damaged."""
        try:
            with self.path.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable("cannot be read", error) from error
        try:
            return [parse_event(line) for line in data.splitlines()]
        except CommunityError as error:
            raise CommunityError(
                Code.INTERNAL_ERROR,
                f"the record of what this node signed last is damaged ({error.what})",
                where=str(self.path),
                mend="remove it and open the log as recovering",
            ) from None

    def _unusable(self, what: str, error: OSError) -> CommunityError:
        return CommunityError(
            Code.INTERNAL_ERROR,
            f"the record of what this node signed last {what} ({os.strerror(error.errno or 0)})",
            where=str(self.path),
            mend="let this user write to the folder, and see that the disk has space",
        )


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last event of an author's chain; the defaults stand for an empty chain."""

    author_seq: int = 0
    hash: str | None = None
    lamport: int = -1


def chain_head(connection: Connection, number: int, author: str) -> ChainHead:
    """The last event of an author in the store."""
    query = (
        select(events.c.author_seq, events.c.digest, events.c.lamport)
        .where(
            events.c.community == number,
            events.c.author == author,
            events.c.author_seq.is_not(None),
        )
        # Of two events with the same number the one with the smaller digest counts.
        .order_by(events.c.author_seq.desc(), events.c.digest)
        .limit(1)
    )
    row = connection.execute(query).first()
    return ChainHead() if row is None else ChainHead(row[0], "blake3:" + row[1].hex(), row[2])


@dataclass(slots=True, eq=False)
class EventAuthor:
    """Signs the events of one chain, one after the other.

    `head` is the last known event. `is_recovering` is set while the store may lack signed events.
    """

    key: SigningKey
    community_id: str
    clock: Clock
    ids: UlidSource
    marker: SigningMarker
    head: ChainHead = ChainHead()
    is_recovering: bool = False

    @property
    def id(self) -> str:
        """The id of the key."""
        return self.key.id

    def begin(self, stored: ChainHead) -> list[Event]:
        """Continue the chain from the store; returns events that were signed but not stored yet."""
        self.head = stored
        signed = [
            event
            for event in self.marker.read()
            if event.author == self.id
            and event.community_id == self.community_id
            and event.author_seq is not None
            and event.author_seq > stored.author_seq
        ]
        if signed and signed[0].prev == stored.hash:
            return signed
        if signed:
            self.is_recovering = True
        return []

    def follow(self, event: Event) -> None:
        """Continue after an event of this author, which may come from another node's copy."""
        if event.author_seq is not None and event.author_seq > self.head.author_seq:
            self.head = ChainHead(event.author_seq, event.hash, event.lamport)

    def check(self) -> None:
        """Raise `partition` if the store was restored and no member was reached since."""
        if self.is_recovering:
            raise CommunityError(
                Code.PARTITION,
                "this node's log was restored and may lack events that it has signed",
                where=self.community_id,
                mend="let it sync with another member first; if there is none, settle it with "
                "`accord community recover --alone`",
            )

    def compose(
        self, event_type: str, data: Mapping[str, Any], head: ChainHead, seen: int
    ) -> Event:
        """Sign the event that follows `head`, with a lamport above `seen`."""
        return compose_event(
            self.key,
            event_type,
            data,
            event_id=self.ids.new(),
            lamport=max(seen, head.lamport) + 1,
            wall_clock=format_time(self.clock.now()),
            community_id=self.community_id,
            author_seq=head.author_seq + 1,
            prev=head.hash,
        )

    def write_marker(self, signed: list[Event]) -> None:
        """Write signed events to the marker; only then may anybody see them."""
        self.marker.write(signed)
