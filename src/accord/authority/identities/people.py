"""People: their names, and the capabilities that each may pass on to clients."""

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from accord.authority.revisions import SerialStore
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import Person
from accord.authority.store import decode_names, encode_names
from accord.authority.tables import people, visits
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource, is_ulid

_LONGEST_NAME: Final = 100
_MOST_KEYS: Final = 1000
_LONGEST_KEY: Final = 256


@dataclass(frozen=True, slots=True)
class People:
    """Everybody who can log in."""

    _store: SerialStore
    _clock: Clock
    _ids: UlidSource

    async def add(self, name: str, capabilities: Collection[str] = ()) -> Person:
        """A new person, who needs a link or a password to log in."""
        made = Person(
            self._ids.new(), _name(name), _keys(capabilities), False, False, float(self._now())
        )

        def work(connection: Connection) -> bool:
            if _by_name(connection, name) is not None:
                return False
            connection.execute(
                insert(people).values(
                    id=made.id,
                    name=made.name,
                    name_key=name_key(made.name),
                    capabilities=encode_names(made.capabilities),
                    disabled=0,
                    created_at=made.created_at,
                )
            )
            return True

        taken = AuthorityError(
            Code.CONFLICT,
            "a person with this name exists already",
            where=name,
            mend="choose another",
        )
        try:
            if not await self._store.write(work):
                raise taken
        except IntegrityError:  # another process was first
            raise taken from None
        return made

    async def find(self, name: str) -> Person:
        """The person of a name or an id; `AuthorityError` if there is none."""
        found = await self._store.read(
            lambda c: _by_name(c, name) or _by_id(c, name if is_ulid(name) else "")
        )
        if found is None:
            raise AuthorityError(
                Code.NOT_FOUND,
                "there is no such person",
                where=name,
                mend="`accord authority people list` shows them",
            )
        return found

    async def by_id(self, person_id: str) -> Person | None:
        """The person of an id, if there is one."""
        return await self._store.read(lambda c: _by_id(c, person_id))

    async def all(self) -> Sequence[Person]:
        """Everybody, by name."""
        rows = select(people).order_by(people.c.name_key)
        return await self._store.read(lambda c: [read_person(row) for row in c.execute(rows)])

    async def set_capabilities(self, person_id: str, capabilities: Collection[str]) -> Person:
        """Set what a person may pass on."""
        return await self._set(person_id, capabilities=encode_names(_keys(capabilities)))

    async def set_disabled(self, person_id: str, disabled: bool) -> Person:
        """Disable a person, whose visits end, or enable the person again."""
        found = await self._set(person_id, disabled=int(disabled))
        if disabled:
            await self._store.write(
                lambda c: c.execute(delete(visits).where(visits.c.person == person_id))
            )
        return found

    async def _set(self, person_id: str, **values: object) -> Person:
        def work(connection: Connection) -> Person | None:
            connection.execute(update(people).where(people.c.id == person_id).values(**values))
            return _by_id(connection, person_id)

        found = await self._store.write(work)
        if found is None:
            raise AuthorityError(Code.NOT_FOUND, "there is no such person", where=person_id)
        return found

    def _now(self) -> int:
        return int(self._clock.now())


def _by_name(connection: Connection, name: str) -> Person | None:
    row = connection.execute(select(people).where(people.c.name_key == name_key(name))).first()
    return None if row is None else read_person(row)


def _by_id(connection: Connection, person_id: str) -> Person | None:
    row = connection.execute(select(people).where(people.c.id == person_id)).first()
    return None if row is None else read_person(row)


def name_key(name: str) -> str:
    """A name as it is compared (NFKC, case-folded); empty if it is not a valid name."""
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        return ""
    return unicodedata.normalize("NFKC", name).casefold()


def _name(name: str) -> str:
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"a name has 1 to {_LONGEST_NAME} printable characters and no blanks around it",
            mend="choose another",
        )
    return name


def _keys(capabilities: Collection[str]) -> frozenset[str]:
    keys = frozenset(capabilities)
    if len(keys) > _MOST_KEYS or not all(
        0 < len(key) <= _LONGEST_KEY and key.isprintable() for key in keys
    ):
        raise AuthorityError(
            Code.BAD_REQUEST,
            "these cannot be capabilities",
            mend=f"give at most {_MOST_KEYS} keys such as trellis.core::catalog.read",
        )
    return keys


def read_person(row: Row[Any]) -> Person:
    """A row of `people`."""
    return Person(
        row.id,
        row.name,
        decode_names(row.capabilities),
        bool(row.disabled),
        row.password is not None,
        float(row.created_at),
    )
