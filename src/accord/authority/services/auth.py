"""Answers for `trellis.auth@v1`: sessions and connections.

A session that ends is announced by whoever follows the authority's changes, so that it makes no
difference who ended it: the session itself, an administrator here, or an operator elsewhere.
"""

import itertools
from collections.abc import Iterable
from typing import Any, Protocol

from accord.authority.contracts.auth import (
    Connection,
    ConnectionsPage,
    Done,
    SessionEntry,
    SessionFacts,
    SessionRef,
    SessionsList,
    SessionsPage,
)
from accord.authority.core import Authority
from accord.authority.nats import advisories as nats
from accord.authority.records import Holder, Session
from accord.authority.services.answering import bind, is_in_force
from accord.fabric.errors import NotFoundError, UnauthorizedError
from accord.fabric.reception import Request
from accord.fabric.server import Server
from accord.kernel.clock import Clock


class Presence(Protocol):
    """Which connections are there, and how to end them."""

    def held(self) -> Iterable[nats.Connection]:
        """Every connection of a session."""
        ...

    async def kick(self, key: str, by: str) -> int:
        """End every connection of a session; how many there were."""
        ...


class Auth:
    """The handlers.

    Args:
        authority: Whose contract it is.
        presence: The connections.
        clock: Where the time comes from.
    """

    def __init__(self, authority: Authority, presence: Presence, clock: Clock) -> None:
        self._authority = authority
        self._presence = presence
        self._clock = clock

    def serve(self, server: Server) -> None:
        """Answer on a server of the contract."""
        bind(
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
        """The session that asks."""
        return _entry(await self._session(request.caller)).wire()

    async def logout(self, request: Request, _: Any) -> dict[str, Any]:
        """End the session that asks."""
        await self._authority.revoke_session(request.caller, request.caller)
        return Done(done=True).wire()

    async def resolve(self, request: Request, payload: Any) -> dict[str, Any]:
        """What a session is and holds, for services and devices that judge their callers."""
        if request.who.holder == Holder.PERSON:
            raise UnauthorizedError("only a service or a device may ask who another session is")
        session = await self._session(SessionRef.read(payload).session_key)
        return SessionFacts(**_facts(session)).wire()

    async def sessions(self, _: Request, payload: Any) -> dict[str, Any]:
        """Everybody's sessions that are in force, or one holder's."""
        asked = SessionsList.read(payload)
        now = self._clock.now()
        found = await self._authority.sessions(subject=asked.subject)
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
        """End anybody's session."""
        session = await self._session(SessionRef.read(payload).session_key)
        await self._authority.revoke_session(session.key, request.caller)
        return Done(done=True).wire()

    async def connections(self, _: Request, payload: Any) -> dict[str, Any]:
        """The connections that are there."""
        asked = SessionsList.read(payload)
        present = sorted(
            (each for each in self._presence.held() if each.admitted.key > (asked.after or "")),
            key=lambda each: (each.admitted.key, each.server, each.client),
        )
        listed: list[Connection] = []
        sessions = 0
        for key, connections in itertools.groupby(present, lambda each: each.admitted.key):
            session = await self._authority.session(key)
            if session is None or asked.subject not in (None, session.subject):
                continue
            # A page ends with a session, so that the next one misses none of its connections.
            if sessions == asked.limit:
                return ConnectionsPage(connections=listed, next=listed[-1].session_key).wire()
            sessions += 1
            listed += [_connection(each, session) for each in connections]
        return ConnectionsPage(connections=listed).wire()

    async def kick(self, request: Request, payload: Any) -> dict[str, Any]:
        """End the connections of a session, which may come again."""
        ended = await self._presence.kick(SessionRef.read(payload).session_key, request.caller)
        return Done(done=ended > 0).wire()

    async def _session(self, key: str) -> Session:
        session = await self._authority.session(key)
        if session is None or not is_in_force(session, self._clock.now()):
            raise NotFoundError("there is no such session")
        return session


def _facts(session: Session) -> dict[str, Any]:
    return {
        "holder": session.holder.value,
        "subject": session.subject,
        "contract_id": session.contract_id,
        "digest": session.digest,
        "capabilities": sorted(session.capabilities),
        "expires_at": session.expires_at,
    }


def _entry(session: Session) -> SessionEntry:
    return SessionEntry(
        session_key=session.key,
        origin=session.origin,
        created_at=session.created_at,
        **_facts(session),
    )


def _connection(present: nats.Connection, session: Session) -> Connection:
    return Connection(
        session_key=session.key,
        holder=session.holder.value,
        subject=session.subject,
        server_id=present.server,
        client_id=present.client,
        connected_at=present.since,
    )
