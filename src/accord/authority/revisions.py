"""Revisions of the store: changes are written one at a time, counted, audited and announced.

A decision that relies on what it has read passes a check (`holds`): if something changed since,
nothing is written and it is decided again. A unit of work returns a refusal instead of raising it,
so that other units in the same transaction are not repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sqlalchemy import Connection, bindparam, select, update

from accord.authority.audit import (
    AuditEntry,
    AuditEvent,
    append_events,
    next_position,
    read_history,
)
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.tables import revision
from accord.kernel.clock import Clock
from accord.storage import Store

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
