"""What tests of the fabric share: a contract, sessions that are known, links to a real server."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from accord.contracts.authoring import Contract
from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import session_key
from accord.fabric import Caller, Link, UnauthorizedError
from accord.fabric.link import NatsClient, SessionBindings
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey


def graph() -> Contract:
    """A service with one surface of each kind that calls and events have."""
    contract = Contract("graph@v1", display_name="Graph", description="Serves users.")
    contract.serves_callers()
    contract.capability("users.read", "Read users", "View users.")
    user = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    contract.schema("User", user)
    contract.schema(
        "Missing",
        {"type": "object", "properties": {"type": {"const": "Missing"}}, "required": ["userId"]},
    )
    contract.error("Missing", "Missing")
    contract.rpc("User.Find", "User", "User", call=["users.read"], errors=["Missing"])
    contract.rpc("User.Open", "User", "User")
    contract.event("User.Changed", "User", params=["/id"])
    contract.feed("User.Watch", "User", "User", subscribe=["users.read"])
    contract.consumer("changes", own=["User.Changed"], ack_wait_ms=2000)
    return contract


class Sessions:
    """An authority that knows some sessions, and counts how often it is asked."""

    def __init__(self) -> None:
        self.known: dict[str, Caller] = {}
        self.asked = 0

    def admit(
        self, key: SigningKey, capabilities: Iterable[str] = ("graph::users.read",), **more: Any
    ) -> Caller:
        session = session_key(key)
        caller = Caller(session, "service", "app", capabilities=frozenset(capabilities), **more)
        self.known[session] = caller
        return caller

    async def resolve(self, session: str) -> Caller:
        self.asked += 1
        if session not in self.known:
            raise UnauthorizedError("the session is nobody's")
        return self.known[session]


@asynccontextmanager
async def connected(url: str, key: SigningKey | None = None) -> AsyncIterator[NatsClient]:
    """A plain connection; with a key, its inbox is that of the session."""
    prefix = inbox_prefix(session_key(key)) if key else "_INBOX"
    connection = NatsClient()
    await connection.connect(url, inbox_prefix=prefix)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def linked(
    url: str,
    key: SigningKey | None = None,
    *,
    bound: SessionBindings | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Link]:
    """A link of a session, on a connection of its own."""
    key = key or SigningKey.generate()
    async with connected(url, key) as connection:
        yield Link(connection, key, bound=bound, clock=clock)
