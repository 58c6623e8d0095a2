"""Every platform with a service behind it, and a connector process that serves some of them.

An edge is one bot with one person who writes to it. The process is `accord relay serve`, configured
by its settings file as an operator does it; the agent is one gateway, whatever platforms there are.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.webhooks.program import ProgramService
from tests.fakes.webhooks.service import HookService
from tests.fakes.webhooks.twilio import TwilioService
from tests.fakes.webhooks.wecom import WecomService
from tests.relay.platforms.matrix_people import Town
from tests.relay.platforms.telegram_service import ANN, TelegramService

from accord.kernel.clock import SystemClock
from accord.kernel.section import Section
from accord.relay.gateway import GatewayLimits, GatewaySettings, GatewayState, RelayGateway, Turn
from accord.relay.platforms.settings import DiscordSettings, TelegramSettings
from accord.station import load
from accord.station.relay import operate_relay
from accord.testing.processes import Child, python_child
from accord.testing.servers import Server, reserved_port

QUICK = GatewayLimits(first_delay=0.1, longest_delay=0.5)
SECONDS = 60.0
TURN_SECONDS = 0.05
TURNS = int(SECONDS / TURN_SECONDS)


@dataclass(frozen=True, slots=True)
class Edge:
    """One bot, and one person who writes to it.

    Attributes:
        name: The platform.
        settings: The bot's table.
        bot_id: Who the bot is.
        user_id: Who writes.
        route: Whose the chat is told by this; None for a direct chat.
        write: Lets the person write; returns when the service will never forget it, or, where it
            calls, was told that it was taken.
        said: What the bot said, in order.
        service: What plays the service, to let it fail.
    """

    name: str
    settings: Section
    bot_id: str
    user_id: str
    route: str | None
    write: Callable[[str], Awaitable[object]]
    said: Callable[[], Sequence[str] | Awaitable[Sequence[str]]]
    service: Any

    async def until_said(self, text: str) -> None:
        """Wait until the bot has said something."""
        texts: Sequence[str] = ()
        for _ in range(TURNS):
            said = self.said()
            texts = await said if isinstance(said, Awaitable) else said
            if text in texts:
                return
            await asyncio.sleep(TURN_SECONDS)
        raise AssertionError(f"the bot on {self.name} never said {text!r}, but {texts}")


Opening = Callable[[AsyncExitStack, str, Server], Awaitable[Edge]]


async def telegram(stack: AsyncExitStack, _public: str, _synapse: Server) -> Edge:
    """A private chat on Telegram, polled."""
    service = TelegramService()
    url = await stack.enter_async_context(service.serving())
    settings = TelegramSettings(token=SecretStr(service.token), api_url=url, poll_seconds=2)

    async def write(text: str) -> None:
        service.write(text)

    user, bot = str(ANN["id"]), service.token.partition(":")[0]
    return Edge("telegram", settings, bot, user, None, write, lambda: service.texts, service)


async def discord(stack: AsyncExitStack, _public: str, _synapse: Server) -> Edge:
    """A channel of a guild on Discord."""
    fake = FakeDiscord(token="t")
    url = await stack.enter_async_context(fake.serving())
    guild, ada = fake.guild("Harbour"), fake.user("ada")
    guild.join(ada)
    general = guild.channel("general")
    bot = str(fake.bot.id)
    settings = DiscordSettings(
        application_id=bot, token=SecretStr("t"), api_url=f"{url}/api/v10", message_content=True
    )

    async def write(text: str) -> None:
        ada.write(general, text)

    return Edge(
        "discord",
        settings,
        bot,
        str(ada.id),
        str(guild.id),
        write,
        lambda: fake.said(general),
        fake,
    )


async def matrix(stack: AsyncExitStack, _public: str, synapse: Server) -> Edge:
    """A room on a real homeserver."""
    town = await stack.enter_async_context(Town.open(synapse))
    ann = await town.person("ann")
    settings, bot = await town.bot()
    room = await ann.room(name="kitchen", invite=[bot.id])
    await bot.join(room)

    async def said() -> list[str]:
        return [each["content"]["body"] for each in await ann.messages(room, bot.id)]

    return Edge(
        "matrix", settings, bot.id, ann.id, room, lambda text: ann.say(room, text), said, town
    )


def _hooked(kind: type[HookService], name: str, user: str, route: str | None) -> Opening:
    async def opened(stack: AsyncExitStack, public: str, _synapse: Server) -> Edge:
        service: Any = await stack.enter_async_context(kind.served())
        service.public_url = public
        settings = service.settings
        match name:
            case "sms":
                bot = settings.phone_number
            case "wecom":
                bot = f"{settings.corp_id}:{settings.agent_id}"
            case _:
                bot = settings.name
        return Edge(
            name,
            settings,
            bot,
            service.user_id(user),
            route,
            lambda text: service.write(user, text, until_taken=True),
            lambda: [each.text for each in service.said],
            service,
        )

    return opened


sms = _hooked(TwilioService, "sms", "+15005550009", None)
wecom = _hooked(WecomService, "wecom", "zhang", None)
webhook = _hooked(ProgramService, "webhook", "ann", "desk")
EVERY: dict[str, Opening] = {
    "telegram": telegram,
    "discord": discord,
    "matrix": matrix,
    "sms": sms,
    "wecom": wecom,
    "webhook": webhook,
}


class Serving:
    """A connector process that can be killed and started again at the same place."""

    def __init__(self, home: Path, port: int, stack: AsyncExitStack) -> None:
        self.home = home
        self.address = f"http://127.0.0.1:{port}"
        self._port = port
        self._stack = stack
        self._child: Child | None = None

    async def start(self) -> None:
        """Start it, and wait until it says that it serves."""
        words = ("-m", "accord.cli", "relay", "serve", "--json", "--port", str(self._port))
        child = self._stack.enter_context(python_child(*words, env={"ACCORD_HOME": str(self.home)}))
        self._child = child
        assert json.loads(await asyncio.to_thread(child.read_line))["address"] == self.address

    async def kill(self) -> None:
        """Kill it, as nothing can be prepared for."""
        assert self._child is not None
        await asyncio.to_thread(self._child.kill)

    async def parts(self) -> dict[str, tuple[str, str]]:
        """How each bot stands: its state and why."""
        async with httpx.AsyncClient(trust_env=False) as client:
            planes = (await client.get(f"{self.address}/readyz")).json()["planes"]
        return {
            part["name"].partition(" ")[0]: (part["state"], part["reason"])
            for plane in planes
            for part in plane["parts"]
        }

    async def until(self, name: str, state: str) -> str:
        """Wait until a bot stands so; why it does."""
        async with asyncio.timeout(SECONDS):
            while True:
                seen, reason = (await self.parts()).get(name, ("", ""))
                if seen == state:
                    return reason
                await asyncio.sleep(0.05)


@dataclass
class Agent:
    """One agent on every platform: the same few lines whatever the platform is."""

    heard: dict[str, list[str]] = field(default_factory=dict)

    async def answer(self, turn: Turn) -> str:
        self.heard.setdefault(turn.source.platform, []).append(turn.event.text)
        return f"heard {turn.event.text}"

    async def until_heard(self, name: str, texts: Sequence[str]) -> None:
        """Wait until everything that was written on a platform was heard, each once, in order."""
        for _ in range(TURNS):
            heard = self.heard.get(name, [])
            if set(heard) >= set(texts):
                break
            await asyncio.sleep(TURN_SECONDS)
        assert self.heard.get(name) == list(texts), self.heard


@dataclass
class Stage:
    """A connector process with its edges, and the agent behind it."""

    edges: dict[str, Edge]
    process: Serving
    agent: Agent


@dataclass
class Connected:
    """A connector process with its edges, and the secret of the one agent that it knows."""

    edges: dict[str, Edge]
    process: Serving
    secret: str
    stack: AsyncExitStack


@asynccontextmanager
async def connected(home: Path, synapse: Server, *names: str) -> AsyncIterator[Connected]:
    """A connector process for the named platforms, without an agent yet."""
    with reserved_port() as port:
        pass
    async with AsyncExitStack() as stack:
        process = Serving(home, port, stack)
        edges = {name: await EVERY[name](stack, process.address, synapse) for name in names}
        await asyncio.to_thread(_write, home, process.address, list(edges.values()))
        await process.start()
        secret = await _introduced(home, list(edges.values()))
        yield Connected(edges, process, secret, stack)


@asynccontextmanager
async def staged(home: Path, synapse: Server, *names: str) -> AsyncIterator[Stage]:
    """Everything for the named platforms, running."""
    async with connected(home, synapse, *names) as made:
        process, edges = made.process, made.edges
        agent = Agent()
        gateway = RelayGateway(
            process.address,
            secret=made.secret,
            gateway_id="gw-one",
            agent=agent.answer,
            settings=GatewaySettings(
                identities=tuple((each.name, each.bot_id) for each in edges.values()),
                inbox="memory",
                limits=QUICK,
            ),
        )
        running = asyncio.create_task(gateway.run())
        try:
            await gateway.reached(GatewayState.RUNNING)
            for name in names:
                await process.until(name, "ready")
            yield Stage(edges, process, agent)
        finally:
            gateway.stop()
            await running


async def _introduced(home: Path, edges: Sequence[Edge]) -> str:
    """Let the operator say who is whose; the agent's secret."""
    async with operate_relay(load(home), SystemClock(), "operator") as office:
        token = await office.control.mint_token("t1", "one")
        made = await office.control.enrol(token.token, "gw-one")
        for edge in edges:
            await office.control.bind("one", edge.name, edge.user_id)
            if edge.route is not None:
                await office.control.route("t1", edge.name, edge.route)
    return str(made.secret)


def _write(home: Path, address: str, edges: Sequence[Edge]) -> None:
    home.mkdir(exist_ok=True)
    first = f'[relay]\nurl = "{address}"\nwebchat = false'
    (home / "accord.toml").write_text("\n".join([first, *map(_table, edges)]))


def _table(edge: Edge) -> str:
    lines = [f"[[relay.{edge.name}]]"]
    for name in type(edge.settings).model_fields:
        value = getattr(edge.settings, name)
        if value == type(edge.settings).model_fields[name].default:
            continue
        shown = value.get_secret_value() if isinstance(value, SecretStr) else value
        lines.append(f"{name} = {json.dumps(shown)}")
    return "\n".join(lines)
