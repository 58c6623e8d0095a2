"""The relay plane: a connector with the station's web chat and platforms.

Each `[[relay.<name>]]` table of the settings is a bot. One that cannot be opened is reported as a
troubled part. The station's own address serves the same routes.
"""

import asyncio
import contextlib
import gc
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.kernel.section import Section
from accord.kernel.signing import SigningKey
from accord.relay.connector import RELAY
from accord.relay.connector.bus import LocalBus, RedisBus, RelayBus
from accord.relay.connector.connector import Connector, collect_metrics, open_connector
from accord.relay.connector.platform import Platform, PlatformState
from accord.relay.connector.settings import ControlSettings, DeliveryLimits
from accord.relay.connector.vault import Keyring
from accord.relay.platforms.webchat import Admin, WebChat, WebChatSettings, open_webchat
from accord.station import listener
from accord.station.errors import StationError
from accord.station.health import SecurityHeaders
from accord.station.home import Home
from accord.station.listener import PlaneEndpoint
from accord.station.logs import scrub
from accord.station.plane import PartReport, PlaneContext
from accord.station.relay_limits import ConnectorSettings
from accord.station.sections import split_listen
from accord.station.settings import Settings
from accord.station.store import store_location
from accord.storage import open_store
from accord.web.incoming import TrustedProxies
from accord.web.outgoing import OutgoingPolicy

_log = structlog.stdlib.get_logger(__name__)

Opener = Callable[..., AbstractAsyncContextManager[Platform]]

PLATFORMS: Final = ("telegram", "discord", "matrix", "sms", "wecom", "webhook")
"""The platforms: `[[relay.<name>]]` is a bot, opened by `open_<name>` of that platform."""


@dataclass(frozen=True, slots=True)
class OpenedPlatforms:
    """The bots of a station that were opened, and why others were not."""

    platforms: list[Platform] = field(default_factory=list)
    failed: list[PartReport] = field(default_factory=list)


@contextlib.asynccontextmanager
async def open_platforms(settings: Settings, clock: Clock) -> AsyncIterator[OpenedPlatforms]:
    """Open the bot of each table; no service is contacted yet."""
    opened = OpenedPlatforms()
    async with AsyncExitStack() as stack:
        for name in PLATFORMS:
            for number, table in enumerate(getattr(settings.relay, name), 1):
                try:
                    platform = await stack.enter_async_context(
                        _opener(name)(
                            _with_home_paths(table, settings),
                            clock,
                            settings.relay.url,
                            limits=settings.platforms,
                        )
                    )
                    _refuse_duplicate(platform, opened)
                except AccordError as error:
                    _log.error("a platform could not be started", platform=name, reason=str(error))
                    seat = f"{name} {number}"
                    opened.failed.append(PartReport(seat, "troubled", str(error), is_well=False))
                else:
                    opened.platforms.append(platform)
        yield opened


def _opener(name: str) -> Opener:
    """The function that opens a bot; only platforms in use are imported."""
    opener: Opener = getattr(import_module(f"accord.relay.platforms.{name}"), f"open_{name}")
    return opener


def _refuse_duplicate(platform: Platform, opened: OpenedPlatforms) -> None:
    seats = {(each.name, each.bot_id) for each in opened.platforms}
    if (platform.name, platform.bot_id) in seats:
        raise StationError(
            f"the bot {platform.bot_id} is set up twice",
            where=f"[[relay.{platform.name}]]",
            mend="keep one of the tables",
        )


def _with_home_paths(table: Section, settings: Settings) -> Section:
    """Resolve the table's file paths relative to the home."""
    files = {
        name: str(settings.home / value)
        for name in type(table).model_fields
        if name.endswith("_file") and (value := getattr(table, name)) and not value.startswith("~")
    }
    return table.model_copy(update=files)


_PATHS = ("/relay/{rest:path}", "/manage/{rest:path}", "/chat", "/chat/{rest:path}")
_TRY_LATER = 1013


