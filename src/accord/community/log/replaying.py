"""A log folded from its store: from the newest snapshot that will do, page by page.

Owns the choice of where to begin and the size of a step; memory is bounded by the state and a
page. Works on a read connection that it is given, and writes nothing.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

from sqlalchemy import Connection

from accord.community.envelope import Event, Position
from accord.community.fold import (
    ACCEPTED,
    Advance,
    NeedsHistoryError,
    Replay,
    State,
    Verdict,
    state_from,
)
from accord.community.log import keeping
from accord.community.log.history import Heads, StoreHistory
from accord.community.log.keeping import Kept
from accord.community.log.rows import PAGE, Judgement


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay that has taken up what the store holds.

    Attributes:
        replay: The replay.
        since: Behind which position its events were judged now; None for all.
        fallen: Those among them that do not stand, by digest.
        events: How many events were folded for it.
    """

    replay: Replay
    since: Position | None
    fallen: dict[bytes, Judgement]
    events: int


def replayed(
    connection: Connection,
    number: int,
    community_id: str,
    *,
    upto: int | None = None,
    heads: Heads | None = None,
    begin_with: Sequence[Kept] | None = None,
) -> Replayed | None:
    """Fold a log.

    Args:
        connection: Where to read.
        number: The community's number in the store.
        community_id: The community.
        upto: Where to end: only events at or below this lamport are folded.
        heads: Where each author's chain ends, as a retention floor has it.
        begin_with: The snapshots to try, the first that will do; by default all, newest first.

    Returns:
        None where bodies are missing and no snapshot stands for them.
    """
    with uncollected():
        return _replayed(connection, number, community_id, upto, heads, begin_with)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector of reference cycles away from a fold.

    A fold makes no cycles, and a great many objects that stay: looking through them again and
    again would take longer than folding.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _replayed(
    connection: Connection,
    number: int,
    community_id: str,
    upto: int | None,
    heads: Heads | None,
    begin_with: Sequence[Kept] | None,
) -> Replayed | None:
    kept = keeping.every(connection, number) if begin_with is None else begin_with
    for snapshot in kept:
        if upto is None or snapshot.lamport <= upto:
            state = state_from(snapshot.state)
            log = partial(StoreHistory, connection, number, heads=heads)
            try:
                if snapshot.is_base:
                    return _from_base(state, log(upto=upto))
                replay, _ = Replay.resume(state, log(upto=snapshot.lamport))
                return _follow(replay, state.content.head, log, upto)
            except NeedsHistoryError:
                continue
    if keeping.base(connection, number) is not None:
        return None
    whole = partial(StoreHistory, connection, number, heads=heads)
    return _follow(Replay(community_id), None, whole, upto)


def state_at(
    connection: Connection,
    number: int,
    community_id: str,
    lamport: int,
    heads: Heads | None = None,
) -> State | None:
    """The state after all events at or below a lamport; see `replayed`."""
    found = replayed(connection, number, community_id, upto=lamport, heads=heads)
    return None if found is None else found.replay.state


def judgement(event: Event, verdict: Verdict) -> Judgement:
    """A verdict as it is written down."""
    rule = None if verdict is ACCEPTED else verdict.rule
    return Judgement(event.position, verdict.status.value, rule)


def _follow(
    replay: Replay, after: Position | None, log: Callable[..., StoreHistory], upto: int | None
) -> Replayed:
    fallen: dict[bytes, Judgement] = {}
    events = 0
    tail = log(upto=upto).in_order(after)
    while page := list(islice(tail, PAGE)):
        # Only what the replay has been given so far, or it would look ahead at every page.
        so_far = log(upto=page[-1].lamport)
        _note(fallen, replay.advance(so_far, page))
        events += len(page)
    return Replayed(replay, after, fallen, events)


def _from_base(state: State, history: StoreHistory) -> Replayed:
    """Resume behind what is pruned, in one step.

    Only from the whole log is it known what came too late for a place that a floor has closed.
    """
    replay, advance = Replay.resume(state, history)
    fallen: dict[bytes, Judgement] = {}
    _note(fallen, advance)
    return Replayed(replay, state.content.head, fallen, len(advance.changed))


def _note(fallen: dict[bytes, Judgement], advance: Advance) -> None:
    for event, verdict in advance.changed:
        if verdict is ACCEPTED:
            fallen.pop(event.digest, None)
        else:
            fallen[event.digest] = judgement(event, verdict)
