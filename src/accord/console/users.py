"""The users of the console, each with a role; who has the machine needs no entry here."""

import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from accord.console.conversations import delete_all
from accord.console.messages import tr
from accord.console.sessions import ConsoleError, Role
from accord.console.tables import users
from accord.kernel.clock import Clock
from accord.storage import Store

MOST_USERS: Final = 200
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}", re.ASCII)


@dataclass(frozen=True, slots=True)
class User:
    """A user; `added_at` in milliseconds since the epoch."""

    name: str
    role: Role
    added_at: int


@dataclass(frozen=True, slots=True)
class Users:
    """The users in a store. Every method may raise `StoreError`."""

    store: Store
    clock: Clock

    async def listed(self) -> list[User]:
        """All users by their names."""

        def work(connection: Connection) -> list[User]:
            found = connection.execute(select(users).order_by(users.c.name))
            return [User(row.name, Role[row.role], row.added_at) for row in found]

        return await self.store.read(work)

    async def role(self, name: str) -> Role | None:
        """The role of a user; None if there is none of that name."""

        def work(connection: Connection) -> str | None:
            return connection.execute(select(users.c.role).where(users.c.name == name)).scalar()

        found = await self.store.read(work)
        return None if found is None else Role[found]

    async def add(self, name: str, role: Role) -> None:
        """Add a user; `ConsoleError` if the name is taken or cannot be one."""
        if not _NAME.fullmatch(name):
            raise ConsoleError(
                tr("this cannot be the name of a user"),
                where=name[:40],
                mend=tr("take at most 32 of a-z, 0-9, dot, hyphen and underscore"),
            )
        added_at = int(self.clock.now() * 1000)

        def work(connection: Connection) -> None:
            there = connection.execute(select(users.c.name)).scalars().all()
            if name in there:
                raise ConsoleError(tr("there is a user of this name"), where=name, status=409)
            if len(there) >= MOST_USERS:
                raise ConsoleError(tr("there are {count} users already", count=MOST_USERS))
            row = {"name": name, "role": role.name, "added_at": added_at}
            connection.execute(insert(users).values(row))

        await self.store.write(work)

    async def change(self, name: str, role: Role) -> None:
        """Give a user another role."""
        changed = update(users).where(users.c.name == name).values(role=role.name)
        _demand(await self.store.write(lambda connection: connection.execute(changed).rowcount))

    async def remove(self, name: str) -> None:
        """Remove a user with their conversations."""

        def work(connection: Connection) -> int:
            gone = connection.execute(delete(users).where(users.c.name == name)).rowcount
            if gone:
                delete_all(connection, name)
            return gone

        _demand(await self.store.write(work))


def _demand(changed: int) -> None:
    if not changed:
        raise ConsoleError(tr("there is no such user"), mend=tr("load the page again"), status=404)
