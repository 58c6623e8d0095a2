"""A person in a browser and an agent behind a gateway, with the whole connector in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.relay.webchat.conftest import Browser, Live, serving

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
)
from accord.relay.gateway import GatewayLimits, GatewaySettings, GatewayState, RelayGateway, Turn
from accord.relay.platforms import webchat
from accord.storage import open_store

CLOCK = SystemClock()


@dataclass
class Whole:
    """A connector with the web chat, and an instance `echo` enrolled as the gateway `gw`."""

    url: str
    chat: webchat.WebChat
    control: Control
    delivery: Delivery
    secret: str
    space: webchat.Space
    general: webchat.Channel

    @property
    def bot_id(self) -> str:
        return self.chat.platforms[0].bot_id

    async def browser(self, name: str) -> Browser:
        made = Browser(self.url)
        invite = (await self.chat.admin.invite(self.space.id)).url.partition("#invite=")[2]
        made.me = (await made.ask("POST", "join", {"invite": invite, "name": name}))["me"]
        return made


@asynccontextmanager
async def connector(where: str, key: Path) -> AsyncIterator[Whole]:
    async with webchat.open_webchat(where, CLOCK) as chat, open_store(where, RELAY) as store:
        space = await chat.admin.create_space("home")
        general = await chat.admin.create_channel(space.id, "general")
        directory = Directory(
            store,
            Keyring.load(key),
            CLOCK,
            ControlSettings(),
            platforms={each.name: each for each in chat.platforms},
        )
        control = Control(directory, CLOCK)
        delivery = Delivery(store, directory, chat.platforms, LocalBus(), CLOCK, name="one")
        credentials = await control.enrol((await control.mint_token("t1", "echo")).token, "gw")
        await control.route("t1", "webchat", space.id)
        routes = [*delivery.routes, *ControlRoutes(control, CLOCK).routes]
        async with delivery.running(), serving(routes) as url:
            yield Whole(url, chat, control, delivery, credentials.secret, space, general)
        await directory.close()


@asynccontextmanager
async def echo_agent(whole: Whole) -> AsyncIterator[None]:
    """An agent that says what it heard, word by word."""

    async def echo(turn: Turn) -> AsyncIterator[str]:
        yield "you said:"
        for word in turn.event.text.split():
            await asyncio.sleep(0.1)  # so that some words are shown before the last
            yield f" {word}"

    gateway = RelayGateway(
        whole.url,
        secret=whole.secret,
        gateway_id="gw",
        agent=echo,
        settings=GatewaySettings(
            identities=(("webchat", whole.bot_id),), inbox="memory", limits=GatewayLimits(edit=0.05)
        ),
    )
    running = asyncio.create_task(gateway.run())
    try:
        await gateway.reached(GatewayState.RUNNING)
        yield
    finally:
        gateway.stop()
        await running


async def answer(live: Live, chat_id: str, end: str) -> list[str]:
    """Every text of the bot in a chat, until one ends like this."""
    shown: list[str] = []
    while not shown or not shown[-1].endswith(end):
        heard = await live.next("message")
        if heard["author"]["bot"] and heard["chat"] == chat_id:
            shown.append(heard["text"])
    return shown


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_browser_user_links_an_account_and_gets_a_streamed_answer(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = str(tmp_path) if engine == "sqlite" else str(request.getfixturevalue("postgres_url"))
    async with (
        asyncio.timeout(40),
        connector(where, tmp_path / "relay.key") as whole,
        echo_agent(whole),
    ):
        general = whole.general.id
        ann = await whole.browser("ann")
        async with aclosing(ann.http), ann.live() as live:
            await ann.say(general, "nobody listens yet")
            code = (await whole.control.link(await whole.control.principal("echo"))).code
            direct = (await ann.ask("POST", f"bots/{whole.bot_id}/chat"))["chat"]
            await ann.say(direct, f"/link {code}")
            await answer(live, direct, "or no to cancel.")
            await ann.say(direct, "yes")
            await answer(live, direct, "to undo it.")

            await ann.say(general, "@accord one two three")
            shown = await answer(live, general, "three")
            assert shown[-1] == "you said: @accord one two three"
            assert len(shown) > 1
            assert all(shown[-1].startswith(each) for each in shown)
            page = await ann.ask("GET", f"chats/{general}/messages")
            unheard, asked, said = page["messages"]
            assert unheard["text"] == "nobody listens yet"
            assert said["edited_at"] is not None
            assert said["reply_to"] == asked["id"]

            thread = (await ann.ask("POST", f"messages/{asked['id']}/thread"))["chat"]
            await ann.say(thread, "below")
            assert (await answer(live, thread, "below"))[-1] == "you said: below"
            await ann.say(direct, "just us")
            assert (await answer(live, direct, "us"))[-1] == "you said: just us"


async def test_a_bot_that_another_process_makes_is_fronted_without_a_restart(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(40), connector(str(tmp_path), tmp_path / "relay.key") as whole:
        await whole.chat.follow(whole.delivery.add)
        ann = await whole.browser("ann")
        await whole.control.bind("echo", "webchat", ann.id)
        async with aclosing(ann.http), ann.live() as live:
            async with webchat.open_admin(tmp_path, CLOCK) as elsewhere:
                beta = await elsewhere.make_bot("beta")
                assert await elsewhere.make_bot("Beta") == beta
            await live.next("access")
            assert [each["name"] for each in (await ann.ask("GET", "me"))["bots"]] == [
                "accord",
                "beta",
            ]
            direct = (await ann.ask("POST", f"bots/{beta.id}/chat"))["chat"]
            for chat_id in (direct, whole.general.id):
                said = await ann.say(chat_id, "@beta are you there?")
                explained = await whole.delivery.why(f"{chat_id}/{said['id']}")
                assert explained is not None
                assert explained.recorded.event.bot_id == beta.id
                assert explained.recorded.decision.deliveries == ("echo",)
            while not any(each.fence for each in whole.delivery.leases[1:]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(whole.delivery.leases) == 2
