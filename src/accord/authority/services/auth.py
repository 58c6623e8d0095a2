"""The service of `trellis.auth@v1`: sessions and connections, and the events about them.

Revocations are announced by following the authority's history, so that those of other processes
are announced, too. Several authorities use the same message id, so that the stream keeps one.
"""

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from nats.aio.client import Client

from accord.authority import revisions
from accord.authority.contracts import (
    AUTH_ID,
    Connection,
    ConnectionChanged,
    ConnectionsPage,
    Done,
    SessionEntry,
    SessionFacts,
    SessionRef,
    SessionRevoked,
    SessionsList,
    SessionsPage,
    builtins,
)
from accord.authority.nats.connections import ConnectionCallback, SessionPresence
from accord.authority.revisions import AuditEntry
from accord.authority.rules.connections import ConnectionChange, SessionConnection
from accord.authority.rules.records import SessionHolder, SessionRecord
from accord.authority.service import Authority
from accord.authority.services.core import authority_inbox, bind_handlers, is_in_force
from accord.fabric.events import EVENT_TIME_HEADER
from accord.fabric.link import Inbox
from accord.fabric.requests import Request
from accord.fabric.rules.errors import FabricError, NotFoundError, UnauthorizedError
from accord.fabric.rules.terms import Event, Terms, write_payload
from accord.fabric.server import Server
from accord.fabric.streams import append
from accord.kernel.clock import Clock, format_time
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

SESSION_REVOKED: Final = "Auth.Sessions.Revoked"
_CONNECTION_EVENTS: Final[Mapping[str, str]] = {
    "opened": "Auth.Connections.Opened",
    "closed": "Auth.Connections.Closed",
    "kicked": "Auth.Connections.Kicked",
}


class AuthEvents:
    """Publishes the events of `trellis.auth@v1`."""

    def __init__(self, inbox: Inbox, clock: Clock) -> None:
        self._inbox = inbox
        self._clock = clock
        self._events: Mapping[str, Event] = Terms(builtins()[AUTH_ID]).events

    async def revoked(self, key: str, by: str, at: float) -> None:
        """Publish that a session was revoked; `FabricError` if that may have failed."""
        event = SessionRevoked(session_key=key, revoked_by=by, at=at)
        await self._tell(SESSION_REVOKED, event.wire(), f"revoked {key} {at}")

    async def connection(
        self, change: str, session: SessionRecord, place: str, by: str | None = None
    ) -> None:
        """A connection, named by `place`, was opened, closed or kicked; the event may get lost."""
        event = ConnectionChanged(
            session_key=session.key,
            holder=session.holder.value,
            subject=session.subject,
            at=self._clock.now(),
            by=by,
        )
        try:
            await self._tell(_CONNECTION_EVENTS[change], event.wire(), f"{change} {place}")
        except FabricError as error:
            _log.warning("a connection event could not be published", change=change, why=str(error))

    async def _tell(self, name: str, payload: Any, message_id: str) -> None:
        event = self._events[name]
        data = write_payload(event.event, payload, "the event")
        headers = {EVENT_TIME_HEADER: format_time(self._clock.now(), millis=True)}
        await append(self._inbox, event.subject, data, headers=headers, message_id=message_id)


