"""The bus on disk: request ids, answers that are sent again, and the journal of calls.

Owns the store `bus`. Writes that wait during a commit share the next one; writes that nobody waits
for join the next commit or go after a short delay. `ReplayGuard` decides what is a replay.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    Text,
    bindparam,
    delete,
    insert,
    select,
)

from accord.community.bus.exchange import SignedAnswer
from accord.community.rules.checks import REPLAY_SECONDS, ReplayGuard, RequestClaim, RequestStatus
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.kernel.identifiers import UlidSource
from accord.storage import JournalRecord, Schema, Store, journal, sealed, verify

CALL_STREAM: Final = "bus.calls"
"""The journal's stream with one record for each call."""

MAX_KEPT_ANSWER: Final = 64 * 1024
"""The longest answer that is kept; a longer one is made again, which is the same by declaration."""

_PRUNE_SECONDS: Final = 30.0
# How long a record waits for others to share a commit.
_MOMENT_SECONDS: Final = 0.05
_log = structlog.stdlib.get_logger(__name__)

_metadata = MetaData()
requests = sealed(
    "requests",
    _metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("caller", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("answer_head", Text),
    Column("answer_body", LargeBinary),
)
BUS_STORE: Final = Schema("bus", _metadata, Path(__file__).parent / "migrations")

_INSERT = insert(requests)
_KEPT = select(requests).where(requests.c.number == bindparam("wanted"))
_FORGET = delete(requests).where(requests.c.number < bindparam("oldest"))
_FORGET_OLD = delete(requests).where(requests.c.seen_at < bindparam("before"))
_ALL = select(requests).order_by(requests.c.number)


@dataclass(frozen=True, slots=True, eq=False)
class _LedgerEntry:
    row: dict[str, Any] | None
    record: JournalRecord | None
    done: asyncio.Future[None] | None


class CallLedger:
    """Requests, stored answers and the journal; `replay` has the last ten minutes."""

    def __init__(self, store: Store, clock: Clock, source: str) -> None:
        self.replay = ReplayGuard()
        self._store = store
        self._clock = clock
        self._source = source
        self._ids = UlidSource(clock)
        self._waiting: list[_LedgerEntry] = []
        self._flushing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pruned_at = clock.monotonic()

    async def load(self) -> None:
        """Load the stored requests, and delete those that are too old."""
        before = int((self._clock.now() - REPLAY_SECONDS) * 1000)
        await self._store.write(lambda c: c.execute(_FORGET_OLD, {"before": before}).rowcount)
        for claim in await self._store.read(_read_all):
            self.replay.restore(claim)

    async def store(
        self,
        claim: RequestClaim,
        *,
        answer: SignedAnswer | None = None,
        record: dict[str, Any] | None = None,
    ) -> None:
        """Write a request with its answer and journal record, and return when it is on disk.

        A failure of the store is logged and raised.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(claim, answer, record, done)
        self._begin()
        await done

    def store_soon(self, record: dict[str, Any], claim: RequestClaim | None = None) -> None:
        """Write a journal record, and the request if it is not stored yet, without waiting."""
        self._add(claim, None, record, None)
        if self._flushing is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MOMENT_SECONDS, self._begin)

    async def stored_answer(self, claim: RequestClaim) -> SignedAnswer | None:
        """The stored answer of a request."""

        def read(connection: Connection) -> SignedAnswer | None:
            row = connection.execute(_KEPT, {"wanted": claim.number}).mappings().first()
            if row is None or row["answer_head"] is None:
                return None
            verify(requests, row)
            return SignedAnswer(200, orjson.loads(row["answer_head"]), row["answer_body"])

        return await self._store.read(read)

    async def close(self) -> None:
        """Finish all writes."""
        if self._waiting:
            self._begin()
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    def _add(
        self,
        claim: RequestClaim | None,
        answer: SignedAnswer | None,
        record: dict[str, Any] | None,
        done: asyncio.Future[None] | None,
    ) -> None:
        row = _row(claim, answer) if claim and not claim.durable else None
        if claim is not None:
            claim.durable = True
        self._waiting.append(_LedgerEntry(row, self._record(record) if record else None, done))

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush(), name="bus ledger")

    async def _flush(self) -> None:
        try:
            while self._waiting:
                entries, self._waiting = self._waiting, []
                await self._commit(entries)
        finally:
            self._flushing = None

    async def _commit(self, entries: list[_LedgerEntry]) -> None:
        rows = [entry.row for entry in entries if entry.row]
        records = [entry.record for entry in entries if entry.record]
        oldest = self._due_to_prune()
        error: AccordError | None = None
        try:
            await self._store.write(lambda c: _write(c, rows, records, oldest))
        except AccordError as failure:
            _log.error("calls cannot be recorded", error=str(failure), calls=len(entries))
            error = failure
        for entry in entries:
            if entry.done is None or entry.done.done():
                continue
            if error is None:
                entry.done.set_result(None)
            else:
                entry.done.set_exception(error)

    def _due_to_prune(self) -> int | None:
        now = self._clock.monotonic()
        if now - self._pruned_at < _PRUNE_SECONDS:
            return None
        self._pruned_at = now
        return self.replay.oldest

    def _record(self, record: dict[str, Any]) -> JournalRecord:
        now = int(self._clock.now() * 1000)
        return JournalRecord(
            CALL_STREAM, self._ids.new(), now, self._source, orjson.dumps(record).decode()
        )


@asynccontextmanager
async def open_ledger(store: Store, clock: Clock, *, source: str) -> AsyncIterator[CallLedger]:
    """Open the ledger of a `BUS_STORE`; `source` is the node's id, for the journal."""
    ledger = CallLedger(store, clock, source)
    await ledger.load()
    try:
        yield ledger
    finally:
        await asyncio.shield(ledger.close())


def _row(claim: RequestClaim, answer: SignedAnswer | None) -> dict[str, Any]:
    kept = answer if answer and len(answer.content) <= MAX_KEPT_ANSWER else None
    return {
        "number": claim.number,
        "caller": claim.caller,
        "request_id": claim.request_id,
        "digest": claim.digest,
        "seen_at": int(claim.seen_at * 1000),
        "answer_head": orjson.dumps(kept.headers).decode() if kept else None,
        "answer_body": kept.content if kept else None,
    }


def _write(
    connection: Connection,
    rows: Sequence[dict[str, Any]],
    records: Sequence[JournalRecord],
    oldest: int | None,
) -> None:
    if oldest is not None:
        connection.execute(_FORGET, {"oldest": oldest})
    if rows:
        connection.execute(_INSERT, rows)
    if records:
        journal.append(connection, records)


def _read_all(connection: Connection) -> list[RequestClaim]:
    found = []
    for row in connection.execute(_ALL).mappings():
        verify(requests, row)
        answered = row["answer_head"] is not None
        found.append(
            RequestClaim(
                row["number"],
                row["caller"],
                row["request_id"],
                row["digest"],
                row["seen_at"] / 1000,
                RequestStatus.ANSWERED if answered else RequestStatus.OPEN,
                durable=True,
            )
        )
    return found
