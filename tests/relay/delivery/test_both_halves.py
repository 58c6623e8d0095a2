"""Delivery with the real control half: from a link code to a revocation."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.fakes.sockets import MemorySocket

from accord.kernel import tokens
from accord.kernel.clock import SystemClock
from accord.relay.connector import (
    RELAY,
    Control,
    ControlSettings,
    Delivery,
    DeliveryLimits,
    Directory,
    Keyring,
    LocalBus,
)
from accord.relay.rules import UNAUTHORIZED
from accord.storage import open_store


@dataclass
class Connector:
    delivery: Delivery
    control: Control
    chat: MemoryChat


@pytest.fixture
async def connector(where: str, tmp_path: Any) -> AsyncIterator[Connector]:
    clock, chat = SystemClock(), MemoryChat()
    chat.channel("c1", scope_id="g1")
    chat.channel("d1", "dm")
    platform = MemoryPlatform(chat)
    async with open_store(where, RELAY) as store:
        keyring = Keyring.load(tmp_path / "relay.key")
        directory = Directory(
            store, keyring, clock, ControlSettings(), platforms={"memory": platform}
        )
        limits = DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.1)
        delivery = Delivery(
            store, directory, [platform], LocalBus(), clock, name="p1", limits=limits
        )
        async with delivery.running():
            yield Connector(delivery, Control(directory, clock), chat)
        await directory.close()


async def said(connector: Connector, count: int) -> list[str]:
    async with asyncio.timeout(20):
        while len(connector.chat.said) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return [each.texts[0] for each in connector.chat.said]


async def test_a_user_links_an_account_by_dm_talks_to_the_agent_and_is_cut_off(
    connector: Connector, gateway_of: Any
) -> None:
    control, chat = connector.control, connector.chat
    minted = await control.mint_token("t1", "alpha", name="Alpha")
    credentials = await control.enrol(minted.token, "gw-alpha")
    await control.route("t1", "memory", "g1")
    code = await control.link(await control.principal("alpha"))
    chat.write("ann", "d1", f"/link {code.code}")
    await said(connector, 1)
    chat.write("ann", "d1", "yes")
    assert "Alpha" in (await said(connector, 2))[0]
    bearer = tokens.make("gw-alpha", credentials.secret, SystemClock().now())
    socket = MemorySocket()
    gateway = gateway_of(
        socket, asyncio.create_task(connector.delivery.endpoint.serve(socket, bearer))
    )
    await gateway.hello()
    chat.write("ann", "c1", "hello agent")
    assert await gateway.events(1) == ["hello agent"]
    action = {"op": "send", "chat_id": "c1", "content": "hello ann"}
    assert (await gateway.ask(action))["success"]
    chat.write("ann", "c1", "one more")
    await gateway.events(1, ack=False)
    await control.revoke("alpha")
    assert await gateway.closed() == (UNAUTHORIZED, "revoked")
    async with asyncio.timeout(20):
        while not await connector.delivery.is_empty("alpha"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert len(await connector.delivery.dead_letters("alpha")) == 1
    chat.write("ann", "c1", "too late", event_id="late")
    async with asyncio.timeout(20):
        while "late" not in chat.received:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert await connector.delivery.is_empty("alpha")
