"""The state of a log, kept up with what the store holds.

Owns the replay and the lock around it: batches are folded one at a time, off the event loop, and
verdicts that changed are written down. A new row stands for accepted until its verdict is written,
so a crash between the two is mended by folding the tail again, as every start does.

Decides nothing: the fold does.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from accord.community.envelope import Event
from accord.community.fold import ACCEPTED, NeedsHistoryError, Replay, State, Verdict, state_from
from accord.community.log import keeping, rows
from accord.community.log.history import StoreHistory
from accord.community.log.keeping import Kept
from accord.community.log.replaying import Replayed, judgement, replayed
from accord.community.log.rows import Judgement
from accord.community.log.trial import Trial
from accord.kernel.clock import Clock
from accord.storage import Store

T = TypeVar("T")


class Folding:
    """Folds one log; made and used on one event loop.

    Args:
        store: Where its events are.
        number: The community's number in the store.
        community_id: The community.
        clock: Measures how long folding takes.

    Attributes:
        events: How many events were folded, those of the opening included.
        seconds: How long that took.
        is_partial: Whether the log began with a snapshot and still lacks some of what was before
            it; the state is then the snapshot's.
    """

    def __init__(self, store: Store, number: int, community_id: str, clock: Clock) -> None:
        self._store = store
        self._number = number
        self._community_id = community_id
        self._replay: Replay | None = None
        self._state = Replay(community_id).state
        self._clock = clock
        self.events = 0
        self.seconds = 0.0
        self.is_partial = False
        self._pending: list[Event] = []
        self._lock = asyncio.Lock()

    @property
    def state(self) -> State:
        """What all events come to that were taken so far; content in it changes while it is read.

        Looking up one key is safe at any time; whatever looks at more goes through `view`.
        """
        return self._state

    async def open(self) -> tuple[Event, ...]:
        """Take up all that the store holds, from the newest snapshot on."""
        async with self._lock:
            return await self._reload([])

    async def take(self, fresh: Sequence[Event]) -> tuple[Event, ...]:
        """Take up events that were stored.

        Returns:
            The events that stand now and did not before.
        """
        self._pending += fresh
        async with self._lock:
            batch, self._pending = self._pending, []
            if not batch or self.is_partial:
                return ()
            if self._replay is None:
                return await self._reload(batch)
            replay, self._replay = self._replay, None  # not to be used again unless it succeeds
            began = self._clock.monotonic()
            try:
                advance = await self._store.read(
                    lambda c: replay.advance(StoreHistory(c, self._number), batch)
                )
            except NeedsHistoryError:
                return await self._reload(batch)
            self._count(len(batch), began)
            self._replay, self._state = replay, advance.state
            await self._write(advance.changed, {event.digest for event in batch})
            return tuple(event for event, verdict in advance.changed if verdict is ACCEPTED)

    async def view(self, ask: Callable[[State], T]) -> T:
        """Ask something of the state while it stands still."""
        async with self._lock:
            return ask(self._state)

    async def trial(self) -> Trial:
        """Somewhere to try out what is not signed yet."""
        async with self._lock:
            state = self._state
            return await self._store.read(
                lambda c: Trial(state, list(StoreHistory(c, self._number).membership()))
            )

    async def _write(self, changed: Sequence[tuple[Event, Verdict]], fresh: set[bytes]) -> None:
        judgements = [
            judgement(event, verdict)
            for event, verdict in changed
            if verdict is not ACCEPTED or event.digest not in fresh
        ]
        if judgements:
            await self._store.write(lambda c: rows.judge(c, self._number, judgements))

    async def prune(self, work: Callable[[Connection], int]) -> int:
        """Run what drops bodies, and begin behind them: no fold can rewind to before them."""
        async with self._lock:
            self._replay = None
            dropped = await self._store.write(work)
            await self._reload([])
            return dropped

    async def _reload(self, batch: Sequence[Event]) -> tuple[Event, ...]:
        self._replay = None
        began = self._clock.monotonic()
        base, loaded = await self._store.read(self._load)
        self.is_partial = loaded is None
        if loaded is None:
            assert base is not None
            self._state = state_from(base.state)
            return ()
        self._count(loaded.events, began)
        self._replay, self._state = loaded.replay, loaded.replay.state
        await self._store.write(lambda c: self._correct(c, loaded))
        return tuple(event for event in batch if event.digest not in loaded.fallen)

    def _count(self, events: int, began: float) -> None:
        self.events += events
        self.seconds += self._clock.monotonic() - began

    def _load(self, connection: Connection) -> tuple[Kept | None, Replayed | None]:
        base = keeping.base(connection, self._number)
        return base, replayed(connection, self._number, self._community_id)

    def _correct(self, connection: Connection, loaded: Replayed) -> None:
        """Make the written verdicts behind a position what they are."""
        right = dict(loaded.fallen)
        corrected: list[Judgement] = []
        for written in rows.fallen(connection, self._number, loaded.since):
            position = written.position
            found = right.pop(position.digest, Judgement(position, "accepted", None))
            if found != written:
                corrected.append(found)
        rows.judge(connection, self._number, [*corrected, *right.values()])
