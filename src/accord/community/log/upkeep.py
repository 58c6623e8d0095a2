"""What a log does by itself from time to time: snapshots, retention, pruning.

Owns when these happen and in which order; the state comes from the fold, the rows from `keeping`.
Called by the node every now and then, and safe to be killed at any moment: every step is one
transaction, and what was not done is due again.
"""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from accord.community.errors import Code, CommunityError
from accord.community.fold import NeedsHistoryError, Replay, State, state_bytes, state_from
from accord.community.fold.vouching import (
    Snapshot,
    check_author,
    digest_of,
    is_anchor,
    sign_snapshot,
)
from accord.community.log import keeping, rows
from accord.community.log.history import Heads, StoreHistory
from accord.community.log.keeping import Kept
from accord.community.log.log import Log, News
from accord.community.log.replaying import state_at
from accord.community.log.snapshots import LAMPORTS, due
from accord.community.log.stubs import Stub, read_stub
from accord.kernel.clock import format_time, parse_time

RETENTION_SECONDS: Final = 30 * 24 * 60 * 60


@dataclass(frozen=True, slots=True)
class Done:
    """What a round of upkeep did.

    Attributes:
        snapshot: The lamport of a snapshot that was taken.
        floor: The lamport of a retention floor that this node declared.
        pruned: How many bodies were dropped.
    """

    snapshot: int | None = None
    floor: int | None = None
    pruned: int = 0


async def maintain(log: Log) -> Done:
    """Do whatever is due."""
    now = log.clock.now()
    newest = await log.store.read(lambda c: keeping.newest(c, log.number))
    last = None if newest is None else (newest.lamport, parse_time(newest.wall_clock))
    at = due(log.head_lamport, now=now, last=last)
    taken = at if at is not None and await take_snapshot(log, at) else None
    floor = await _declare_floor(log, now)
    await _mark_floor(log)
    return Done(taken, floor, await prune(log))


async def _mark_floor(log: Log) -> None:
    """Take a snapshot where the newest floor was declared: whoever joins later begins with it.

    All nodes take it at the same lamport, so that two anchors can be asked for the same one.
    """
    marked = _marks(log.state)[-1:]
    kept = await log.store.read(lambda c: keeping.every(c, log.number))
    if marked and marked[0] not in {each.lamport for each in kept}:
        await take_snapshot(log, marked[0])


def _marks(state: State) -> list[int]:
    return sorted(floor.position.lamport for floor in state.roster.floors)


async def offered(log: Log, lamport: int | None) -> Snapshot | None:
    """The signed snapshot at a lamport; where none is named, the newest that others take too."""
    signed = await snapshots(log)
    if lamport is not None:
        return next((each for each in signed if each.lamport == lamport), None)
    marks = _marks(log.state)
    common = (each for each in signed if each.lamport in marks or each.lamport % LAMPORTS == 0)
    return next(common, signed[0] if signed else None)


async def take_snapshot(log: Log, lamport: int) -> bool:
    """Store the state at a lamport, signed where this node is an anchor.

    Returns:
        False when an event came meanwhile that it would lack.
    """
    found = await log.store.read(lambda c: _state_at(c, log, lamport))
    if found is None:
        return False
    arrival, state = found
    wall_clock = format_time(log.clock.now())
    author = signature = None
    if is_anchor(log.state, log.key.id):
        snapshot = sign_snapshot(
            log.key,
            community_id=log.community_id,
            lamport=lamport,
            wall_clock=wall_clock,
            state=state,
        )
        author, signature = snapshot.author, snapshot.signature
    kept = Kept(lamport, wall_clock, state, is_base=False, author=author, signature=signature)
    return await log.store.write(lambda c: keeping.keep(c, log.number, kept, arrival=arrival))


async def offer(log: Log, snapshot: Snapshot) -> None:
    """Keep a snapshot that was computed elsewhere, so that others may have it.

    Everything in it is compared with what this log comes to, but for content, on which the anchor
    that signed it has its word.

    Raises:
        CommunityError: No anchor vouches for it (`unauthorized`), or it is not of the events that
            are here (`partition`).
    """
    members = log.state.roster.members
    check_author(snapshot, {each for each in members if is_anchor(log.state, each)})
    state = state_from(snapshot.state)

    def compare(connection: Connection) -> int | None:
        history = StoreHistory(connection, log.number, upto=snapshot.lamport)
        try:
            replay, _ = Replay.resume(state, history)
        except NeedsHistoryError:
            return None
        is_ours = state_bytes(replay.state) == snapshot.state
        return rows.last_arrival(connection, log.number) if is_ours else None

    arrival = await log.store.read(compare)
    kept = Kept(
        snapshot.lamport,
        snapshot.wall_clock,
        snapshot.state,
        is_base=False,
        author=snapshot.author,
        signature=snapshot.signature,
    )
    if arrival is None or not await log.store.write(
        lambda c: keeping.keep(c, log.number, kept, arrival=arrival)
    ):
        raise CommunityError(
            Code.PARTITION,
            "the snapshot is not what the events of this log come to",
            mend="make it anew from all that the log holds by now",
        )


