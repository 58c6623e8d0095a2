"""The inbox that survives the process: a small store of its own.

Owns the rule that an event is taken once, also after a restart: what is finished loses its body and
keeps its names for longer than any connector buffers. One process at a time holds the inbox of a
folder; in a database of your own, that is yours to see to.
"""

import fcntl
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Row, Update, bindparam, delete, insert, or_, select, update

from accord.kernel import canonical, traceparent
from accord.kernel.clock import Clock
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.inbox import Delivery, Taken
from accord.relay.gateway.tables import SCHEMA, events
from accord.relay.wire import MessageEvent
from accord.storage import Store, open_store

_KEPT_MS: Final = 8 * 86_400_000
# Far below the number of parameters that either engine takes in one statement.
_BATCH: Final = 500
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
_FINISH: Final = _WANTED.values(body=None)
_PUT_BACK: Final = _WANTED.values(attempts=events.c.attempts - 1)
_UNFINISHED: Final = (
    select(events.c.number, events.c.session_key)
    .where(events.c.body.is_not(None))
    .order_by(events.c.number)
)


class StoredInbox:
    """An inbox in a store; see `stored`."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._taken = 0

    async def take(self, deliveries: Sequence[Delivery]) -> list[int | None]:
        """Take events in order and number each; None for one that was taken before.

        Raises:
            StoreError: Nothing was taken.
        """
        now = int(self._clock.now() * 1000)
        numbers: list[int | None] = []
        for start in range(0, len(deliveries), _BATCH):
            part = deliveries[start : start + _BATCH]
            numbers += await self._store.write(partial(_take, deliveries=part, now=now))
        self._taken += len(deliveries)
        if self._taken >= _PRUNE_EVERY:
            self._taken = 0
            await self.prune()
        return numbers

    async def begin(self, number: int) -> Delivery | None:
        """What was taken under a number, for its turn to begin; None when it is finished.

        Raises:
            StoreError: The store failed.
        """
        row = await self._store.write(lambda c: c.execute(_BEGIN, {"wanted": number}).first())
        return None if row is None else _delivery(row)

    async def put_back(self, number: int) -> None:
        """Its turn was broken off through no fault of its own: that attempt does not count.

        Raises:
            StoreError: The store failed; the attempt counts.
        """
        await self._change(_PUT_BACK, number)

    async def finish(self, number: int) -> None:
        """It was dealt with, and is not begun again.

        Raises:
            StoreError: The store failed; after a restart it will be begun again.
        """
        await self._change(_FINISH, number)

    async def unfinished(self) -> list[tuple[int, str]]:
        """What an earlier process left, in order.

        Raises:
            StoreError: The store failed.
        """
        return await self._store.read(
            lambda c: [(row.number, row.session_key) for row in c.execute(_UNFINISHED)]
        )

    async def prune(self) -> None:
        """Forget what was finished so long ago that no connector can deliver it again.

        Raises:
            StoreError: The store failed.
        """
        oldest = int(self._clock.now() * 1000) - _KEPT_MS
        old = delete(events).where(events.c.taken_at < oldest, events.c.body.is_(None))

        def run(connection: Connection) -> None:
            connection.execute(old)

        await self._store.write(run)

    async def _change(self, statement: Update, number: int) -> None:
        def run(connection: Connection) -> None:
            connection.execute(statement, {"wanted": number})

        await self._store.write(run)


@asynccontextmanager
async def stored(where: str | os.PathLike[str], clock: Clock) -> AsyncIterator[Taken]:
    """Open the inbox in a folder, or in a database by its `postgresql://` URL.

    Raises:
        RelayError: Another process holds it.
        StoreError: It cannot be opened.
    """
    text = os.fspath(where)
    if "://" in text:
        async with open_store(text, SCHEMA) as store:
            yield await _opened(store, clock)
        return
    with _held(Path(text)):
        async with open_store(text, SCHEMA) as store:
            yield await _opened(store, clock)


async def _opened(store: Store, clock: Clock) -> StoredInbox:
    inbox = StoredInbox(store, clock)
    await inbox.prune()
    return inbox


@contextmanager
def _held(folder: Path) -> Iterator[None]:
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


def _take(connection: Connection, deliveries: Sequence[Delivery], now: int) -> list[int | None]:
    names = [(delivery.buffer_id, delivery.message) for delivery in deliveries]
    wanted = {
        "buffer_ids": [buffer_id for buffer_id, _ in names if buffer_id],
        "messages": [message for _, message in names if message],
    }
    known = {name for row in connection.execute(_KNOWN, wanted) for name in _tagged(row) if name}
    rows: list[dict[str, Any]] = []
    is_new: list[bool] = []
    for delivery, (buffer_id, message) in zip(deliveries, names, strict=True):
        own = {name for name in _tagged((buffer_id, message)) if name}
        is_new.append(not own & known)
        if is_new[-1]:
            known |= own
            rows.append(
                {
                    "buffer_id": buffer_id,
                    "message": message,
                    "session_key": delivery.session_key,
                    "body": canonical.encode(delivery.to_dict()).decode(),
                    "attempts": 0,
                    "taken_at": now,
                }
            )
    numbers = iter(connection.execute(_INSERT, rows).scalars().all() if rows else ())
    return [next(numbers) if new else None for new in is_new]


def _tagged(names: Sequence[Any]) -> tuple[str | None, ...]:
    return tuple(f"{kind}{name}" if name else None for kind, name in zip("bm", names, strict=True))


def _delivery(row: Row[Any]) -> Delivery:
    kept = canonical.decode(row.body)
    return Delivery(
        row.session_key,
        MessageEvent.from_dict(kept["event"]),
        kept["platform"],
        kept["capability"],
        row.buffer_id,
        row.attempts,
        # What an older version took has none.
        traceparent.parse(kept.get("traceparent")),
    )
