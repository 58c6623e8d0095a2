"""Devices: a key asks to become an instance, a person confirms it by the code that it shows.

The code is short, because people type it; it lives for minutes, tries are limited where it is
typed, and it opens nothing to whoever may not activate devices.
"""

import secrets
from typing import Final

from sqlalchemy import Connection, delete, func, insert, select

from accord.authority.core import Authority
from accord.authority.errors import AuthorityError, Code
from accord.authority.identities import storing
from accord.authority.identities.allowing import Allowing
from accord.authority.identities.records import Activation, Person
from accord.authority.identities.storing import Storage
from accord.authority.people_tables import activations
from accord.authority.records import Instance, Kind
from accord.kernel.clock import Clock

ACTIVATE: Final = "trellis.auth::devices.activate"
"""The capability of people who may confirm devices."""

ACTIVATION_SECONDS: Final = 900
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LETTERS: Final = 8
_READ_AS: Final = str.maketrans({"O": "0", "I": "1", "L": "1", "-": None, " ": None})
_LONGEST_NAME: Final = 100
_MOST_WAITING: Final = 10_000


class Devices:
    """Devices that wait for a person."""

    def __init__(
        self, store: Storage, authority: Authority, allowing: Allowing, clock: Clock
    ) -> None:
        self._store = store
        self._authority = authority
        self._allowing = allowing
        self._clock = clock

    async def begin(
        self, device_key: str, deployment: str, digest: str, manifest: bytes | None, name: str
    ) -> tuple[str, Activation]:
        """A code for a device that has proved its key; the one that it had before ends.

        Raises:
            AuthorityError: There is no such deployment of devices, or the contract is not one.
        """
        contract = await self._authority.present(manifest, digest)
        found = await self._authority.deployment(deployment)
        if found.kind is not Kind.DEVICE or contract["kind"] != "device":
            raise AuthorityError(
                Code.NOT_FOUND,
                "there is no such deployment of devices",
                where=deployment,
                mend="ask whoever runs this authority for its name, and present a device contract",
            )
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise AuthorityError(
                Code.BAD_REQUEST, "a device's name is printable and short", where="/name"
            )
        code = "".join(secrets.choice(_ALPHABET) for _ in range(_LETTERS))
        made = Activation(
            device_key,
            deployment,
            contract["id"],
            digest,
            name,
            float(self._now() + ACTIVATION_SECONDS),
        )

        def work(connection: Connection) -> bool:
            connection.execute(
                delete(activations).where(
                    (activations.c.expires_at <= self._now())
                    | (activations.c.device_key == device_key)
                )
            )
            waiting = connection.execute(select(func.count()).select_from(activations)).scalar_one()
            taken = select(activations.c.code).where(activations.c.code == storing.digest(code))
            if waiting >= _MOST_WAITING or connection.execute(taken).first() is not None:
                return False
            connection.execute(
                insert(activations).values(
                    code=storing.digest(code),
                    device_key=device_key,
                    deployment=deployment,
                    contract_id=made.contract_id,
                    digest=digest,
                    name=name,
                    expires_at=int(made.expires_at),
                )
            )
            return True

        if not await self._store.write(work):
            raise AuthorityError(Code.UNAVAILABLE, "too many devices wait", mend="try later")
        return f"{code[:4]}-{code[4:]}", made

    async def find(self, code: str, person: Person) -> Activation:
        """The device that shows a code, for a person who may confirm it.

        Raises:
            AuthorityError: The person may not, or no device shows the code.
        """
        _demand(person)
        wanted = select(activations).where(
            activations.c.code == _digest(code), activations.c.expires_at > self._now()
        )
        row = await self._store.read(lambda c: c.execute(wanted).first())
        if row is None:
            raise _gone()
        return storing.activation(row)

    async def confirm(self, code: str, person: Person) -> Instance:
        """Make the device that shows a code an instance of its deployment.

        Raises:
            AuthorityError: The person may not, no device shows the code, or the key is in use.
        """
        found = await self.find(code, person)
        if not await self._spend(code):
            raise _gone()
        made = await self._authority.add_instance(
            found.deployment, found.device_key, found.name, person.id
        )
        await self._allowing.note_device(person.id, found)
        return made

    async def refuse(self, code: str, person: Person) -> None:
        """Send the device that shows a code away.

        Raises:
            AuthorityError: The person may not.
        """
        _demand(person)
        await self._spend(code)

    async def _spend(self, code: str) -> bool:
        change = delete(activations).where(activations.c.code == _digest(code))
        return await self._store.write(lambda c: c.execute(change).rowcount == 1)

    def _now(self) -> int:
        return int(self._clock.now())


def _digest(code: str) -> bytes:
    return storing.digest(code.upper().translate(_READ_AS))


def _demand(person: Person) -> None:
    if ACTIVATE not in person.capabilities:
        raise AuthorityError(
            Code.FORBIDDEN,
            "you may not activate devices",
            mend=f"ask whoever runs this authority for {ACTIVATE}",
        )


def _gone() -> AuthorityError:
    return AuthorityError(
        Code.NOT_FOUND,
        "no device shows this code now",
        mend="read it again, or let the device ask for a new one",
    )