async def snapshots(log: Log) -> list[Snapshot]:
    """The signed snapshots that this node can give to others, the newest first."""
    kept = await log.store.read(lambda c: keeping.every(c, log.number))
    return [each for each in (one.signed(log.community_id) for one in kept) if each is not None]


async def _declare_floor(log: Log, now: float) -> int | None:
    if not is_anchor(log.state, log.key.id) or log.is_recovering:
        return None

    def candidate(connection: Connection) -> dict[str, Any] | None:
        newest = keeping.newest(connection, log.number)
        before = int((now - RETENTION_SECONDS) * 1000)
        lamport = keeping.settled_by(connection, log.number, before)
        if newest is None or lamport is None:
            return None
        lamport = min(lamport, newest.lamport)
        if lamport < top_floor(log.state) + LAMPORTS:
            return None
        return _floor_at(connection, log, lamport)

    data = await log.store.read(candidate)
    if data is None:
        return None
    await log.append("community.retention.floored", data)
    return int(data["lamport"])


def _floor_at(connection: Connection, log: Log, lamport: int) -> dict[str, Any] | None:
    """A floor: the authors' heads, and the state that they and nothing beyond them come to."""
    state = state_at(connection, log.number, log.community_id, lamport)
    if state is None:
        return None
    heads = {
        author: (chain.head_seq, chain.head_hash)
        for author, chain in sorted(state.chains.items())
        if chain.head_hash is not None
    }
    covered = state_at(connection, log.number, log.community_id, lamport, heads)
    if covered is None:
        return None
    return {
        "lamport": lamport,
        "heads": [
            {"author": author, "author_seq": seq, "hash": head}
            for author, (seq, head) in heads.items()
        ],
        "state_digest": digest_of(state_bytes(covered)),
    }


async def prune(log: Log) -> int:
    """Drop bodies behind the newest floor whose state this node has come to itself.

    Returns:
        How many; none when the floor's state is not ours (yet): then nothing is dropped.
    """
    base = await log.store.read(lambda c: keeping.base(c, log.number))
    floors = [
        each for each in log.state.roster.floors if base is None or each.lamport > base.lamport
    ]
    if not floors:
        return 0
    floor = max(floors, key=lambda each: each.lamport)

    found = await log.store.read(lambda c: _state_at(c, log, floor.lamport, floor.heads))
    if found is None or digest_of(found[1]) != floor.state_digest:
        return 0
    arrival, state = found
    kept = Kept(floor.lamport, format_time(log.clock.now()), state, is_base=True)
    return await log.prune(lambda c: keeping.prune(c, log.number, kept, arrival=arrival))


def _state_at(
    connection: Connection, log: Log, lamport: int, heads: Heads | None = None
) -> tuple[int, bytes] | None:
    """The last arrival as of now, and the state at a lamport."""
    state = state_at(connection, log.number, log.community_id, lamport, heads)
    return (
        None if state is None else (rows.last_arrival(connection, log.number), state_bytes(state))
    )


def top_floor(state: State) -> int:
    """The lamport of the newest floor; -1 where there is none."""
    return max((floor.lamport for floor in state.roster.floors), default=-1)


async def receive_stubs(log: Log, raws: list[bytes]) -> int:
    """Take stubs of pruned events from a peer; returns how many were new.

    Raises:
        CommunityError: One is malformed, of a kind that is never pruned, or not settled by a
            floor that stands here: `bad_request`; nothing is taken then.
    """
    stubs = [read_stub(raw) for raw in raws]
    for stub in stubs:
        if not _is_settled(stub, log.state):
            raise CommunityError(
                Code.BAD_REQUEST,
                "a stub is taken only of content that a retention floor has settled",
                where=stub.hash,
                mend="send the event itself",
            )
    now_ms = int(log.clock.now() * 1000)
    added = await log.store.write(lambda c: keeping.add_stubs(c, log.number, stubs, now_ms=now_ms))
    log.tell(News(tuple(stub.position for stub in added), ()))
    return len(added)


def _is_settled(stub: Stub, state: State) -> bool:
    return rows.stage_of(stub.event_type) == "content" and any(
        stub.lamport <= floor.lamport
        and stub.author_seq is not None
        and stub.author_seq <= floor.heads.get(stub.author, (0, ""))[0]
        for floor in state.roster.floors
    )


async def adopt(log: Log, snapshot: Snapshot, known_anchors: frozenset[str]) -> None:
    """Begin a log with a snapshot that enough anchors vouch for; see `agree`.

    For a log that is empty, or that lacks what others have pruned: nothing of what it has is lost,
    but what lies below the snapshot is taken from there.

    Raises:
        CommunityError: No anchor vouches for it (`unauthorized`), or the log has moved on
            (`partition`).
    """
    check_author(snapshot, known_anchors)
    kept = Kept(
        snapshot.lamport,
        snapshot.wall_clock,
        snapshot.state,
        is_base=True,
        author=snapshot.author,
        signature=snapshot.signature,
    )

    def begin(connection: Connection) -> bool:
        arrival = rows.last_arrival(connection, log.number)
        return keeping.keep(connection, log.number, kept, arrival=arrival)

    if not await log.store.write(begin):
        raise CommunityError(
            Code.PARTITION, "the log has a later snapshot", mend="let the log sync instead"
        )
    await log.refold()
