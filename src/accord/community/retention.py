"""Snapshots, retention floors and pruning, which keep a log short."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from accord.community import messages, store
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.log import EventLog, LogUpdate
from accord.community.log_state import state_at_lamport
from accord.community.rules.replay import NeedsHistoryError, Replay
from accord.community.rules.snapshots import (
    SNAPSHOT_LAMPORTS,
    Snapshot,
    Stub,
    check_snapshot_author,
    is_anchor,
    read_stub,
    sign_snapshot,
    snapshot_due,
)
from accord.community.rules.state import CommunityState, digest_of_state, read_state, state_bytes
from accord.community.store import ChainHeads, StoredSnapshot, StoreHistory
from accord.kernel.clock import format_time, parse_time

RETENTION_DAYS: Final = 30
"""How long bodies of content stay at least, where the community's policy does not say."""

_DAY_SECONDS: Final = 24 * 60 * 60


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """The lamports of the new snapshot and floor, if any, and how many bodies were dropped."""

    snapshot: int | None = None
    floor: int | None = None
    pruned: int = 0


async def maintain_log(log: EventLog) -> RetentionResult:
    """Take a snapshot, declare a floor and prune, as far as each is due."""
    now = log.clock.now()
    newest = await log.store.read(lambda c: store.newest_snapshot(c, log.number))
    last = None if newest is None else (newest.lamport, parse_time(newest.wall_clock))
    at = snapshot_due(log.head_lamport, now=now, last=last)
    taken = at if at is not None and await take_snapshot(log, at) else None
    floor = await _declare_floor(log, now)
    await _mark_floor(log)
    pruned = await prune_log(log)
    await _shorten_archive(log, now)
    return RetentionResult(taken, floor, pruned)


async def _shorten_archive(log: EventLog, now: float) -> None:
    """Forget the oldest of this node's own messages that the log has dropped, if so configured."""
    if log.limits.archive_days:
        before_ms = int((now - log.limits.archive_days * _DAY_SECONDS) * 1000)
        await log.store.write(lambda c: messages.drop_archived(c, log.number, before_ms))


async def _mark_floor(log: EventLog) -> None:
    """Take a snapshot at the newest floor, from which joining nodes start.

    All nodes take it at the same lamport, so that two anchors have the same one.
    """
    marked = _marks(log.state)[-1:]
    kept = await log.store.read(lambda c: store.all_snapshots(c, log.number))
    if marked and marked[0] not in {each.lamport for each in kept}:
        await take_snapshot(log, marked[0])


def _marks(state: CommunityState) -> list[int]:
    return sorted(floor.position.lamport for floor in state.roster.floors)


async def offered_snapshot(log: EventLog, lamport: int | None) -> Snapshot | None:
    """The signed snapshot at a lamport; for None the newest at a lamport that others use too."""
    marks = _marks(log.state)

    def find(connection: Connection) -> StoredSnapshot | None:
        signed = store.signed_lamports(connection, log.number)
        common = (each for each in signed if each in marks or each % SNAPSHOT_LAMPORTS == 0)
        wanted = next(common, signed[0] if signed else None) if lamport is None else lamport
        return None if wanted not in signed else store.snapshot_at(connection, log.number, wanted)

    kept = await log.store.read(find)
    return None if kept is None else kept.signed(log.community_id)


async def take_snapshot(log: EventLog, lamport: int) -> bool:
    """Store the state at a lamport, signed if this node is an anchor.

    Returns False if an event arrived meanwhile that it lacks.
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
    kept = StoredSnapshot(
        lamport, wall_clock, state, is_base=False, author=author, signature=signature
    )
    return await log.store.write(
        lambda c: store.store_snapshot(c, log.number, kept, arrival=arrival)
    )


async def offer_snapshot(log: EventLog, snapshot: Snapshot) -> None:
    """Store a snapshot that was computed elsewhere, so that others can fetch it.

    Everything but content is compared with this log; for content the signing anchor is trusted.
    Raises `unauthorized` if no anchor signed it, `partition` if it is not of the stored events.
    """
    members = log.state.roster.members
    check_snapshot_author(snapshot, {each for each in members if is_anchor(log.state, each)})
    state = read_state(snapshot.state)

    def compare(connection: Connection) -> int | None:
        history = StoreHistory(connection, log.number, upto=snapshot.lamport)
        try:
            replay, _ = Replay.resume(state, history)
        except NeedsHistoryError:
            return None
        is_ours = state_bytes(replay.state) == snapshot.state
        return store.last_arrival(connection, log.number) if is_ours else None

    arrival = await log.store.read(compare)
    kept = _stored(snapshot, is_base=False)
    if arrival is None or not await log.store.write(
        lambda c: store.store_snapshot(c, log.number, kept, arrival=arrival)
    ):
        raise CommunityError(
            Code.PARTITION,
            "the snapshot differs from the state of this log's events",
            mend="make it anew from all that the log holds by now",
        )


async def signed_snapshots(log: EventLog) -> list[Snapshot]:
    """The signed snapshots of this node, newest first."""
    kept = await log.store.read(lambda c: store.all_snapshots(c, log.number))
    return [each for each in (one.signed(log.community_id) for one in kept) if each is not None]


def retention_days(state: CommunityState) -> int:
    """For how many days a community keeps the bodies of content at least; 0 for ever."""
    days: int = (state.roster.policy or {}).get("retention_days", RETENTION_DAYS)
    return days


async def _declare_floor(log: EventLog, now: float) -> int | None:
    days = retention_days(log.state)
    if not is_anchor(log.state, log.key.id) or log.is_recovering or not days:
        return None

    def candidate(connection: Connection) -> dict[str, Any] | None:
        newest = store.newest_snapshot(connection, log.number)
        before = int((now - days * _DAY_SECONDS) * 1000)
        lamport = store.lamport_settled_by(connection, log.number, before)
        if newest is None or lamport is None:
            return None
        lamport = min(lamport, newest.lamport)
        if lamport < top_floor(log.state) + SNAPSHOT_LAMPORTS:
            return None
        return _floor_at(connection, log, lamport)

    data = await log.store.read(candidate)
    if data is None:
        return None
    await log.append("community.retention.floored", data)
    return int(data["lamport"])


def _floor_at(connection: Connection, log: EventLog, lamport: int) -> dict[str, Any] | None:
    """The data of a floor: the authors' heads, and the digest of the state at those heads."""
    state = state_at_lamport(connection, log.number, log.community_id, lamport)
    if state is None:
        return None
    heads = {
        author: (chain.head_seq, chain.head_hash)
        for author, chain in sorted(state.chains.items())
        if chain.head_hash is not None
    }
    covered = state_at_lamport(connection, log.number, log.community_id, lamport, heads)
    if covered is None:
        return None
    return {
        "lamport": lamport,
        "heads": [
            {"author": author, "author_seq": seq, "hash": head}
            for author, (seq, head) in heads.items()
        ],
        "state_digest": digest_of_state(state_bytes(covered)),
    }


