"""People on Discord and an agent behind a gateway, with the whole connector in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.applications import Starlette
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.interactions import CallbackType
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.discord.world import Permission
from tests.relay.platforms.discord_bots import settings

from accord.kernel.clock import SystemClock
from accord.relay.connector import (
    RELAY,
    Control,
    ControlRoutes,
    ControlSettings,
    Delivery,
    Directory,
    Keyring,
    LocalBus,
    PlatformState,
)
from accord.relay.errors import RelayError
from accord.relay.gateway import GatewayLimits, GatewaySettings, GatewayState, RelayGateway, Turn
from accord.relay.platforms import discord
from accord.relay.rules import PrincipalPolicy
from accord.station import listener
from accord.storage import open_store

CLOCK = SystemClock()


@dataclass
class Whole:
    """A connector with Discord, and an instance `echo` enrolled as the gateway `gw`."""

    fake: FakeDiscord
    url: str
    control: Control
    delivery: Delivery
    guild: Guild
    general: Channel
    ada: User

    async def verdicts(self, event_id: str) -> dict[str, list[str]]:
        """The rules by which an event did not reach an instance, for each that was considered."""
        while (explained := await self.delivery.why(event_id)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        candidates = explained.recorded.decision.candidates
        return {
            each.instance: [verdict.rule for verdict in each.verdicts if not verdict.passed]
            for each in candidates
        }


@asynccontextmanager
async def connector(where: Path) -> AsyncIterator[Whole]:
    fake = FakeDiscord()
    async with (
        fake.serving(),
        discord.open_discord(
            settings(fake, commands="union", commands_from=("echo",)), CLOCK, chance=lambda: 0.0
        ) as platform,
        open_store(where, RELAY) as store,
    ):
        guild, ada = fake.guild("Harbour"), fake.user("ada")
        guild.join(ada)
        general = guild.channel("general")
        directory = Directory(
            store,
            Keyring.load(where / "relay.key"),
            CLOCK,
            ControlSettings(),
            platforms={platform.name: platform},
        )
        control = Control(directory, CLOCK)
        delivery = Delivery(store, directory, [platform], LocalBus(), CLOCK, name="one")
        token = (await control.mint_token("t1", "echo")).token
        credentials = await control.enrol(token, "gw")
        await control.route("t1", "discord", guild.id)
        routes = [*delivery.routes, *platform.routes, *ControlRoutes(control, CLOCK).routes]
        with listener.bind("127.0.0.1", 0) as listening:
            server = listener.Listener(Starlette(routes=routes))
            task = asyncio.create_task(server.serve([listening]))
            await server.serving.wait()
            url = listener.address(listening)
            async with delivery.running(), agent(url, credentials.secret, fake.bot.id):
                while not any(each.state is PlatformState.READY for each in delivery.statuses):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                yield Whole(fake, url, control, delivery, guild, general, ada)
            server.should_exit = True
            await task
        await directory.close()


@asynccontextmanager
async def agent(url: str, secret: str, bot_id: str) -> AsyncIterator[None]:
    """An agent that says what it heard, in two parts."""

    async def echo(turn: Turn) -> AsyncIterator[str]:
        yield "you said: "
        yield turn.event.text

    gateway = RelayGateway(
        url,
        secret=secret,
        gateway_id="gw",
        agent=echo,
        settings=GatewaySettings(
            identities=(("discord", bot_id),),
            inbox="memory",
            limits=GatewayLimits(edit=0.05),
            command_manifest=[{"name": "ask", "description": "Ask the agent"}],
        ),
    )
    running = asyncio.create_task(gateway.run())
    try:
        await gateway.reached(GatewayState.RUNNING)
        yield
    finally:
        gateway.stop()
        await running


@pytest.fixture
async def whole(tmp_path: Path) -> AsyncIterator[Whole]:
    async with asyncio.timeout(60), connector(tmp_path) as made:
        yield made


async def test_a_user_links_an_account_and_is_answered_wherever_the_bot_is(whole: Whole) -> None:
    fake, ada, general = whole.fake, whole.ada, whole.general
    direct = fake.dm(ada)
    unlinked = ada.write(general, "nobody listens yet", mentions=[fake.bot])
    assert await whole.verdicts(unlinked.id) == {}
    code = (await whole.control.link(await whole.control.principal("echo"))).code
    ada.write(direct, f"/link {code}")
    await fake.until(lambda: len(fake.said(direct)) == 1)
    ada.write(direct, "yes")
    await fake.until(lambda: len(fake.said(direct)) == 2)

    asked = ada.write(general, "one two", mentions=[fake.bot])
    expected = f"you said: {fake.bot.mention} one two"
    await fake.until(lambda: fake.said(general) == [expected])
    [said] = fake.messages(general)
    assert said.draft.reply_to is asked
    thread = general.thread("plans", ada)
    ada.write(thread, "below")
    await fake.until(lambda: fake.said(thread) == ["you said: below"])
    ada.write(direct, "just us")
    await fake.until(lambda: fake.said(direct)[2:] == ["you said: just us"])


async def test_a_slash_command_is_shown_and_answered_by_its_own_token(whole: Whole) -> None:
    fake, ada, general = whole.fake, whole.ada, whole.general
    await whole.control.bind("echo", "discord", ada.id)
    await fake.until(lambda: bool(fake.application.commands.get("")))
    assert [each["name"] for each in fake.application.commands[""]] == ["ask"]
    endpoint = f"{whole.url}/relay/platforms/discord/{fake.bot.id}/interactions"
    for place in (general, general.thread("plans", ada)):
        answered = await fake.interact(ada, place, "ask", {"what": "time?"}, endpoint=endpoint)
        assert answered.kind is CallbackType.DEFERRED_CHANNEL_MESSAGE_WITH_SOURCE
        interaction = answered.interaction
        assert interaction is not None
        await fake.until(lambda i=interaction: i.texts == ["you said: ask time?"])  # type: ignore[misc]
        assert fake.said(place) == ["you said: ask time?"]


async def test_what_the_owner_no_longer_sees_is_dropped_with_the_reason(whole: Whole) -> None:
    fake, ada, bob, guild = whole.fake, whole.ada, whole.fake.user("bob"), whole.guild
    guild.join(bob)
    boss = guild.role("boss", Permission.MANAGE_CHANNELS)
    board = guild.channel("board")
    await whole.control.bind("echo", "discord", ada.id)
    echo = await whole.control.principal("echo")
    # Only who may manage a channel on Discord can claim it.
    with pytest.raises(RelayError):
        await whole.control.claim_scope(echo, "discord", guild.id, board.id)
    guild.change_roles(ada, [boss])
    await whole.control.claim_scope(echo, "discord", guild.id, board.id)
    await whole.control.set_principal(echo, "discord", PrincipalPolicy.ANY)
    # Nobody hears who is linked to nobody.
    await whole.control.enrol((await whole.control.mint_token("t1", "other")).token, "gw2")
    await whole.control.bind("other", "discord", bob.id)
    shown = bob.write(board, "before", mentions=[fake.bot])
    assert (await whole.verdicts(shown.id))["echo"] == []
    await fake.until(lambda: len(fake.said(board)) == 1)
    board.overwrite(ada, deny=Permission.VIEW_CHANNEL)
    hidden = bob.write(board, "behind her back", mentions=[fake.bot])
    assert (await whole.verdicts(hidden.id))["echo"] == ["visibility.hidden"]
    assert len(fake.said(board)) == 1
