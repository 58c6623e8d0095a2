"""The gateway: connects an agent to a connector and runs it.

It opens no port and verifies no platform's signature: the connector has done that. A suspended
gateway is healthy; a supervisor must not restart it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from uuid import uuid4

import httpx
import structlog

from accord.kernel import tokens
from accord.kernel.clock import Clock, SystemClock
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.agent import Agent, prepare_agent
from accord.relay.gateway.sessions import AgentHost
from accord.relay.gateway.settings import GatewaySettings, IdlePolicy
from accord.relay.gateway.socket import ConnectorSocket, Dial, SocketClosed, websocket_dialer
from accord.relay.rules.connection import ConnectionEnd, Redial, dial_url, http_url, is_nearby
from accord.relay.rules.frames import (
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
    write_frame,
)
from accord.relay.rules.gate import RelevancePolicy, project_policy
from accord.web import outgoing

_log = structlog.stdlib.get_logger(__name__)


def relevance_policies(
    platforms: Sequence[str], settings: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, RelevancePolicy]:
    """The policies of the platforms that have one, by platform."""
    found = {name: project_policy(name, settings, environment) for name in platforms}
    return {name: policy for name, policy in found.items() if policy is not None}


async def declare_policies(
    url: str, token: Callable[[], str], declared: Mapping[str, RelevancePolicy], seconds: float
) -> bool:
    """Post every policy; False when one was refused in a way that may pass."""
    if not declared:
        return True
    is_settled = True
    # No redirects: the token is for the connector that was named.
    async with outgoing.bounded_client(
        outgoing.SMALL, timeout=seconds, follow_redirects=False
    ) as client:
        for platform, policy in declared.items():
            try:
                answer = await client.post(
                    http_url(url, "/relay/policy"),
                    json={"platform": platform, **policy.to_dict()},
                    headers={"Authorization": f"Bearer {token()}"},
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = str(error) or type(error).__name__
                is_settled = False
            else:
                if answer.is_success:
                    if _is_kept(answer):
                        _log.warning(
                            "the connector keeps its operator's relevance policy", platform=platform
                        )
                    continue
                reason = f"answered with {answer.status_code}"
                is_settled = is_settled and not _may_pass(answer.status_code)
            _log.warning("a relevance policy was not declared", platform=platform, reason=reason)
    return is_settled


async def declare_wake_url(
    url: str, token: Callable[[], str], wake_url: str, seconds: float
) -> bool:
    """Tell the connector by which URL this gateway is woken; False to try again."""
    async with outgoing.bounded_client(
        outgoing.SMALL, timeout=seconds, follow_redirects=False
    ) as client:
        try:
            answer = await client.post(
                http_url(url, "/manage/wake-url"),
                json={"wakeUrl": wake_url},
                headers={"Authorization": f"Bearer {token()}"},
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            _log.warning("the wake URL was not declared", reason=type(error).__name__)
            return False
    if answer.is_success:
        if _is_kept(answer):
            _log.warning("the connector keeps its operator's wake URL")
        return True
    _log.warning("the wake URL was not declared", reason=f"answered with {answer.status_code}")
    return not _may_pass(answer.status_code)


def _is_kept(answer: httpx.Response) -> bool:
    """Whether the connector keeps what its operator said; older connectors do not tell."""
    try:
        told = answer.json()
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("setBy") == "operator"


def _may_pass(status: int) -> bool:
    """Whether a refusal is worth another try; a missing route is not."""
    return status >= 500 or status in (401, 403, 408, 425, 429)


class GatewayState(Enum):
    """The state of a gateway."""

    CONNECTING = "connecting"
    """It dials, or waits to dial again."""
    RUNNING = "running"
    """It has shaken hands and serves."""
    DRAINING = "draining"
    """It has asked the connector to buffer, and finishes what it has begun."""
    SUSPENDED = "suspended"
    """It sleeps until it is woken."""
    DISABLED = "disabled"
    """Its access was revoked, and it dials no more."""
    STOPPED = "stopped"
    """It was told to end."""

    @property
    def is_final(self) -> bool:
        """Whether no state follows."""
        return not _NEXT[self]

    @property
    def is_healthy(self) -> bool:
        """Whether it serves, or is suspended on purpose."""
        return self in (GatewayState.RUNNING, GatewayState.DRAINING, GatewayState.SUSPENDED)


_NEXT: Final[dict[GatewayState, frozenset[GatewayState]]] = {
    GatewayState.CONNECTING: frozenset(
        {GatewayState.RUNNING, GatewayState.DISABLED, GatewayState.STOPPED}
    ),
    GatewayState.RUNNING: frozenset(
        {GatewayState.CONNECTING, GatewayState.DRAINING, GatewayState.STOPPED}
    ),
    GatewayState.DRAINING: frozenset(
        {
            GatewayState.RUNNING,
            GatewayState.CONNECTING,
            GatewayState.SUSPENDED,
            GatewayState.STOPPED,
        },
    ),
    GatewayState.SUSPENDED: frozenset({GatewayState.CONNECTING, GatewayState.STOPPED}),
    GatewayState.DISABLED: frozenset(),
    GatewayState.STOPPED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class GatewayHealth:
    """A state, and the reason for it."""

    state: GatewayState
    reason: str = ""


class Lifecycle:
    """The state of one gateway; `on_change` is called after each legal transition."""

    def __init__(self, on_change: Callable[[GatewayHealth], None] | None = None) -> None:
        self._health = GatewayHealth(GatewayState.CONNECTING)
        self._on_change = on_change
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def health(self) -> GatewayHealth:
        """The state and its reason."""
        return self._health

    @property
    def state(self) -> GatewayState:
        """The state."""
        return self._health.state

    async def reached(self, *states: GatewayState) -> None:
        """Wait until the gateway is in one of these states."""
        while self.state not in states:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(change)
            await change

    def move(self, state: GatewayState, reason: str = "") -> None:
        """Change the state; raises RelayError if the transition is not legal."""
        if state not in _NEXT[self.state]:
            raise RelayError(
                Code.CONFLICT, f"a gateway that is {self.state.value} cannot become {state.value}"
            )
        self._health = GatewayHealth(state, reason)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        if self._on_change is not None:
            self._on_change(self._health)


class RelayGateway:
    """Connects one agent to a connector.

    Args:
        url: The connector, such as `https://connector.example`.
        agent: An async function or class; see `accord.relay.gateway.agent`.
        secret: Its secret, or a function that returns it: a rotated one is used from the next dial.
        suspend: Suspends the machine and returns when it is awake again. Without it a suspended
            gateway dials again: after a second under the idle policy, after a minute or when
            `wake` is called after `go_idle`. Something else may have frozen the machine meanwhile.
        on_health: Called after every change of state.
        chance: From 0 to 1; spreads the dials of gateways that lost their connection together.

    Attributes:
        counts: Event counters, for metrics and tests.

    Raises:
        RelayError: The id, the secret, the agent or every platform is missing.
        CanonicalError: The manifest of commands cannot be written as JSON.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | Callable[[], str],
        gateway_id: str,
        agent: Agent | type[Any],
        settings: GatewaySettings | None = None,
        suspend: Callable[[], Awaitable[None]] | None = None,
        on_health: Callable[[GatewayHealth], None] | None = None,
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
                Code.BAD_REQUEST, "a gateway needs at least one platform", where="identities"
            )
        self._url = url
        self._secret = secret if callable(secret) else lambda: secret
        self._gateway_id = gateway_id
        self._settings = settings or GatewaySettings()
        self._limits = self._settings.limits
        self._hellos = _hellos(self._settings)
        self._suspend = suspend
        self._clock = clock or SystemClock()
        self._chance = chance
        self._dial = dial or websocket_dialer(self._limits)
        self._life = Lifecycle(on_health)
        self.counts: Counter[str] = Counter()
        self._host = AgentHost(
            prepare_agent(agent),
            self._settings,
            new_id,
            self.stay_awake,
            self.counts,
            self._clock,
            chance,
        )
        self._link: ConnectorSocket | None = None
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._has_run = False
        self._is_asleep = False
        self._hold = self._limits.held
        self._active_at = 0.0
        self._redial = Redial(
            first=self._limits.first_delay,
            longest=self._limits.longest_delay,
            near=self._limits.near_delay if is_nearby(url) else self._limits.longest_delay,
        )

    @property
    def health(self) -> GatewayHealth:
        """The state and its reason."""
        return self._life.health

    async def reached(self, *states: GatewayState) -> None:
        """Wait until the gateway is in one of these states."""
        await self._life.reached(*states)

    async def run(self) -> GatewayState:
        """Serve until stopped or disabled; the final state.

        Raises:
            RelayError: The inbox is in use, or the gateway has run before.
            StoreError: The inbox cannot be opened.
        """
        if self._has_run:
            raise RelayError(Code.CONFLICT, "a gateway runs once", mend="make a new one")
        self._has_run = True
        async with self._settings.open_inbox(self._gateway_id, self._clock) as inbox:
            await self._host.open(inbox)
            try:
                async with asyncio.TaskGroup() as group:
                    works = [self._host.intake.run(), self._declare()]
                    if self._settings.idle is not None:
                        works.append(self._sleep_when_idle(self._settings.idle))
                    beside = [group.create_task(work) for work in works]
                    await self._live_until_stopped()
                    for task in beside:
                        task.cancel()
            finally:
                await self._host.sessions.close()
                await self._host.requests.close()
        return self._life.state

    def stop(self) -> None:
        """Stop: have the connector buffer, finish the running turns, close."""
        self._stopping.set()

    def wake(self) -> None:
        """Dial again after `go_idle`."""
        self._woken.set()

    async def go_idle(self) -> bool:
        """Suspend; False if that is not possible now.

        The socket is closed after the connector has confirmed that it buffers; if it does not
        within 10 seconds, the gateway stays connected. With a suspend hook it also stays connected
        if the connector says that it has no wake URL for it.
        """
        link = self._link
        if link is None or self._life.state is not GatewayState.RUNNING or not self._host.is_quiet:
            return False
        return await self._go_idle(link, self._limits.held, may_freeze=self._suspend is not None)

    async def _go_idle(
        self,
        link: ConnectorSocket,
        hold: float,
        *,
        may_freeze: bool = True,
        has_wake_url: bool = True,
    ) -> bool:
        """Drain and close.

        A gateway without a suspend hook dials again after `hold` seconds. Where the machine may
        freeze meanwhile, a wake URL must be registered; `has_wake_url` counts where the connector
        does not say whether it is.
        """
        if not await self._drain(link):
            return False
        told = link.has_wake_url
        if may_freeze and not (has_wake_url if told is None else told):
            # Nobody would wake it. Only a new handshake ends the buffering.
            _log.warning("the gateway stays awake", reason="no wake URL is registered")
            self.counts["suspends without a wake URL"] += 1
            await link.close()
            return False
        self._is_asleep = True
        self._hold = hold
        self._woken.clear()
        await link.close()
        return True

    def idle_for(self) -> float:
        """Seconds since the last activity; 0 while busy or not connected."""
        if self._life.state is not GatewayState.RUNNING or not self._host.is_quiet:
            return 0.0
        return self._clock.monotonic() - self._active_at

    def stay_awake(self) -> None:
        """Restart the idle time."""
        self._active_at = self._clock.monotonic()

    async def send(self, chat_id: str, content: str, *, reply_to: str | None = None) -> Result:
        """Send a message outside a turn, unchanged."""
        return await self._host.send(chat_id, content, reply_to)

    async def outcome(self, request_id: str) -> Result | None:
        """Wait for the end of a queued action, by the `request_id` of its result.

        None if there is none of this id, as without a stored inbox, or after eight days.
        """
        return await self._host.requests.outcome(request_id)

    @property
    def outbox_waiting(self) -> int:
        """How many stored actions have not ended."""
        return self._host.requests.waiting

    @property
    def outbox_oldest_seconds(self) -> float:
        """How long the oldest of them has waited."""
        return self._host.requests.oldest_seconds

    async def interrupt(self, session_key: str, reason: str | None = None) -> bool:
        """Ask to stop a session's turn, wherever it runs; False if not connected."""
        if self._link is None:
            return False
        try:
            await self._link.send([Interrupt(session_key, reason)])
        except SocketClosed:
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
            if self._link is not None and self._life.state is GatewayState.RUNNING:
                await self._drain(self._link, within=self._limits.drain)
        finally:
            for task in (living, stopping):
                task.cancel()
            await asyncio.wait({living, stopping})
        self._life.move(GatewayState.STOPPED)

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
                self._life.move(GatewayState.DISABLED, reason)
                return
            _log.warning("not connected", reason=end.reason, code=end.code, again_in=delay)
            await asyncio.sleep(delay)

    async def _connect(self) -> ConnectionEnd:
        """Dial once and serve until the connection ends."""
        handshaken = False
        try:
            async with self._dial(dial_url(self._url), self._token()) as socket:
                link = ConnectorSocket(socket, self._limits, self.counts)
                descriptors = await link.handshake(self._hellos)
                handshaken = True
                self._connected(link, descriptors)
                await self._host.requests.connected(link)
                while True:
                    await self._handle(link, await link.next())
        except SocketClosed as closed:
            return ConnectionEnd(closed.code, closed.reason[:200], handshaken)
        except RelayError as error:
            return ConnectionEnd(0, str(error), handshaken)
        finally:
            self._disconnected()

    def _connected(self, link: ConnectorSocket, descriptors: tuple[Descriptor, ...]) -> None:
        self._link = link
        self.stay_awake()
        self._life.move(GatewayState.RUNNING)
        self.counts["handshakes"] += 1
        self._host.resume(descriptors)

    def _disconnected(self) -> None:
        if self._link is not None:
            self._link.lost.set()
            self._link = None
        self._host.requests.disconnected()
        is_leaving = self._is_asleep or self._stopping.is_set()
        if self._life.state in (GatewayState.RUNNING, GatewayState.DRAINING) and not is_leaving:
            self._life.move(GatewayState.CONNECTING, "the connection was lost")

    async def _handle(self, link: ConnectorSocket, frame: Frame) -> None:
        match frame:
            case Inbound() | Passthrough() | InterruptInbound():
                self.stay_awake()
                await self._host.intake.put(link, frame)
            case OutboundResult():
                self._host.requests.answered(frame)
            case GoingIdleAck(has_wake_url):
                link.has_wake_url = has_wake_url
                link.idle_acked.set()
                if self._life.state is GatewayState.RUNNING:
                    # Too late: the gateway stays up, and only a new handshake ends the buffering.
                    await link.close()
            case Described():
                self.counts["descriptors nobody asked for"] += 1
            case _:
                self.counts["unknown frames"] += 1

    async def _drain(self, link: ConnectorSocket, within: float | None = None) -> bool:
        """Have the connector buffer, then finish; True when all is done and confirmed."""
        self._life.move(GatewayState.DRAINING)
        if not await link.unless_lost(self._ask_to_buffer(link), self._limits.idle_ack):
            if link is self._link:
                self._life.move(
                    GatewayState.RUNNING, "the connector did not confirm that it buffers"
                )
                self.counts["unconfirmed drains"] += 1
            return False
        return await link.unless_lost(self._settle(), within)

    async def _ask_to_buffer(self, link: ConnectorSocket) -> None:
        with suppress(SocketClosed):  # then it is lost, too
            await link.send([GoingIdle()])
        await link.idle_acked.wait()

    async def _settle(self) -> None:
        while not self._host.is_quiet:
            await self._host.sessions.quiet()
            await asyncio.sleep(0.01)

    async def _sleep(self) -> None:
        self._life.move(GatewayState.SUSPENDED)
        try:
            if self._suspend is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), self._hold)
            else:
                await self._suspend()
        except Exception as error:  # noqa: BLE001 - a machine that cannot sleep must serve
            _log.error("the machine could not be suspended", exc_info=error)
        self._is_asleep = False
        self._life.move(GatewayState.CONNECTING, "woken")

    async def _sleep_when_idle(self, policy: IdlePolicy) -> None:
        """Suspend whenever the idle time is over, until cancelled."""
        logged: str | None = None
        while True:
            left = policy.after - self.idle_for()
            if left > 0:
                await asyncio.sleep(max(left, 1.0))
                continue
            reason = await _obstacle(policy)
            if reason is not None and reason != logged:
                _log.warning("the gateway stays awake", reason=reason)
            logged = reason
            link = self._link
            if reason is not None or link is None or self.idle_for() < policy.after:
                self.stay_awake()
                continue
            # Something else may freeze the machine while the socket is closed; if nothing does,
            # the gateway dials again at once, and is never deaf.
            is_known = policy.wake_url is not None
            if not await self._go_idle(link, self._limits.first_delay, has_wake_url=is_known):
                self.stay_awake()

    async def _declare(self) -> None:
        """Declare the relevance policies and the wake URL, again while that fails."""
        settings = self._settings
        names = [platform for platform, _ in settings.identities]
        wanted = relevance_policies(names, settings.relevance, settings.environment)
        attempt = 0
        while not await declare_policies(self._url, self._token, wanted, self._limits.request):
            await asyncio.sleep(self._redial.pause(attempt, self._chance()))
            attempt += 1
        if settings.wake_url is not None:
            while not await declare_wake_url(
                self._url, self._token, settings.wake_url, self._limits.request
            ):
                await asyncio.sleep(self._redial.pause(attempt, self._chance()))
                attempt += 1

    def _token(self) -> str:
        return tokens.make(self._gateway_id, self._secret(), self._clock.now())


async def _obstacle(policy: IdlePolicy) -> str | None:
    """Why the machine must not be suspended now, or None; what cannot be known is a reason."""
    try:
        reason = await policy.obstacle(policy.wake_url)
        others = await policy.other_connections() if reason is None else ()
    except Exception as error:  # noqa: BLE001 - whatever fails there, the gateway goes on
        return f"whether it may sleep is not known ({type(error).__name__})"
    if others:
        return f"there are connections outside the relay: {', '.join(sorted(others))}"
    return reason


def _hellos(settings: GatewaySettings) -> tuple[Hello, ...]:
    hellos = tuple(
        Hello(platform, bot_id, settings.session_rules, settings.command_manifest, interrupts=True)
        for platform, bot_id in settings.identities
    )
    for hello in hellos:
        write_frame(hello)
    return hellos
