"""Many tenants in one guild on Discord: each author reaches their own agent, or an open one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.applications import Starlette
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.relay.platforms.discord_bots import settings

from accord.kernel.clock import SystemClock
from accord.relay.connector import (
    RELAY,
    Connector,
    DeliveryLimits,
    Keyring,
    PlatformState,
    open_connector,
)
from accord.relay.errors import RelayError
from accord.relay.gateway import GatewayLimits, GatewaySettings, GatewayState, RelayGateway, Turn
from accord.relay.platforms import discord
from accord.station import listener
from accord.storage import open_store

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
AGENTS = {"Alpha": "t1", "Beta": "t2", "Desk": "t3"}


@asynccontextmanager
async def agent(
    url: str, name: str, secret: str, bot_id: str, heard: dict[str, list[str]]
) -> AsyncIterator[None]:
    """An agent that keeps what it hears, and answers with its name."""

    async def answer(turn: Turn) -> str:
        heard[name].append(turn.event.text)
        return f"{name} here"

    gateway = RelayGateway(
        url,
        secret=secret,
        gateway_id=f"gw-{name}",
        agent=answer,
        settings=GatewaySettings(
            identities=(("discord", bot_id),), inbox="memory", limits=GatewayLimits(edit=0.05)
        ),
    )
    running = asyncio.create_task(gateway.run())
    try:
        await gateway.reached(GatewayState.RUNNING)
        yield
    finally:
        gateway.stop()
        await running


@dataclass
class Town:
    """A guild that belongs to no tenant, with agents of three."""

    fake: FakeDiscord
    connector: Connector
    guild: Guild
    general: Channel
    heard: dict[str, list[str]]

    def person(self, name: str) -> User:
        made = self.fake.user(name)
        self.guild.join(made)
        return made

    async def ask(self, user: User, text: str) -> str:
        """What the bot says to a direct message."""
        direct = self.fake.dm(user)
        before = len(self.fake.said(direct))
        user.write(direct, text)
        await self.fake.until(lambda: len(self.fake.said(direct)) > before)
        return self.fake.said(direct)[before]

    async def link(self, user: User, name: str) -> None:
        control = self.connector.control
        code = (await control.link(await control.principal(name))).code
        assert name in await self.ask(user, f"/link {code}")
        assert "linked" in await self.ask(user, "yes")

    async def rules(self, event_id: str) -> list[str]:
        """The verdicts about an event, once it was taken."""
        while (found := await self.connector.delivery.why(event_id)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        decision = found.recorded.decision
        said = [*decision.verdicts, *(v for each in decision.candidates for v in each.verdicts)]
        return [verdict.rule for verdict in said]


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    fake = FakeDiscord()
    async with AsyncExitStack() as opened, asyncio.timeout(60):
        await opened.enter_async_context(fake.serving())
        platform = await opened.enter_async_context(
            discord.open_discord(settings(fake), CLOCK, chance=lambda: 0.0)
        )
        store = await opened.enter_async_context(open_store(tmp_path, RELAY))
        connector = await opened.enter_async_context(
            open_connector(
                store,
                Keyring.load(tmp_path / "relay.key"),
                CLOCK,
                name="one",
                platforms=[platform],
                limits=DeliveryLimits(open_per_minute=3, sweep_seconds=0.05),
            )
        )
        listening = opened.enter_context(listener.bind("127.0.0.1", 0))
        server = listener.Listener(Starlette(routes=list(connector.routes)))
        task = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        heard: dict[str, list[str]] = {name: [] for name in AGENTS}
        guild = fake.guild("Harbour")
        async with AsyncExitStack() as agents:
            for name, tenant in AGENTS.items():
                token = await connector.control.mint_token(tenant, name, name=name)
                made = await connector.control.enrol(token.token, f"gw-{name}")
                await agents.enter_async_context(
                    agent(listener.address(listening), name, made.secret, fake.bot.id, heard)
                )
            states = connector.delivery
            while not any(each.state is PlatformState.READY for each in states.statuses):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            yield Town(fake, connector, guild, guild.channel("general"), heard)
        server.should_exit = True
        await task


async def test_two_tenants_in_one_guild_and_each_author_reaches_only_their_own_agent(
    town: Town,
) -> None:
    fake, general, heard = town.fake, town.general, town.heard
    ada, bob, eve = town.person("ada"), town.person("bob"), town.person("eve")
    await town.link(ada, "Alpha")
    await town.link(bob, "Beta")
    ada.write(general, "from ada")
    bob.write(general, "from bob")
    stranger = eve.write(general, "from eve", mentions=[fake.bot])
    await fake.until(lambda: sorted(fake.said(general)) == ["Alpha here", "Beta here"])
    assert await town.rules(stranger.id) == ["tenant.unknown"]
    assert heard == {"Alpha": ["from ada"], "Beta": ["from bob"], "Desk": []}
    # A route gives the guild to one tenant, and sharing it to all of them.
    control = town.connector.control
    await control.route("t1", "discord", town.guild.id)
    refused = bob.write(general, "not here")
    assert (await town.rules(refused.id))[-1] == "candidates.unlinked"
    await control.share("discord", town.guild.id)
    bob.write(general, "again from bob")
    ada.write(general, "again from ada")
    await fake.until(lambda: len(fake.said(general)) == 4)
    assert heard["Beta"] == ["from bob", "again from bob"]
    assert heard["Alpha"] == ["from ada", "again from ada"]


async def test_people_look_after_their_agents_by_chat(town: Town) -> None:
    fake, general, heard = town.fake, town.general, town.heard
    ada = town.person("ada")
    assert "not linked" in await town.ask(ada, "/agents")
    assert "/default" in await town.ask(ada, "/help")
    await town.link(ada, "Alpha")
    await town.link(ada, "Beta")
    assert await town.ask(ada, "/agents") == (
        "Your account is linked to:\n1. “Alpha” (default)\n2. “Beta”"
    )
    ada.write(general, "first")
    await fake.until(lambda: fake.said(general) == ["Alpha here"])
    assert "“Beta”" in await town.ask(ada, "/default beta")
    assert "2. “Beta” (default)" in await town.ask(ada, "/agents")
    ada.write(general, "second")
    await fake.until(lambda: fake.said(general) == ["Alpha here", "Beta here"])
    assert "not linked to an agent of this name" in await town.ask(ada, "/unlink gamma")
    assert "no longer linked to “Beta”" in await town.ask(ada, "/unlink Beta")
    assert await town.ask(ada, "/agents") == ("Your account is linked to:\n1. “Alpha” (default)")
    ada.write(general, "third")
    await fake.until(lambda: fake.said(general)[2:] == ["Alpha here"])
    # None of it was routed.
    assert heard == {"Alpha": ["first", "third"], "Beta": ["second"], "Desk": []}
    # In a group these are words like any others.
    ada.write(general, "/agents")
    await fake.until(lambda: heard["Alpha"][2:] == ["/agents"])


async def test_an_agent_that_is_open_answers_strangers_there_and_nowhere_else(town: Town) -> None:
    fake, general = town.fake, town.general
    ada, eve = town.person("ada"), town.person("eve")
    lobby = town.guild.channel("lobby")
    control = town.connector.control
    await town.link(ada, "Alpha")
    await control.open("Desk", "discord", town.guild.id, lobby.id)
    with pytest.raises(RelayError, match="another agent is open"):
        await control.open("Beta", "discord", town.guild.id, lobby.id)
    quiet = eve.write(lobby, "not to the bot")
    assert (await town.rules(quiet.id))[-1] == "relevance.unaddressed"
    eve.write(lobby, "hello", mentions=[fake.bot])
    await fake.until(lambda: fake.said(lobby) == ["Desk here"])
    elsewhere = eve.write(general, "hello", mentions=[fake.bot])
    assert await town.rules(elsewhere.id) == ["tenant.unknown"]
    direct = eve.write(fake.dm(eve), "may I?")
    assert await town.rules(direct.id) == ["tenant.no-dm-default"]
    # Whoever is linked reaches their own agent, also there.
    ada.write(lobby, "mine", mentions=[fake.bot])
    await fake.until(lambda: fake.said(lobby) == ["Desk here", "Alpha here"])
    # One person may not write more than the limit says.
    for number in range(10):
        more = eve.write(lobby, f"more {number}", mentions=[fake.bot])
        if "authority.open-limited" in await town.rules(more.id):
            break
    else:
        raise AssertionError("a stranger may write without end")
    assert 0 < number < 9
    # Once it is closed, it is not heard and cannot write there any more.
    assert await control.close("discord", town.guild.id, lobby.id) == "Desk"
    closed = eve.write(lobby, "hello?", mentions=[fake.bot])
    assert await town.rules(closed.id) == ["tenant.unknown"]


async def test_direct_messages_of_strangers_reach_an_agent_that_is_open_to_them(
    town: Town,
) -> None:
    eve = town.person("eve")
    control = town.connector.control
    await control.open("Desk", "discord")
    assert await town.ask(eve, "hello") == "Desk here"
    # What is said to the bot itself is still not routed.
    assert "not linked" in await town.ask(eve, "/agents")
    assert town.heard["Desk"] == ["hello"]
