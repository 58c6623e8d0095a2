"""What people allow clients, what operators grant them, and the record of every answer.

The authority of an identity is what lasts; consents are kept for ever, each with the digest that
was reviewed and the difference that it made.
"""

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection, delete, insert, select

from accord.authority.errors import AuthorityError, Code
from accord.authority.identities import places, storing
from accord.authority.identities.records import (
    Access,
    Activation,
    Answer,
    Consent,
    Login,
    Override,
)
from accord.authority.identities.storing import Storage
from accord.authority.people_tables import consents, grant_overrides, identity_authorities
from accord.kernel import base64url
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource


class Allowing:
    """Consents, and the overrides of operators."""

    def __init__(self, store: Storage, clock: Clock, ids: UlidSource) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    async def allowed(self, person: str, contract_id: str, anchor: str) -> Access | None:
        """What a person allows a client; None if the person was never asked."""
        return await self._store.read(lambda c: _allowed(c, person, contract_id, anchor))

    def answered(
        self, person: str, login: Login, answer: Answer, delta: Access
    ) -> Callable[[Connection], None]:
        """The unit of work that keeps an answer and adds what it allows."""
        row = self._row(person, login.contract_id, login.anchor, login.digest, answer, delta)

        def work(connection: Connection) -> None:
            if answer is not Answer.DENIED:
                known = _allowed(connection, person, login.contract_id, login.anchor)
                total = (known or Access()) | delta
                _forget(connection, person, login.contract_id, login.anchor)
                connection.execute(
                    insert(identity_authorities).values(
                        person=person,
                        contract_id=login.contract_id,
                        anchor=login.anchor,
                        surfaces=storing.names(total.surfaces),
                        capabilities=storing.names(total.capabilities),
                    )
                )
            connection.execute(insert(consents).values(row))

        return work

    async def note_device(self, person: str, device: Activation) -> None:
        """Keep that a person confirmed a device, which is anchored at its key."""
        row = self._row(
            person, device.contract_id, device.device_key, device.digest, Answer.ACCEPTED, Access()
        )
        await self._store.write(lambda c: c.execute(insert(consents).values(row)))

    async def withdraw(self, person: str, contract_id: str, anchor: str) -> None:
        """Take back what a person allows a client; its sessions are the caller's to end."""
        row = self._row(person, contract_id, anchor, "", Answer.WITHDRAWN, Access())

        def work(connection: Connection) -> None:
            if _forget(connection, person, contract_id, anchor):
                connection.execute(insert(consents).values(row))

        await self._store.write(work)

    async def consents(self, person: str, limit: int = 1000) -> Sequence[Consent]:
        """What a person answered, the latest first."""
        wanted = (
            select(consents)
            .where(consents.c.person == person)
            .order_by(consents.c.id.desc())
            .limit(limit)
        )
        return await self._store.read(lambda c: [storing.consent(row) for row in c.execute(wanted)])

    async def override(self, contract_id: str, anchor: str) -> frozenset[str] | None:
        """The keys that an operator grants to a client; None without an override."""
        wanted = select(grant_overrides.c.capabilities).where(
            grant_overrides.c.contract_id == contract_id, grant_overrides.c.anchor == anchor
        )
        found = await self._store.read(lambda c: c.execute(wanted).scalar_one_or_none())
        return None if found is None else storing.name_set(found)

    async def set_override(
        self, contract_id: str, anchor: str, capabilities: Collection[str]
    ) -> Override:
        """Grant keys to the clients of a contract at an origin, or to one session key.

        Raises:
            AuthorityError: The anchor is neither.
        """
        made = Override(contract_id, _anchor(anchor), frozenset(capabilities))

        def work(connection: Connection) -> None:
            _drop(connection, contract_id, made.anchor)
            connection.execute(
                insert(grant_overrides).values(
                    contract_id=contract_id,
                    anchor=made.anchor,
                    capabilities=storing.names(made.capabilities),
                )
            )

        await self._store.write(work)
        return made

    async def drop_override(self, contract_id: str, anchor: str) -> bool:
        """Take an override back; whether there was one."""
        return await self._store.write(lambda c: _drop(c, contract_id, anchor))

    async def overrides(self) -> Sequence[Override]:
        """Every override."""
        rows = select(grant_overrides).order_by(*grant_overrides.primary_key.columns)
        return await self._store.read(
            lambda c: [
                Override(row.contract_id, row.anchor, storing.name_set(row.capabilities))
                for row in c.execute(rows)
            ]
        )

    def _row(
        self,
        person: str,
        contract_id: str,
        anchor: str,
        digest: str,
        answer: Answer,
        delta: Access,
    ) -> dict[str, object]:
        return {
            "id": self._ids.new(),
            "person": person,
            "contract_id": contract_id,
            "anchor": anchor,
            "digest": digest,
            "answer": answer.value,
            "delta": storing.access(delta),
            "at": int(self._clock.now()),
        }


def _allowed(connection: Connection, person: str, contract_id: str, anchor: str) -> Access | None:
    table = identity_authorities.c
    row = connection.execute(
        select(identity_authorities).where(
            table.person == person, table.contract_id == contract_id, table.anchor == anchor
        )
    ).first()
    if row is None:
        return None
    return Access(storing.name_set(row.surfaces), storing.name_set(row.capabilities))


def _forget(connection: Connection, person: str, contract_id: str, anchor: str) -> bool:
    table = identity_authorities.c
    gone = connection.execute(
        delete(identity_authorities).where(
            table.person == person, table.contract_id == contract_id, table.anchor == anchor
        )
    )
    return gone.rowcount == 1


def _drop(connection: Connection, contract_id: str, anchor: str) -> bool:
    gone = connection.execute(
        delete(grant_overrides).where(
            grant_overrides.c.contract_id == contract_id, grant_overrides.c.anchor == anchor
        )
    )
    return gone.rowcount == 1


def _anchor(anchor: str) -> str:
    if "://" in anchor:
        return places.origin(anchor)
    try:
        if len(base64url.decode(anchor)) == 32:
            return anchor
    except base64url.Base64Error:
        pass  # told below
    raise AuthorityError(
        Code.BAD_REQUEST,
        "an override is for an origin or for a session key",
        where=anchor,
        mend="give an address such as https://app.example, or 43 characters of base64url",
    )
