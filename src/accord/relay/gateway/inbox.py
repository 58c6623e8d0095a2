"""The inbox: events that were received and not yet answered, in memory or in the gateway's store.

An event is acknowledged to the connector after `take` has returned. A stored inbox takes an
event once, also after a restart: a finished event loses its body and keeps its ids for longer
than any connector buffers. One process holds the inbox of a folder.
"""

import asyncio
import fcntl
import hashlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import structlog
from cachetools import LRUCache
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Table,
    Text,
    Update,
    bindparam,
    insert,
    or_,
    select,
    true,
    update,
)

from accord.kernel import canonical, identifiers
from accord.kernel.clock import Clock
from accord.kernel.identifiers import Trace
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.limits import GatewayLimits
from accord.relay.gateway.retention import GatewayRetention, passes_table
from accord.relay.rules.connection import backoff
from accord.relay.rules.messages import MessageEvent
from accord.storage import Schema, Store, StoreError, open_store

T = TypeVar("T")
_log = structlog.stdlib.get_logger(__name__)
_metadata = MetaData()

events = Table(
    "events",
    _metadata,
    # Rises in the order in which events were taken.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    # By these two a second delivery is known; they stay when the event is finished.
    Column("buffer_id", Text, unique=True),
    Column("message", Text, unique=True),
    Column("session_key", Text, nullable=False),
    # What was taken, as JSON; null once it is finished.
    Column("body", Text),
    Column("attempts", Integer, nullable=False),
    Column("taken_at", BigInteger, nullable=False),
    # A random name, by which the actions of its turn are known in every attempt, and a random key
    # of the digests in their ids, which goes with the body.
    Column("turn", Text),
    Column("turn_key", LargeBinary(32)),
)
Index("events_by_time", events.c.taken_at)
_is_unfinished = events.c.body.is_not(None)
Index(
    "events_unfinished",
    events.c.number,
    sqlite_where=_is_unfinished,
    postgresql_where=_is_unfinished,
)

# What the agent has asked for and was told is taken; times in milliseconds. A lane is a chat, whose
# actions are sent in the order of their numbers. `written_at` is since when the connector may have
# received it without a known answer, `taken_at` when it said that it has queued it.
actions = Table(
    "actions",
    _metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("request_id", Text, nullable=False, unique=True),
    Column("lane", Text, nullable=False),
    # The frame as it is sent; null once it has succeeded, or an operator has dropped it.
    Column("line", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("written_at", BigInteger),
    Column("taken_at", BigInteger),
    # How it ended, as JSON, and when.
    Column("result", Text),
    Column("ended_at", BigInteger),
)
Index("actions_by_end", actions.c.ended_at)
_is_waiting = actions.c.ended_at.is_(None)
Index("actions_waiting", actions.c.number, sqlite_where=_is_waiting, postgresql_where=_is_waiting)

retention_passes = passes_table(_metadata)

INBOX_SCHEMA: Final = Schema("gateway", _metadata, Path(__file__).parent / "migrations")


async def retry_store(work: Callable[[], Awaitable[T]], what: str) -> T:
    """Do something with the gateway's store, again while it fails."""
    attempt = 0
    while True:
        try:
            return await work()
        except StoreError as error:
            _log.error("the gateway's store failed", doing=what, reason=str(error))
        await asyncio.sleep(backoff(attempt, 1.0))
        attempt += 1


_REMEMBERED: Final = 100_000
_LIMITS: Final = GatewayLimits()


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event for an agent, with what the gateway needs to answer it."""

    session_key: str
    event: MessageEvent
    # The platform to name in answers, where it differs from the event's.
    platform: str | None = None
    # The kind of capability that its answer may use, if it came with one.
    capability: str | None = None
    # The connector's id for the delivery.
    buffer_id: str | None = None
    # How often its turn was started, from 1.
    attempt: int = 1
    trace: Trace | None = None
    # By what the actions of its turn are known in every attempt; None where nothing is stored.
    turn: str | None = field(default=None, compare=False)
    # The key of the digests in their ids; None for a turn that was stored by an older version.
    turn_key: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def message(self) -> str | None:
        """A digest by which a second delivery is recognised; None without message id."""
        source = self.event.source
        number = self.event.message_id or source.message_id
        if not number:
            return None
        named = (
            self.platform or source.platform,
            self.event.bot_id,
            source.scope_id,
            source.chat_id,
            number,
        )
        parts = (f"{len(part)}:{part}" for part in (each or "" for each in named))
        return hashlib.sha256("".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The body that a stored inbox keeps."""
        return {
            "event": self.event.to_dict(),
            "platform": self.platform,
            "capability": self.capability,
            "traceparent": None if self.trace is None else str(self.trace),
        }


class OpenInbox(Protocol):
    """An open inbox."""

    async def take(self, deliveries: Sequence[ReceivedEvent]) -> list[int | None]:
        """Take events in order and number each; None for one that was taken before."""
        ...

    async def begin(self, number: int) -> ReceivedEvent | None:
        """The event of a number, for its turn to start; None when it is finished."""
        ...

    async def put_back(self, number: int) -> None:
        """Do not count the last attempt: its turn was broken off by the gateway."""
        ...

    async def finish(self, number: int) -> None:
        """Mark an event as finished."""
        ...

    async def unfinished(self) -> list[tuple[int, str]]:
        """Numbers and session keys of what an earlier process left, in order."""
        ...


Inbox = AbstractAsyncContextManager[OpenInbox]
"""Opens an inbox for the time of a block."""


class MemoryInbox:
    """An inbox that ends with the process; once it holds `room` events, `take` waits."""

    def __init__(self, room: int = _LIMITS.waiting) -> None:
        self._room = asyncio.Semaphore(room)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, ReceivedEvent] = {}
        self._seen: LRUCache[str, None] = LRUCache(_REMEMBERED)

    async def take(self, deliveries: Sequence[ReceivedEvent]) -> list[int | None]:
        """Take events; see `OpenInbox`."""
        return [await self._take(delivery) for delivery in deliveries]

    async def begin(self, number: int) -> ReceivedEvent | None:
        """The event of a number; None when it is finished."""
        return self._waiting.get(number)

    async def put_back(self, number: int) -> None:
        """Do nothing: attempts are not counted."""

    async def finish(self, number: int) -> None:
        """Mark an event as finished."""
        if self._waiting.pop(number, None) is not None:
            self._room.release()

    async def unfinished(self) -> list[tuple[int, str]]:
        """What an earlier run of the same gateway left."""
        return [(number, each.session_key) for number, each in self._waiting.items()]

    async def _take(self, delivery: ReceivedEvent) -> int | None:
        keys = _tagged(delivery.buffer_id, delivery.message)
        is_known = any(key in self._seen for key in keys)
        self._seen.update(dict.fromkeys(keys))
        if is_known:
            return None
        await self._room.acquire()
        number = next(self._numbers)
        self._waiting[number] = delivery
        return number


