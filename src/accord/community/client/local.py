"""A node in the same process, reached without a socket.

httpx has a transport for ASGI applications, too, but it hands over an answer only when it is
complete, and a stream with acknowledgements never would be.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
from starlette.types import ASGIApp, Message

_AHEAD: Final = 16


class LocalTransport(httpx.AsyncBaseTransport):
    """Passes requests to an ASGI application.

    Args:
        app: The application.
        address: Where the requests seem to come from; this machine, if nothing else is said.
    """

    def __init__(self, app: ASGIApp, *, address: str = "127.0.0.1") -> None:
        self._app = app
        self._address = address

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request on, and return as soon as the head of the answer is there."""
        exchange = _Exchange(await request.aread())
        path, _, query = request.url.raw_path.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": path,
            "query_string": query,
            "server": (request.url.host, request.url.port),
            "client": (self._address, 0),
            "root_path": "",
        }
        exchange.start(self._app, scope)
        try:
            head = await exchange.head()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(head["status"], headers=head.get("headers", ()), stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer, which comes part by part."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue(_AHEAD)
        self._task: asyncio.Task[None] | None = None
        self._complete = False

    def start(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        """Let the application begin."""

        async def run() -> None:
            try:
                await app(scope, self._receive, self._sent.put)
            finally:
                await self._sent.put(None)

        self._task = asyncio.create_task(run(), name=f"local {scope['path']}")

    async def head(self) -> Message:
        """The head of the answer."""
        message = await self._sent.get()
        if message is None or message["type"] != "http.response.start":
            raise httpx.RemoteProtocolError("the application gave no answer")
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body, part by part."""
        while (message := await self._sent.get()) is not None:
            if part := message.get("body", b""):
                yield part
            if not message.get("more_body", False):
                self._complete = True
                return
        raise httpx.RemoteProtocolError("the application stopped in the middle of its answer")

    async def aclose(self) -> None:
        """Leave, and wait until the application has noticed."""
        self._gone.set()
        if self._task is not None:
            if not self._complete:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}
