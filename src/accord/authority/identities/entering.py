"""Coming in: by a password or by a link that is used up, and staying in by a browser's cookie.

Owns passwords, links and visits. Whoever fails to come in learns only that, and the time it takes
tells nothing about which names there are.
"""

import asyncio
import secrets
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from accord.authority.errors import AuthorityError, Code
from accord.authority.identities import passwords, storing
from accord.authority.identities.people import name_key
from accord.authority.identities.records import Person
from accord.authority.identities.storing import Storage
from accord.authority.people_tables import entry_links, people, visits
from accord.kernel.clock import Clock

VISIT_SECONDS: Final = 12 * 3600
LINK_SECONDS: Final = 24 * 3600
_MOST_VISITS: Final = 20
# Each try takes 32 MiB.
_TRIES_AT_ONCE: Final = 2


class Entering:
    """Lets people in and out."""

    def __init__(self, store: Storage, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._trying = asyncio.Semaphore(_TRIES_AT_ONCE)

    async def set_password(self, person_id: str, password: str) -> None:
        """Give a person a password; other browsers must come in anew.

        Raises:
            AuthorityError: It is too short or too long.
        """
        async with self._trying:
            kept = await asyncio.to_thread(passwords.kept, password)

        def work(connection: Connection) -> None:
            connection.execute(update(people).where(people.c.id == person_id).values(password=kept))
            connection.execute(delete(visits).where(visits.c.person == person_id))
            connection.execute(delete(entry_links).where(entry_links.c.person == person_id))

        await self._store.write(work)

    async def by_password(self, name: str, password: str) -> Person:
        """Who comes in with a password.

        Raises:
            AuthorityError: The name or the password is wrong; which of them is not told.
        """
        wanted = select(people).where(people.c.name_key == name_key(name))
        row = await self._store.read(lambda c: c.execute(wanted).first())
        async with self._trying:
            fits = await asyncio.to_thread(
                passwords.fits, password, None if row is None else row.password
            )
        if row is None or not fits or row.disabled:
            raise AuthorityError(Code.FORBIDDEN, "the name or the password is not right")
        return storing.person(row)

    async def link(self, person_id: str, seconds: int = LINK_SECONDS) -> tuple[str, float]:
        """A secret by which a person comes in once, and until when; an older one ends."""
        secret, until = secrets.token_urlsafe(32), self._now() + seconds

        def work(connection: Connection) -> None:
            connection.execute(
                delete(entry_links).where(
                    (entry_links.c.person == person_id) | (entry_links.c.expires_at <= self._now())
                )
            )
            connection.execute(
                insert(entry_links).values(
                    digest=storing.digest(secret), person=person_id, expires_at=until
                )
            )

        await self._store.write(work)
        return secret, float(until)

    async def of_link(self, secret: str) -> Person | None:
        """Whom a link would let in, without using it up."""
        return await self._store.read(lambda c: self._behind(c, secret))

    async def by_link(self, secret: str) -> Person:
        """Who comes in by a link, which is used up.

        Raises:
            AuthorityError: It was used, has expired, or never was one.
        """

        def work(connection: Connection) -> Person | None:
            found = self._behind(connection, secret)
            spent = connection.execute(
                delete(entry_links).where(entry_links.c.digest == storing.digest(secret))
            )
            return found if spent.rowcount else None

        found = await self._store.write(work)
        if found is None:
            raise AuthorityError(
                Code.FORBIDDEN,
                "this link is good no more",
                mend="ask whoever runs this authority for a new one",
            )
        return found

    async def visit(self, person: Person) -> str:
        """Let a browser in; it shows this secret from now on."""
        secret, now = secrets.token_urlsafe(32), self._now()

        def work(connection: Connection) -> None:
            connection.execute(delete(visits).where(visits.c.expires_at <= now))
            older = connection.execute(
                select(visits.c.digest)
                .where(visits.c.person == person.id)
                .order_by(visits.c.expires_at.desc())
                .offset(_MOST_VISITS - 1)
            ).scalars()
            connection.execute(delete(visits).where(visits.c.digest.in_(list(older))))
            connection.execute(
                insert(visits).values(
                    digest=storing.digest(secret),
                    person=person.id,
                    expires_at=now + VISIT_SECONDS,
                )
            )

        await self._store.write(work)
        return secret

    async def visitor(self, secret: str | None) -> Person | None:
        """Who uses a browser, if anybody came in with it."""
        if not secret:
            return None
        wanted = (
            select(people)
            .join(visits, visits.c.person == people.c.id)
            .where(
                visits.c.digest == storing.digest(secret),
                visits.c.expires_at > self._now(),
                people.c.disabled == 0,
            )
        )
        row = await self._store.read(lambda c: c.execute(wanted).first())
        return None if row is None else storing.person(row)

    async def leave(self, secret: str) -> None:
        """Let a browser out."""
        await self._store.write(
            lambda c: c.execute(delete(visits).where(visits.c.digest == storing.digest(secret)))
        )

    def _behind(self, connection: Connection, secret: str) -> Person | None:
        wanted = (
            select(people)
            .join(entry_links, entry_links.c.person == people.c.id)
            .where(
                entry_links.c.digest == storing.digest(secret),
                entry_links.c.expires_at > self._now(),
                people.c.disabled == 0,
            )
        )
        row = connection.execute(wanted).first()
        return None if row is None else storing.person(row)

    def _now(self) -> int:
        return int(self._clock.now())
