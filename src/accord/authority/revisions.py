"""Revisions of the store: changes are written one at a time, counted, audited and announced.

A decision that relies on what it has read passes a check (`holds`): if something changed since,
nothing is written and it is decided again. A unit of work returns a refusal instead of raising it,
so that other units in the same transaction are not repeated.

The audit history says what was decided and what was refused, in order; no decision reads it. Steps
in the life of a contract also go to the journal as `contracts.history`, in the same transaction.
Equal refusals within a few seconds are one entry with a count, so that refused callers cannot fill
the disk.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeVar

import structlog
from sqlalchemy import Connection, RowMapping, bindparam, func, insert, select, tuple_, update

from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import clip_remark, storable
from accord.authority.rules.records import Classification
from accord.authority.tables import history, revision
from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time
from accord.storage import JournalRecord, Store, StoreError, verify
from accord.storage.journal import append

_log = structlog.stdlib.get_logger(__name__)

STREAM: Final = "contracts.history"

AuditAction = Literal[
    "presented",
    "accepted",
    "rejected",
    "offered",
    "withdrawn",
    "expired",
    "created",
    "enabled",
    "disabled",
    "compatibility",
    "narrowed",
    "calls_granted",
    "described",
    "pushed",
    "registry_token_added",
    "registry_token_revoked",
    "instance_added",
    "instance_enabled",
    "instance_disabled",
    "instance_removed",
    "revoked",
    "refused",
    "reconciled",
    "person_added",
    "person_changed",
    "link_issued",
    "override_set",
    "override_dropped",
    "portal_set",
    "portal_dropped",
    "logged_in",
    "password_set",
    "consented",
    "declined",
    "withdrew",
    "device_refused",
]

_CONTRACT_STEPS: Final = frozenset(
    {"presented", "accepted", "rejected", "offered", "withdrawn", "expired"}
)


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that was decided; `manifest` is what was presented and goes to the journal only."""

    act: AuditAction
    by: str
    deployment: str | None = None
    contract_id: str | None = None
    digest: str | None = None
    classification: Classification | None = None
    previous: str | None = None
    why: str | None = None
    manifest: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An event with its position in the history, without its `manifest`."""

    revision: int
    place: int
    at: float
    act: AuditEvent

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "revision": self.revision,
            "at": format_time(self.at, millis=True),
            "act": self.act.act,
            "by": self.act.by,
            "deployment": self.act.deployment,
            "contractId": self.act.contract_id,
            "digest": self.act.digest,
            "classification": self.act.classification and self.act.classification.value,
            "previous": self.act.previous,
            "why": self.act.why,
        }


def next_position(connection: Connection, revision: int) -> int:
    """The first free place at a revision."""
    last = select(func.max(history.c.place)).where(history.c.revision == revision)
    found = connection.execute(last).scalar()
    return 0 if found is None else int(found) + 1


def append_events(
    connection: Connection, revision: int, acts: Sequence[AuditEvent], now: float, *, first: int = 0
) -> None:
    """Store the events of a revision, and append contract steps to the journal."""
    millis = int(now * 1000)
    rows, records = [], []
    for place, act in enumerate(acts, first):
        common = {
            "deployment": act.deployment,
            "contract_id": act.contract_id,
            "digest": act.digest,
            "by": clip_remark(act.by),
            "classification": act.classification and act.classification.value,
            "previous": act.previous,
        }
        why = None if act.why is None else clip_remark(act.why)
        at = {"revision": revision, "place": place, "at": millis}
        rows.append({**at, "act": act.act, "why": why, **common})
        if act.act in _CONTRACT_STEPS:
            body = {"kind": act.act, "at": format_time(now, millis=True), **common}
            text = canonical.encode({**body, "manifest": act.manifest}).decode()
            identity = f"{revision}.{place}"
            records.append(JournalRecord(STREAM, identity, millis, "authority", text))
    if rows:
        connection.execute(insert(history), rows)
    if records:
        append(connection, records)


def read_history(
    connection: Connection,
    *,
    deployment: str | None = None,
    contract_id: str | None = None,
    since: int = 0,
    limit: int = 1000,
) -> list[AuditEntry]:
    """Entries after a revision, the oldest first; each revision is returned whole.

    Refusals are stored at the revision that was current when they happened.
    """
    query = select(history).order_by(history.c.revision, history.c.place)
    if deployment is not None:
        query = query.where(history.c.deployment == storable(deployment))
    if contract_id is not None:
        query = query.where(history.c.contract_id == storable(contract_id))
    page = (query.where(history.c.revision > since) if since else query).limit(limit)
    rows = list(connection.execute(page).mappings())
    if len(rows) == limit:
        last = rows[-1]
        rest = query.where(history.c.revision == last["revision"], history.c.place > last["place"])
        rows += connection.execute(rest).mappings()
    return [_entry(row) for row in rows]


def read_after(
    connection: Connection, revision: int, place: int, limit: int = 1000
) -> list[AuditEntry]:
    """Entries after a revision and place, the oldest first, refusals included."""
    behind = tuple_(history.c.revision, history.c.place) > (revision, place)
    query = select(history).where(behind).order_by(history.c.revision, history.c.place).limit(limit)
    return [_entry(row) for row in connection.execute(query).mappings()]


def _entry(row: RowMapping) -> AuditEntry:
    verify(history, row)
    classification = row["classification"]
    act = AuditEvent(
        row["act"],
        row["by"],
        row["deployment"],
        row["contract_id"],
        row["digest"],
        Classification(classification) if classification else None,
        row["previous"],
        row["why"],
    )
    return AuditEntry(row["revision"], row["place"], row["at"] / 1000, act)


_GATHER_SECONDS: Final = 2.0
_MAX_DISTINCT: Final = 100


@dataclass(frozen=True, slots=True)
class AuditedRefusal:
    """Who was refused what; `where` is a path or `connect`, `who` a proved key or an address."""

    code: Code
    where: str
    who: str
    digest: str | None = None


class AuditSink(Protocol):
    """Stores audit events that change nothing; `RevisionStore` does."""

    async def note(self, acts: Sequence[AuditEvent]) -> None: ...  # noqa: D102


class RefusalLog:
    """Collects refusals, and writes them to the history every few seconds."""

    def __init__(self, history: AuditSink) -> None:
        self._history = history
        self._seen: Counter[AuditedRefusal] = Counter()
        self._others = 0

    def note(self, refused: AuditedRefusal) -> None:
        """Count a refusal."""
        if refused in self._seen or len(self._seen) < _MAX_DISTINCT:
            self._seen[refused] += 1
        else:
            self._others += 1

    async def run(self) -> None:
        """Write what was collected until cancelled, and once more at the end."""
        try:
            while True:
                await asyncio.sleep(_GATHER_SECONDS)
                await self.write()
        finally:
            await self.write()

    async def write(self) -> None:
        """Write what was collected; it is kept for later if the store fails."""
        if not self._seen:
            return
        seen, others = self._seen, self._others
        self._seen, self._others = Counter(), 0
        acts = [
            AuditEvent("refused", by=each.who, digest=each.digest, why=_sentence(each, count))
            for each, count in seen.items()
        ]
        if others:
            acts.append(AuditEvent("refused", by="others", why=f"{others} times more, from many"))
        try:
            await self._history.note(acts)
        except StoreError as error:
            _log.error("refusals could not be written", count=len(acts), why=error.what)
            self._seen, self._others = seen, others


def _sentence(refused: AuditedRefusal, count: int) -> str:
    times = "once" if count == 1 else f"{count} times"
    return f"{refused.code.value} at {refused.where}, {times}"


_READ: Final = select(revision.c["count"])
_HOLD: Final = _READ.with_for_update()
_WISHES: Final = select(revision.c.wishes)
_ADVANCE: Final = (
    update(revision)
    .values(count=revision.c["count"] + 1, wishes=revision.c.wishes + bindparam("more"))
    .returning(revision.c["count"])
)


def current(connection: Connection) -> int:
    """The revision as this connection sees it."""
    return int(connection.execute(_READ).scalar_one())


def hold(connection: Connection) -> int:
    """The revision, locked until the commit.

    Units of several processes would deadlock if they did not all take this lock first.
    """
    return int(connection.execute(_HOLD).scalar_one())


def wishes(connection: Connection) -> int:
    """How often the desired state, or what is enabled, has changed."""
    return int(connection.execute(_WISHES).scalar_one())


def advance(connection: Connection, *, is_wish: bool) -> int:
    """Increment the revision, which the caller has locked."""
    return int(connection.execute(_ADVANCE, {"more": int(is_wish)}).scalar_one())


T = TypeVar("T")

_TRIES: Final = 50


class StaleError(Exception):
    """What was read has changed; nothing was written."""


class ChangeSignal:
    """Wakes tasks that follow changes; a count, so that none is missed between two waits."""

    def __init__(self) -> None:
        self.count = 0
        self._fired = asyncio.Event()

    def fire(self) -> None:
        """Announce a change."""
        self.count += 1
        self._fired.set()
        self._fired = asyncio.Event()

    async def after(self, count: int) -> int:
        """Wait until the count exceeds `count`; the new count."""
        while self.count <= count:
            await self._fired.wait()
        return self.count


@dataclass(slots=True)
class ChangeSet:
    """What one unit of work changes."""

    now: float
    acts: list[AuditEvent] = field(default_factory=list)
    is_one: bool = False
    is_wish: bool = False

    def tell(self, *acts: AuditEvent) -> None:
        """Record events; this counts as a change."""
        self.acts += acts
        self.touch()

    def touch(self) -> None:
        """Count as a change that others are told of."""
        self.is_one = True

    def wish(self) -> None:
        """Count as a change of what is desired or enabled."""
        self.is_wish = True
        self.touch()


@dataclass(frozen=True, slots=True)
class SerialStore:
    """A store in which no two processes write at the same time."""

    _store: Store

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work while holding the revision lock."""

        def unit(connection: Connection) -> T:
            hold(connection)
            return work(connection)

        return await self._store.write(unit)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection, without the lock."""
        return await self._store.read(work)


class RevisionStore:
    """Reads and changes the authority's records.

    `changes` fires after every change, and after one of another process once it is noticed.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = SerialStore(store)
        self.clock = clock
        self.changes = ChangeSignal()
        self._told = 0
        self._turn = asyncio.Lock()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only snapshot."""
        return await self.store.read(work)

    async def change(
        self,
        work: Callable[[Connection, ChangeSet], T | AuthorityError],
        *,
        holds: Callable[[Connection], bool] | None = None,
    ) -> T:
        """Run a unit of work, which returns its result, or a refusal before it has written.

        Raises the refusal, or StaleError if `holds` says that what the work relies on has changed.
        """
        now = self.clock.now()

        def unit(connection: Connection) -> tuple[T | AuthorityError | StaleError, int]:
            if holds is not None and not holds(connection):
                return StaleError(), 0
            change = ChangeSet(now)
            result = work(connection, change)
            if isinstance(result, AuthorityError) or not change.is_one:
                return result, 0
            revision = advance(connection, is_wish=change.is_wish)
            append_events(connection, revision, change.acts, now)
            return result, revision

        result, revision = await self.store.write(unit)
        self.notice(revision)
        if isinstance(result, AuthorityError | StaleError):
            raise result
        return result

    async def history(
        self, deployment: str | None = None, since: int = 0, limit: int = 1000
    ) -> Sequence[AuditEntry]:
        """What was decided after a revision, the oldest first."""
        return await self.read(
            lambda c: read_history(c, deployment=deployment, since=since, limit=limit)
        )

    async def note(self, acts: Sequence[AuditEvent]) -> None:
        """Record events that change nothing, at the current revision; `changes` does not fire."""
        now = self.clock.now()

        def unit(connection: Connection) -> None:
            revision = current(connection)
            append_events(
                connection, revision, acts, now, first=next_position(connection, revision)
            )

        await self.store.write(unit)

    def notice(self, revision: int) -> None:
        """Fire `changes` if this revision is newer than the last announced one."""
        if revision > self._told:
            self._told = revision
            self.changes.fire()

    async def decide(self, once: Callable[[], Awaitable[T]]) -> T:
        """Repeat a decision until it is not stale; after the first attempt, one at a time."""
        try:
            return await once()
        except StaleError:
            pass
        async with self._turn:
            for _ in range(_TRIES):
                try:
                    return await once()
                except StaleError:
                    continue
        raise AuthorityError(
            Code.CONFLICT, "the records changed too often to decide this", mend="try again"
        )
