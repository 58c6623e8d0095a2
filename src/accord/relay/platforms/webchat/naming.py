"""What people, bots and chats are called, for the operator.

Units of work only. Access is no question here: whoever runs the station may know its rooms.
"""

from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection, bindparam, select

from accord.relay.platforms.webchat.access import ChatKind
from accord.relay.platforms.webchat.tables import accounts, chats

_around = chats.alias("around")
_PEOPLE: Final = select(accounts.c.id, accounts.c.name).where(
    accounts.c.id.in_(bindparam("ids", expanding=True))
)
_CHATS: Final = (
    select(chats.c.id, chats.c.kind, chats.c.name, _around.c.name.label("around"))
    .outerjoin(_around, _around.c.id == chats.c.parent_id)
    .where(chats.c.id.in_(bindparam("ids", expanding=True)))
)


def names(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """The names of those that are known among accounts and chats."""
    wanted = {"ids": list(ids)}
    found: dict[str, str] = {row.id: row.name for row in connection.execute(_PEOPLE, wanted)}
    for row in connection.execute(_CHATS, wanted):
        match row.kind:
            case ChatKind.DIRECT:
                found[row.id] = "a direct message"
            case ChatKind.THREAD:
                found[row.id] = f"a thread in #{row.around}"
            case _:
                found[row.id] = f"#{row.name}"
    return found
