"""The node's own chain: what it signs next, and whether it may sign at all.

Owns the order in which this node signs. Whatever it signs is in the marker before it is in the
store; whoever finds a store that knows less than the marker does not sign before it has heard from
others. Never judges an event: it is given `judge`, which asks the fold.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from accord.community.envelope import Event, compose
from accord.community.errors import Code, CommunityError
from accord.community.log.marker import Marker
from accord.community.log.tables import events
from accord.kernel.clock import Clock, format_time
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource


@dataclass(frozen=True, slots=True)
class Head:
    """The last event of an author's chain; before the first, what the first follows."""

    author_seq: int = 0
    hash: str | None = None
    lamport: int = -1


def head_of(connection: Connection, number: int, author: str) -> Head:
    """The last event that the store holds of an author."""
    query = (
        select(events.c.author_seq, events.c.digest, events.c.lamport)
        .where(
            events.c.community == number,
            events.c.author == author,
            events.c.author_seq.is_not(None),
        )
        # Of two with one number the smaller digest stands.
        .order_by(events.c.author_seq.desc(), events.c.digest)
        .limit(1)
    )
    row = connection.execute(query).first()
    return Head() if row is None else Head(row[0], "blake3:" + row[1].hex(), row[2])


class Author:
    """Signs events, one after the other.

    Args:
        key: The node's key in this community.
        community_id: The community.
        clock: For the wall clock of events and the time in their ids.
        ids: Where event ids come from.
        marker: Where it is written down what was signed last.
    """

    def __init__(
        self, key: SigningKey, community_id: str, clock: Clock, ids: UlidSource, marker: Marker
    ) -> None:
        self._key = key
        self._community_id = community_id
        self._clock = clock
        self._ids = ids
        self._marker = marker
        self._head = Head()
        self.is_recovering = False

    @property
    def id(self) -> str:
        """Who signs."""
        return self._key.id

    def begin(self, stored: Head) -> list[Event]:
        """Take up the chain where the store has it.

        Returns:
            What was signed but not yet stored when the node last stopped; it is to be stored now.
        """
        self._head = stored
        signed = [
            event
            for event in self._marker.read()
            if event.author == self.id
            and event.community_id == self._community_id
            and event.author_seq is not None
            and event.author_seq > stored.author_seq
        ]
        if signed and signed[0].prev == stored.hash:
            return signed
        if signed:
            self.is_recovering = True
        return []

    def saw(self, event: Event) -> None:
        """Go on behind an event of ours, which may come from another's copy of our chain."""
        if event.author_seq is not None and event.author_seq > self._head.author_seq:
            self._head = Head(event.author_seq, event.hash, event.lamport)

    def check(self) -> None:
        """Make sure that we know our own chain.

        Raises:
            CommunityError: `partition`: the store was restored and nobody was heard since.
        """
        if self.is_recovering:
            raise CommunityError(
                Code.PARTITION,
                "this node's log was restored and may lack events that it has signed",
                where=self._community_id,
                mend="let it sync with another member first; if there is none, stop the station "
                "and remove the file `restored` in the community's folder",
            )

    def compose(self, event_type: str, data: Mapping[str, Any], head: Head, seen: int) -> Event:
        """Write and sign the event that follows a head, above every lamport seen.

        Raises:
            CommunityError: The data does not fit its type: `bad_request`.
        """
        return compose(
            self._key,
            event_type,
            data,
            event_id=self._ids.new(),
            lamport=max(seen, head.lamport) + 1,
            wall_clock=format_time(self._clock.now()),
            community_id=self._community_id,
            author_seq=head.author_seq + 1,
            prev=head.hash,
        )

    @property
    def head(self) -> Head:
        """The last event of our chain that is known here."""
        return self._head

    def promise(self, signed: list[Event]) -> None:
        """Bring to the disk what was signed; only then may anybody see it."""
        self._marker.write(signed)
