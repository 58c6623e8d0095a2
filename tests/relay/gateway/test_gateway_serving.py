"""A gateway serves an agent over a real socket, as existing gateways do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.relay.gateway.conftest import Running, echo, message

from accord.kernel import canonical
from accord.relay.gateway import (
    GatewayLimits,
    GatewaySettings,
    GatewayState,
    RelayGateway,
    Socket,
    Turn,
)
from accord.relay.rules import KNOWN_TO_EXISTING_GATEWAYS, Described, Inbound, read_identities
from accord.testing.connector import DESCRIPTOR, GATEWAY, SECRET, Connector, MemoryConnection


async def test_an_agent_answers_and_the_event_is_acknowledged(
    connector: Connector, running: Running
) -> None:
    async with running():
        await connector.until(lambda: connector.connected)
        await connector.deliver(message("hello"), "b-1")
        await connector.until(lambda: bool(connector.ops("send")) and connector.acks == ["b-1"])
        (said,) = connector.ops("send")
        assert said.content == "you said hello"
        assert said.metadata == {"scope_id": "s1"}
        assert said.reply_to == "m1"
    assert connector.bad == []


async def test_an_event_without_a_buffer_id_is_answered_and_not_acknowledged(
    connector: Connector, running: Running
) -> None:
    async with running() as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.send(Inbound(message("live")))
        await connector.until(lambda: bool(connector.texts))
    assert connector.acks == []


async def test_every_identity_of_an_environment_says_hello(
    connector: Connector, running: Running, vectors: Callable[[str], Any]
) -> None:
    for case in vectors("relay/identities.json")["cases"]:
        connector.hellos.clear()
        named = read_identities(case["env"])
        async with running(settings=GatewaySettings(identities=named)) as gateway:
            await gateway.reached(GatewayState.RUNNING)
        told = [[each.platform, each.bot_id] for each in connector.hellos]
        assert told == case["identities"], case["id"]


async def test_the_socket_is_dialled_where_existing_gateways_dial(
    vectors: Callable[[str], Any],
) -> None:
    for case in vectors("relay/urls.json")["cases"]:
        dialled: asyncio.Queue[str] = asyncio.Queue()

        @asynccontextmanager
        async def dial(
            url: str, _token: str, dialled: asyncio.Queue[str] = dialled
        ) -> AsyncIterator[Socket]:
            dialled.put_nowait(url)
            await asyncio.Event().wait()
            yield MemoryConnection().client

        gateway = RelayGateway(
            case["in"],
            secret=SECRET,
            gateway_id=GATEWAY,
            agent=echo,
            settings=GatewaySettings(inbox="memory"),
            dial=dial,
        )
        task = asyncio.create_task(gateway.run())
        assert await dialled.get() == case["dial"]
        gateway.stop()
        assert await task is GatewayState.STOPPED


async def test_an_agent_sees_events_as_existing_gateways_do(
    connector: Connector, running: Running, vectors: Callable[[str], Any]
) -> None:
    seen: list[Turn] = []

    async def listening(turn: Turn) -> None:
        seen.append(turn)

    cases = vectors("relay/inbound_events.json")["cases"]
    async with running(listening, settings=GatewaySettings(session_keys="hermes")) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        for number, case in enumerate(cases):
            line = {"type": "inbound", "event": case["event"], "bufferId": f"b-{number}"}
            await connector.raw(canonical.encode(line).decode() + "\n")
            await connector.until(lambda number=number: len(connector.acks) > number)  # type: ignore[misc]
    assert len(seen) == len(cases)
    by_text = {turn.session_key: turn for turn in seen}
    for case in cases:
        out = case["out"]
        platform = case["event"].get("source", {}).get("platform", "relay")
        if platform not in KNOWN_TO_EXISTING_GATEWAYS:
            # Existing gateways know a fixed list of platforms and call every other one `relay`;
            # this one keeps the name, as the connector does, but for the session's key.
            out["source"]["platform"] = platform
        turn = by_text[out["session_key"]]
        source = {name: value for name, value in out["source"].items() if name != "guild_id"}
        assert turn.source.to_dict() == source, case["id"]
        if case["event"].get("message_id"):
            continue
        assert turn.event.message_type.value == out["message_type"]
        assert list(turn.event.media_urls) == out["media_urls"]


async def test_each_platform_has_its_own_descriptor(connector: Connector, running: Running) -> None:
    seen: dict[str, str] = {}

    async def listening(turn: Turn) -> None:
        seen[turn.source.platform] = turn.descriptor.platform

    connector.descriptor = lambda hello: replace(DESCRIPTOR, platform=hello.platform)
    named = (("discord", "a"), ("telegram", "b"))
    async with running(listening, settings=GatewaySettings(identities=named)) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        for number, platform in enumerate(("telegram", "discord", "matrix")):
            event = message("hi", f"m{number}", f"c{number}")
            event = replace(event, source=replace(event.source, platform=platform))
            await connector.deliver(event, f"b-{number}")
        await connector.until(lambda: len(connector.acks) == 3)
    assert seen == {"telegram": "telegram", "discord": "discord", "matrix": "discord"}


async def test_a_descriptor_that_comes_later_is_only_counted(
    connector: Connector, running: Running
) -> None:
    async with running() as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.send(Described(DESCRIPTOR))
        await connector.deliver(message("hello"), "b-1")
        await connector.until(lambda: bool(connector.texts))
        assert gateway.counts["descriptors nobody asked for"] == 1


async def test_a_stalled_connector_is_found_out_by_its_silence(
    connector: Connector, running: Running
) -> None:
    connector.describes = False
    limits = GatewayLimits(handshake=0.1, first_delay=0.01, longest_delay=0.02)
    async with running(settings=GatewaySettings(limits=limits)):
        await connector.until(lambda: len(connector.dials) >= 3)


async def test_cancelling_a_gateway_leaves_nothing_behind(connector: Connector) -> None:
    async with connector.listening() as url:
        settings = GatewaySettings(inbox="memory")
        gateway = RelayGateway(
            url, secret=SECRET, gateway_id=GATEWAY, agent=echo, settings=settings
        )
        before = asyncio.all_tasks()
        task = asyncio.create_task(gateway.run())
        await gateway.reached(GatewayState.RUNNING)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await connector.until(lambda: not connector.connected)
        left = {each for each in asyncio.all_tasks() - before if "serve" not in repr(each)}
        assert not left


async def test_a_thousand_events_are_taken_in_order_and_acknowledged_once(
    connector: Connector, running: Running
) -> None:
    seen: list[str] = []

    async def listening(turn: Turn) -> None:
        seen.append(turn.event.text)

    async with running(listening) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        for start in range(0, 1000, 50):
            frames = [Inbound(message(str(n), f"m{n}"), f"b-{n}") for n in range(start, start + 50)]
            await connector.send(*frames)
        await connector.until(lambda: len(connector.acks) == 1000)
    assert connector.acks == [f"b-{n}" for n in range(1000)]
    assert seen == [str(n) for n in range(len(seen))]
