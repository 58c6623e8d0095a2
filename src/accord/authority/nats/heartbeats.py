"""Heartbeats: a session that is there says that it still implements its contract.

Owns the subscription to `Health.Heartbeat`. A heartbeat is believed only of a session that has a
connection, so that nobody keeps the offer of another alive who is gone; it refreshes an accepted
offer and can create none.
"""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

import orjson
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord.fabric.wire import is_answer
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

_GROUP: Final = "accord-authority"
_MOST_BYTES: Final = 64 * 1024
_LEAST_SECONDS: Final = 1.0
_MOST_BEATS: Final = 32
_MEMBERS: Final = ("sessionKey", "contractId", "contractDigest")

Beat = tuple[str, str, str]


class Hearing(Protocol):
    """Who hears of heartbeats."""

    async def heartbeat(self, key: str, contract_id: str, digest: str) -> bool:
        """A session implements a contract at a digest, still; whether that was offered."""
        ...


class Heartbeats:
    """Passes heartbeats on to the authority.

    Args:
        authority: Who hears of them.
        clock: Where the time comes from.
        is_connected: Whether a session has a connection.
    """

    def __init__(
        self, authority: Hearing, clock: Clock, is_connected: Callable[[str], bool]
    ) -> None:
        self._authority = authority
        self._clock = clock
        self._is_connected = is_connected
        self._since = clock.monotonic()
        self._heard: set[Beat] = set()
        self._by_session: Counter[str] = Counter()

    @asynccontextmanager
    async def listening(self, connection: Client, subject: str) -> AsyncIterator[None]:
        """Listen on the event's subject until the block ends.

        Args:
            connection: One of the authority's own.
            subject: That of `Health.Heartbeat`, as its contract says.
        """
        subscription = await connection.subscribe(subject, _GROUP, cb=self._hear)
        try:
            yield
        finally:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()

    async def _hear(self, message: Msg) -> None:
        beat = None if is_answer(message) else read_beat(message.data)
        if beat is None or not self._is_connected(beat[0]) or not self._is_due(beat):
            return
        try:
            await self._authority.heartbeat(*beat)
        except AccordError as error:
            _log.warning("a heartbeat was not recorded", session=beat[0], why=str(error))

    def _is_due(self, beat: Beat) -> bool:
        """Whether it tells something new; whoever beats faster is not heard more often."""
        now = self._clock.monotonic()
        if now - self._since >= _LEAST_SECONDS:
            self._since = now
            self._heard.clear()
            self._by_session.clear()
        if beat in self._heard or self._by_session[beat[0]] >= _MOST_BEATS:
            return False
        self._heard.add(beat)
        self._by_session[beat[0]] += 1
        return True


def read_beat(data: bytes) -> Beat | None:
    """Who says that it lives, with which contract and digest; nothing if it is malformed."""
    try:
        body = orjson.loads(data) if len(data) <= _MOST_BYTES else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(body, dict):
        return None
    key, contract_id, digest = (body.get(member) for member in _MEMBERS)
    if isinstance(key, str) and isinstance(contract_id, str) and isinstance(digest, str):
        return key, contract_id, digest
    return None
