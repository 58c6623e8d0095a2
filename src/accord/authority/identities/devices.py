"""Devices: a key asks to become an instance, and a person confirms it by the code that it shows.

The code is short because people type it. It is valid for minutes, attempts are limited, and only
people who may activate devices can use it.
"""

import secrets
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, select

from accord.authority.identities.consents import Consents
from accord.authority.identities.login import digest_secret
from accord.authority.revisions import SerialStore
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import DeploymentKind, DeviceActivation, Instance, Person
from accord.authority.service import Authority
from accord.authority.tables import activations
from accord.kernel.clock import Clock

ACTIVATE: Final = "trellis.auth::devices.activate"
"""The capability of people who may confirm devices."""

ACTIVATION_SECONDS: Final = 900
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LETTERS: Final = 8
_READ_AS: Final = str.maketrans({"O": "0", "I": "1", "L": "1", "-": None, " ": None})
_LONGEST_NAME: Final = 100
_MOST_WAITING: Final = 10_000


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices that wait for a person."""

    _store: SerialStore
    _authority: Authority
    _consents: Consents
    _clock: Clock

    async def begin(
        self, device_key: str, deployment: str, digest: str, manifest: bytes | None, name: str
    ) -> tuple[str, DeviceActivation]:
        """A code for a device that has proved its key; its earlier code ends."""
        found = await self._authority.deployments.get(deployment)
        if found.kind is not DeploymentKind.DEVICE:
            raise _no_deployment(deployment)
        contract = await self._authority.manifests.present(
            manifest, digest, guest=(DeploymentKind.DEVICE.value,)
        )
        if contract["kind"] != DeploymentKind.DEVICE.value:
            raise _no_deployment(deployment)
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise AuthorityError(
                Code.BAD_REQUEST, "a device's name is printable and short", where="/name"
            )
        code = "".join(secrets.choice(_ALPHABET) for _ in range(_LETTERS))
        made = DeviceActivation(
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
            taken = select(activations.c.code).where(activations.c.code == digest_secret(code))
            if waiting >= _MOST_WAITING or connection.execute(taken).first() is not None:
                return False
            connection.execute(
                insert(activations).values(
                    code=digest_secret(code),
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
            raise AuthorityError(Code.UNAVAILABLE, "too many devices are waiting", mend="try later")
        return f"{code[:4]}-{code[4:]}", made

    async def find(self, code: str, person: Person) -> DeviceActivation:
        """The device of a code; `AuthorityError` if the person may not activate devices."""
        _require_right(person)
        wanted = select(activations).where(
            activations.c.code == _digest(code), activations.c.expires_at > self._now()
        )
        row = await self._store.read(lambda c: c.execute(wanted).first())
        if row is None:
            raise _code_gone()
        return read_activation(row)

    async def confirm(self, code: str, person: Person) -> Instance:
        """Make the device of a code an instance of its deployment; the code is used up."""
        found = await self.find(code, person)
        if not await self._spend(code):
            raise _code_gone()
        made = await self._authority.deployments.add_instance(
            found.deployment, found.device_key, found.name, person.id
        )
        await self._consents.note_device(person.id, found)
        return made

    async def refuse(self, code: str, person: Person) -> None:
        """Refuse the device of a code; `AuthorityError` if the person may not."""
        _require_right(person)
        await self._spend(code)

    async def _spend(self, code: str) -> bool:
        change = delete(activations).where(activations.c.code == _digest(code))
        return await self._store.write(lambda c: c.execute(change).rowcount == 1)

    def _now(self) -> int:
        return int(self._clock.now())


def _digest(code: str) -> bytes:
    return digest_secret(code.upper().translate(_READ_AS))


def _require_right(person: Person) -> None:
    if ACTIVATE not in person.capabilities:
        raise AuthorityError(
            Code.FORBIDDEN,
            "you may not activate devices",
            mend=f"ask whoever runs this authority for {ACTIVATE}",
        )


def _no_deployment(deployment: str) -> AuthorityError:
    return AuthorityError(
        Code.NOT_FOUND,
        "there is no such deployment of devices",
        where=deployment,
        mend="ask whoever runs this authority for its name, and present a device contract",
    )


def _code_gone() -> AuthorityError:
    return AuthorityError(
        Code.NOT_FOUND,
        "no device shows this code now",
        mend="read it again, or let the device ask for a new one",
    )


def read_activation(row: Row[Any]) -> DeviceActivation:
    """A row of `activations`."""
    return DeviceActivation(
        row.device_key, row.deployment, row.contract_id, row.digest, row.name, float(row.expires_at)
    )
