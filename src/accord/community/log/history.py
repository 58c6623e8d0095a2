"""The store as the fold's `History`: every event of a log, streamed, a page in memory at a time.

Lives on one read connection, so that all that it gives is of one moment. Never writes.
"""

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from sqlalchemy import Column, Connection, Select, select

from accord.community.envelope import Event, Position
from accord.community.fold import Link
from accord.community.fold.history import MEMBERSHIP
from accord.community.log import rows
from accord.community.log.tables import events

# By author, the number and hash of the last event that counts.
Heads: TypeAlias = Mapping[str, tuple[int, str]]

_LINK = (events.c.author, events.c.author_seq, events.c.digest, events.c.prev, events.c.lamport)
_CHAINED = (events.c.author, events.c.author_seq, events.c.digest)
_UNCHAINED = (events.c.author, events.c.digest)


class StoreHistory:
    """The events of one community.

    Args:
        connection: Where to read.
        number: The community's number in the store.
        upto: Where to end: only events at or below this lamport are given.
        heads: Where each author's chain ends, as a retention floor has it; nothing else is given.
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

    def author(self, author: str, after: int = 0) -> Iterator[Link]:
        """The links of one author, by number and digest; or only those above a number."""
        query = select(*_LINK).where(events.c.author == author)
        return self._links(query.where(events.c.author_seq > after) if after else query)

    def membership(self) -> Iterator[Event]:
        """The events of the membership stage, in total order."""
        query = rows.whole(self._number).where(events.c.stage == "membership")
        found = self._events(query)
        return (event for event in found if event.event_type in MEMBERSHIP)

    def in_order(self, after: Position | None = None) -> Iterator[Event]:
        """Every event behind a position, in total order; pruned ones are left out."""
        return self._events(rows.whole(self._number), after)

    def lamports(self) -> Iterator[int]:
        """The lamports of all events and stubs, ascending."""
        query = select(*rows.PLACE).where(events.c.community == self._number)
        return map(itemgetter(0), self._slim(self._bounded(query), rows.PLACE))

    def _links(self, query: Select[Any]) -> Iterator[Link]:
        query = self._bounded(query.where(events.c.community == self._number))
        chained = self._slim(query.where(events.c.author_seq.is_not(None)), _CHAINED)
        unchained = self._slim(query.where(events.c.author_seq.is_(None)), _UNCHAINED)
        if (first := next(unchained, None)) is not None:
            others = itertools.chain([first], unchained)
            chained = heapq.merge(others, chained, key=itemgetter(0))
        links = map(Link._make, chained)
        if self._heads is None:
            return links
        return filter(self._is_within, links)

    def _events(self, query: Select[Any], after: Position | None = None) -> Iterator[Event]:
        found = rows.read(self._connection, self._bounded(query), after)
        if self._heads is None:
            return found
        return filter(self._is_within, found)

    def _slim(self, query: Select[Any], key: Sequence[Column[Any]]) -> Iterator[Any]:
        return rows.rows(self._connection, query, key=key, page=rows.SLIM_PAGE)

    def _bounded(self, query: Select[Any]) -> Select[Any]:
        return query if self._upto is None else query.where(events.c.lamport <= self._upto)

    def _is_within(self, one: Link | Event) -> bool:
        heads = self._heads or {}
        last, head = heads.get(one.author, (0, ""))
        if one.author_seq is None or one.author_seq == last:
            return one.author_seq is not None and head == "blake3:" + one.digest.hex()
        return one.author_seq < last
