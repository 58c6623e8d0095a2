"""Snapshots in the store, and what is pruned behind them.

Owns one promise: a stored snapshot holds every event at or below its lamport that the store holds.
Whatever arrives late takes the snapshots that lack it away, in the same transaction. Works on a
connection that it is given; signs and folds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Row, and_, delete, func, insert, literal, select, update

from accord.community.fold.vouching import Snapshot
from accord.community.log import rows
from accord.community.log.rows import Proven
from accord.community.log.snapshots import KEPT
from accord.community.log.stubs import Stub
from accord.community.log.tables import events, snapshots


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot as it is stored; signed by an anchor, or known to this node alone."""

    lamport: int
    wall_clock: str
    state: bytes
    is_base: bool
    author: str | None = None
    signature: str | None = None

    def signed(self, community_id: str) -> Snapshot | None:
        """It as others may have it, where somebody signed it."""
        if self.author is None or self.signature is None:
            return None
        return Snapshot(
            community_id,
            self.lamport,
            self.wall_clock,
            self.state,
            self.author,
            self.signature,
        )


def add(
    connection: Connection, number: int, proven: Sequence[Proven], *, now_ms: int, source: str
) -> list[bool]:
    """Store events, and drop the snapshots that now lack one; see `rows.add`."""
    is_fresh = rows.add(connection, number, proven, now_ms=now_ms, source=source)
    fresh = [each.event.lamport for each, new in zip(proven, is_fresh, strict=True) if new]
    if fresh:
        late = snapshots.c.lamport >= min(fresh)
        connection.execute(
            delete(snapshots).where(snapshots.c.community == number, late, ~snapshots.c.is_base)
        )
    return is_fresh


def newest(connection: Connection, number: int, *, below: int | None = None) -> Kept | None:
    """The newest snapshot, or the newest at or below a lamport."""
    query = select(snapshots).where(snapshots.c.community == number)
    if below is not None:
        query = query.where(snapshots.c.lamport <= below)
    row = connection.execute(query.order_by(snapshots.c.lamport.desc()).limit(1)).first()
    return None if row is None else _kept(row)


def base(connection: Connection, number: int) -> Kept | None:
    """The snapshot behind which bodies are pruned."""
    query = select(snapshots).where(snapshots.c.community == number, snapshots.c.is_base)
    row = connection.execute(query.order_by(snapshots.c.lamport.desc()).limit(1)).first()
    return None if row is None else _kept(row)


def every(connection: Connection, number: int) -> list[Kept]:
    """All snapshots, the newest first."""
    query = select(snapshots).where(snapshots.c.community == number)
    return [_kept(row) for row in connection.execute(query.order_by(snapshots.c.lamport.desc()))]


def keep(connection: Connection, number: int, kept: Kept, *, arrival: int) -> bool:
    """Store a snapshot that holds all arrivals so far, and let the oldest go.

    Returns:
        False where something came meanwhile that it lacks; it is not stored then.
    """
    lacking = select(literal(1)).where(
        events.c.community == number,
        events.c.arrival > arrival,
        events.c.lamport <= kept.lamport,
    )
    if connection.execute(lacking.limit(1)).first() is not None:
        return False
    same = and_(snapshots.c.community == number, snapshots.c.lamport == kept.lamport)
    connection.execute(delete(snapshots).where(same))
    connection.execute(
        insert(snapshots).values(
            community=number,
            lamport=kept.lamport,
            wall_clock=kept.wall_clock,
            state=kept.state,
            is_base=kept.is_base,
            author=kept.author,
            signature=kept.signature,
        )
    )
    in_use = (
        select(snapshots.c.lamport)
        .where(snapshots.c.community == number)
        .order_by(snapshots.c.lamport.desc())
        .limit(KEPT)
    )
    connection.execute(
        delete(snapshots).where(
            snapshots.c.community == number,
            ~snapshots.c.is_base,
            snapshots.c.lamport.not_in(in_use.scalar_subquery()),
        )
    )
    return True


def prune(connection: Connection, number: int, kept: Kept, *, arrival: int) -> int:
    """Drop the bodies of content that a base snapshot stands for; returns how many there were."""
    if not keep(connection, number, kept, arrival=arrival):
        return 0
    older = and_(snapshots.c.community == number, snapshots.c.lamport < kept.lamport)
    connection.execute(delete(snapshots).where(older))
    dropped = connection.execute(
        update(events)
        .where(
            events.c.community == number,
            events.c.lamport <= kept.lamport,
            events.c.stage == "content",
            events.c.body.is_not(None),
        )
        .values(body=None)
    )
    return int(dropped.rowcount)


def add_stubs(
    connection: Connection, number: int, stubs: Sequence[Stub], *, now_ms: int
) -> list[Stub]:
    """Store stubs where no event or stub has their number, and say which those were."""
    new = []
    for stub in stubs:
        position = stub.position
        taken = select(literal(1)).where(
            events.c.community == number,
            events.c.author == stub.author,
            events.c.author_seq == stub.author_seq,
        )
        if connection.execute(taken.limit(1)).first() is None:
            new.append(stub)
            connection.execute(
                insert(events).values(
                    community=number,
                    lamport=position.lamport,
                    event_id=position.event_id,
                    digest=position.digest,
                    author=stub.author,
                    author_seq=stub.author_seq,
                    prev=stub.prev,
                    event_type=stub.event_type,
                    stage="content",
                    body=None,
                    status=stub.verdict,
                    rule=stub.rule,
                    received_at=now_ms,
                    arrival=None,
                )
            )
    return new


def settled_by(connection: Connection, number: int, before_ms: int) -> int | None:
    """The greatest lamport of what had arrived before a moment."""
    query = select(func.max(events.c.lamport)).where(
        events.c.community == number,
        events.c.received_at < before_ms,
        events.c.status != "quarantined",
    )
    lamport: int | None = connection.execute(query).scalar_one()
    return lamport


def _kept(row: Row[tuple[object, ...]]) -> Kept:
    return Kept(
        row.lamport, row.wall_clock, bytes(row.state), row.is_base, row.author, row.signature
    )
