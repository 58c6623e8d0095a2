"""The relay plane: a connector with the station's folder, key and clock, and its web chat.

Owns where the connector listens and which platforms it has. The station's own address serves the
same routes, so that one machine needs one address only.
"""

import asyncio
import contextlib
import gc
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import structlog
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.relay.connector import RELAY
from accord.relay.connector.assembly import Connector, assembled, open_connector
from accord.relay.connector.control import ControlSettings, Keyring
from accord.relay.connector.delivery import Limits, LocalBus, RedisBus, RelayBus
from accord.relay.connector.figures import figures
from accord.relay.connector.platform import PlatformState
from accord.relay.connector.proxies import TrustedProxies
from accord.relay.outgoing import OutgoingPolicy
from accord.relay.platforms.webchat import WebChat, WebChatSettings, open_webchat
from accord.station import listener
from accord.station.errors import StationError
from accord.station.health import SecurityHeaders
from accord.station.home import Home
from accord.station.logs import scrub
from accord.station.plane import PartReport, PlaneContext
from accord.station.platforms import open_platforms
from accord.station.sections import split_listen
from accord.station.settings import Settings
from accord.station.store import place
from accord.storage import open_store

_log = structlog.stdlib.get_logger(__name__)

_PATHS = ("/relay/{rest:path}", "/manage/{rest:path}", "/chat", "/chat/{rest:path}")
_TRY_LATER = 1013


class RelayPlane:
    """The connector of a station.

    Args:
        settings: The station's.
        key: Its device key, whose id names this connector among others.
        clock: The time.
    """

    name = "relay"

    def __init__(self, settings: Settings, key: SigningKey, clock: Clock) -> None:
        self._settings = settings
        self._key = key
        self._clock = clock
        self._app: Starlette | None = None
        self._connector: Connector | None = None
        self._failed: list[PartReport] = []
        self._requests: set[asyncio.Task[object]] = set()

    def parts(self) -> Sequence[PartReport]:
        """How each bot stands with its service, while the connector is up."""
        if self._connector is None:
            return ()
        standings = self._connector.delivery.standings
        bots = Counter(each.platform for each in standings)
        return self._failed + [
            PartReport(
                # An id tells nobody anything where there is one bot.
                each.platform if bots[each.platform] == 1 else f"{each.platform} {each.bot_id}",
                each.state.value,
                scrub(each.reason),
                each.state is not PlatformState.TROUBLED,
            )
            for each in standings
        ]

    def collect(self) -> Iterable[Metric]:
        """What the connector did and refused, while it is up."""
        return () if self._connector is None else figures(self._connector)

    @property
    def connector(self) -> Connector | None:
        """The connector, while it is up."""
        return self._connector

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The connector's routes, at the station's own address."""
        door = _Door(self)
        return (
            WebSocketRoute("/relay", door),
            *(Route(path, door, include_in_schema=False) for path in _PATHS),
        )

    async def run(self, context: PlaneContext) -> None:
        """Open the connector and serve until the station drains."""
        async with contextlib.AsyncExitStack() as opened:
            sockets = [opened.enter_context(each) for each in _bound(self._settings)]
            certificate = _certificate(self._settings)
            connector, let_go = await opened.enter_async_context(self._opened())
            proxies = tuple(map(ipaddress.ip_network, self._settings.relay.proxies))
            app = Starlette(
                routes=connector.routes,
                middleware=[
                    Middleware(TrustedProxies, networks=proxies),
                    Middleware(SecurityHeaders),
                ],
            )
            self._app, self._connector = app, connector
            # Everything that was made so far lives on: without this each full collection looks at
            # all of it, and stops every delivery for a tenth of a second.
            gc.collect()
            gc.freeze()
            try:
                if sockets:
                    server = listener.Listener(app, certificate=certificate)
                    await _serve(server, sockets, context, let_go)
                else:
                    context.ready()
                    await context.draining.wait()
            finally:
                self._app = self._connector = None
                let_go()
                await self._finish_requests()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a client of the station's own address."""
        if self._app is not None:
            request = asyncio.current_task()
            if request is not None and scope["type"] == "http":
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _TRY_LATER})
        else:
            away = {"error": "unavailable", "message": "the relay plane is not up"}
            await JSONResponse(away, 503)(scope, receive, send)

    async def _finish_requests(self) -> None:
        """Let what came in before the station drained be answered while there is a store."""
        if self._requests:
            seconds = self._settings.station.drain_seconds / 3
            await asyncio.wait(set(self._requests), timeout=seconds)

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Connector, Callable[[], None]]]:
        """The connector, and what ends the answers that would never end by themselves."""
        settings, clock = self._settings, self._clock
        async with contextlib.AsyncExitStack() as opened:
            store = await opened.enter_async_context(open_store(place(settings), RELAY))
            chat: WebChat | None = None
            if settings.relay.webchat:
                chat = await opened.enter_async_context(
                    open_webchat(place(settings), clock, webchat_settings(settings))
                )
            bots = await opened.enter_async_context(open_platforms(settings, clock))
            self._failed = bots.failed
            connector = await opened.enter_async_context(
                open_connector(
                    store,
                    keyring(settings),
                    clock,
                    # The home is locked, so nobody else of this name runs; after a crash the
                    # next run goes on under the same leases at once.
                    name=self._key.id,
                    settings=control_settings(settings),
                    platforms=[*bots.platforms, *(chat.platforms if chat else ())],
                    bus=_bus(settings),
                    # Requests are finished before, and sockets closed after that.
                    limits=Limits(finish_seconds=settings.station.drain_seconds / 2),
                )
            )
            if chat is None:
                yield connector, lambda: None
            else:
                await chat.follow(connector.delivery.add)
                yield connector, chat.close


