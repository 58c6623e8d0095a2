"""Apps: sessions that call and listen but answer nothing, often on behalf of a person.

`begin_login` returns the address of the login page. The page redirects back to the app with a flow
id; after `bind_login` with that id the app may connect.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from accord.contracts.authoring import Contract
from accord.contracts.session_proof import flow_message, login_message, prove, session_key
from accord.fabric.connection import Authority, Connection, ask_once
from accord.fabric.rules.terms import Manifest, Terms
from accord.fabric.session import Session
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey


@dataclass(frozen=True, slots=True)
class Login:
    """A login that was started."""

    # Identifies the login; the session is bound by the flow id of the redirect, not by this.
    id: str
    url: str  # the page that the person opens
    expires_at: str  # RFC 3339, as the authority wrote it


class App:
    """An app. `authority` is an address, or an `Authority` with a time limit and TLS settings."""

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
        """Start a login for a person; raises BootstrapError if that is refused or impossible.

        The login page redirects to the app at `redirect_to`, with `flowId` added. `context` is JSON
        that says what the login is for; it is signed together with the address.
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
        answer = await ask_once(
            self._authority, "/auth/v1/logins", request, "loginId", "loginUrl", "expiresAt"
        )
        return Login(answer["loginId"], answer["loginUrl"], answer["expiresAt"])

    async def bind_login(self, flow_id: str) -> None:
        """Bind the session to a confirmed login, by its flow id; raises BootstrapError."""
        request = {
            "sessionKey": session_key(self._key),
            "sig": prove(self._key, flow_message(flow_id)),
        }
        await ask_once(self._authority, f"/auth/v1/flows/{quote(flow_id, safe='')}/bind", request)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Session]:
        """Connect until the block ends; raises BootstrapError if the session is not admitted."""
        connection = Connection(self._authority, self._key, self.terms, self._clock)
        async with connection.open() as link:
            yield Session(link, self.terms, connection.ended)


SHELL: Final = "shell"
EVERY: Final = "*"
"""In the `calls` of a deployment: every contract."""


def shell_contract(target: Mapping[str, Any]) -> Contract:
    """A contract that uses everything that the contract `target` offers to callers."""
    contract = Contract(
        f"{SHELL}.{target['id']}",
        display_name="Shell",
        description=f"Uses {target['id']} from a command line.",
    )
    contract.uses(
        "target",
        target["id"],
        rpc=target.get("rpc", {}),
        operations=target.get("operations", {}),
        subscribe=target.get("events", {}),
        feeds=target.get("feeds", {}),
    )
    return contract
