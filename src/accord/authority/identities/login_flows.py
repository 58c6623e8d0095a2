"""Login flows: a session asks, a person answers, the session binds (`oauth-init`, `bind-flow`).

Whoever began a login knows its id, so another secret is needed to bind: the flow id, which is made
when a person has agreed and sent only to the address where the login ends.
"""

import dataclasses
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from accord.authority.identities.consents import Consents
from accord.authority.identities.login import digest_secret
from accord.authority.identities.people import People
from accord.authority.revisions import SerialStore
from accord.authority.rules import clients
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import (
    Access,
    CapabilityText,
    ConsentAnswer,
    LoginFlow,
    LoginFlowState,
    Person,
    Review,
    SessionHolder,
    SessionRecord,
)
from accord.authority.service import Authority
from accord.authority.tables import logins
from accord.contracts.session_proof import flow_message, is_proved, login_message
from accord.kernel.clock import Clock

FLOW_SECONDS: Final = 600
FLOW_ID: Final = re.compile(r"[A-Za-z0-9_-]{32}", re.ASCII)
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_MOST_WAITING: Final = 10_000


@dataclass(frozen=True, slots=True)
class LoginFlows:
    """Logins that were begun."""

    _store: SerialStore
    _authority: Authority
    _consents: Consents
    _clock: Clock

    async def begin(
        self,
        session_key: str,
        redirect_to: str,
        context: Any,
        digest: str,
        manifest: bytes | None,
        proof: str,
    ) -> LoginFlow:
        """Begin a login for a session that wants to act for a person, and has signed that."""
        origin = require_proof(session_key, redirect_to, context, proof)
        contract = await self._authority.manifests.present(
            manifest, digest, guest=clients.CLIENT_KINDS
        )
        clients.require_client(contract)
        made = LoginFlow(
            secrets.token_urlsafe(24),
            session_key,
            redirect_to,
            contract["id"],
            digest,
            origin if contract["kind"] == "app" else session_key,
            LoginFlowState.BEGUN,
            None,
            float(self._now() + FLOW_SECONDS),
        )

        def work(connection: Connection) -> bool:
            connection.execute(delete(logins).where(logins.c.expires_at <= self._now()))
            waiting = connection.execute(select(func.count()).select_from(logins)).scalar_one()
            if waiting >= _MOST_WAITING:
                return False
            connection.execute(
                insert(logins).values(
                    id=made.id,
                    session_key=session_key,
                    redirect_to=redirect_to,
                    contract_id=made.contract_id,
                    digest=digest,
                    anchor=made.anchor,
                    state=made.state,
                    expires_at=int(made.expires_at),
                )
            )
            return True

        if not await self._store.write(work):
            raise AuthorityError(Code.UNAVAILABLE, "too many logins are open", mend="try later")
        return made

    async def find(self, login_id: str) -> LoginFlow:
        """A login; `AuthorityError` if there is none, or it has expired."""
        row = None
        if FLOW_ID.fullmatch(login_id):
            wanted = select(logins).where(
                logins.c.id == login_id, logins.c.expires_at > self._now()
            )
            row = await self._store.read(lambda c: c.execute(wanted).first())
        if row is None:
            raise flow_gone()
        return read_login_flow(row)

    async def review(self, login: LoginFlow, person: Person) -> Review:
        """What a person is asked; `AuthorityError` if a required use cannot be resolved."""
        contract = await self._authority.manifests.present(None, login.digest)
        asked = clients.requested_access(contract, self._authority.catalog.projection.effective)
        override = await self._consents.override(login.contract_id, login.anchor)
        allowed = await self._consents.allowed(person.id, login.contract_id, login.anchor)
        keys = clients.held_capabilities(asked, person.capabilities, override)
        delta = asked - (allowed or Access())
        return Review(
            login,
            contract["displayName"],
            contract["description"],
            asked,
            delta,
            asked.capabilities - keys,
            await self._texts(asked.capabilities),
            granted=override is not None,
            settled=override is not None or (allowed is not None and not delta),
        )

    async def approve(self, login: LoginFlow, person: Person) -> str:
        """Let the session act for a person; the address to go on to, with the flow id."""
        review = await self.review(login, person)
        flow, keep = secrets.token_urlsafe(24), None
        if review.delta or not review.settled:
            answer = ConsentAnswer.GRANTED if review.granted else ConsentAnswer.ACCEPTED
            keep = self._consents.answered(person.id, login, answer, review.delta)
        await self._answer(login, person, LoginFlowState.APPROVED, keep, digest_secret(flow))
        return clients.with_query(login.redirect_to, flowId=flow)

    async def deny(self, login: LoginFlow, person: Person) -> str:
        """Refuse the session; the address to go on to, with the error."""
        keep = self._consents.answered(person.id, login, ConsentAnswer.DENIED, Access())
        await self._answer(login, person, LoginFlowState.DENIED, keep)
        return clients.with_query(login.redirect_to, authError="consent_denied")

    async def _answer(
        self,
        login: LoginFlow,
        person: Person,
        state: LoginFlowState,
        keep: Callable[[Connection], None] | None,
        flow: bytes | None = None,
    ) -> None:
        change = (
            update(logins)
            .where(
                logins.c.id == login.id,
                logins.c.state == LoginFlowState.BEGUN.value,
                logins.c.expires_at > self._now(),
            )
            .values(state=state.value, person=person.id, flow=flow)
        )

        def work(connection: Connection) -> bool:
            if connection.execute(change).rowcount != 1:
                return False
            if keep is not None:
                keep(connection)
            return True

        if not await self._store.write(work):
            raise AuthorityError(Code.CONFLICT, "this login was answered already")

    async def _texts(self, keys: frozenset[str]) -> tuple[CapabilityText, ...]:
        known: dict[str, Mapping[str, str]] = {}
        owners = {key.partition("::")[0] for key in keys}
        for contract_id, effective in self._authority.catalog.projection.effective.items():
            for digest in effective.digests if contract_id.rpartition("@")[0] in owners else ():
                if (contract := await self._authority.manifests.get(digest)) is not None:
                    known.update(contract.get("capabilities", {}))
        return tuple(
            CapabilityText(
                key,
                known.get(key, {}).get("displayName", key),
                known.get(key, {}).get("description", ""),
                known.get(key, {}).get("consequence", ""),
            )
            for key in sorted(keys)
        )

    def _now(self) -> int:
        return int(self._clock.now())


