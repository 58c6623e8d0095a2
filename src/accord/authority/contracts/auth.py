"""`trellis.auth@v1`: sessions and connections."""

from typing import Literal

from pydantic import Field

from accord.authority.contracts.wire import Nothing, Payload
from accord.contracts.authoring import Contract

ID = "trellis.auth@v1"
SESSIONS_READ = "trellis.auth::sessions.read"
SESSIONS_REVOKE = "trellis.auth::sessions.revoke"
CONNECTIONS_READ = "trellis.auth::connections.read"
CONNECTIONS_KICK = "trellis.auth::connections.kick"

_PAGE = 1000


class SessionRef(Payload):
    """Which session."""

    session_key: str = Field(min_length=1, max_length=64)


class SessionFacts(Payload):
    """What a session is and holds."""

    holder: Literal["service", "device", "person"]
    subject: str
    contract_id: str | None = None
    digest: str | None = None
    capabilities: list[str]
    expires_at: float | None = None


class SessionEntry(SessionFacts):
    """A session with its key."""

    session_key: str
    origin: str | None = None
    created_at: float


class SessionsList(Payload):
    """Whose sessions, page by page."""

    subject: str | None = Field(default=None, max_length=256)
    after: str | None = Field(default=None, max_length=64)
    limit: int = Field(default=100, ge=1, le=_PAGE)


class SessionsPage(Payload):
    """Sessions in the order of their keys; `next` where there are more."""

    sessions: list[SessionEntry]
    next: str | None = None


class Done(Payload):
    """Whether something was there to be done."""

    done: bool


class SessionRevoked(Payload):
    """A session ended before its time."""

    session_key: str
    revoked_by: str
    at: float


class Connection(Payload):
    """A session's connection to the server."""

    session_key: str
    holder: Literal["service", "device", "person"]
    subject: str
    server_id: str | None = None
    client_id: int | None = None
    connected_at: float | None = None


class ConnectionsPage(Payload):
    """The connections that are there."""

    connections: list[Connection]
    next: str | None = None


class ConnectionChanged(Payload):
    """A connection came, went, or was ended."""

    session_key: str
    holder: Literal["service", "device", "person"]
    subject: str
    at: float
    by: str | None = None


def contract() -> Contract:
    """The contract, as it is written."""
    auth = Contract(
        ID,
        display_name="Trellis auth",
        description="Sessions and connections: one's own, and those of others for who may see.",
    )
    auth.capability("sessions.read", "Read sessions", "List everybody's sessions.")
    auth.capability(
        "sessions.revoke",
        "Revoke sessions",
        "End the session of anybody.",
        consequence="Whoever uses the session is disconnected and must log in again.",
    )
    auth.capability("connections.read", "Read connections", "List and follow connections.")
    auth.capability(
        "connections.kick",
        "End connections",
        "Disconnect a session, which may connect again.",
        consequence="Calls under way on the connection fail.",
    )
    for kind in ("NotFoundError", "UnauthorizedError"):
        auth.error(kind)
    auth.rpc("Auth.Sessions.Me", Nothing, SessionEntry)
    auth.rpc("Auth.Sessions.Logout", Nothing, Done)
    # Any service must be able to judge its callers; who may ask is checked by the holder's kind.
    auth.rpc(
        "Auth.Sessions.Resolve",
        SessionRef,
        SessionFacts,
        errors=["NotFoundError", "UnauthorizedError"],
    )
    auth.rpc("Auth.Sessions.List", SessionsList, SessionsPage, call=["sessions.read"])
    auth.rpc(
        "Auth.Sessions.Revoke",
        SessionRef,
        Done,
        call=["sessions.revoke"],
        errors=["NotFoundError"],
    )
    auth.rpc("Auth.Connections.List", SessionsList, ConnectionsPage, call=["connections.read"])
    auth.rpc("Auth.Connections.Kick", SessionRef, Done, call=["connections.kick"])
    auth.event("Auth.Sessions.Revoked", SessionRevoked)
    for name in ("Opened", "Closed", "Kicked"):
        auth.event(f"Auth.Connections.{name}", ConnectionChanged, subscribe=["connections.read"])
    return auth
