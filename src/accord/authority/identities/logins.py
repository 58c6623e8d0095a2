"""Logins: a session asks, a person answers, the session binds (`oauth-init`, `bind-flow`).

The id of a login is known to whoever began it, so it cannot be what binds: the flow id is made when
a person has agreed and goes only to the address at which the login ends. Somebody who begins a
login in the name of an app therefore never learns it, and the app's own session is another one.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, select, update

from accord.authority.core import Authority
from accord.authority.errors import AuthorityError, Code
from accord.authority.identities import consent, places, storing
from accord.authority.identities.allowing import Allowing
from accord.authority.identities.records import (
    Access,
    Answer,
    CapabilityText,
    Login,
    LoginState,
    Person,
    Review,
)
from accord.authority.identities.storing import Storage
from accord.authority.people_tables import logins
from accord.contracts.session_proof import is_proved, login_message
from accord.kernel.clock import Clock

LOGIN_SECONDS: Final = 600
TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{32}", re.ASCII)
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_MOST_WAITING: Final = 10_000


class Logins:
    """Logins on their way."""

    def __init__(
        self, store: Storage, authority: Authority, allowing: Allowing, clock: Clock
    ) -> None:
        self._store = store
        self._authority = authority
        self._allowing = allowing
        self._clock = clock

    async def begin(
        self,
        session_key: str,
        redirect_to: str,
        context: Any,
        digest: str,
        manifest: bytes | None,
        proof: str,
    ) -> Login:
        """Note that a session wants to act for a person.

        Raises:
            AuthorityError: The proof is not the session's, or address or contract cannot be used.
        """
        origin = places.origin(redirect_to)
        message = login_message(redirect_to, context)
        if not _KEY.fullmatch(session_key) or not is_proved(session_key, message, proof):
            raise AuthorityError(Code.INVALID_PROOF, "the session did not sign this login")
        contract = await self._authority.present(manifest, digest)
        consent.demand_client(contract)
        made = Login(
            secrets.token_urlsafe(24),
            session_key,
            redirect_to,
            contract["id"],
            digest,
            origin if contract["kind"] == "app" else session_key,
            LoginState.BEGUN,
            None,
            float(self._now() + LOGIN_SECONDS),
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

    async def find(self, login_id: str) -> Login:
        """A login that can still be answered or bound.

        Raises:
            AuthorityError: There is none.
        """
        row = None
        if TOKEN.fullmatch(login_id):
            wanted = select(logins).where(
                logins.c.id == login_id, logins.c.expires_at > self._now()
            )
            row = await self._store.read(lambda c: c.execute(wanted).first())
        if row is None:
            raise gone()
        return storing.login(row)

    async def review(self, login: Login, person: Person) -> Review:
        """What a person is asked.

        Raises:
            AuthorityError: The client needs something that is not there.
        """
        contract = await self._authority.present(None, login.digest)
        asked = consent.asked(contract, self._authority.effective())
        override = await self._allowing.override(login.contract_id, login.anchor)
        allowed = await self._allowing.allowed(person.id, login.contract_id, login.anchor)
        keys = consent.held(asked, person.capabilities, override)
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

    async def approve(self, login: Login, person: Person) -> str:
        """Let the session act for a person: the address to go on to, with the flow id.

        Raises:
            AuthorityError: It was answered already, or cannot be.
        """
        review = await self.review(login, person)
        flow, keep = secrets.token_urlsafe(24), None
        if review.delta or not review.settled:
            answer = Answer.GRANTED if review.granted else Answer.ACCEPTED
            keep = self._allowing.answered(person.id, login, answer, review.delta)
        await self._answer(login, person, LoginState.APPROVED, keep, storing.digest(flow))
        return places.with_query(login.redirect_to, flowId=flow)

    async def deny(self, login: Login, person: Person) -> str:
        """Refuse the session: the address to go on to, which says so.

        Raises:
            AuthorityError: It was answered already.
        """
        keep = self._allowing.answered(person.id, login, Answer.DENIED, Access())
        await self._answer(login, person, LoginState.DENIED, keep)
        return places.with_query(login.redirect_to, authError="consent_denied")

    async def _answer(
        self,
        login: Login,
        person: Person,
        state: LoginState,
        keep: Callable[[Connection], None] | None,
        flow: bytes | None = None,
    ) -> None:
        change = (
            update(logins)
            .where(
                logins.c.id == login.id,
                logins.c.state == LoginState.BEGUN.value,
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
        for contract_id, effective in self._authority.effective().items():
            for digest in effective.digests if contract_id.rpartition("@")[0] in owners else ():
                if (contract := await self._authority.contract(digest)) is not None:
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


def gone() -> AuthorityError:
    """What is said of a login that is over, or never was."""
    return AuthorityError(Code.NOT_FOUND, "there is no such login any more", mend="begin it again")
