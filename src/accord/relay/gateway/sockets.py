"""The socket under a gateway: what it must be able to do, and the one that dials.

Owns the border between lines and the network. `link` speaks to a `Socket` only, so that a
simulation can be one. The upgrade token goes to the connector that was named and nowhere else:
redirects are not followed, and nothing here is logged at a level that would show it.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from accord.relay.errors import Code, RelayError
from accord.relay.gateway.limits import MAX_INCOMING, Limits

_ABNORMAL: Final = 1006
_CLOSE_SECONDS: Final = 2.0

_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.INFO)  # at debug the library shows headers, and with them the token


class Closed(Exception):  # noqa: N818 - the end of a socket is news, not a fault
    """The socket has ended.

    Attributes:
        code: The close code; 1006 where the peer sent none.
        reason: What came with it.
    """

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"closed with {code} {reason[:200]!r}")
        self.code = code
        self.reason = reason


class Socket(Protocol):
    """An open socket of messages."""

    async def send(self, text: str) -> None:
        """Write a message; an ended socket raises `Closed`."""
        ...

    async def receive(self) -> str | bytes:
        """The next message; an ended socket raises `Closed`."""
        ...

    async def close(self) -> None:
        """End it. Ending it twice changes nothing."""
        ...


Dial = Callable[[str, str], AbstractAsyncContextManager[Socket]]
"""Opens a socket to an address with an upgrade token, and closes it at the end of the block."""


class _Connect(connect):
    """Dials the address that it was given and no other."""

    def process_redirect(self, exc: Exception) -> Exception:
        """Refuse: the token is not meant for whoever else is named."""
        return exc


class _WebSocket:
    """A WebSocket of the `websockets` library."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except ConnectionClosed as closed:
            raise _told(closed) from None

    async def receive(self) -> str | bytes:
        try:
            return await self._connection.recv()
        except ConnectionClosed as closed:
            raise _told(closed) from None

    async def close(self) -> None:
        await self._connection.close()


def web_socket(limits: Limits) -> Dial:
    """Dials by WebSocket."""

    @asynccontextmanager
    async def dial(url: str, token: str) -> AsyncIterator[Socket]:
        try:
            connection = await _Connect(
                url,
                additional_headers={"Authorization": f"Bearer {token}"},
                compression=None,
                open_timeout=limits.handshake,
                ping_interval=limits.ping,
                ping_timeout=limits.ping,
                close_timeout=_CLOSE_SECONDS,
                max_size=MAX_INCOMING,
                logger=_quiet,
            )
        except (OSError, WebSocketException, ValueError) as error:
            raise RelayError(
                Code.UNAVAILABLE,
                f"the connector does not answer ({str(error) or type(error).__name__})",
                where=url.rpartition("@")[2],  # without what may stand before the host
            ) from error
        try:
            yield _WebSocket(connection)
        finally:
            await connection.close()

    return dial


def _told(closed: ConnectionClosed) -> Closed:
    if closed.rcvd is None:
        # Also where this side ended it, such as for a message that was too long.
        return Closed(closed.sent.code if closed.sent else _ABNORMAL)
    return Closed(closed.rcvd.code, closed.rcvd.reason)
