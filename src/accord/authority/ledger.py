"""The store as the authority writes to it: one at a time, counted, and told.

Owns the turn to write among all processes, the revision that every change moves on, the history
that goes with it, and the wake-up of those who follow changes. Whoever decides by what it has read
says how to tell that it still holds: if something came between, nothing is written and it decides
again. Never raises inside a unit for what a client did: a refusal is returned, and raised outside.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy import Connection

from accord.authority.errors import AuthorityError, Code
from accord.authority.history import Act, next_place, tell
from accord.authority.stored import revisions
from accord.kernel.clock import Clock
from accord.storage import Store

T = TypeVar("T")

_TRIES: Final = 50


class StaleError(Exception):
    """What was read is not the newest any more; nothing was written."""


class Changes:
    """Wakes those who follow what changes; a count, so that nothing is missed between two looks."""

    def __init__(self) -> None:
        self.count = 0
        self._fired = asyncio.Event()

    def fire(self) -> None:
        """Say that something has changed."""
        self.count += 1
        self._fired.set()
        self._fired = asyncio.Event()

    async def after(self, count: int) -> int:
        """Wait until more has changed than that, and say how much."""
        while self.count <= count:
            await self._fired.wait()
        return self.count


class Change:
    """What one unit of work comes to."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.acts: list[Act] = []
        self.is_one = False
        self.is_wish = False

    def tell(self, *acts: Act) -> None:
        """Note acts; they make it a change."""
        self.acts += acts
        self.touch()

    def touch(self) -> None:
        """Make it a change that others must hear of."""
        self.is_one = True

    def wish(self) -> None:
        """Make it a change of what is desired or enabled."""
        self.is_wish = True
        self.touch()


class InTurn:
    """A store in which no two processes write at the same time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work, when it is this process's turn."""

        def unit(connection: Connection) -> T:
            revisions.hold(connection)
            return work(connection)

        return await self._store.write(unit)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection, at any time."""
        return await self._store.read(work)


class Ledger:
    """Reads and changes the authority's records.

    Args:
        store: The open store.
        clock: Where time comes from.

    Attributes:
        store: The same store, in turn with the authority; for units that change nothing of its own.
        changes: Fires after every change, and after one of another process once it is seen.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = InTurn(store)
        self.clock = clock
        self.changes = Changes()
        self._told = 0
        self._turn = asyncio.Lock()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection that sees one moment."""
        return await self.store.read(work)

    async def change(
        self,
        work: Callable[[Connection, Change], T | AuthorityError],
        *,
        holds: Callable[[Connection], bool] | None = None,
    ) -> T:
        """Run a unit of work.

        Args:
            work: Reads and writes; returns its result, or before it wrote anything, a refusal.
            holds: Whether what the work relies on still holds, if it relies on something.

        Raises:
            AuthorityError: The refusal.
            StaleError: It does not hold any more; nothing was written.
            StoreError: The database failed.
        """
        now = self.clock.now()

        def unit(connection: Connection) -> tuple[T | AuthorityError | StaleError, int]:
            if holds is not None and not holds(connection):
                return StaleError(), 0
            change = Change(now)
            result = work(connection, change)
            if isinstance(result, AuthorityError) or not change.is_one:
                return result, 0
            revision = revisions.advance(connection, is_wish=change.is_wish)
            tell(connection, revision, change.acts, now)
            return result, revision

        result, revision = await self.store.write(unit)
        self.notice(revision)
        if isinstance(result, AuthorityError | StaleError):
            raise result
        return result

    async def note(self, acts: Sequence[Act]) -> None:
        """Keep acts that change nothing, at the revision as it is; nobody is woken.

        Raises:
            StoreError: The database failed.
        """
        now = self.clock.now()

        def unit(connection: Connection) -> None:
            revision = revisions.current(connection)
            tell(connection, revision, acts, now, first=next_place(connection, revision))

        await self.store.write(unit)

    def notice(self, revision: int) -> None:
        """Wake those who follow changes, if they have not heard of a revision as new as this."""
        if revision > self._told:
            self._told = revision
            self.changes.fire()

    async def decide(self, once: Callable[[], Awaitable[T]]) -> T:
        """Decide until nothing came between: first freely, then one decision after the other.

        Raises:
            AuthorityError: Other processes change things all the time.
        """
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
            Code.CONFLICT, "too much changes at once to decide this", mend="try again"
        )
