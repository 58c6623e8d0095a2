"""The feed: every change of the web chat gets a number, and every process follows them.

A change locks the one row of `feed_head` until its commit, so changes are serialised. Changes of
access are journalled as `webchat.control`, without secrets; messages are not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

import structlog
from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat.tables import feed, feed_head
from accord.storage import JournalRecord, Store, StoreError, journal

T = TypeVar("T")

KEPT_ENTRIES: Final = 10_000
"""How many entries of the feed are kept for whoever comes back."""
STREAM: Final = "webchat.control"
OPERATOR: Final = "operator"

_HOLD: Final = select(feed_head.c.seq).with_for_update()
_HEAD: Final = select(feed_head.c.seq)
_AFTER: Final = (
    select(feed)
    .where(feed.c.seq > bindparam("after"))
    .order_by(feed.c.seq)
    .limit(bindparam("limit"))
)
_FORGET: Final = delete(feed).where(feed.c.seq <= bindparam("old"))
_log = structlog.stdlib.get_logger(__name__)


class FeedKind(Enum):
    """The kinds of entries in the feed."""

    MESSAGE = "message"
    """A message was posted or edited."""
    TYPING = "typing"
    ACCESS = "access"
    """Channels, members or permissions of a space changed; with no space, there is a new bot."""


@dataclass(slots=True)
class Change:
    """A change in progress: its connection, time, actor and feed entries."""

    connection: Connection
    now: int
    seq: int
    by: str = OPERATOR
    told: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def add_journal(self, action: str, by: str | None = None, **facts: str | int | None) -> None:
        """Add a journal entry; never a secret."""
        self.notes.append({"action": action, "by": by or self.by, **facts})

    def add_entry(
        self,
        kind: FeedKind,
        place: str,
        account_id: str | None = None,
        message_id: int | None = None,
    ) -> int:
        """Add a feed entry and return its number, which a new message takes as its id."""
        self.seq += 1
        self.told.append(
            {
                "seq": self.seq,
                "kind": kind.value,
                "place": place,
                "account_id": account_id,
                "message_id": self.seq
                if kind is FeedKind.MESSAGE and not message_id
                else message_id,
                "at": self.now,
            }
        )
        return self.seq


class Changes:
    """Makes changes, and notifies a listener of this process of the last number."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._ids = UlidSource(clock)
        self.listener: Callable[[int], None] = lambda _: None

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._clock.now() * 1000)

    async def change(self, work: Callable[[Change], T], *, by: str = OPERATOR) -> T:
        """Make a change and return its result after the commit.

        `work` may run more than once, so it touches nothing but its `Change`. If it raises, it
        alone is rolled back.

        Raises:
            RelayError: `work` or a constraint of the database refused.
            StoreError: The database failed.
        """
        now, note_id = self.now(), self._ids.new()

        def unit(connection: Connection) -> tuple[T, int] | RelayError:
            change = Change(connection, now, connection.execute(_HOLD).scalar_one(), by)
            try:
                with connection.begin_nested():
                    result = work(change)
                    _record(change, note_id)
            except RelayError as refusal:
                return refusal
            except IntegrityError:
                return RelayError(Code.CONFLICT, "something else has taken this meanwhile")
            return result, change.seq

        outcome = await self._store.write(unit)
        if isinstance(outcome, RelayError):
            raise outcome
        result, seq = outcome
        self.listener(seq)
        return result

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Read without changing anything."""
        return await self._store.read(work)


def last_number(connection: Connection) -> int:
    """The number of the last entry."""
    seq: int = connection.execute(_HEAD).scalar_one()
    return seq


def entries_after(connection: Connection, after: int, limit: int) -> Sequence[Row[Any]]:
    """The entries that follow a number, in order."""
    return connection.execute(_AFTER, {"after": after, "limit": limit}).all()


def _record(change: Change, note_id: str) -> None:
    records = [
        JournalRecord(
            STREAM, f"{note_id}.{place}", change.now, "webchat", canonical.encode(note).decode()
        )
        for place, note in enumerate(change.notes)
    ]
    if records:
        journal.append(change.connection, records)
    if change.told:
        change.connection.execute(insert(feed), change.told)
        change.connection.execute(update(feed_head).values(seq=change.seq))
        change.connection.execute(_FORGET, {"old": change.seq - KEPT_ENTRIES})


class FeedTail:
    """Follows the number of the feed's last entry.

    `access_changed` is called with each space whose access changed; None if it may be any, or there
    is a new bot.
    """

    def __init__(
        self,
        source: Changes,
        access_changed: Callable[[str | None], Awaitable[None]],
        poll_seconds: float,
    ) -> None:
        self.closed = False
        self._changes = source
        self._poll_seconds = poll_seconds
        self._access_changed = access_changed
        self._head = 0
        self._nudged = asyncio.Event()
        self._moved = asyncio.Event()
        source.listener = self._nudge

    async def run(self) -> None:
        """Follow until cancelled."""
        self._head = await self._changes.read(last_number)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._nudged.wait()
            self._nudged.clear()
            try:
                await self._look()
            except StoreError as error:
                _log.warning("the feed cannot be read", reason=str(error))

    async def wait_beyond(self, seq: int, seconds: float) -> bool:
        """Wait for an entry after a number, until closed or timed out; whether there is one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._head <= seq and not self.closed:
                    await self._moved.wait()
        return self._head > seq

    def close(self) -> None:
        """Wake all waiters."""
        self.closed = True
        self._move(self._head)

    def _nudge(self, seq: int) -> None:
        if seq > self._head:
            self._nudged.set()

    async def _look(self) -> None:
        after = self._head

        def news(connection: Connection) -> tuple[int, list[str | None]]:
            head = last_number(connection)
            if head <= after:
                return after, []
            if head - after > KEPT_ENTRIES:
                return head, [None]
            rows = entries_after(connection, after, KEPT_ENTRIES)
            told = (row.place or None for row in rows if row.kind == FeedKind.ACCESS.value)
            spaces = dict.fromkeys(told)
            return head, list(spaces)

        head, spaces = await self._changes.read(news)
        for space_id in spaces:
            await self._access_changed(space_id)
        if head > after:
            self._move(head)

    def _move(self, head: int) -> None:
        self._head = head
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
