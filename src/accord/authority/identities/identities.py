"""Everything about identities on one authority and its store, put together."""

from collections.abc import Collection

from accord.authority.core import Authority
from accord.authority.errors import AuthorityError, Code
from accord.authority.history import Act, Word
from accord.authority.identities.allowing import Allowing
from accord.authority.identities.devices import Devices
from accord.authority.identities.entering import Entering
from accord.authority.identities.logins import Logins
from accord.authority.identities.people import People
from accord.authority.identities.portals import Portals
from accord.authority.identities.records import Override, Person
from accord.authority.identities.sessions import PeopleSessions
from accord.authority.identities.storing import Storage
from accord.authority.records import Holder
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource


class Identities:
    """People, their logins and consents, devices, and pages of others.

    Args:
        store: The authority's.
        authority: The authority itself.
        clock: The time.
        ids: Where ids come from.
    """

    def __init__(self, store: Storage, authority: Authority, clock: Clock, ids: UlidSource) -> None:
        self._authority = authority
        self.people = People(store, clock, ids, self._changed)
        self.allowing = Allowing(store, clock, ids)
        self.entering = Entering(store, clock)
        self.logins = Logins(store, authority, self.allowing, clock)
        self.sessions = PeopleSessions(store, authority, self.people, self.allowing, clock)
        self.devices = Devices(store, authority, self.allowing, clock)
        self.portals = Portals(store)

    async def set_override(
        self, contract_id: str, anchor: str, capabilities: Collection[str]
    ) -> Override:
        """Grant keys to a client; its sessions follow at once.

        Raises:
            AuthorityError: The anchor is neither an origin nor a session key.
        """
        made = await self.allowing.set_override(contract_id, anchor, capabilities)
        await self._follow(contract_id)
        return made

    async def drop_override(self, contract_id: str, anchor: str) -> None:
        """Take an override back; the sessions of its clients follow at once.

        Raises:
            AuthorityError: There is none.
        """
        if not await self.allowing.drop_override(contract_id, anchor):
            raise AuthorityError(Code.NOT_FOUND, "there is no such override", where=contract_id)
        await self._follow(contract_id)

    async def note(self, act: Word, person: Person, why: str | None = None) -> None:
        """Keep for the history what a person did, or was let do."""
        await self._authority.note([Act(act, f"person {person.name}", why=why)])

    async def withdraw(self, person: Person, contract_id: str, anchor: str) -> None:
        """Take back what a person allows a client, and end its sessions."""
        await self.allowing.withdraw(person.id, contract_id, anchor)
        for session in await self._authority.sessions(subject=person.id):
            if session.contract_id == contract_id and anchor in (session.origin, session.key):
                await self._authority.revoke_session(session.key, person.id)

    async def _changed(self, person: Person) -> None:
        await self.sessions.renew(person.id)

    async def _follow(self, contract_id: str) -> None:
        subjects = {
            session.subject
            for session in await self._authority.sessions(holder=Holder.PERSON)
            if session.contract_id == contract_id
        }
        for subject in sorted(subjects):
            await self.sessions.renew(subject)
