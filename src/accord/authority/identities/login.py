"""Login of people: by password or one-time link, the visit that follows, and custom login pages.

A failed login reveals neither by its message nor by its duration whether the name exists. A
password hash takes 32 MiB and a tenth of a second, so it is made in a thread.
"""

import asyncio
import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from sqlalchemy import Connection, Table, delete, insert, select, update

from accord.authority.identities.people import name_key, read_person
from accord.authority.revisions import SerialStore
from accord.authority.rules import clients
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import Person, Portal, PortalKind
from accord.authority.tables import entry_links, people, portals, visits
from accord.kernel import canonical
from accord.kernel.clock import Clock

_SHORTEST: Final = 10
_LONGEST: Final = 1024

_HASHER: Final = PasswordHasher(time_cost=3, memory_cost=32 * 1024, parallelism=1)
# Tried where there is no hash of its kind, so that the time taken does not tell.
_NO_ARGON2: Final = (
    "$argon2id$v=19$m=32768,t=3,p=1$AAAAAAAAAAAAAAAAAAAAAA$"
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)
# Hashes by versions before 0.3, as `scrypt$log n$r$p$salt$hash`.
_SCRYPT: Final = "scrypt$"
_NO_SCRYPT: Final = f"scrypt$15$8$1${'A' * 22}${'A' * 43}"


def hash_password(password: str) -> str:
    """The hash to store, by Argon2id, of a password of valid length."""
    if not _SHORTEST <= len(password) <= _LONGEST:
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"a password has {_SHORTEST} to {_LONGEST} characters",
            mend="use several unrelated words",
        )
    return _HASHER.hash(_bytes(password))


def verify_password(password: str, stored: str | None, *, with_scrypt: bool = False) -> bool:
    """Whether a password matches a hash; takes as long if there is none.

    `with_scrypt` says that some stored hash is by scrypt: then both functions are computed,
    whichever the hash needs.
    """
    text = _bytes(password[:_LONGEST])
    is_scrypt = stored is not None and stored.startswith(_SCRYPT)
    fits_scrypt = False
    if is_scrypt or with_scrypt:
        fits_scrypt = _verify_scrypt(text, stored if is_scrypt and stored else _NO_SCRYPT)
    try:
        _HASHER.verify(_NO_ARGON2 if is_scrypt or stored is None else stored, text)
    except VerifyMismatchError:
        return is_scrypt and fits_scrypt
    return stored is not None and not is_scrypt


def needs_new_hash(stored: str) -> bool:
    """Whether a hash was made by another function, or with other costs, than new ones."""
    return stored.startswith(_SCRYPT) or _HASHER.check_needs_rehash(stored)


def _bytes(password: str) -> bytes:
    # The same letter may be composed differently by another keyboard.
    return unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")


