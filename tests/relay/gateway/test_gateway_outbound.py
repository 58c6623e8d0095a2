"""What a gateway asks a connector to do, to the letter, once, and within its time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.relay.gateway.conftest import Running, message, virtually

from accord.relay.gateway import GatewaySettings, GatewayState, RelayGateway, Turn
from accord.relay.rules import (
    MessageEvent,
    Outbound,
    OutboundResult,
    Result,
    SessionSource,
    frame_dict,
)
from accord.testing import VirtualClock
from accord.testing.connector import DESCRIPTOR, Connector

SILENT = GatewaySettings(apology=None)


async def say_nothing(_: Turn) -> None:
    return None


async def test_actions_are_those_of_existing_gateways(
    connector: Connector, running: Running, vectors: Callable[[str], Any]
) -> None:
    cases = vectors("relay/outbound_actions.json")["cases"]
    for case in cases:
        async with running(say_nothing) as gateway:
            await gateway.reached(GatewayState.RUNNING)
            wanted = len(connector.acks) + len(case["inbound"])
            for number, event in enumerate(case["inbound"]):
                await connector.deliver(MessageEvent.from_dict(event), f"{case['id']}-{number}")
            await connector.until(lambda wanted=wanted: len(connector.acks) == wanted)  # type: ignore[misc]
            before = len(connector.actions)
            for call in case["calls"]:
                (arguments,) = call.values()
                result = await gateway.send(**arguments)
                assert result.success
            told = [frame_dict(each) for each in connector.actions[before:]]
            told = [each for each in told if each["action"]["op"] != "typing"]
            assert [
                {"action": each["action"], "platform": each.get("platform")} for each in told
            ] == case["outbound"], case["id"]
            assert len({each["requestId"] for each in told}) == len(told)


def test_a_turn_can_do_everything_that_the_contract_has() -> None:
    results: list[Any] = []

    async def busy(turn: Turn) -> None:
        sent = await turn.reply("hello")
        assert sent.message_id is not None
        results.append(sent)
        results.append(await turn.edit(sent.message_id, "hello again"))
        results.append(await turn.typing())
        results.append(await turn.follow_up("discord.interaction_token", "psst"))
        results.append(await turn.chat_info())
        results.append(await turn.send("over there", chat_id="c9"))

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(replace(message("go"), bot_id="bot-7"), "b-1")
        await asyncio.sleep(1)
        told = [frame_dict(each) for each in connector.actions]
        actions = {each["action"]["op"]: each for each in told}
        assert actions["edit"]["action"] == {
            "op": "edit",
            "chat_id": "c1",
            "message_id": "sent-1",
            "content": "hello again",
            "metadata": {"scope_id": "s1"},
        }
        assert actions["follow_up"]["action"] == {
            "op": "follow_up",
            "session_key": "agent:main:web:group:s=s1:c=c1:u=u1",
            "kind": "discord.interaction_token",
            "content": "psst",
            "metadata": {"scope_id": "s1", "message_id": "m1"},
        }
        assert actions["get_chat_info"]["action"] == {"op": "get_chat_info", "chat_id": "c1"}
        assert all(each["botId"] == "bot-7" and each["platform"] == "web" for each in told[:-1])
        elsewhere = told[-1]["action"]
        assert (elsewhere["chat_id"], elsewhere["metadata"]) == ("c9", {})
        assert results[4] == {"name": "general", "type": "group"}

    virtually(scene, busy, settings=SILENT)


def test_the_thread_of_a_message_goes_with_its_answer() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        source = SessionSource("web", "c1", "forum", user_id="u1", thread_id="t5")
        await connector.deliver(MessageEvent("hi", source, message_id="m1"), "b-1")
        await connector.until(lambda: bool(connector.ops("send")))
        assert connector.ops("send")[0].metadata == {"user_id": "u1", "thread_id": "t5"}

    virtually(scene)


def test_a_long_reply_is_cut_to_the_platforms_size() -> None:
    async def long(turn: Turn) -> None:
        await turn.reply("word " * 50)

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.descriptor = replace(DESCRIPTOR, max_message_length=100)
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("go"), "b-1")
        await connector.until(lambda: "".join(connector.texts).count("word") == 50)
        assert all(len(each) <= 100 for each in connector.texts)
        assert [each.reply_to for each in connector.ops("send")] == ["m1", None, None]

    virtually(scene, long)


def test_an_action_without_an_answer_ends_in_time() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        connector.answers = lambda _: None
        await gateway.reached(GatewayState.RUNNING)
        at = clock.monotonic()
        result = await gateway.send("c1", "hello?")
        assert not result.success
        assert "30 seconds" in (result.error or "")
        assert clock.monotonic() - at == pytest.approx(30)
        assert gateway.counts["actions without answer"] == 1

    virtually(scene)


def test_an_unanswered_action_is_asked_again_under_the_same_id_after_a_drop() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        working = connector.answers
        connector.answers = lambda _: None
        await gateway.reached(GatewayState.RUNNING)
        asking = asyncio.create_task(gateway.send("c1", "once"))
        await connector.until(lambda: len(connector.actions) == 1)
        connector.answers = working
        connector.drop()
        assert (await asking).success
        first, second = connector.actions
        assert first == second

    virtually(scene)


def test_an_action_waits_for_the_connection_but_typing_does_not() -> None:
    seen: list[Result] = []

    async def typing(turn: Turn) -> str:
        await asyncio.sleep(3)
        seen.append(await turn.typing())
        return "back"

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("go"), "b-1")
        await connector.until(lambda: connector.acks == ["b-1"])
        connector.refusals.extend(["unauthorized"])
        connector.describes = False
        connector.drop()
        await asyncio.sleep(10)
        assert [each.success for each in seen] == [False]
        connector.describes = True
        connector.drop()
        await connector.until(lambda: connector.texts == ["back"])

    virtually(scene, typing)


@pytest.mark.parametrize("content", ["half a pair \ud800", "x" * 1_100_000])
def test_what_cannot_be_sent_is_a_result_and_not_an_error(content: str) -> None:
    async def scene(_: Connector, gateway: RelayGateway, __: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        result = await gateway.send("c1", content)
        assert not result.success
        assert result.error
        assert (await gateway.send("c1", "fine")).success

    virtually(scene)


def test_answers_that_nobody_waits_for_are_counted() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.answers = lambda outbound: Result(True, "twice")
        await gateway.reached(GatewayState.RUNNING)
        await gateway.send("c1", "a")
        await connector.send(OutboundResult("unknown", Result(True)))
        await connector.send(OutboundResult(connector.actions[0].request_id, Result(True)))
        assert (await gateway.send("c1", "b")).success
        assert gateway.counts["answers to nothing"] == 2

    virtually(scene)


def test_a_platform_without_threads_is_not_asked_for_one() -> None:
    made: list[str | None] = []

    async def handing_over(turn: Turn) -> None:
        made.append(await turn.create_handoff_thread("the next step"))

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.descriptor = replace(DESCRIPTOR, supports_threads=False)
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("go", "m1"), "b-1")
        await connector.until(lambda: connector.acks == ["b-1"])
        await asyncio.sleep(1)
        assert (made, connector.ops("follow_up")) == ([None], [])
        connector.descriptor = DESCRIPTOR
        connector.drop()
        await connector.until(lambda: not connector.connected)
        await connector.deliver(message("go", "m2"), "b-2")
        await connector.until(lambda: bool(connector.ops("follow_up")))
        await asyncio.sleep(1)
        assert made[1:] == ["sent-1"]

    virtually(scene, handing_over)


def test_a_description_tells_no_names_where_the_platform_asks_for_that() -> None:
    told: list[str] = []

    async def listening(turn: Turn) -> None:
        told.append(turn.description)

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.descriptor = replace(DESCRIPTOR, platform_hint="Use Markdown.")
        await gateway.reached(GatewayState.RUNNING)
        source = SessionSource("web", "4915", "dm", "Ada's chat", "4915", "Ada", chat_topic="Trees")
        await connector.deliver(MessageEvent("hi", source, message_id="m1"), "b-1")
        await connector.until(lambda: connector.acks == ["b-1"])
        connector.descriptor = replace(connector.descriptor, pii_safe=True)
        connector.drop()
        await connector.until(lambda: not connector.connected)
        await connector.deliver(MessageEvent("hi", source, message_id="m2"), "b-2")
        await connector.until(lambda: len(connector.acks) == 2)
        await asyncio.sleep(1)

    virtually(scene, listening)
    assert "Ada" in told[0]
    assert "Trees" in told[0]
    assert all(each.endswith("Use Markdown.") for each in told)
    assert not any(part in told[1] for part in ("Ada", "4915", "Trees"))


def test_no_more_actions_are_under_way_than_the_connector_takes() -> None:
    most = 0
    waiting: list[Outbound] = []

    async def flood(turn: Turn) -> AsyncIterator[str]:
        await asyncio.gather(*(turn.send(f"n{number}") for number in range(100)))
        yield "done"

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        nonlocal most
        connector.answers = lambda outbound: waiting.append(outbound)
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("go"), "b-1")
        answered = 0
        while answered < 101:
            await connector.until(lambda: bool(waiting))
            await asyncio.sleep(0.01)
            most = max(most, len(waiting))
            for outbound in [*waiting]:
                waiting.remove(outbound)
                answered += outbound.action.op == "send"
                await connector.send(OutboundResult(outbound.request_id, Result(True, "x")))

    virtually(scene, flood)
    assert 20 <= most <= 32