async def prune_log(log: EventLog) -> int:
    """Drop bodies below the newest floor whose state this node has computed itself.

    Returns how many; 0 if the floor's state differs from ours.
    """
    base = await log.store.read(lambda c: store.base_snapshot(c, log.number))
    floors = [
        each for each in log.state.roster.floors if base is None or each.lamport > base.lamport
    ]
    if not floors:
        return 0
    floor = max(floors, key=lambda each: each.lamport)

    found = await log.store.read(lambda c: _state_at(c, log, floor.lamport, floor.heads))
    if found is None or digest_of_state(found[1]) != floor.state_digest:
        return 0
    arrival, state = found
    kept = StoredSnapshot(floor.lamport, format_time(log.clock.now()), state, is_base=True)
    now_ms = int(log.clock.now() * 1000)

    def prune(connection: Connection) -> int:
        messages.archive_bodies(connection, log.number, floor.lamport, now_ms)
        return store.prune_bodies(connection, log.number, kept, arrival=arrival)

    return await log.prune(prune)


def _state_at(
    connection: Connection, log: EventLog, lamport: int, heads: ChainHeads | None = None
) -> tuple[int, bytes] | None:
    state = state_at_lamport(connection, log.number, log.community_id, lamport, heads)
    return (
        None if state is None else (store.last_arrival(connection, log.number), state_bytes(state))
    )


def top_floor(state: CommunityState) -> int:
    """The lamport of the newest floor; -1 if there is none."""
    return max((floor.lamport for floor in state.roster.floors), default=-1)


async def receive_stubs(log: EventLog, raws: list[bytes]) -> int:
    """Store stubs of pruned events from a peer; returns how many were new.

    Raises `bad_request`, storing none, if one is malformed, of a kind that is never pruned, or not
    covered by a floor of this log.
    """
    stubs = [read_stub(raw) for raw in raws]
    for stub in stubs:
        if not _is_settled(stub, log.state):
            raise bad_request(
                "a stub is taken only of content that a retention floor has settled",
                where=stub.hash,
                mend="send the event itself",
            )
    now_ms = int(log.clock.now() * 1000)
    added = await log.store.write(lambda c: store.add_stubs(c, log.number, stubs, now_ms=now_ms))
    log.notify(LogUpdate(tuple(stub.position for stub in added), ()))
    return len(added)


def _is_settled(stub: Stub, state: CommunityState) -> bool:
    return store.stage_of(stub.event_type) == "content" and any(
        stub.lamport <= floor.lamport
        and stub.author_seq is not None
        and stub.author_seq <= floor.heads.get(stub.author, (0, ""))[0]
        for floor in state.roster.floors
    )


async def adopt_snapshot(log: EventLog, snapshot: Snapshot, known_anchors: frozenset[str]) -> None:
    """Start a log from a snapshot that enough anchors signed; see `choose_snapshot`.

    For a log that is empty or lacks pruned events. No stored event is lost, but content at or below
    the snapshot is taken from it. Raises `unauthorized` if no anchor signed it, `partition` if the
    log has changed.
    """
    check_snapshot_author(snapshot, known_anchors)
    kept = _stored(snapshot, is_base=True)

    def begin(connection: Connection) -> bool:
        arrival = store.last_arrival(connection, log.number)
        return store.store_snapshot(connection, log.number, kept, arrival=arrival)

    if not await log.store.write(begin):
        raise CommunityError(
            Code.PARTITION, "the log has a later snapshot", mend="let the log sync instead"
        )
    await log.refold()


def _stored(snapshot: Snapshot, *, is_base: bool) -> StoredSnapshot:
    return StoredSnapshot(
        snapshot.lamport,
        snapshot.wall_clock,
        snapshot.state,
        is_base=is_base,
        author=snapshot.author,
        signature=snapshot.signature,
    )
