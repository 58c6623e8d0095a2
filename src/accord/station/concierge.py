"""The concierge's plane: an agent of the station, enrolled like any other agent.

Its gateway dials the station's own address.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric
from starlette.routing import BaseRoute

from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.concierge import (
    COMMANDS,
    AnswerPolicy,
    Concierge,
    LanguageModel,
    offered_model,
)
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.relay.connector.connector import Connector
from accord.relay.gateway import (
    GatewayLimits,
    GatewaySettings,
    GatewayState,
    RelayGateway,
    StoredSecret,
)
from accord.relay.gateway.enrolment import CREDENTIALS_FILE, GatewayCredentials
from accord.relay.platforms.webchat import open_admin
from accord.station.agents import (
    CONCIERGE,
    WEBCHAT,
    AgentSpace,
    admit_agent,
    open_space,
    wait_for_relay,
)
from accord.station.plane import PartReport, PlaneContext
from accord.station.relay import RelayPlane, operate_relay, webchat_settings
from accord.station.settings import Settings
from accord.station.store import store_location
from accord.telemetry.metrics import family

# A model may read a long prompt before its first word.
_ANSWER_SECONDS: Final = 150.0
_REVOKED: Final = PartReport(
    "gateway",
    "revoked",
    "the operator has revoked the concierge; `accord relay pardon concierge` and start again, or "
    "set [concierge] enabled = false",
    is_well=False,
)


@dataclass(eq=False, repr=False)
class ConciergePlane:
    """The concierge of a station.

    Args:
        key: Its device key, with which the concierge calls the bus.
    """

    name = "concierge"

    settings: Settings
    key: SigningKey
    clock: Clock
    address: str
    relay: RelayPlane
    _gateway: RelayGateway | None = field(init=False, default=None)
    _is_revoked: bool = field(init=False, default=False)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """None: a gateway needs no open port."""
        return ()

    def parts(self) -> Sequence[PartReport]:
        """Report the connection of its gateway."""
        if self._is_revoked:
            return (_REVOKED,)
        if self._gateway is None:
            return ()
        health = self._gateway.health
        state = "ready" if health.state is GatewayState.RUNNING else health.state.value
        return (PartReport("gateway", state, health.reason, health.state.is_healthy),)

    def collect(self) -> Iterable[Metric]:
        """The outbox of its gateway."""
        if self._gateway is not None:
            oldest = self._gateway.outbox_oldest_seconds
            yield family("accord_gateway_outbox_waiting", self._gateway.outbox_waiting)
            yield family("accord_gateway_outbox_oldest_seconds", oldest)

    async def run(self, context: PlaneContext) -> None:
        """Enrol the concierge and have it answer until the station drains."""
        self._gateway, self._is_revoked = None, False
        if not await wait_for_relay(self.address, context.draining):
            return
        async with contextlib.AsyncExitStack() as opened:
            connector = await opened.enter_async_context(
                operate_relay(self.settings, self.clock, CONCIERGE)
            )
            known = await admit_agent(connector.control, self.address, CONCIERGE, self._folder)
            if known is None:
                self._is_revoked = True
                context.ready()
                await context.draining.wait()
                return
            lobby = None
            if self.settings.relay.webchat:
                chosen = webchat_settings(self.settings)
                admin = await opened.enter_async_context(
                    open_admin(store_location(self.settings), self.clock, chosen)
                )
                space = self.settings.concierge.space
                lobby = await open_space(admin, connector.control, CONCIERGE, space, self._folder)
            await self._serve(known, lobby, context)

    async def _serve(
        self, known: GatewayCredentials, lobby: AgentSpace | None, context: PlaneContext
    ) -> None:
        self._gateway = gateway = await self._made_gateway(known, lobby)
        async with asyncio.TaskGroup() as group:
            group.create_task(gateway.run(), name="gateway")
            looking = None
            if lobby is not None:
                looking = group.create_task(lobby.run(), name="lobby")
            # Whether it is connected is reported as a part, since it reconnects by itself.
            context.ready()
            await context.draining.wait()
            if looking is not None:
                looking.cancel()
            gateway.stop()

    async def _made_gateway(
        self, known: GatewayCredentials, lobby: AgentSpace | None
    ) -> RelayGateway:
        names = [] if lobby is None else [bot.name for bot in await lobby.admin.bots()]
        own = None if lobby is None else frozenset({lobby.channel.id})
        fronted = _fronted(self.relay.connector)
        settings = GatewaySettings(
            inbox=self._folder,
            command_manifest=list(COMMANDS),
            # Leave time for open turns when the station stops.
            limits=GatewayLimits(drain=self.settings.station.drain_seconds / 2),
        )
        return RelayGateway(
            self.address,
            secret=StoredSecret(self._folder / CREDENTIALS_FILE, known),
            gateway_id=known.gateway_id,
            agent=Concierge(
                self._community,
                self._find_model,
                corpus=self.settings.concierge.corpus,
                policy=AnswerPolicy(own, (CONCIERGE, *names)),
            ),
            settings=replace(settings, identities=fronted) if fronted else settings,
        )

    @contextlib.asynccontextmanager
    async def _community(self) -> AsyncIterator[Client]:
        """Yield the bus of the chosen or the first community; `partition` if there is none."""
        wanted = self.settings.concierge.community
        async with self._client(self.key.id) as client:
            status = await client.get("/node/v1/status")
        found = [each["community_id"] for each in status["communities"]]
        if wanted:
            found = [each for each in found if each == wanted]
        if not found:
            raise CommunityError(
                Code.PARTITION,
                f"this station is in no {'such ' if wanted else ''}community yet",
                mend="whoever runs it can found one with accord community create",
            )
        async with self._client(found[0]) as client:
            yield client

    async def _find_model(self) -> LanguageModel:
        async with self._community() as bus:
            return await offered_model(bus, self.settings.concierge.model)

    def _client(self, community: str) -> Client:
        return Client(
            self.address,
            self.key,
            community,
            self.key.id,
            seconds=_ANSWER_SECONDS,
            routed=True,
            clock=self.clock,
        )

    @property
    def _folder(self) -> Path:
        return self.settings.home / CONCIERGE


def _fronted(connector: Connector | None) -> tuple[tuple[str, str], ...]:
    """The bots through which it speaks, those of the web chat first."""
    statuses = [] if connector is None else connector.delivery.statuses
    found = ((each.platform, each.bot_id) for each in statuses)
    return tuple(sorted(found, key=lambda pair: pair[0] != WEBCHAT))
