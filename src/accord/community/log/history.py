"""The store as the fold's `History`: every event of a log, streamed, a page in memory at a time.

Lives on one read connection, so that all that it gives is of one moment. Never writes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from sqlalchemy import Connection, Select, select

from accord.community.envelope import Event, Position
from accord.community.fold import Link
from accord.community.fold.history import MEMBERSHIP
from accord.community.log import rows
from accord.community.log.tables import events

# By author, the number and hash of the last event that counts.
Heads: TypeAlias = Mapping[str, tuple[int, str]]

_LINK = (events.c.author, events.c.author_seq, events.c.digest, events.c.prev, events.c.lamport)


class StoreHistory:
    """The events of one community.

    Args:
        connection: Where to read.
        number: The community's number in the store.
        upto: Where to end: only events at or below this lamport are given.
        heads: Where each author's chain ends, as a retention floor has it.
    """

    def __init__(
        self,
        connection: Connection,
        number: int,
        *,
        upto: int | None = None,
        heads: Heads | None = None,
    ) -> None:
        self._connection = connection
        self._number = number
        self._upto = upto
        self._heads = heads

    def authors(self) -> Iterator[Link]:
        """Every link, those of one author together, by number and digest."""
        return self._links(select(*_LINK))

    def author(self, author: str) -> Iterator[Link]:
        """The links of one author, by number and digest."""
        return self._links(select(*_LINK).where(events.c.author == author))

    def membership(self) -> Iterator[Event]:
        """The events of the membership stage, in total order."""
        query = rows.whole(self._number).where(events.c.stage == "membership")
        found = self._events(rows.in_order(self._bounded(query)))
        return (event for event in found if event.event_type in MEMBERSHIP)

    def in_order(self, after: Position | None = None) -> Iterator[Event]:
        """Every event behind a position, in total order; pruned ones are left out."""
        return self._events(rows.in_order(self._bounded(rows.whole(self._number)), after))

    def lamports(self) -> Iterator[int]:
        """The lamports of all events and stubs, ascending."""
        query = self._bounded(select(events.c.lamport).where(events.c.community == self._number))
        return (row[0] for row in rows.rows(self._connection, query.order_by(events.c.lamport)))

    def _links(self, query: Select[Any]) -> Iterator[Link]:
        query = self._bounded(query.where(events.c.community == self._number)).order_by(
            events.c.author, events.c.author_seq, events.c.digest
        )
        for row in rows.rows(self._connection, query):
            if self._is_within(row[0], row[1], row[2]):
                yield Link(*row)

    def _events(self, query: Select[Any]) -> Iterator[Event]:
        for event in rows.read(self._connection, query):
            if self._is_within(event.author, event.author_seq, event.digest):
                yield event

    def _bounded(self, query: Select[Any]) -> Select[Any]:
        return query if self._upto is None else query.where(events.c.lamport <= self._upto)

    def _is_within(self, author: str, author_seq: int | None, digest: bytes) -> bool:
        if self._heads is None or author_seq is None:
            return True
        last, head = self._heads.get(author, (0, ""))
        return author_seq < last or (author_seq == last and head == "blake3:" + digest.hex())
