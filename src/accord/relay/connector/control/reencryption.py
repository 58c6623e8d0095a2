"""Encrypting everything anew after the key has changed.

Owns the list of tables that hold boxes and the context of each. Works in small changes, so that
others are not held up, and can be stopped and begun again at any point.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from sqlalchemy import Connection, RowMapping, Table, func, select, update

from accord.relay.connector.control.changes import Change, Ledger
from accord.relay.connector.control.keyring import Box, Keyring
from accord.relay.connector.control.tables import gateway_secrets, tenants, vault

_AT_ONCE: Final = 200

_BOXES: Final[tuple[tuple[Table, Callable[[RowMapping], tuple[str, ...]]], ...]] = (
    (tenants, lambda row: ("tenant", row["tenant"])),
    (gateway_secrets, lambda row: ("secret", row["instance"])),
    (vault, lambda row: ("vault", row["tenant"], row["instance"], row["kind"])),
)


async def reencrypt(ledger: Ledger, keyring: Keyring) -> int:
    """Encrypt under the newest key what is under an older one, and say how much that was.

    Raises:
        RelayError: Something does not open; what was done before stays done.
    """
    done = 0
    for table, context in _BOXES:
        while count := await ledger.change(
            partial(_some, keyring=keyring, table=table, context=context)
        ):
            done += count
    return done


def left_behind(connection: Connection, keyring: Keyring) -> int:
    """How many boxes are not under the newest key."""
    return sum(
        connection.execute(
            select(func.count()).select_from(table).where(table.c.key_id != keyring.key_id)
        ).scalar_one()
        for table, _ in _BOXES
    )


def _some(
    change: Change,
    keyring: Keyring,
    table: Table,
    context: Callable[[RowMapping], tuple[str, ...]],
) -> int:
    rows = (
        change.connection.execute(
            select(table).where(table.c.key_id != keyring.key_id).limit(_AT_ONCE)
        )
        .mappings()
        .all()
    )
    for row in rows:
        bound = context(row)
        box = keyring.close(keyring.open(Box(row["key_id"], row["box"]), *bound), *bound)
        change.connection.execute(
            update(table)
            .where(*(column == row[column.name] for column in table.primary_key))
            .values(key_id=box.key_id, box=box.data)
        )
    return len(rows)
