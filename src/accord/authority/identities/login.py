"""Login of people: by password or one-time link, and the browser visit that follows.

A failed login reveals neither by its message nor by its duration whether the name exists.
"""

import asyncio
import secrets
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from accord.authority.identities import passwords, store
from accord.authority.identities.people import name_key
from accord.authority.revisions import SerialStore
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import Person
from accord.authority.tables import entry_links, people, visits
from accord.kernel.clock import Clock

VISIT_SECONDS: Final = 12 * 3600
LINK_SECONDS: Final = 24 * 3600
_MOST_VISITS: Final = 20
# Each attempt takes 32 MiB.
_TRIES_AT_ONCE: Final = 2


class PersonLogin:
    """Passwords, login links and visits."""

    def __init__(self, store: SerialStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._trying = asyncio.Semaphore(_TRIES_AT_ONCE)

    async def set_password(self, person_id: str, password: str) -> None:
        """Set a password of valid length; visits and links of the person end."""
        async with self._trying:
            kept = await asyncio.to_thread(passwords.hash_password, password)

        def work(connection: Connection) -> None:
            connection.execute(update(people).where(people.c.id == person_id).values(password=kept))
            connection.execute(delete(visits).where(visits.c.person == person_id))
            connection.execute(delete(entry_links).where(entry_links.c.person == person_id))

        await self._store.write(work)

    async def by_password(self, name: str, password: str) -> Person:
        """The person of a name and password; the error does not say which is wrong."""
        wanted = select(people).where(people.c.name_key == name_key(name))
        row = await self._store.read(lambda c: c.execute(wanted).first())
        async with self._trying:
            fits = await asyncio.to_thread(
                passwords.verify_password, password, None if row is None else row.password
            )
        if row is None or not fits or row.disabled:
            raise AuthorityError(Code.FORBIDDEN, "the name or the password is wrong")
        return store.read_person(row)

    async def link(self, person_id: str, seconds: int = LINK_SECONDS) -> tuple[str, float]:
        """The secret of a new one-time login link and its expiry; an older link ends."""
        secret, until = secrets.token_urlsafe(32), self._now() + seconds

        def work(connection: Connection) -> None:
            connection.execute(
                delete(entry_links).where(
                    (entry_links.c.person == person_id) | (entry_links.c.expires_at <= self._now())
                )
            )
            connection.execute(
                insert(entry_links).values(
                    digest=store.digest_secret(secret), person=person_id, expires_at=until
                )
            )

        await self._store.write(work)
        return secret, float(until)

    async def link_owner(self, secret: str) -> Person | None:
        """The person of a link, without using it up."""
        return await self._store.read(lambda c: self._behind(c, secret))

    async def by_link(self, secret: str) -> Person:
        """The person of a link, which is used up; `AuthorityError` if it is not valid."""

        def work(connection: Connection) -> Person | None:
            found = self._behind(connection, secret)
            spent = connection.execute(
                delete(entry_links).where(entry_links.c.digest == store.digest_secret(secret))
            )
            return found if spent.rowcount else None

        found = await self._store.write(work)
        if found is None:
            raise AuthorityError(
                Code.FORBIDDEN,
                "this link is no longer valid",
                mend="ask whoever runs this authority for a new one",
            )
        return found

    async def visit(self, person: Person) -> str:
        """Start a visit of a browser; the secret for its cookie."""
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
                    digest=store.digest_secret(secret),
                    person=person.id,
                    expires_at=now + VISIT_SECONDS,
                )
            )

        await self._store.write(work)
        return secret

    async def visitor(self, secret: str | None) -> Person | None:
        """The person of a visit, if it has not ended."""
        if not secret:
            return None
        wanted = (
            select(people)
            .join(visits, visits.c.person == people.c.id)
            .where(
                visits.c.digest == store.digest_secret(secret),
                visits.c.expires_at > self._now(),
                people.c.disabled == 0,
            )
        )
        row = await self._store.read(lambda c: c.execute(wanted).first())
        return None if row is None else store.read_person(row)

    async def leave(self, secret: str) -> None:
        """End a visit."""
        await self._store.write(
            lambda c: c.execute(
                delete(visits).where(visits.c.digest == store.digest_secret(secret))
            )
        )

    def _behind(self, connection: Connection, secret: str) -> Person | None:
        wanted = (
            select(people)
            .join(entry_links, entry_links.c.person == people.c.id)
            .where(
                entry_links.c.digest == store.digest_secret(secret),
                entry_links.c.expires_at > self._now(),
                people.c.disabled == 0,
            )
        )
        row = connection.execute(wanted).first()
        return None if row is None else store.read_person(row)

    def _now(self) -> int:
        return int(self._clock.now())