@asynccontextmanager
async def open_memory_inbox(room: int = _LIMITS.waiting) -> AsyncIterator[OpenInbox]:
    """Open an inbox that forgets everything at the end of the block."""
    yield MemoryInbox(room)


# Far below the number of parameters that either engine takes in one statement.
_BATCH: Final = 500
# Of the random key of a turn.
KEY_BYTES: Final = 32
_PRUNE_EVERY: Final = 1000

_KNOWN: Final = select(events.c.buffer_id, events.c.message).where(
    or_(
        events.c.buffer_id.in_(bindparam("buffer_ids", expanding=True)),
        events.c.message.in_(bindparam("messages", expanding=True)),
    )
)
_INSERT: Final = insert(events).returning(events.c.number, sort_by_parameter_order=True)
_BEGIN: Final = (
    update(events)
    .where(events.c.number == bindparam("wanted"), events.c.body.is_not(None))
    .values(attempts=events.c.attempts + 1)
    .returning(events)
)
_WANTED: Final = update(events).where(events.c.number == bindparam("wanted"))
_FINISH: Final = _WANTED.values(body=None, turn_key=None)
_PUT_BACK: Final = _WANTED.values(attempts=events.c.attempts - 1)
_UNFINISHED: Final = (
    select(events.c.number, events.c.session_key)
    .where(events.c.body.is_not(None))
    .order_by(events.c.number)
)


