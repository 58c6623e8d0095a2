"""Sessions of people: binding one to a login, taking up a new contract, and what each holds."""

import dataclasses
from typing import Final

from sqlalchemy import select, update

from accord.authority.core import Authority
from accord.authority.errors import AuthorityError, Code
from accord.authority.identities import consent, storing
from accord.authority.identities.allowing import Allowing
from accord.authority.identities.logins import TOKEN, gone
from accord.authority.identities.people import People
from accord.authority.identities.records import Access, Login, LoginState, Person
from accord.authority.identities.storing import Storage
from accord.authority.people_tables import logins
from accord.authority.records import Holder, Session
from accord.contracts.session_proof import flow_message, is_proved
from accord.kernel.clock import Clock

SESSION_SECONDS: Final = 7 * 86_400


class PeopleSessions:
    """Makes sessions, and keeps them at what their people may do."""

    def __init__(
        self, store: Storage, authority: Authority, people: People, allowing: Allowing, clock: Clock
    ) -> None:
        self._store = store
        self._authority = authority
        self._people = people
        self._allowing = allowing
        self._clock = clock

    async def bind(self, flow_id: str, session_key: str, proof: str) -> Session:
        """Make the session of an approved login one of the person's.

        Binding again gives the same session, so that a client may repeat what it heard no answer
        to.

        Raises:
            AuthorityError: The flow is not the session's, was not approved, or is over.
        """
        row = None
        if TOKEN.fullmatch(flow_id):
            wanted = select(logins).where(
                logins.c.flow == storing.digest(flow_id),
                logins.c.expires_at > int(self._clock.now()),
            )
            row = await self._store.read(lambda c: c.execute(wanted).first())
        if row is None:
            raise gone()
        login = storing.login(row)
        if login.session_key != session_key or not is_proved(
            session_key, flow_message(flow_id), proof
        ):
            raise AuthorityError(Code.INVALID_PROOF, "the session did not sign this flow")
        known = await self._authority.session(session_key)
        if login.state is LoginState.BOUND:
            if known is None or known.revoked_at is not None:
                raise gone()
            return known
        person = await self._people.by_id(login.person or "")
        if person is None or person.disabled:
            raise AuthorityError(Code.REVOKED, "the person cannot log in any more")
        if known is not None and (known.holder is not Holder.PERSON or known.revoked_at):
            raise AuthorityError(
                Code.CONFLICT, "this session key is in use", mend="log in with a new one"
            )
        session = await self._session(login, person)
        await self._authority.put_session(session)
        bound = update(logins).where(logins.c.id == login.id).values(state=LoginState.BOUND.value)
        await self._store.write(lambda c: c.execute(bound))
        # The person may have been shut out while this session was not there yet.
        await self.renew(person.id)
        return session

    async def take_up(self, session: Session, digest: str, manifest: bytes | None) -> Session:
        """A person's session under the contract that it presents now.

        A digest that asks for nothing new needs no consent: what a person allowed is what lasts,
        not the digest that was reviewed.

        Raises:
            AuthorityError: `consent_required`, or the contract is another one or cannot be used.
        """
        if digest == session.digest:
            return session
        contract = await self._authority.present(manifest, digest)
        consent.demand_client(contract)
        if contract["id"] != session.contract_id:
            raise AuthorityError(
                Code.CONTRACT_CHANGED,
                f"this session belongs to {session.contract_id}",
                mend="log in again",
            )
        anchor = session.origin or session.key
        asked = consent.asked(contract, self._authority.effective())
        override = await self._allowing.override(contract["id"], anchor)
        allowed = await self._allowing.allowed(session.subject, contract["id"], anchor)
        if override is None and asked - (allowed or Access()):
            raise AuthorityError(
                Code.CONSENT_REQUIRED,
                f"{contract['id']} asks for more than was agreed to",
                mend="log in again",
            )
        changed = dataclasses.replace(session, digest=digest)
        await self._authority.put_session(changed)
        return changed

    async def renew(self, person_id: str) -> None:
        """Let the sessions of a person follow what the person may do now."""
        done, person = None, await self._people.by_id(person_id)
        # Whoever changes the person meanwhile may have looked before we wrote.
        while person is not None and person != done:
            for session in await self._authority.sessions(subject=person_id):
                if session.revoked_at is None and session.holder is Holder.PERSON:
                    await self._follow(session, person)
            done, person = person, await self._people.by_id(person_id)

    async def _follow(self, session: Session, person: Person) -> None:
        if person.disabled:
            await self._authority.revoke_session(session.key, f"disabled {person.id}")
            return
        current = await self._current(session, person)
        if current != session:
            await self._authority.put_session(current)

    async def _session(self, login: Login, person: Person) -> Session:
        now = self._clock.now()
        made = Session(
            login.session_key,
            Holder.PERSON,
            person.id,
            login.contract_id,
            login.digest,
            None if login.anchor == login.session_key else login.anchor,
            created_at=now,
            expires_at=now + SESSION_SECONDS,
        )
        return await self._current(made, person)

    async def _current(self, session: Session, person: Person) -> Session:
        """A session with what it may do now; who has an override may use all that it declares."""
        contract_id, anchor = session.contract_id or "", session.origin or session.key
        allowed = await self._allowing.allowed(person.id, contract_id, anchor) or Access()
        override = await self._allowing.override(contract_id, anchor)
        return dataclasses.replace(
            session,
            capabilities=consent.held(allowed, person.capabilities, override),
            surfaces=allowed.surfaces if override is None else None,
        )