def require_proof(session_key: str, redirect_to: str, context: Any, proof: str) -> str:
    """The origin where a login ends; `AuthorityError` if its session has not signed it."""
    origin = clients.origin(redirect_to)
    message = login_message(redirect_to, context)
    if not _KEY.fullmatch(session_key) or not is_proved(session_key, message, proof):
        raise AuthorityError(Code.INVALID_PROOF, "the session did not sign this login")
    return origin


def flow_gone() -> AuthorityError:
    """The error for a login that has expired or never existed."""
    return AuthorityError(Code.NOT_FOUND, "there is no such login any more", mend="begin it again")


SESSION_SECONDS: Final = 7 * 86_400


@dataclass(frozen=True, slots=True)
class PeopleSessions:
    """Creates sessions of people, and updates them when their people change."""

    _store: SerialStore
    _authority: Authority
    _people: People
    _consents: Consents
    _clock: Clock

    async def bind(self, flow_id: str, session_key: str, proof: str) -> SessionRecord:
        """Make the session of an approved login one of the person's.

        Binding again returns the same session, so that clients may retry.
        """
        row = None
        if FLOW_ID.fullmatch(flow_id):
            wanted = select(logins).where(
                logins.c.flow == digest_secret(flow_id),
                logins.c.expires_at > int(self._clock.now()),
            )
            row = await self._store.read(lambda c: c.execute(wanted).first())
        if row is None:
            raise flow_gone()
        login = read_login_flow(row)
        if login.session_key != session_key or not is_proved(
            session_key, flow_message(flow_id), proof
        ):
            raise AuthorityError(Code.INVALID_PROOF, "the session did not sign this flow")
        known = await self._authority.sessions.get(session_key)
        if login.state is LoginFlowState.BOUND:
            if known is None or known.revoked_at is not None:
                raise flow_gone()
            return known
        person = await self._people.by_id(login.person or "")
        if person is None or person.disabled:
            raise AuthorityError(Code.REVOKED, "the person cannot log in any more")
        if known is not None and (known.holder is not SessionHolder.PERSON or known.revoked_at):
            raise AuthorityError(
                Code.CONFLICT, "this session key is in use", mend="log in with a new one"
            )
        session = await self._session(login, person)
        await self._authority.sessions.put(session)
        bound = (
            update(logins).where(logins.c.id == login.id).values(state=LoginFlowState.BOUND.value)
        )
        await self._store.write(lambda c: c.execute(bound))
        # The person may have been disabled before this session was stored.
        await self.renew(person.id)
        return session

    async def switch_contract(
        self, session: SessionRecord, digest: str, manifest: bytes | None
    ) -> SessionRecord:
        """A person's session under the digest that it presents now.

        A digest that asks for nothing new needs no consent: consent is to access, not to digests.
        """
        if digest == session.digest:
            return session
        contract = await self._authority.manifests.present(
            manifest, digest, guest=clients.CLIENT_KINDS
        )
        clients.require_client(contract)
        if contract["id"] != session.contract_id:
            raise AuthorityError(
                Code.CONTRACT_CHANGED,
                f"this session belongs to {session.contract_id}",
                mend="log in again",
            )
        anchor = session.origin or session.key
        asked = clients.requested_access(contract, self._authority.catalog.projection.effective)
        override = await self._consents.override(contract["id"], anchor)
        allowed = await self._consents.allowed(session.subject, contract["id"], anchor)
        if override is None and asked - (allowed or Access()):
            raise AuthorityError(
                Code.CONSENT_REQUIRED,
                f"{contract['id']} asks for more than was agreed to",
                mend="log in again",
            )
        changed = dataclasses.replace(session, digest=digest)
        await self._authority.sessions.put(changed)
        return changed

    async def renew(self, person_id: str) -> None:
        """Update the sessions of a person to what the person may do now."""
        done, person = None, await self._people.by_id(person_id)
        # Repeat if the person was changed meanwhile: that change may not have seen our writes.
        while person is not None and person != done:
            for session in await self._authority.sessions.all(subject=person_id):
                if session.revoked_at is None and session.holder is SessionHolder.PERSON:
                    await self._follow(session, person)
            done, person = person, await self._people.by_id(person_id)

    async def _follow(self, session: SessionRecord, person: Person) -> None:
        if person.disabled:
            await self._authority.sessions.revoke(session.key, f"disabled {person.id}")
            return
        current = await self._current(session, person)
        if current != session:
            await self._authority.sessions.put(current)

    async def _session(self, login: LoginFlow, person: Person) -> SessionRecord:
        now = self._clock.now()
        made = SessionRecord(
            login.session_key,
            SessionHolder.PERSON,
            person.id,
            login.contract_id,
            login.digest,
            None if login.anchor == login.session_key else login.anchor,
            created_at=now,
            expires_at=now + SESSION_SECONDS,
        )
        return await self._current(made, person)

    async def _current(self, session: SessionRecord, person: Person) -> SessionRecord:
        """A session with its current rights; an override allows every declared use."""
        contract_id, anchor = session.contract_id or "", session.origin or session.key
        allowed = await self._consents.allowed(person.id, contract_id, anchor) or Access()
        override = await self._consents.override(contract_id, anchor)
        return dataclasses.replace(
            session,
            capabilities=clients.held_capabilities(allowed, person.capabilities, override),
            surfaces=allowed.surfaces if override is None else None,
        )


def read_login_flow(row: Row[Any]) -> LoginFlow:
    """A row of `logins`."""
    return LoginFlow(
        row.id,
        row.session_key,
        row.redirect_to,
        row.contract_id,
        row.digest,
        row.anchor,
        LoginFlowState(row.state),
        row.person,
        float(row.expires_at),
    )