class RelayPlane:
    """The connector of a station; the id of `key` is its name among connectors.

    `is_exported`: the station exports the connector's journal, and removes what has landed.
    """

    name = "relay"

    def __init__(
        self, settings: Settings, key: SigningKey, clock: Clock, *, is_exported: bool = False
    ) -> None:
        self._settings = settings
        self._is_exported = is_exported
        self._key = key
        self._clock = clock
        self._app: Starlette | None = None
        self._connector: Connector | None = None
        self._chat: WebChat | None = None
        self._failed: list[PartReport] = []
        self._requests: set[asyncio.Task[object]] = set()

    def parts(self) -> Sequence[PartReport]:
        """Report the state of each bot, while the connector is up."""
        if self._connector is None:
            return ()
        standings = self._connector.delivery.statuses
        bots = Counter(each.platform for each in standings)
        return self._failed + [
            PartReport(
                # The id of a bot is shown only if there are several.
                each.platform if bots[each.platform] == 1 else f"{each.platform} {each.bot_id}",
                each.state.value,
                scrub(each.reason),
                each.state is not PlatformState.TROUBLED,
            )
            for each in standings
        ]

    def collect(self) -> Iterable[Metric]:
        """Return the connector's metrics, while it is up."""
        return () if self._connector is None else collect_metrics(self._connector)

    @property
    def connector(self) -> Connector | None:
        """The connector, while it is up."""
        return self._connector

    @property
    def chat(self) -> Admin | None:
        """The web chat's administration, while it is up."""
        return None if self._connector is None or self._chat is None else self._chat.admin

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The connector's routes, at the station's own address."""
        endpoint = PlaneEndpoint(self.serve)
        return (
            WebSocketRoute("/relay", endpoint),
            *(Route(path, endpoint, include_in_schema=False) for path in _PATHS),
        )

    async def run(self, context: PlaneContext) -> None:
        """Open the connector and serve until the station drains."""
        async with contextlib.AsyncExitStack() as opened:
            sockets = [opened.enter_context(each) for each in _bind_sockets(self._settings)]
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
            # Without freezing, each full garbage collection visits all objects created so far and
            # stops deliveries for a tenth of a second.
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
        """Answer a request at the station's own address."""
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
        """Let requests that came before draining finish while the store is open."""
        if self._requests:
            seconds = self._settings.station.drain_seconds / 3
            await asyncio.wait(set(self._requests), timeout=seconds)

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Connector, Callable[[], None]]]:
        """Yield the connector, and a function that ends its endless responses."""
        settings, clock = self._settings, self._clock
        async with contextlib.AsyncExitStack() as opened:
            store = await opened.enter_async_context(open_store(store_location(settings), RELAY))
            chat: WebChat | None = None
            if settings.relay.webchat:
                chat = await opened.enter_async_context(
                    open_webchat(store_location(settings), clock, webchat_settings(settings))
                )
            self._chat = chat
            bots = await opened.enter_async_context(open_platforms(settings, clock))
            self._failed = bots.failed
            connector = await opened.enter_async_context(
                open_connector(
                    store,
                    keyring(settings),
                    clock,
                    # The home is locked, so no other process has this name; after a crash the next
                    # run continues with the same leases at once.
                    name=self._key.id,
                    settings=control_settings(settings),
                    platforms=[*bots.platforms, *(chat.platforms if chat else ())],
                    bus=_open_bus(settings),
                    limits=delivery_limits(settings, is_exported=self._is_exported),
                    mass_mentions=frozenset(settings.relay.mass_mentions),
                )
            )
            if chat is None:
                yield connector, lambda: None
            else:
                await chat.follow(connector.delivery.add)
                yield connector, chat.close


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
            # The server waits for open responses, and event streams have no end.
            let_go()
            server.should_exit = True
            await asyncio.wait([serving])


@contextlib.asynccontextmanager
async def operate_relay(settings: Settings, clock: Clock, name: str) -> AsyncIterator[Connector]:
    """Open a home's connector for its operator; a station may run at the same time.

    Args:
        name: The operator's name in the journal.

    Raises:
        AccordError: The store or the key file cannot be opened.
    """
    async with (
        open_store(store_location(settings), RELAY) as store,
        open_connector(
            store,
            keyring(settings),
            clock,
            name=name,
            settings=control_settings(settings),
            serve=False,
        ) as connector,
    ):
        yield replace(connector, control=connector.control.acting_as(name))


def keyring(settings: Settings) -> Keyring:
    """Return the keys that encrypt the secrets of a home's relay."""
    return Keyring.load(Home(settings.home).device_key.with_name("relay.key"))


def control_settings(settings: Settings) -> ControlSettings:
    """Return the settings of the connector's control part."""
    chosen = settings.relay
    named = _named(ControlSettings, chosen)
    if chosen.managed_keys:
        named["managed_keys"] = str(_home_path(settings, chosen.managed_keys))
    return ControlSettings(
        **named,
        outgoing=OutgoingPolicy(
            http=chosen.wake_http,
            ports=frozenset(chosen.wake_ports),
            networks=tuple(map(ipaddress.ip_network, chosen.wake_networks)),
        ),
    )


def delivery_limits(settings: Settings, *, is_exported: bool = False) -> DeliveryLimits:
    """Return the limits of the connector's delivery part.

    Args:
        is_exported: This station also exports the journal, and removes what has landed.
    """
    chosen = settings.relay
    return DeliveryLimits(
        **_named(DeliveryLimits, chosen),
        journal_seconds=chosen.journal_days * 86_400.0,
        is_exported=is_exported,
        # Requests are finished before, and sockets closed after that.
        finish_seconds=settings.station.drain_seconds / 2,
    )


def _named(kind: type[Any], chosen: ConnectorSettings) -> dict[str, Any]:
    """The settings of the same names."""
    names = {each.name for each in fields(kind)} & type(chosen).model_fields.keys()
    return {name: getattr(chosen, name) for name in names}


def webchat_settings(settings: Settings) -> WebChatSettings:
    """Return the settings of the web chat."""
    return WebChatSettings(base_url=settings.relay.url, **settings.webchat.model_dump())


def _open_bus(settings: Settings) -> RelayBus:
    url = settings.relay.redis.get_secret_value()
    return RedisBus(url) if url else LocalBus()


def _bind_sockets(settings: Settings) -> list[socket.socket]:
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
    file = _home_path(settings, settings.relay.certificate)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file)
    except OSError as error:
        raise StationError(
            f"there is no certificate with its key here ({error.strerror})",
            where=str(file),
            mend="correct [relay] certificate, or leave it empty to listen without TLS",
        ) from None
    return file


def _home_path(settings: Settings, name: str) -> Path:
    """Resolve a path of the settings relative to the home."""
    return settings.home / Path(name).expanduser()
