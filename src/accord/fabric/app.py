"""An app: a session that calls and listens, and answers nothing; often for a person.

A person lets it in by a login: `begin_login` says where the person goes, and the page ends at an
address of the app with a flow id, which `bind_login` takes. From then on it may connect.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from accord.contracts.authoring import Contract
from accord.contracts.session_proof import flow_message, login_message, prove, session_key
from accord.fabric.bootstrap import Authority
from accord.fabric.connection import Connection
from accord.fabric.exchange import ask_once
from accord.fabric.session import Session
from accord.fabric.terms import Manifest, Terms
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey


@dataclass(frozen=True, slots=True)
class Login:
    """A login that was begun.

    Attributes:
        id: Its id; what binds the session is the flow id that the person's page ends with.
        url: Where the person goes.
        expires_at: Until when, as the authority writes it.
    """

    id: str
    url: str
    expires_at: str


class App:
    """Uses what its contract says that it uses.

    Args:
        contract: Its contract: a manifest, or one being authored.
        key: The session's key.
        authority: The authority's address, or that and how long to wait for it.
    """

    def __init__(
        self,
        contract: Manifest | Contract,
        *,
        key: SigningKey,
        authority: str | Authority,
        clock: Clock | None = None,
    ) -> None:
        self.terms = Terms(contract)
        self._key = key
        self._authority = Authority(authority) if isinstance(authority, str) else authority
        self._clock = clock or SystemClock()

    async def begin_login(self, redirect_to: str, context: Any = None) -> Login:
        """Ask to act for a person.

        Args:
            redirect_to: The app's address at which the login ends, then with `flowId`.
            context: What the login is for, as JSON; it is signed with the address.

        Raises:
            BootstrapError: The authority refuses, or cannot be asked.
        """
        request = {
            "sessionKey": session_key(self._key),
            "contractDigest": self.terms.digest,
            "manifest": self.terms.manifest,
            "redirectTo": redirect_to,
            "sig": prove(self._key, login_message(redirect_to, context)),
        }
        if context is not None:
            request["context"] = context
        answer = await self._ask("/auth/v1/logins", request, "loginId", "loginUrl", "expiresAt")
        return Login(answer["loginId"], answer["loginUrl"], answer["expiresAt"])

    async def bind_login(self, flow_id: str) -> None:
        """Bind the login that a person has agreed to, by the flow id that it ended with.

        Raises:
            BootstrapError: The authority refuses, or cannot be asked.
        """
        request = {
            "sessionKey": session_key(self._key),
            "sig": prove(self._key, flow_message(flow_id)),
        }
        await self._ask(f"/auth/v1/flows/{quote(flow_id, safe='')}/bind", request)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Session]:
        """Be let in, and stay connected until the block ends.

        Raises:
            BootstrapError: The authority does not let the session in.
        """
        connection = Connection(self._authority, self._key, self.terms, self._clock)
        async with connection.open() as link:
            yield Session(link, self.terms, connection.ended)

    async def _ask(self, path: str, request: Mapping[str, Any], *texts: str) -> dict[str, Any]:
        return await ask_once(self._authority.tls, self._authority.url, path, request, *texts)
