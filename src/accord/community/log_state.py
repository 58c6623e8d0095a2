"""The folded state of a log, kept up to date with the store.

Batches are folded one at a time, off the event loop, starting from the newest usable snapshot;
changed verdicts are written back. A new row counts as accepted until its verdict is written. If the
process dies between the two, the next start folds the tail again.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from sqlalchemy import Connection

from accord.community import messages, store
from accord.community.errors import Code, CommunityError
from accord.community.rules.event import Event, Position
from accord.community.rules.fold import Trial
from accord.community.rules.replay import Advance, NeedsHistoryError, Replay
from accord.community.rules.state import CommunityState, read_state
from accord.community.rules.verdicts import ACCEPTED, Verdict
from accord.community.store import PAGE, ChainHeads, StoredSnapshot, StoredVerdict, StoreHistory
from accord.kernel.clock import Clock
from accord.storage import Store


@dataclass(frozen=True, slots=True)
class ReplayedLog:
    """A replay of the stored events after the position `since` (None for all).

    `not_accepted` has those that are not accepted, by digest; `events` counts all.
    """

    replay: Replay
    since: Position | None
    not_accepted: dict[bytes, StoredVerdict]
    events: int


def replay_log(
    connection: Connection,
    number: int,
    community_id: str,
    *,
    upto: int | None = None,
    heads: ChainHeads | None = None,
    begin_with: Sequence[StoredSnapshot] | None = None,
) -> ReplayedLog | None:
    """Fold a stored log; None if bodies are missing and no snapshot replaces them.

    Args:
        upto: Fold only events at or below this lamport.
        heads: Where each author's chain ends, as in a retention floor.
        begin_with: The snapshots to try in this order; by default all, newest first.
    """
    with without_gc():
        return _try_replay(connection, number, community_id, upto, heads, begin_with)


@contextmanager
def without_gc() -> Iterator[None]:
    """Disable cyclic garbage collection during a fold.

    A fold creates many long-lived objects and no cycles; scanning them takes longer than folding.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _try_replay(
    connection: Connection,
    number: int,
    community_id: str,
    upto: int | None,
    heads: ChainHeads | None,
    begin_with: Sequence[StoredSnapshot] | None,
) -> ReplayedLog | None:
    kept = store.all_snapshots(connection, number) if begin_with is None else begin_with
    for snapshot in kept:
        if upto is None or snapshot.lamport <= upto:
            state = read_state(snapshot.state)
            log = partial(StoreHistory, connection, number, heads=heads)
            try:
                if snapshot.is_base:
                    return _from_base(state, log(upto=upto))
                replay, _ = Replay.resume(state, log(upto=snapshot.lamport))
                return _follow(replay, state.content.head, log, upto)
            except NeedsHistoryError:
                continue
    if store.base_snapshot(connection, number) is not None:
        return None
    whole = partial(StoreHistory, connection, number, heads=heads)
    return _follow(Replay(community_id), None, whole, upto)


def state_at_lamport(
    connection: Connection,
    number: int,
    community_id: str,
    lamport: int,
    heads: ChainHeads | None = None,
) -> CommunityState | None:
    """The state after all events at or below a lamport; see `replay_log`."""
    found = replay_log(connection, number, community_id, upto=lamport, heads=heads)
    return None if found is None else found.replay.state


def stored_verdict(event: Event, verdict: Verdict) -> StoredVerdict:
    """A verdict in its stored form."""
    rule = None if verdict is ACCEPTED else verdict.rule
    return StoredVerdict(event.position, verdict.status.value, rule)


def _follow(
    replay: Replay, after: Position | None, log: Callable[..., StoreHistory], upto: int | None
) -> ReplayedLog:
    not_accepted: dict[bytes, StoredVerdict] = {}
    events = 0
    tail = log(upto=upto).in_order(after)
    while page := list(islice(tail, PAGE)):
        # Up to this page, or the replay would read ahead with every page.
        so_far = log(upto=page[-1].lamport)
        _note(not_accepted, replay.advance(so_far, page))
        events += len(page)
    return ReplayedLog(replay, after, not_accepted, events)


def _from_base(state: CommunityState, history: StoreHistory) -> ReplayedLog:
    """Resume after the pruned part, in one step: late events are only known from the whole log."""
    replay, advance = Replay.resume(state, history)
    not_accepted: dict[bytes, StoredVerdict] = {}
    _note(not_accepted, advance)
    return ReplayedLog(replay, state.content.head, not_accepted, len(advance.changed))


def _note(not_accepted: dict[bytes, StoredVerdict], advance: Advance) -> None:
    for event, verdict in advance.changed:
        if verdict is ACCEPTED:
            not_accepted.pop(event.digest, None)
        else:
            not_accepted[event.digest] = stored_verdict(event, verdict)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Reading:
    """One consistent read: the base, the replay, the new events, and the last arrival."""

    base: StoredSnapshot | None
    replayed: ReplayedLog | None
    new: Sequence[Event]
    arrived: int


