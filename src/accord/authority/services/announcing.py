"""Tells the network what became of sessions and connections: the events of `trellis.auth@v1`.

Several authorities on one system each see the same things. What they tell has the same message id,
so that the stream keeps it once.
"""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from accord.authority.contracts import builtins
from accord.authority.contracts.auth import ID, ConnectionChanged, SessionRevoked
from accord.authority.records import Session
from accord.fabric import payloads
from accord.fabric.errors import FabricError
from accord.fabric.events.publishing import TIME
from accord.fabric.inbox import Inbox
from accord.fabric.streams import append
from accord.fabric.terms import Event, Terms
from accord.kernel.clock import Clock, format_time

_log = structlog.stdlib.get_logger(__name__)

REVOKED: Final = "Auth.Sessions.Revoked"
_CONNECTIONS: Final[Mapping[str, str]] = {
    "opened": "Auth.Connections.Opened",
    "closed": "Auth.Connections.Closed",
    "kicked": "Auth.Connections.Kicked",
}


class Announcing:
    """Publishes the events.

    Args:
        inbox: How the server is asked.
        clock: Where the time comes from.
    """

    def __init__(self, inbox: Inbox, clock: Clock) -> None:
        self._inbox = inbox
        self._clock = clock
        self._events: Mapping[str, Event] = Terms(builtins()[ID]).events

    async def revoked(self, key: str, by: str, at: float) -> None:
        """A session ended before its time.

        Raises:
            FabricError: It is not known to have been told.
        """
        told = SessionRevoked(session_key=key, revoked_by=by, at=at)
        await self._tell(REVOKED, told.wire(), f"revoked {key} {at}")

    async def connection(
        self, change: str, session: Session, place: str, by: str | None = None
    ) -> None:
        """A connection was opened, closed or kicked; this is for information, and may get lost.

        Args:
            change: Which of these.
            session: Whose it is.
            place: What tells it from other connections of the session.
            by: Who or what ended it.
        """
        told = ConnectionChanged(
            session_key=session.key,
            holder=session.holder.value,
            subject=session.subject,
            at=self._clock.now(),
            by=by,
        )
        try:
            await self._tell(_CONNECTIONS[change], told.wire(), f"{change} {place}")
        except FabricError as error:
            _log.warning("a connection was not announced", change=change, why=str(error))

    async def _tell(self, name: str, payload: Any, message_id: str) -> None:
        event = self._events[name]
        data = payloads.write(event.event, payload, "the event")
        headers = {TIME: format_time(self._clock.now(), millis=True)}
        await append(self._inbox, event.subject, data, headers=headers, message_id=message_id)
