"""The station's listening socket, the HTTP server on it with its limits, endpoints of planes."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from accord.station.errors import StationError

_HEAD_SECONDS = 10.0
# Time for the rest of a body that was answered already, so that the client can read the answer.
_REST_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 15
_PING_SECONDS = 20.0
# Of one WebSocket message; longer lines are split.
_MESSAGE_BYTES = 1024 * 1024
# Time for responses that are still being sent after the planes have drained.
_GOODBYE_SECONDS = 2

_MEND_HOST = "correct [station] host, such as 127.0.0.1"
_MEND_PORT = "choose another with --port, [station] port or ACCORD_STATION__PORT"


def bind(host: str, port: int) -> socket.socket:
    """Bind the port, or raise `StationError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return _prompt(socket.create_server((host, port), family=family, backlog=1024))
    except socket.gaierror as error:
        what, mend = f"the host is not known ({error.strerror})", _MEND_HOST
    except UnicodeError:
        what, mend = "this cannot be the name of a host", _MEND_HOST
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            what, mend = f"port {port} is in use by another program", _MEND_PORT
        elif error.errno == errno.EACCES:
            what, mend = f"this user may not listen on port {port}", _MEND_PORT
        else:
            what, mend = f"cannot listen there ({error.strerror})", _MEND_HOST
    raise StationError(what, where=f"{host}:{port}", mend=mend)


def _prompt(listening: socket.socket) -> socket.socket:
    # Inherited by each connection: small responses must not wait for the last acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address(listening: socket.socket) -> str:
    """Return the URL of the station."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _PromptProtocol(H11Protocol):
    """An HTTP/1.1 connection with a time limit for request heads.

    h11 limits the size of a head (16 KiB) and uvicorn the pause between requests, but neither
    limits how slowly a head arrives, nor the rest of a body that was answered before its end.
    """

    _deadline: asyncio.TimerHandle | None = None
    _rest: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()
        if self._rest is not None and self.conn.our_state is not h11.DONE:
            self._forget_rest()  # the body came to its end, and another request may follow

    def on_response_complete(self) -> None:
        """Limit the time for the rest of a request body."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.conn.their_state is h11.SEND_BODY:
            self._forget_rest()
            self._rest = self.loop.call_later(_REST_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()
        self._forget_rest()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _forget_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None


class _PingProtocol(WebSocketsSansIOProtocol):
    """A WebSocket connection whose application can ping its peer.

    ASGI has no pings. The extension `accord.ping` of the scope has two functions: `ask` sends a
    ping unless one is under way, and `pongs` counts the answers.
    """

    _pongs = 0

    def handle_connect(self, event: Request) -> None:
        """Offer the extension to the application, which starts after this."""
        super().handle_connect(event)
        scope = getattr(self, "scope", None)
        if scope is not None:
            scope["extensions"]["accord.ping"] = {"ask": self._ask, "pongs": lambda: self._pongs}

    def handle_pong(self, event: Frame) -> None:
        """Count the answer to a ping."""
        if self.pending_ping_payload is not None and bytes(event.data) == self.pending_ping_payload:
            self._pongs += 1
        super().handle_pong(event)

    async def send(self, message: ASGISendEvent) -> None:
        """Send; a handshake that was refused with a response is complete, too."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def _ask(self) -> None:
        if self.pending_ping_payload is None and not self.transport.is_closing():
            if self.ping_timer is not None:
                self.ping_timer.cancel()
            self.send_keepalive_ping()


class Listener(uvicorn.Server):
    """uvicorn without its signal handlers, and with an event for the moment it serves.

    Args:
        certificate: A file with a certificate and its key, to serve by TLS.
        keep_alive: Seconds until an idle connection is closed.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        certificate: Path | None = None,
        keep_alive: int = _KEEP_ALIVE_SECONDS,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ssl_certfile=certificate,
                http=_PromptProtocol,
                # Needs a third less memory per idle socket than uvicorn's default.
                ws=_PingProtocol,
                ws_max_size=_MESSAGE_BYTES,
                ws_per_message_deflate=False,
                ws_ping_interval=_PING_SECONDS,
                ws_ping_timeout=_PING_SECONDS,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=keep_alive,
                timeout_graceful_shutdown=_GOODBYE_SECONDS,
            )
        )
        self.serving = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the station."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until stopped, then close all sockets."""
        try:
            await super().serve(sockets)
        finally:
            # uvicorn leaves them open when it is cancelled, and the port would stay in use.
            for each in getattr(self, "servers", ()):
                each.close()

    async def accept(self, connected: socket.socket) -> None:
        """Serve a connection that came in another way, as if it had been accepted here.

        Returns once TLS is up; raises `OSError` if it does not come up.
        """
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            return _PromptProtocol(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )

        tls = {"ssl_handshake_timeout": _HEAD_SECONDS} if self.config.ssl else {}
        await loop.connect_accepted_socket(protocol, connected, ssl=self.config.ssl, **tls)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and set the event."""
        await super().startup(sockets)
        self.serving.set()


@dataclass(frozen=True, slots=True)
class PlaneEndpoint:
    """An ASGI application for a plane's routes; a plain method would be wrapped by Starlette."""

    serve: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on unchanged."""
        await self.serve(scope, receive, send)