class _Door:
    """An ASGI application in front of a connector that may not be up."""

    def __init__(self, plane: RelayPlane) -> None:
        self._plane = plane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._plane.serve(scope, receive, send)


async def _serve(
    server: listener.Listener,
    sockets: list[socket.socket],
    context: PlaneContext,
    let_go: Callable[[], None],
) -> None:
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets), name="relay")
        await server.serving.wait()
        _log.info("the relay is up", address=listener.address(sockets[0]))
        context.ready()
        try:
            await context.draining.wait()
        finally:
            # The server waits for answers that are on their way, and a page's has no end.
            let_go()
            server.should_exit = True
            await asyncio.wait([serving])


@contextlib.asynccontextmanager
async def operated(settings: Settings, clock: Clock, name: str) -> AsyncIterator[Connector]:
    """The connector of a home for its operator: nothing runs, and a station may run beside it.

    Args:
        settings: Those of the home.
        clock: The time.
        name: Who operates it, for the journal.

    Raises:
        AccordError: The store or the key file cannot be opened.
    """
    async with (
        open_store(place(settings), RELAY) as store,
        assembled(
            store, keyring(settings), clock, name=name, settings=control_settings(settings)
        ) as connector,
    ):
        yield replace(connector, control=connector.control.acting_as(name))


def keyring(settings: Settings) -> Keyring:
    """The keys under which the relay of a home keeps its secrets."""
    return Keyring.load(Home(settings.home).device_key.with_name("relay.key"))


def control_settings(settings: Settings) -> ControlSettings:
    """What the station's settings say about the control half."""
    chosen = settings.relay
    return ControlSettings(
        managed_keys=chosen.managed_keys and str(_at_home(settings, chosen.managed_keys)),
        managed_issuer=chosen.managed_issuer,
        outgoing=OutgoingPolicy(
            http=chosen.wake_http,
            ports=frozenset(chosen.wake_ports),
            networks=tuple(map(ipaddress.ip_network, chosen.wake_networks)),
        ),
    )


def webchat_settings(settings: Settings) -> WebChatSettings:
    """What the station's settings say about the web chat."""
    return WebChatSettings(base_url=settings.relay.url)


def _bus(settings: Settings) -> RelayBus:
    url = settings.relay.redis.get_secret_value()
    return RedisBus(url) if url else LocalBus()


def _bound(settings: Settings) -> list[socket.socket]:
    if not settings.relay.listen:
        return []
    try:
        return [listener.bind(*split_listen(settings.relay.listen))]
    except StationError as error:
        mend = "correct [relay] listen, or leave it empty"
        raise StationError(error.what, where=error.where, mend=mend) from None


def _certificate(settings: Settings) -> Path | None:
    if not settings.relay.certificate:
        return None
    file = _at_home(settings, settings.relay.certificate)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file)
    except OSError as error:
        raise StationError(
            f"there is no certificate with its key here ({error.strerror})",
            where=str(file),
            mend="correct [relay] certificate, or leave it empty to listen without TLS",
        ) from None
    return file


def _at_home(settings: Settings, name: str) -> Path:
    """A file that the settings name, from the home on."""
    return settings.home / Path(name).expanduser()
