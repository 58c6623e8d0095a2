"""An agent's side of the relay: dials the connector, stays connected, and runs the agent.

Owns the life of a gateway: when it dials, serves, drains, sleeps and ends. It opens no port, holds
no secret but its own, and verifies no platform's signature: the connector has done that.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import structlog

from accord.kernel import tokens
from accord.kernel.clock import Clock, SystemClock
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.agents import Agent, prepare
from accord.relay.gateway.idle import watch
from accord.relay.gateway.link import Link
from accord.relay.gateway.policy import declare, policies
from accord.relay.gateway.redial import Ended, Redial, is_near
from accord.relay.gateway.serving import Serving
from accord.relay.gateway.settings import GatewaySettings
from accord.relay.gateway.sockets import Closed, Dial, web_socket
from accord.relay.gateway.state import Health, Life, State
from accord.relay.wire import (
    Described,
    Descriptor,
    Frame,
    GoingIdle,
    GoingIdleAck,
    Hello,
    Inbound,
    Interrupt,
    InterruptInbound,
    OutboundResult,
    Passthrough,
    Result,
    dial_url,
    write_frame,
)

_log = structlog.stdlib.get_logger(__name__)


class RelayGateway:
    """Connects one agent to a connector.

    Args:
        url: The connector, such as `https://connector.example`.
        secret: This gateway's secret, from its enrolment.
        gateway_id: This gateway's id.
        agent: Who answers: an async function or class; see `accord.relay.gateway.agents`.
        settings: Everything else that can be chosen.
        suspend: Puts the machine to sleep and returns when it is awake again. Without it a
            sleeping gateway waits for `wake`.
        on_health: Told of every change of state.
        clock: Where the time comes from.
        chance: From 0 to 1; spreads the dials of gateways that fell together.
        new_id: Makes request ids.
        dial: Opens sockets.

    Attributes:
        counts: What happened how often, for metrics and tests.

    Raises:
        RelayError: The id, the secret, the agent or every platform is missing.
        CanonicalError: The manifest of commands cannot be written as JSON.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str,
        gateway_id: str,
        agent: Agent | type[Any],
        settings: GatewaySettings | None = None,
        suspend: Callable[[], Awaitable[None]] | None = None,
        on_health: Callable[[Health], None] | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        dial: Dial | None = None,
    ) -> None:
        if not secret or not gateway_id:
            raise RelayError(
                Code.BAD_REQUEST, "a gateway needs its id and its secret", mend="enrol it first"
            )
        if settings is not None and not settings.identities:
            raise RelayError(
                Code.BAD_REQUEST, "a gateway fronts at least one platform", where="identities"
            )
        self._url = url
        self._secret = secret
        self._gateway_id = gateway_id
        self._settings = settings or GatewaySettings()
        self._limits = self._settings.limits
        self._hellos = _hellos(self._settings)
        self._suspend = suspend
        self._clock = clock or SystemClock()
        self._chance = chance
        self._dial = dial or web_socket(self._limits)
        self._life = Life(on_health)
        self.counts: Counter[str] = Counter()
        self._serving = Serving(
            prepare(agent), self._settings, new_id, self.stay_awake, self.counts
        )
        self._link: Link | None = None
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._has_run = False
        self._is_asleep = False
        self._active_at = 0.0
        self._redial = Redial(self._limits, near=is_near(url))

    @property
    def health(self) -> Health:
        """How the gateway is doing, and why."""
        return self._life.health

    async def reached(self, *states: State) -> None:
        """Wait until the gateway is in one of some states."""
        await self._life.reached(*states)

    async def run(self) -> State:
        """Serve until stopped or disabled, and tell which.

        Raises:
            RelayError: The inbox is in use, or the gateway has run before.
            StoreError: The inbox cannot be opened.
        """
        if self._has_run:
            raise RelayError(Code.CONFLICT, "a gateway runs once", mend="make a new one")
        self._has_run = True
        async with self._settings.open_inbox(self._gateway_id, self._clock) as inbox:
            await self._serving.open(inbox)
            try:
                async with asyncio.TaskGroup() as group:
                    works = [self._serving.intake.run(), self._declare()]
                    if self._settings.idle is not None:
                        works.append(watch(self._settings.idle, self))
                    beside = [group.create_task(work) for work in works]
                    await self._live_until_stopped()
                    for task in beside:
                        task.cancel()
            finally:
                await self._serving.sessions.close()
        return self._life.state

    def stop(self) -> None:
        """End: have everything buffered, finish the turns under way, close."""
        self._stopping.set()

    def wake(self) -> None:
        """Dial again after `go_idle`."""
        self._woken.set()

    async def go_idle(self) -> bool:
        """Sleep; False when it cannot be done now.

        The connector confirms that it buffers before the socket is closed. Without its word within
        10 seconds the gateway stays up.
        """
        link = self._link
        if link is None or self._life.state is not State.RUNNING or not self._serving.is_quiet:
            return False
        if not await self._drain(link):
            return False
        self._is_asleep = True
        self._woken.clear()
        await link.close()
        return True

    def idle_for(self) -> float:
        """How many seconds nothing has been under way; 0 while something is, or not connected."""
        if self._life.state is not State.RUNNING or not self._serving.is_quiet:
            return 0.0
        return self._clock.monotonic() - self._active_at

    def stay_awake(self) -> None:
        """Let the time without a message begin anew."""
        self._active_at = self._clock.monotonic()

    async def send(self, chat_id: str, content: str, *, reply_to: str | None = None) -> Result:
        """Say something outside a turn, exactly as it is."""
        return await self._serving.send(chat_id, content, reply_to)

    async def interrupt(self, session_key: str, reason: str | None = None) -> bool:
        """Ask for the turn of a session to be stopped, wherever it runs; False if not connected."""
        if self._link is None:
            return False
        try:
            await self._link.send([Interrupt(session_key, reason)])
        except Closed:
            return False
        return True

    async def _live_until_stopped(self) -> None:
        living = asyncio.create_task(self._live())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                living.result()
                return
            if self._link is not None and self._life.state is State.RUNNING:
                await self._drain(self._link, within=self._limits.drain)
        finally:
            for task in (living, stopping):
                task.cancel()
            await asyncio.wait({living, stopping})
        self._life.move(State.STOPPED)

    async def _live(self) -> None:
        """Dial again and again, until the access is revoked."""
        while True:
            end = await self._connect()
            if self._is_asleep:
                await self._sleep()
                continue
            delay = self._redial.after(end, now=self._clock.monotonic(), chance=self._chance())
            if delay is None:
                reason = f"the connector closed with {end.code} {end.reason}"
                _log.error("the access of this gateway was revoked", reason=reason)
                self._life.move(State.DISABLED, reason)
                return
            _log.warning("not connected", reason=end.reason, code=end.code, again_in=delay)
            await asyncio.sleep(delay)

    async def _connect(self) -> Ended:
        """Dial once and serve until the connection ends."""
        handshaken = False
        try:
            async with self._dial(dial_url(self._url), self._token()) as socket:
                link = Link(socket, self._limits, self.counts)
                descriptors = await link.handshake(self._hellos)
                handshaken = True
                self._connected(link, descriptors)
                await self._serving.requests.connected(link)
                while True:
                    await self._handle(link, await link.next())
        except Closed as closed:
            return Ended(closed.code, closed.reason[:200], handshaken)
        except RelayError as error:
            return Ended(0, str(error), handshaken)
        finally:
            self._disconnected()

    def _connected(self, link: Link, descriptors: tuple[Descriptor, ...]) -> None:
        self._link = link
        self.stay_awake()
        self._life.move(State.RUNNING)
        self.counts["handshakes"] += 1
        self._serving.resume(descriptors)

    def _disconnected(self) -> None:
        if self._link is not None:
            self._link.lost.set()
            self._link = None
        self._serving.requests.disconnected()
        is_leaving = self._is_asleep or self._stopping.is_set()
        if self._life.state in (State.RUNNING, State.DRAINING) and not is_leaving:
            self._life.move(State.CONNECTING, "the connection was lost")

    async def _handle(self, link: Link, frame: Frame) -> None:
        match frame:
            case Inbound() | Passthrough() | InterruptInbound():
                self.stay_awake()
                await self._serving.intake.put(link, frame)
            case OutboundResult():
                self._serving.requests.answered(frame)
            case GoingIdleAck():
                link.idle_acked.set()
                if self._life.state is State.RUNNING:
                    # Too late: we stay up, and only a new handshake ends the buffering.
                    await link.close()
            case Described():
                self.counts["descriptors nobody asked for"] += 1
            case _:
                self.counts["unknown frames"] += 1

    async def _drain(self, link: Link, within: float | None = None) -> bool:
        """Have the connector buffer, then finish; true when all is done and confirmed."""
        self._life.move(State.DRAINING)
        if not await link.unless_lost(self._ask_to_buffer(link), self._limits.idle_ack):
            if link is self._link:
                self._life.move(State.RUNNING, "the connector did not confirm that it buffers")
                self.counts["unconfirmed drains"] += 1
            return False
        return await link.unless_lost(self._settle(), within)

    async def _ask_to_buffer(self, link: Link) -> None:
        with suppress(Closed):  # then it is lost, too
            await link.send([GoingIdle()])
        await link.idle_acked.wait()

    async def _settle(self) -> None:
        while not self._serving.is_quiet:
            await self._serving.sessions.quiet()
            await asyncio.sleep(0.01)

    async def _sleep(self) -> None:
        """Be asleep until woken."""
        self._life.move(State.SUSPENDED)
        try:
            if self._suspend is None:
                await self._woken.wait()
            else:
                await self._suspend()
        except Exception as error:  # noqa: BLE001 - a machine that cannot sleep must serve
            _log.error("the machine could not be suspended", exc_info=error)
        self._is_asleep = False
        self._life.move(State.CONNECTING, "woken")

    async def _declare(self) -> None:
        """Declare the relevance policy at boot, and again while that fails."""
        settings = self._settings
        names = [platform for platform, _ in settings.identities]
        wanted = policies(names, settings.relevance, settings.environment)
        attempt = 0
        while not await declare(self._url, self._token, wanted):
            await asyncio.sleep(self._redial.pause(attempt, self._chance()))
            attempt += 1

    def _token(self) -> str:
        return tokens.make(self._gateway_id, self._secret, self._clock.now())


def _hellos(settings: GatewaySettings) -> tuple[Hello, ...]:
    hellos = tuple(
        Hello(platform, bot_id, settings.session_keys, settings.command_manifest)
        for platform, bot_id in settings.identities
    )
    for hello in hellos:
        write_frame(hello)
    return hellos