def _verify_scrypt(text: bytes, stored: str) -> bool:
    _, log_n, r, p, salt, made = stored.split("$")
    n, wanted = 1 << int(log_n), canonical.decode_base64url(made)
    tried = hashlib.scrypt(
        text,
        salt=canonical.decode_base64url(salt),
        n=n,
        r=int(r),
        p=int(p),
        maxmem=256 * n * int(r),
        dklen=len(wanted),
    )
    return hmac.compare_digest(tried, wanted)


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
            kept = await asyncio.to_thread(hash_password, password)

        def work(connection: Connection) -> None:
            connection.execute(update(people).where(people.c.id == person_id).values(password=kept))
            connection.execute(delete(visits).where(visits.c.person == person_id))
            connection.execute(delete(entry_links).where(entry_links.c.person == person_id))

        await self._store.write(work)

    async def by_password(self, name: str, password: str) -> Person:
        """The person of a name and password; the error does not say which is wrong.

        A hash by an older version is replaced by one as new passwords have.
        """
        wanted = select(people).where(people.c.name_key == name_key(name))
        older = select(people.c.id).where(people.c.password.startswith(_SCRYPT)).limit(1)
        row, has_older = await self._store.read(
            lambda c: (c.execute(wanted).first(), c.execute(older).first() is not None)
        )
        stored = None if row is None else row.password
        async with self._trying:
            fits = await asyncio.to_thread(verify_password, password, stored, with_scrypt=has_older)
        if row is None or stored is None or not fits or row.disabled:
            raise AuthorityError(Code.FORBIDDEN, "the name or the password is wrong")
        if needs_new_hash(stored):
            async with self._trying:
                made = await asyncio.to_thread(hash_password, password[:_LONGEST])
            # Unless the password was changed meanwhile.
            same = (people.c.id == row.id) & (people.c.password == stored)
            await self._store.write(
                lambda c: c.execute(update(people).where(same).values(password=made))
            )
        return read_person(row)

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
                    digest=digest_secret(secret), person=person_id, expires_at=until
                )
            )

        await self._store.write(work)
        return secret, float(until)

    async def link_owner(self, secret: str) -> Person | None:
        """The person of a link, without using it up."""
        return await self._store.read(lambda c: self._owner(c, entry_links, secret))

    async def by_link(self, secret: str) -> Person:
        """The person of a link, which is used up; `AuthorityError` if it is not valid."""

        def work(connection: Connection) -> Person | None:
            found = self._owner(connection, entry_links, secret)
            spent = connection.execute(
                delete(entry_links).where(entry_links.c.digest == digest_secret(secret))
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
                    digest=digest_secret(secret), person=person.id, expires_at=now + VISIT_SECONDS
                )
            )

        await self._store.write(work)
        return secret

    async def visitor(self, secret: str | None) -> Person | None:
        """The person of a visit, if it has not ended."""
        if not secret:
            return None
        return await self._store.read(lambda c: self._owner(c, visits, secret))

    async def leave(self, secret: str) -> None:
        """End a visit."""
        await self._store.write(
            lambda c: c.execute(delete(visits).where(visits.c.digest == digest_secret(secret)))
        )

    def _owner(self, connection: Connection, table: Table, secret: str) -> Person | None:
        """The person of a link or a visit, by its secret."""
        wanted = (
            select(people)
            .join(table, table.c.person == people.c.id)
            .where(
                table.c.digest == digest_secret(secret),
                table.c.expires_at > self._now(),
                people.c.disabled == 0,
            )
        )
        row = connection.execute(wanted).first()
        return None if row is None else read_person(row)

    def _now(self) -> int:
        return int(self._clock.now())


def digest_secret(secret: str) -> bytes:
    """The stored form of a random secret; looking it up reveals nothing by its duration."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


ALL: Final = "*"
_MAX_SELECTOR: Final = 512


@dataclass(frozen=True, slots=True)
class Portals:
    """The custom pages."""

    _store: SerialStore

    async def route(self, kind: PortalKind, *selectors: str) -> str | None:
        """The page for the first selector that has one, else that for `*`, else None."""
        wanted = select(portals.c.selector, portals.c.url).where(
            portals.c.kind == kind.value, portals.c.selector.in_([*selectors, ALL])
        )
        found = {
            row.selector: str(row.url)
            for row in await self._store.read(lambda c: c.execute(wanted).all())
        }
        return next((found[each] for each in (*selectors, ALL) if each in found), None)

    async def set(self, kind: PortalKind, selector: str, url: str) -> Portal:
        """Send people to a custom page first."""
        clients.origin(url)
        if not 0 < len(selector) <= _MAX_SELECTOR or not selector.isprintable():
            raise AuthorityError(
                Code.BAD_REQUEST,
                "this is not a valid selector",
                mend="give a contract id, an origin, a deployment, or *",
            )
        made = Portal(kind, selector, url)

        def work(connection: Connection) -> None:
            _drop(connection, kind, selector)
            connection.execute(insert(portals).values(kind=kind.value, selector=selector, url=url))

        await self._store.write(work)
        return made

    async def drop(self, kind: PortalKind, selector: str) -> bool:
        """Remove a custom page; whether there was one."""
        return await self._store.write(lambda c: _drop(c, kind, selector))

    async def all(self) -> Sequence[Portal]:
        """Every custom page."""
        rows = select(portals).order_by(*portals.primary_key.columns)
        return await self._store.read(
            lambda c: [Portal(PortalKind(r.kind), r.selector, r.url) for r in c.execute(rows)]
        )


def _drop(connection: Connection, kind: PortalKind, selector: str) -> bool:
    gone = connection.execute(
        delete(portals).where(portals.c.kind == kind.value, portals.c.selector == selector)
    )
    return gone.rowcount == 1
