"""Consents: what people allow clients, what operators grant them, and the record of every answer.

`identity_authorities` holds what is allowed now. Consents are never deleted; each has the digest
that was reviewed and what it added.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, insert, select

from accord.authority.revisions import SerialStore
from accord.authority.rules import clients
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import (
    Access,
    Consent,
    ConsentAnswer,
    DeviceActivation,
    GrantOverride,
    LoginFlow,
)
from accord.authority.store import decode, decode_names, encode, encode_names
from accord.authority.tables import consents, grant_overrides, identity_authorities
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource


@dataclass(frozen=True, slots=True)
class Consents:
    """Consents of people, and overrides of operators."""

    _store: SerialStore
    _clock: Clock
    _ids: UlidSource

    async def allowed(self, person: str, contract_id: str, anchor: str) -> Access | None:
        """What a person allows a client; None if the person was never asked."""
        return await self._store.read(lambda c: _allowed(c, person, contract_id, anchor))

    def answered(
        self, person: str, login: LoginFlow, answer: ConsentAnswer, delta: Access
    ) -> Callable[[Connection], None]:
        """The unit of work that records an answer and adds what it allows."""
        row = self._row(person, login.contract_id, login.anchor, login.digest, answer, delta)

        def work(connection: Connection) -> None:
            if answer is not ConsentAnswer.DENIED:
                known = _allowed(connection, person, login.contract_id, login.anchor)
                total = (known or Access()) | delta
                _forget(connection, person, login.contract_id, login.anchor)
                connection.execute(
                    insert(identity_authorities).values(
                        person=person,
                        contract_id=login.contract_id,
                        anchor=login.anchor,
                        surfaces=encode_names(total.surfaces),
                        capabilities=encode_names(total.capabilities),
                    )
                )
            connection.execute(insert(consents).values(row))

        return work

    async def note_device(self, person: str, device: DeviceActivation) -> None:
        """Record that a person confirmed a device, which is anchored at its key."""
        row = self._row(
            person,
            device.contract_id,
            device.device_key,
            device.digest,
            ConsentAnswer.ACCEPTED,
            Access(),
        )
        await self._store.write(lambda c: c.execute(insert(consents).values(row)))

    async def withdraw(self, person: str, contract_id: str, anchor: str) -> None:
        """Withdraw what a person allows a client; the caller ends its sessions."""
        row = self._row(person, contract_id, anchor, "", ConsentAnswer.WITHDRAWN, Access())

        def work(connection: Connection) -> None:
            if _forget(connection, person, contract_id, anchor):
                connection.execute(insert(consents).values(row))

        await self._store.write(work)

    async def answers(self, person: str, limit: int = 1000) -> Sequence[Consent]:
        """What a person answered, the latest first."""
        wanted = (
            select(consents)
            .where(consents.c.person == person)
            .order_by(consents.c.id.desc())
            .limit(limit)
        )
        return await self._store.read(lambda c: [read_consent(row) for row in c.execute(wanted)])

    async def override(self, contract_id: str, anchor: str) -> frozenset[str] | None:
        """The capabilities that an operator grants to a client; None without an override."""
        wanted = select(grant_overrides.c.capabilities).where(
            grant_overrides.c.contract_id == contract_id, grant_overrides.c.anchor == anchor
        )
        found = await self._store.read(lambda c: c.execute(wanted).scalar_one_or_none())
        return None if found is None else decode_names(found)

    async def set_override(
        self, contract_id: str, anchor: str, capabilities: Collection[str]
    ) -> GrantOverride:
        """Grant capabilities to the clients of a contract at an origin, or to one session key."""
        made = GrantOverride(contract_id, _anchor(anchor), frozenset(capabilities))

        def work(connection: Connection) -> None:
            _drop(connection, contract_id, made.anchor)
            connection.execute(
                insert(grant_overrides).values(
                    contract_id=contract_id,
                    anchor=made.anchor,
                    capabilities=encode_names(made.capabilities),
                )
            )

        await self._store.write(work)
        return made

    async def drop_override(self, contract_id: str, anchor: str) -> bool:
        """Remove an override; whether there was one."""
        return await self._store.write(lambda c: _drop(c, contract_id, anchor))

    async def overrides(self) -> Sequence[GrantOverride]:
        """Every override."""
        rows = select(grant_overrides).order_by(*grant_overrides.primary_key.columns)
        return await self._store.read(
            lambda c: [
                GrantOverride(row.contract_id, row.anchor, decode_names(row.capabilities))
                for row in c.execute(rows)
            ]
        )

    def _row(
        self,
        person: str,
        contract_id: str,
        anchor: str,
        digest: str,
        answer: ConsentAnswer,
        delta: Access,
    ) -> dict[str, object]:
        return {
            "id": self._ids.new(),
            "person": person,
            "contract_id": contract_id,
            "anchor": anchor,
            "digest": digest,
            "answer": answer.value,
            "delta": encode_access(delta),
            "at": int(self._clock.now()),
        }


def _allowed(connection: Connection, person: str, contract_id: str, anchor: str) -> Access | None:
    query = select(identity_authorities).where(_authority_of(person, contract_id, anchor))
    row = connection.execute(query).first()
    if row is None:
        return None
    return Access(decode_names(row.surfaces), decode_names(row.capabilities))


def _forget(connection: Connection, person: str, contract_id: str, anchor: str) -> bool:
    gone = delete(identity_authorities).where(_authority_of(person, contract_id, anchor))
    return connection.execute(gone).rowcount == 1


def _authority_of(person: str, contract_id: str, anchor: str) -> ColumnElement[bool]:
    table = identity_authorities.c
    return and_(table.person == person, table.contract_id == contract_id, table.anchor == anchor)


def _drop(connection: Connection, contract_id: str, anchor: str) -> bool:
    gone = connection.execute(
        delete(grant_overrides).where(
            grant_overrides.c.contract_id == contract_id, grant_overrides.c.anchor == anchor
        )
    )
    return gone.rowcount == 1


def _anchor(anchor: str) -> str:
    if "://" in anchor:
        return clients.origin(anchor)
    try:
        if len(canonical.decode_base64url(anchor)) == 32:
            return anchor
    except canonical.Base64Error:
        pass  # raised below
    raise AuthorityError(
        Code.BAD_REQUEST,
        "an override is for an origin or for a session key",
        where=anchor,
        mend="give an address such as https://app.example, or 43 characters of base64url",
    )


def encode_access(value: Access) -> str:
    """Encode access."""
    written = {"capabilities": sorted(value.capabilities), "surfaces": sorted(value.surfaces)}
    return encode(written)


def read_consent(row: Row[Any]) -> Consent:
    """A row of `consents`."""
    written = decode(row.delta)
    delta = Access(frozenset(written["surfaces"]), frozenset(written["capabilities"]))
    return Consent(
        row.id,
        row.person,
        row.contract_id,
        row.anchor,
        row.digest,
        ConsentAnswer(row.answer),
        delta,
        float(row.at),
    )
