"""A person on Telegram and an agent behind a gateway, with the whole connector in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.relay.platforms.telegram_service import (
    ANN,
    BOT,
    FORUM,
    GROUP,
    TelegramService,
    settings,
)
from tests.relay.webchat.conftest import serving

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
from accord.relay.gateway import GatewayLimits, GatewaySettings, GatewayState, RelayGateway, Turn
from accord.relay.platforms import telegram
from accord.relay.rules import PrincipalPolicy
from accord.storage import open_store

CLOCK = SystemClock()


@dataclass
class Whole:
    """A connector with one bot, and an instance `echo` enrolled as the gateway `gw`."""

    url: str
    service: TelegramService
    control: Control
    delivery: Delivery
    secret: str


@asynccontextmanager
async def connector(where: Path, service: TelegramService) -> AsyncIterator[Whole]:
    async with (
        service.serving() as api,
        telegram.open_telegram(
            settings(api, commands="union", commands_from=("echo",)), CLOCK
        ) as platform,
        open_store(str(where), RELAY) as store,
    ):
        directory = Directory(
            store,
            Keyring.load(where / "relay.key"),
            CLOCK,
            ControlSettings(),
            platforms={platform.name: platform},
        )
        control = Control(directory, CLOCK)
        delivery = Delivery(store, directory, [platform], LocalBus(), CLOCK, name="one")
        credentials = await control.enrol((await control.mint_token("t1", "echo")).token, "gw")
        for chat in (GROUP, FORUM):
            await control.route("t1", "telegram", str(chat["id"]))
        routes = [*delivery.routes, *ControlRoutes(control, CLOCK).routes]
        async with delivery.running(), serving(routes) as url:
            yield Whole(url, service, control, delivery, credentials.secret)
        await directory.close()


@asynccontextmanager
async def echo_agent(whole: Whole) -> AsyncIterator[None]:
    """An agent that says what it heard, in bold."""

    async def echo(turn: Turn) -> AsyncIterator[str]:
        await turn.typing()
        yield f"**you said:** {turn.event.text}"

    gateway = RelayGateway(
        whole.url,
        secret=whole.secret,
        gateway_id="gw",
        agent=echo,
        settings=GatewaySettings(
            identities=(("telegram", str(BOT)),),
            inbox="memory",
            limits=GatewayLimits(edit=0.05),
            command_manifest=[{"name": "help", "description": "Says what it can do."}],
        ),
    )
    running = asyncio.create_task(gateway.run())
    try:
        await gateway.reached(GatewayState.RUNNING)
        yield
    finally:
        gateway.stop()
        await running


async def test_a_person_links_an_account_and_is_answered_where_they_write(tmp_path: Path) -> None:
    service = TelegramService()
    for chat in (GROUP, FORUM):
        service.members[chat["id"], 41] = {"status": "member"}
    async with asyncio.timeout(60), connector(tmp_path, service) as whole, echo_agent(whole):
        code = (await whole.control.link(await whole.control.principal("echo"))).code
        service.write(f"/link {code}")
        await service.until(lambda: len(service.said) == 1)
        service.write("yes")
        await service.until(lambda: len(service.said) == 2)

        service.write("just us")
        await service.until(lambda: service.texts[-1] == "you said: just us")
        asked = service.write("all", chat=GROUP)
        await service.until(lambda: service.texts[-1] == "you said: all")
        assert service.said[-1].chat_id == GROUP["id"]
        assert service.said[-1].asked["reply_parameters"]["message_id"] == asked["message_id"]

        service.write("plans", chat=FORUM, message_thread_id=17, is_topic_message=True)
        await service.until(lambda: service.texts[-1] == "you said: plans")
        assert service.said[-1].asked["message_thread_id"] == 17
        assert service.typed[-1]["message_thread_id"] == 17
        await service.until(lambda: bool(service.commands))
        assert service.commands[0]["command"] == "help"


async def test_a_group_that_the_owner_cannot_see_is_dropped_with_the_reason(tmp_path: Path) -> None:
    service = TelegramService()
    service.members[GROUP["id"], 41] = {"status": "left"}
    async with asyncio.timeout(60), connector(tmp_path, service) as whole, echo_agent(whole):
        control, group = whole.control, str(GROUP["id"])
        await control.bind("echo", "telegram", "41")
        await control.grant("echo", "telegram", "", group)
        principal = await control.principal("echo")
        await control.set_principal(principal, "telegram", PrincipalPolicy.ANY)
        await control.enrol((await control.mint_token("t1", "other")).token, "gw2")
        await control.bind("other", "telegram", "42")
        # What the owner writes shows that the owner sees it; what others write does not.
        service.write("secret", chat=GROUP, user={**ANN, "id": 42})
        await service.until(lambda: not service.waiting)
        explained = await whole.delivery.why("1000")
        assert explained is not None
        decision = explained.recorded.decision
        assert decision.deliveries == ("other",)
        held = decision.candidate("echo")
        assert held is not None
        assert held.visibility.rule == "visibility.hidden"
        [owned] = whole.delivery.leases
        assert owned.status.state is PlatformState.READY
    assert service.said == []
