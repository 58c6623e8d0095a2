"""A log folded from its store: from the newest snapshot that will do, page by page.

Owns the choice of where to begin and the size of a step; memory is bounded by the state and a
page. Works on a read connection that it is given, and writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection

from accord.community.envelope import Event, Position
from accord.community.fold import ACCEPTED, NeedsHistoryError, Replay, State, Verdict, state_from
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
    """

    replay: Replay
    since: Position | None
    fallen: dict[bytes, Judgement]


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
    kept = keeping.every(connection, number) if begin_with is None else begin_with
    for snapshot in kept:
        if upto is not None and snapshot.lamport > upto:
            continue
        state = state_from(snapshot.state)
        before = StoreHistory(connection, number, upto=snapshot.lamport, heads=heads)
        try:
            replay, _ = Replay.resume(state, before)
            return _follow(connection, number, replay, state.content.head, upto, heads)
        except NeedsHistoryError:
            continue
    if keeping.base(connection, number) is not None:
        return None
    return _follow(connection, number, Replay(community_id), None, upto, heads)


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
    connection: Connection,
    number: int,
    replay: Replay,
    after: Position | None,
    upto: int | None,
    heads: Heads | None,
) -> Replayed:
    fallen: dict[bytes, Judgement] = {}
    tail = StoreHistory(connection, number, upto=upto, heads=heads).in_order(after)
    while page := list(islice(tail, PAGE)):
        # Only what the replay has been given so far, or it would look ahead at every page.
        so_far = StoreHistory(connection, number, upto=page[-1].lamport, heads=heads)
        for event, verdict in replay.advance(so_far, page).changed:
            if verdict is ACCEPTED:
                fallen.pop(event.digest, None)
            else:
                fallen[event.digest] = judgement(event, verdict)
    return Replayed(replay, after, fallen)
