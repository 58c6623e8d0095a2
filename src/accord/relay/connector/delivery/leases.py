"""Who owns what only one process may do: a platform's socket, and tidying up.

A lease runs in the database's time, so that clocks of processes need not agree. Each change of
owner raises its epoch; whoever stores something under a lease has the epoch checked in the same
transaction (`posting`), so a former owner that was only slow can do no harm.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from accord.relay.connector.delivery.posting import lost
from accord.relay.connector.delivery.tables import leases, resume_state
from accord.relay.connector.platform import Fence

# Milliseconds since the Unix epoch.
_NOW: Mapping[str, ColumnElement[Any]] = {
    "postgresql": func.extract("epoch", func.clock_timestamp()) * 1000,
    "sqlite": literal_column("(julianday('now') - 2440587.5) * 86400000.0", Float),
}
_LEASE = select(leases).where(leases.c.name == bindparam("of")).with_for_update()
_NEW = {
    "postgresql": postgresql.insert(leases).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(leases).on_conflict_do_nothing(),
}
_HOLD = (
    update(leases)
    .where(leases.c.name == bindparam("of"))
    .values(holder=bindparam("by"), epoch=bindparam("now_epoch"), expires_at=bindparam("until"))
)


def claim(connection: Connection, name: str, holder: str, seconds: float) -> Fence | None:
    """Take a lease that is free or has run out, or renew one's own; None when it is another's."""
    free = {"name": name, "holder": "", "epoch": 0, "expires_at": 0}
    connection.execute(_NEW[connection.dialect.name], free)
    now = int(connection.execute(select(_NOW[connection.dialect.name])).scalar_one())
    lease = connection.execute(_LEASE, {"of": name}).one()
    if lease.holder == holder:
        epoch = lease.epoch
    elif lease.expires_at <= now:
        epoch = lease.epoch + 1
    else:
        return None
    until = now + int(seconds * 1000)
    connection.execute(_HOLD, {"of": name, "by": holder, "now_epoch": epoch, "until": until})
    return Fence(name, holder, epoch)


def release(connection: Connection, fence: Fence) -> None:
    """Give a lease back, so that another need not wait for its end."""
    connection.execute(
        update(leases)
        .where(
            leases.c.name == fence.lease,
            leases.c.holder == fence.holder,
            leases.c.epoch == fence.epoch,
        )
        .values(holder="", expires_at=0)
    )


def recall(connection: Connection, name: str) -> dict[str, str]:
    """What the last owner remembered."""
    chosen = resume_state.c.lease == name
    rows = connection.execute(select(resume_state.c.name, resume_state.c.value).where(chosen))
    return {row.name: row.value for row in rows}


def remember(connection: Connection, fence: Fence, state: Mapping[str, str]) -> None:
    """Keep where the next owner goes on.

    Raises:
        RelayError: The lease is another's by now.
    """
    lease = connection.execute(_LEASE, {"of": fence.lease}).first()
    if lease is None or (lease.holder, lease.epoch) != (fence.holder, fence.epoch):
        raise lost(fence)
    chosen = resume_state.c.lease == fence.lease
    connection.execute(delete(resume_state).where(chosen, resume_state.c.name.in_(list(state))))
    if state:
        rows = [{"lease": fence.lease, "name": k, "value": v} for k, v in state.items()]
        connection.execute(insert(resume_state), rows)
