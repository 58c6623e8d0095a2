"""The state of a log, kept up with what the store holds.

Owns the replay and the lock around it: batches are folded one at a time, off the event loop, and
verdicts that changed are written down. A new row stands for accepted until its verdict is written,
so a crash between the two is mended by folding the tail again, as every start does.

Others store while this folds. Whatever the store holds at the moment of a fold is taken up in it,
by whomever it was brought: a replay that finds events in its history that it was never given would
judge them without their chains.

Decides nothing: the fold does.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from accord.community.envelope import Event
from accord.community.errors import Code, CommunityError
from accord.community.fold import (
    ACCEPTED,
    Advance,
    NeedsHistoryError,
    Replay,
    State,
    Verdict,
    state_from,
)
from accord.community.log import keeping, rows
from accord.community.log.history import StoreHistory
from accord.community.log.keeping import Kept
from accord.community.log.replaying import Replayed, judgement, replayed
from accord.community.log.rows import Judgement
from accord.community.log.trial import Trial
from accord.kernel.clock import Clock
from accord.storage import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Found:
    """What the store held at one moment: a base, the replay of all, what is new, its last one."""

    base: Kept | None
    replayed: Replayed | None
    new: Sequence[Event]
    arrived: int


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
        self._arrived: int | None = None
        self._at_hand: dict[bytes, Event] = {}
        self._untold: list[Event] = []
        self._lock = asyncio.Lock()

    @property
    def state(self) -> State:
        """What all events come to that were taken so far; content in it changes while it is read.

        Looking up one key is safe at any time; whatever looks at more goes through `view`.
        """
        return self._state

    async def open(self) -> tuple[Event, ...]:
        """Take up all that the store holds, from the newest snapshot on; see `take`."""
        async with self._lock:
            await self._reload()
            return self._tell()

    @contextmanager
    def at_hand(self, events: Sequence[Event]) -> Iterator[None]:
        """Events that are about to be stored, and need not be read when they are folded."""
        self._at_hand |= {event.digest: event for event in events}
        try:
            yield
        finally:
            for event in events:
                self._at_hand.pop(event.digest, None)

    async def take(self, *, fresh: bool) -> tuple[Event, ...]:
        """Take up what is stored.

        Args:
            fresh: Whether the caller has stored anything that was not there.

        Returns:
            The events that stand now and did not before, unless an earlier call has told of them.
        """
        async with self._lock:
            if (fresh or self._replay is None) and not self.is_partial:
                await self._advance()
            return self._tell()

    async def view(self, ask: Callable[[State], T]) -> T:
        """Ask something of the state while it stands still."""
        async with self._lock:
            return ask(self._state)

    async def trial(self) -> Trial:
        """Somewhere to try out what is not signed yet.

        Raises:
            CommunityError: The log lacks what was before its snapshot: `partition`.
        """
        async with self._lock:
            if self._replay is None and not self.is_partial:
                await self._reload()
            if self._replay is None:
                raise CommunityError(
                    Code.PARTITION,
                    "this log began with a snapshot and still lacks what was before it",
                    where=self._community_id,
                    mend="let it sync with another member first",
                )
            return await asyncio.to_thread(Trial, self._state, self._replay.membership)

    async def prune(self, work: Callable[[Connection], int]) -> int:
        """Run what drops bodies, and begin behind them: no fold can rewind to before them."""
        async with self._lock:
            self._replay = None
            dropped = await self._store.write(work)
            await self._reload()
            return dropped

    async def _advance(self) -> None:
        replay, self._replay = self._replay, None  # not to be used again unless all succeeds
        if replay is None or self._arrived is None:
            await self._reload()
            return
        since, at_hand = self._arrived, self._at_hand.copy()

        def advance(connection: Connection) -> tuple[int, Sequence[Event], Advance]:
            last, new = rows.arrived(connection, self._number, since, at_hand)
            return last, new, replay.advance(StoreHistory(connection, self._number), new)

        began = self._clock.monotonic()
        try:
            arrived, new, advanced = await self._store.read(advance)
        except NeedsHistoryError:
            await self._reload()
            return
        self._count(len(new), began)
        self._state = advanced.state
        await self._write(advanced.changed, {event.digest for event in new})
        self._replay, self._arrived = replay, arrived
        self._untold += [event for event, verdict in advanced.changed if verdict is ACCEPTED]

    async def _write(self, changed: Sequence[tuple[Event, Verdict]], fresh: set[bytes]) -> None:
        judgements = [
            judgement(event, verdict)
            for event, verdict in changed
            if verdict is not ACCEPTED or event.digest not in fresh
        ]
        if judgements:
            await self._store.write(lambda c: rows.judge(c, self._number, judgements))

    async def _reload(self) -> None:
        self._replay = None
        began = self._clock.monotonic()
        found = await self._store.read(self._load)
        loaded = found.replayed
        self.is_partial = loaded is None
        if loaded is None:
            assert found.base is not None
            self._state = state_from(found.base.state)
            return
        self._count(loaded.events, began)
        self._state = loaded.replay.state
        await self._store.write(lambda c: self._correct(c, loaded))
        self._replay, self._arrived = loaded.replay, found.arrived
        self._untold += [event for event in found.new if event.digest not in loaded.fallen]

    def _tell(self) -> tuple[Event, ...]:
        untold, self._untold = self._untold, []
        return tuple(untold)

    def _count(self, events: int, began: float) -> None:
        self.events += events
        self.seconds += self._clock.monotonic() - began

    def _load(self, connection: Connection) -> _Found:
        new: Sequence[Event] = ()
        if self._arrived is not None:
            _, new = rows.arrived(connection, self._number, self._arrived, {})
        return _Found(
            keeping.base(connection, self._number),
            replayed(connection, self._number, self._community_id),
            new,
            rows.last_arrival(connection, self._number),
        )

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