@dataclass(frozen=True, slots=True)
class AuthService:
    """The handlers."""

    _authority: Authority
    _presence: SessionPresence
    _clock: Clock

    def serve(self, server: Server) -> None:
        """Answer on a server of the contract."""
        bind_handlers(
            server,
            {
                "Auth.Sessions.Me": self.me,
                "Auth.Sessions.Logout": self.logout,
                "Auth.Sessions.Resolve": self.resolve,
                "Auth.Sessions.List": self.sessions,
                "Auth.Sessions.Revoke": self.revoke,
                "Auth.Connections.List": self.connections,
                "Auth.Connections.Kick": self.kick,
            },
        )

    async def me(self, request: Request, _: Any) -> dict[str, Any]:
        """The session of the caller."""
        return _entry(await self._session(request.caller)).wire()

    async def logout(self, request: Request, _: Any) -> dict[str, Any]:
        """End the session of the caller."""
        await self._authority.sessions.revoke(request.caller, request.caller)
        return Done(done=True).wire()

    async def resolve(self, request: Request, payload: Any) -> dict[str, Any]:
        """What a session is and holds, for services and devices that check their callers."""
        if request.who.holder == SessionHolder.PERSON:
            raise UnauthorizedError("only a service or a device may ask who another session is")
        session = await self._session(SessionRef.read(payload).session_key)
        return SessionFacts(**_facts(session)).wire()

    async def sessions(self, _: Request, payload: Any) -> dict[str, Any]:
        """The valid sessions of everybody, or of one subject."""
        asked = SessionsList.read(payload)
        now = self._clock.now()
        found = await self._authority.sessions.all(subject=asked.subject)
        chosen = sorted(
            (each for each in found if is_in_force(each, now)), key=lambda each: each.key
        )
        rest = [each for each in chosen if each.key > (asked.after or "")]
        page = rest[: asked.limit]
        return SessionsPage(
            sessions=[_entry(each) for each in page],
            next=page[-1].key if len(rest) > len(page) else None,
        ).wire()

    async def revoke(self, request: Request, payload: Any) -> dict[str, Any]:
        """Revoke any session."""
        session = await self._session(SessionRef.read(payload).session_key)
        await self._authority.sessions.revoke(session.key, request.caller)
        return Done(done=True).wire()

    async def connections(self, _: Request, payload: Any) -> dict[str, Any]:
        """The open connections."""
        asked = SessionsList.read(payload)
        present = sorted(
            (each for each in self._presence.all() if each.admitted.key > (asked.after or "")),
            key=lambda each: (each.admitted.key, each.server, each.client),
        )
        listed: list[Connection] = []
        sessions = 0
        for key, connections in itertools.groupby(present, lambda each: each.admitted.key):
            session = await self._authority.sessions.get(key)
            if session is None or asked.subject not in (None, session.subject):
                continue
            # A page ends with a session, so that the next one misses none of its connections.
            if sessions == asked.limit:
                return ConnectionsPage(connections=listed, next=listed[-1].session_key).wire()
            sessions += 1
            listed += [_connection(each, session) for each in connections]
        return ConnectionsPage(connections=listed).wire()

    async def kick(self, request: Request, payload: Any) -> dict[str, Any]:
        """End the connections of a session, which may connect again."""
        ended = await self._presence.kick(SessionRef.read(payload).session_key, request.caller)
        return Done(done=ended > 0).wire()

    async def _session(self, key: str) -> SessionRecord:
        session = await self._authority.sessions.get(key)
        if session is None or not is_in_force(session, self._clock.now()):
            raise NotFoundError("there is no such session")
        return session


def _facts(session: SessionRecord) -> dict[str, Any]:
    return {
        "holder": session.holder.value,
        "subject": session.subject,
        "contract_id": session.contract_id,
        "digest": session.digest,
        "capabilities": sorted(session.capabilities),
        "expires_at": session.expires_at,
    }


def _entry(session: SessionRecord) -> SessionEntry:
    return SessionEntry(
        session_key=session.key,
        origin=session.origin,
        created_at=session.created_at,
        **_facts(session),
    )


def _connection(present: SessionConnection, session: SessionRecord) -> Connection:
    return Connection(
        session_key=session.key,
        holder=session.holder.value,
        subject=session.subject,
        server_id=present.server,
        client_id=present.client,
        connected_at=present.since,
    )


_LOOK_BACK_SECONDS: Final = 60.0
_LOOK_BACK_REVISIONS: Final = 1000
_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Revocations:
    """Announces revocations from the authority's history."""

    _authority: Authority
    _announcing: AuthEvents
    _clock: Clock

    async def run(self) -> None:
        """Announce until cancelled.

        Starts a minute back: another authority may have died before it announced those.
        """
        oldest = self._clock.now() - _LOOK_BACK_SECONDS
        since: int | None = None
        while True:
            count = self._authority.changes.count
            try:
                if since is None:
                    since = max(0, await self._newest() - _LOOK_BACK_REVISIONS)
                steps = await self._authority.revisions.history(since=since)
                for step in steps:
                    await self._announce(step, oldest)
                    since = step.revision
            except AccordError as error:
                _log.warning("revocations could not be published yet", why=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not steps:
                await self._authority.changes.after(count)

    async def _newest(self) -> int:
        return await self._authority.store.read(revisions.current)

    async def _announce(self, step: AuditEntry, oldest: float) -> None:
        act = step.act
        if act.act == "revoked" and act.why is not None and step.at >= oldest:
            await self._announcing.revoked(act.why, act.by, step.at)


def connection_announcer(nats: Client, authority: Authority, clock: Clock) -> ConnectionCallback:
    """A callback that publishes connection changes as events."""
    announcing = AuthEvents(authority_inbox(nats), clock)

    async def tell(change: ConnectionChange, connection: SessionConnection, by: str | None) -> None:
        session = await authority.sessions.get(connection.admitted.key)
        if session is not None:
            place = f"{connection.server} {connection.client}"
            await announcing.connection(change.value, session, place, by)

    return tell
