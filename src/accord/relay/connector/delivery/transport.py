"""The socket under a connection, and the ASGI server as one.

Owns the border between frames and the network. `connection` speaks to a `Transport` only, so that
a simulation can be one.
"""

from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

_BEARER = b"bearer "


class Transport(Protocol):
    """A socket of messages that was accepted."""

    async def receive(self) -> str | bytes | None:
        """The next message; None when the socket has ended."""
        ...

    async def send(self, text: str) -> None:
        """Write a message, waiting while the peer does not read; an ended socket swallows it."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """End the socket. Ending it twice changes nothing."""
        ...


class AsgiTransport:
    """A WebSocket of an ASGI server."""

    __slots__ = ("_receive", "_send")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def accept(self) -> bool:
        """Accept the upgrade; False when the peer has gone."""
        if (await self._receive())["type"] != "websocket.connect":
            return False
        return await self._tell({"type": "websocket.accept"})

    async def receive(self) -> str | bytes | None:
        """The next message; None when the socket has ended."""
        message = await self._receive()
        if message["type"] != "websocket.receive":
            return None
        text: str | bytes | None = message.get("text")
        return text if text is not None else message.get("bytes") or b""

    async def send(self, text: str) -> None:
        """Write a message, waiting while the peer does not read."""
        await self._tell({"type": "websocket.send", "text": text})

    async def close(self, code: int, reason: str) -> None:
        """End the socket."""
        await self._tell({"type": "websocket.close", "code": code, "reason": reason})

    async def _tell(self, message: dict[str, Any]) -> bool:
        try:
            await self._send(message)
        except (OSError, RuntimeError):
            # The peer is gone, or the socket was closed meanwhile: `receive` will say so.
            return False
        return True


def bearer(scope: Scope) -> str | None:
    """The token of an upgrade request."""
    for name, value in scope["headers"]:
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            token: str = value[len(_BEARER) :].decode("latin-1").strip()
            return token
    return None
