"""What fakes of services with webhooks share: they are served, they write, they are told.

Owns the listening socket and the sending of webhooks, once or until they are taken.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from accord.station import listener

_AGAIN_SECONDS = 0.05


@asynccontextmanager
async def serving(routes: Sequence[BaseRoute]) -> AsyncIterator[str]:
    """Serve routes on a free port of this machine; gives the URL."""
    with listener.bind("127.0.0.1", 0) as listening:
        server = listener.Listener(Starlette(routes=list(routes)))
        task = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        try:
            yield listener.address(listening)
        finally:
            server.should_exit = True
            await task


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the bot, in the service's own names."""

    chat_id: str
    text: str
    message_id: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trouble:
    """An answer that is given instead of the right one."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


class HookService:
    """A service that calls the connector, and is called by it.

    Attributes:
        public_url: Where the connector is reached.
        inner_url: Where it really listens, if that is behind a proxy; empty where it is not.
        said: What the bot said, in order.
        troubles: What the next calls are answered, before anything is done for them.
        calls: The paths that were called, in order.
    """

    def __init__(self) -> None:
        self.api_url = ""
        self.public_url = ""
        self.inner_url = ""
        self.said: list[Said] = []
        self.troubles: deque[Trouble] = deque()
        self.calls: list[str] = []
        self._news = asyncio.Condition()
        self._client = httpx.AsyncClient(trust_env=False, timeout=30.0)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The service's API."""
        raise NotImplementedError

    def user_id(self, user: str) -> str:
        """What the relay calls somebody: the name by which an operator binds them."""
        return user

    @classmethod
    @asynccontextmanager
    async def served(cls, *given: Any, **named: Any) -> AsyncIterator[Self]:
        """The service on a port of this machine."""
        service = cls(*given, **named)
        async with service._client, serving(service.routes) as url:
            service.api_url = url
            yield service

    async def until(self, condition: Callable[[], bool], *, within: float = 20.0) -> None:
        """Wait until something holds that changes with what the bot says."""
        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(condition)

    async def call(
        self, make: Callable[[], httpx.Request], *, until_taken: bool = False
    ) -> httpx.Response:
        """Call the connector; with `until_taken`, again and again until it says that it took it."""
        while True:
            try:
                response = await self._client.send(self._inside(make()))
            except httpx.TransportError:
                if not until_taken:
                    raise
            else:
                if response.is_success or not until_taken:
                    return response
            await asyncio.sleep(_AGAIN_SECONDS)

    def _inside(self, request: httpx.Request) -> httpx.Request:
        if self.inner_url:
            inner = httpx.URL(self.inner_url)
            request.url = request.url.copy_with(
                scheme=inner.scheme, host=inner.host, port=inner.port
            )
        return request

    async def say(self, said: Said) -> None:
        """Keep what the bot said."""
        self.said.append(said)
        async with self._news:
            self._news.notify_all()

    def troubled(self, request: Request) -> Response | None:
        """Note a call; the wrong answer to it, if there is one."""
        self.calls.append(request.url.path)
        if not self.troubles:
            return None
        trouble = self.troubles.popleft()
        return JSONResponse(dict(trouble.body), trouble.status, dict(trouble.headers))
