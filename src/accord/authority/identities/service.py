"""People, logins, consents, devices and portals of one authority."""

from collections.abc import Collection

from accord.authority.identities.consents import Consents
from accord.authority.identities.devices import Devices
from accord.authority.identities.login import PersonLogin, Portals
from accord.authority.identities.login_flows import LoginFlows, PeopleSessions
from accord.authority.identities.people import People
from accord.authority.revisions import AuditAction, AuditEvent
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import GrantOverride, Person, SessionHolder
from accord.authority.service import Authority
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource


class Identities:
    """People, logins, consents, devices and portals of one authority."""

    def __init__(self, authority: Authority, clock: Clock, ids: UlidSource) -> None:
        store = authority.store
        self._authority = authority
        self.people = People(store, clock, ids)
        self.consents = Consents(store, clock, ids)
        self.login = PersonLogin(store, clock)
        self.login_flows = LoginFlows(store, authority, self.consents, clock)
        self.sessions = PeopleSessions(store, authority, self.people, self.consents, clock)
        self.devices = Devices(store, authority, self.consents, clock)
        self.portals = Portals(store)

    async def set_capabilities(self, person_id: str, capabilities: Collection[str]) -> Person:
        """Set what a person may pass on; the person's sessions are updated at once."""
        person = await self.people.set_capabilities(person_id, capabilities)
        await self.sessions.renew(person.id)
        return person

    async def set_disabled(self, person_id: str, disabled: bool) -> Person:
        """Disable a person, whose sessions and visits end, or enable the person again."""
        person = await self.people.set_disabled(person_id, disabled)
        await self.sessions.renew(person.id)
        return person

    async def set_override(
        self, contract_id: str, anchor: str, capabilities: Collection[str]
    ) -> GrantOverride:
        """Grant capabilities to a client; its sessions are updated at once."""
        made = await self.consents.set_override(contract_id, anchor, capabilities)
        await self._follow(contract_id)
        return made

    async def drop_override(self, contract_id: str, anchor: str) -> None:
        """Remove an override; the sessions of its clients are updated at once."""
        if not await self.consents.drop_override(contract_id, anchor):
            raise AuthorityError(Code.NOT_FOUND, "there is no such override", where=contract_id)
        await self._follow(contract_id)

    async def note(self, act: AuditAction, person: Person, why: str | None = None) -> None:
        """Record an act of a person in the history."""
        await self._authority.revisions.note([AuditEvent(act, f"person {person.name}", why=why)])

    async def withdraw(self, person: Person, contract_id: str, anchor: str) -> None:
        """Withdraw the consent of a person for a client, and end its sessions."""
        await self.consents.withdraw(person.id, contract_id, anchor)
        for session in await self._authority.sessions.all(subject=person.id):
            if session.contract_id == contract_id and anchor in (session.origin, session.key):
                await self._authority.sessions.revoke(session.key, person.id)

    async def _follow(self, contract_id: str) -> None:
        subjects = {
            session.subject
            for session in await self._authority.sessions.all(holder=SessionHolder.PERSON)
            if session.contract_id == contract_id
        }
        for subject in sorted(subjects):
            await self.sessions.renew(subject)
