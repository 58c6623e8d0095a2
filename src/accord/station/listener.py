"""The station's one listening socket and the HTTP server on it, with its limits.

Owns binding, the limits on what a client may send and how slowly, and the end of serving. It
never handles signals, which are the station's.
"""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from accord.station.errors import StationError

_HEAD_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 15
_PING_SECONDS = 20.0
# Of one WebSocket message; longer lines come in several.
_MESSAGE_BYTES = 1024 * 1024
# After the planes have drained, answers that are still on their way get this long.
_GOODBYE_SECONDS = 2

_MEND_HOST = "correct [station] host, such as 127.0.0.1"
_MEND_PORT = "choose another with --port, [station] port or ACCORD_STATION__PORT"


def bind(host: str, port: int) -> socket.socket:
    """Take the port, before anything else is made.

    Raises:
        StationError: The port or the host cannot be had.
    """
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
    # Inherited by each connection: a small answer must not wait for the last acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address(listening: socket.socket) -> str:
    """The URL under which the station is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _PromptProtocol(H11Protocol):
    """An HTTP/1.1 connection whose request heads must arrive in time.

    h11 limits the size of a head (16 KiB) and uvicorn the pause between requests, but nobody
    how slowly a head trickles in.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Listener(uvicorn.Server):
    """uvicorn, without its signal handlers and with an event for the moment it serves.

    Args:
        app: What is served.
        certificate: A file with a certificate and its key, to serve it by TLS.
    """

    def __init__(self, app: ASGIApp, *, certificate: Path | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ssl_certfile=certificate,
                http=_PromptProtocol,
                # A third lighter on each idle socket than uvicorn's own choice.
                ws="websockets-sansio",
                ws_max_size=_MESSAGE_BYTES,
                ws_per_message_deflate=False,
                ws_ping_interval=_PING_SECONDS,
                ws_ping_timeout=_PING_SECONDS,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_GOODBYE_SECONDS,
            )
        )
        self.serving = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the station."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop; then nobody listens any more, however it ended."""
        try:
            await super().serve(sockets)
        finally:
            # uvicorn leaves them open when it is cancelled, and the port would seem taken.
            for each in getattr(self, "servers", ()):
                each.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.serving.set()
