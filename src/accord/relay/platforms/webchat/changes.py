"""Every change of the web chat goes through here and gets a place in the feed.

Who may do what is journalled as `webchat.control`, without secrets; messages are not.

Owns the order: whoever changes something holds the one row of `feed_head` until its commit, so that
changes happen one after the other, also between processes, and a number in the feed is never seen
before a smaller one. What is in the feed are names, not what anybody wrote.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat.tables import feed, feed_head
from accord.storage import Record, Store, journal

T = TypeVar("T")

KEPT: Final = 10_000
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


class Kind(Enum):
    """What an entry of the feed tells."""

    MESSAGE = "message"
    """A message was posted or edited."""
    TYPING = "typing"
    ACCESS = "access"
    """Channels, members or permissions of a space changed; with no space, there is a new bot."""


@dataclass(slots=True)
class Change:
    """A change in the making: where to write it, when it is, and what is told of it."""

    connection: Connection
    now: int
    seq: int
    told: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def note(self, action: str, by: str = OPERATOR, **facts: str | int | None) -> None:
        """Say for the journal what was done; never a secret."""
        self.notes.append({"action": action, "by": by, **facts})

    def tell(
        self, kind: Kind, place: str, account_id: str | None = None, message_id: int | None = None
    ) -> int:
        """Add an entry and return its number, which a new message takes as its id."""
        self.seq += 1
        self.told.append(
            {
                "seq": self.seq,
                "kind": kind.value,
                "place": place,
                "account_id": account_id,
                "message_id": self.seq if kind is Kind.MESSAGE and not message_id else message_id,
                "at": self.now,
            }
        )
        return self.seq


class Changes:
    """Makes changes, and tells a listener of this process the number of the last one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._ids = UlidSource(clock)
        self.listener: Callable[[int], None] = lambda _: None

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._clock.now() * 1000)

    async def change(self, work: Callable[[Change], T]) -> T:
        """Make a change and return its result after the commit.

        The work may be run again, so it touches nothing but its `Change`. A refusal undoes it and
        leaves its neighbours in the shared transaction alone.

        Raises:
            RelayError: The work refused, or the database's constraints did.
            StoreError: The database failed.
        """
        now, note_id = self.now(), self._ids.new()

        def unit(connection: Connection) -> tuple[T, int] | RelayError:
            change = Change(connection, now, connection.execute(_HOLD).scalar_one())
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


def head(connection: Connection) -> int:
    """The number of the last entry."""
    seq: int = connection.execute(_HEAD).scalar_one()
    return seq


def entries(connection: Connection, after: int, limit: int) -> Sequence[Row[Any]]:
    """The entries that follow a number, in order."""
    return connection.execute(_AFTER, {"after": after, "limit": limit}).all()


def _record(change: Change, note_id: str) -> None:
    records = [
        Record(STREAM, f"{note_id}.{place}", change.now, "webchat", canonical.encode(note).decode())
        for place, note in enumerate(change.notes)
    ]
    if records:
        journal.append(change.connection, records)
    if change.told:
        change.connection.execute(insert(feed), change.told)
        change.connection.execute(update(feed_head).values(seq=change.seq))
        change.connection.execute(_FORGET, {"old": change.seq - KEPT})