class LogState:
    """Folds one log; used on one event loop.

    Attributes:
        own: The node whose messages are indexed.
        events: How many events were folded, including those at opening.
        seconds: How long folding took.
        is_partial: Whether the log started from a snapshot and still lacks earlier events; the
            state is then the snapshot's.
    """

    def __init__(
        self, store: Store, number: int, community_id: str, clock: Clock, own: str
    ) -> None:
        self._store = store
        self.own = own
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
    def state(self) -> CommunityState:
        """The current state, which changes in place; to read more than one key use `view`."""
        return self._state

    async def open(self) -> tuple[Event, ...]:
        """Fold everything in the store, from the newest snapshot; returns what `take` returns."""
        async with self._lock:
            await self._reload()
            return self._tell()

    @contextmanager
    def at_hand(self, events: Sequence[Event]) -> Iterator[None]:
        """Keep events that are about to be stored, so that folding need not read them."""
        self._at_hand |= {event.digest: event for event in events}
        try:
            yield
        finally:
            for event in events:
                self._at_hand.pop(event.digest, None)

    async def take(self, *, fresh: bool) -> tuple[Event, ...]:
        """Fold what is stored; `fresh` says whether the caller has stored anything new.

        Returns the events that are accepted now and were not before, each only once.
        """
        async with self._lock:
            if (fresh or self._replay is None) and not self.is_partial:
                await self._advance()
            return self._tell()

    async def view(self, ask: Callable[[CommunityState], T]) -> T:
        """Call a function with the state while it does not change."""
        async with self._lock:
            return ask(self._state)

    async def trial(self) -> Trial:
        """A `Trial` on the current state; `partition` if the log still lacks earlier events."""
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
        """Run a function that drops bodies, and reload: no fold can rewind to before them."""
        async with self._lock:
            self._replay = None
            dropped = await self._store.write(work)
            await self._reload()
            return dropped

    async def _advance(self) -> None:
        replay, self._replay = self._replay, None  # not reused unless everything below succeeds
        if replay is None or self._arrived is None:
            await self._reload()
            return
        since, at_hand = self._arrived, self._at_hand.copy()

        def advance(connection: Connection) -> tuple[int, Sequence[Event], Advance]:
            last, new = store.arrived_since(connection, self._number, since, at_hand)
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
            stored_verdict(event, verdict)
            for event, verdict in changed
            if verdict is not ACCEPTED or event.digest not in fresh
        ]
        touched = messages.touched_messages(event for event, _ in changed)
        records = messages.own_records(self._state, self.own, touched)
        if not judgements and not records:
            return

        def write(connection: Connection) -> None:
            store.write_verdicts(connection, self._number, judgements)
            if touched:
                messages.put_messages(connection, self._number, self.own, touched, records)

        await self._store.write(write)

    async def _reload(self) -> None:
        self._replay = None
        began = self._clock.monotonic()
        found = await self._store.read(self._load)
        loaded = found.replayed
        self.is_partial = loaded is None
        if loaded is None:
            assert found.base is not None
            self._state = read_state(found.base.state)
            await self._store.write(lambda c: self._put_messages(c, is_whole=False))
            return
        self._count(loaded.events, began)
        self._state = loaded.replay.state
        await self._store.write(lambda c: self._correct(c, loaded))
        self._replay, self._arrived = loaded.replay, found.arrived
        self._untold += [event for event in found.new if event.digest not in loaded.not_accepted]

    def _tell(self) -> tuple[Event, ...]:
        untold, self._untold = self._untold, []
        return tuple(untold)

    def _count(self, events: int, began: float) -> None:
        self.events += events
        self.seconds += self._clock.monotonic() - began

    def _load(self, connection: Connection) -> _Reading:
        new: Sequence[Event] = ()
        if self._arrived is not None:
            _, new = store.arrived_since(connection, self._number, self._arrived, {})
        return _Reading(
            store.base_snapshot(connection, self._number),
            replay_log(connection, self._number, self._community_id),
            new,
            store.last_arrival(connection, self._number),
        )

    def _correct(self, connection: Connection, loaded: ReplayedLog) -> None:
        """Correct the stored verdicts after the position where the replay began."""
        right = dict(loaded.not_accepted)
        corrected: list[StoredVerdict] = []
        for written in store.refused_events(connection, self._number, loaded.since):
            position = written.position
            found = right.pop(position.digest, StoredVerdict(position, "accepted", None))
            if found != written:
                corrected.append(found)
        store.write_verdicts(connection, self._number, [*corrected, *right.values()])
        self._put_messages(connection, is_whole=True)

    def _put_messages(self, connection: Connection, *, is_whole: bool) -> None:
        records = messages.own_records(self._state, self.own)
        messages.put_all_messages(connection, self._number, self.own, records, is_whole=is_whole)