class StoredInbox:
    """An inbox in a store; see `open_stored_inbox`. Every method may raise StoreError."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        *,
        keep: float = _LIMITS.keep,
        downtime: float = _LIMITS.downtime,
        new_key: Callable[[], bytes] = lambda: os.urandom(KEY_BYTES),
    ) -> None:
        self.store = store
        # Finished events and ended actions are remembered for `keep` seconds.
        ended = ((events.c.taken_at, events.c.body.is_(None)), (actions.c.ended_at, true()))
        self.retention = GatewayRetention(store, clock, retention_passes, ended, keep, downtime)
        self._clock = clock
        self._new_id = new_id
        self._new_key = new_key
        self._taken = 0

    async def take(self, deliveries: Sequence[ReceivedEvent]) -> list[int | None]:
        """Take events; see `OpenInbox`."""
        now = int(self._clock.now() * 1000)
        numbers: list[int | None] = []
        for start in range(0, len(deliveries), _BATCH):
            part = deliveries[start : start + _BATCH]
            turns = [(self._new_id(), self._new_key()) for _ in part]
            numbers += await self.store.write(partial(_take, deliveries=part, now=now, turns=turns))
        self._taken += len(deliveries)
        if self._taken >= _PRUNE_EVERY:
            self._taken = 0
            await self.prune()
        return numbers

    async def begin(self, number: int) -> ReceivedEvent | None:
        """The event of a number, for its turn to start; None when it is finished."""
        row = await self.store.write(lambda c: c.execute(_BEGIN, {"wanted": number}).first())
        return None if row is None else _read_event(row)

    async def put_back(self, number: int) -> None:
        """Do not count the last attempt; if that fails, it counts."""
        await self._change(_PUT_BACK, wanted=number)

    async def finish(self, number: int) -> None:
        """Mark an event as finished; if that fails, it runs again after a restart."""
        await self._change(_FINISH, wanted=number)

    async def unfinished(self) -> list[tuple[int, str]]:
        """What an earlier process left, in order."""
        return await self.store.read(
            lambda c: [(row.number, row.session_key) for row in c.execute(_UNFINISHED)]
        )

    async def prune(self) -> None:
        """Delete what was finished so long ago that no connector can deliver it again."""
        await self.retention.prune()

    async def _change(self, statement: Update, **values: int) -> None:
        def run(connection: Connection) -> None:
            connection.execute(statement, values)

        await self.store.write(run)


@asynccontextmanager
async def open_stored_inbox(
    where: str | os.PathLike[str],
    clock: Clock,
    *,
    keep: float = _LIMITS.keep,
    downtime: float = _LIMITS.downtime,
) -> AsyncIterator[OpenInbox]:
    """Open the inbox in a folder, or in a database by its `postgresql://` URL.

    For `keep` seconds it is remembered what was finished; a process that did not run for more than
    `downtime` seconds suspects its clock, and forgets nothing until somebody confirms it.

    Raises:
        RelayError: Another process holds it.
        StoreError: It cannot be opened.
    """
    text = os.fspath(where)
    with nullcontext() if "://" in text else _folder_lock(Path(text)):
        async with open_store(text, INBOX_SCHEMA) as store:
            inbox = StoredInbox(store, clock, keep=keep, downtime=downtime)
            await inbox.prune()
            yield inbox


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "gateway.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise RelayError(
            Code.UNAVAILABLE,
            f"the inbox cannot be opened ({error.strerror})",
            where=str(folder),
            mend="choose a folder that can be written",
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RelayError(
                Code.CONFLICT,
                "another gateway uses this inbox",
                where=str(folder),
                mend="stop it first, or give this one a folder of its own",
            ) from None
        yield
    finally:
        os.close(lock)


def _take(
    connection: Connection,
    deliveries: Sequence[ReceivedEvent],
    now: int,
    turns: Sequence[tuple[str, bytes]],
) -> list[int | None]:
    names = [(delivery.buffer_id, delivery.message) for delivery in deliveries]
    wanted = {
        "buffer_ids": [buffer_id for buffer_id, _ in names if buffer_id],
        "messages": [message for _, message in names if message],
    }
    known = {name for row in connection.execute(_KNOWN, wanted) for name in _tagged(*row)}
    rows: list[dict[str, Any]] = []
    is_new: list[bool] = []
    for delivery, (turn, turn_key), (buffer_id, message) in zip(
        deliveries, turns, names, strict=True
    ):
        own = _tagged(buffer_id, message)
        is_new.append(known.isdisjoint(own))
        if is_new[-1]:
            known.update(own)
            rows.append(
                {
                    "buffer_id": buffer_id,
                    "message": message,
                    "session_key": delivery.session_key,
                    "body": canonical.encode(delivery.to_dict()).decode(),
                    "attempts": 0,
                    "taken_at": now,
                    "turn": turn,
                    "turn_key": turn_key,
                }
            )
    numbers = iter(connection.execute(_INSERT, rows).scalars().all() if rows else ())
    return [next(numbers) if new else None for new in is_new]


def _tagged(buffer_id: str | None, message: str | None) -> list[str]:
    """The keys by which a second delivery is recognised, told apart by a letter."""
    return [f"{kind}{key}" for kind, key in (("b", buffer_id), ("m", message)) if key]


def _read_event(row: Row[Any]) -> ReceivedEvent:
    kept = canonical.decode(row.body)
    return ReceivedEvent(
        row.session_key,
        MessageEvent.from_dict(kept["event"]),
        kept["platform"],
        kept["capability"],
        row.buffer_id,
        row.attempts,
        # Events stored by an older version have none.
        identifiers.parse_traceparent(kept.get("traceparent")),
        row.turn,
        row.turn_key,
    )
