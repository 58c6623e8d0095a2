"""Forwarded requests become events where they can, and are answered by what they came with."""

import asyncio
import base64
from collections.abc import Callable
from typing import Any

from tests.relay.gateway.conftest import Running, message, virtually

from accord.kernel import canonical
from accord.relay.gateway import GatewaySettings, GatewayState, RelayGateway, Turn
from accord.relay.rules import MessageEvent, PassthroughForward, Result, SessionSource, frame_dict
from accord.testing import VirtualClock
from accord.testing.connector import Connector


def interaction(name: str = "ask", number: str = "i1") -> PassthroughForward:
    body = canonical.encode(
        {
            "type": 2,
            "id": number,
            "channel_id": "c1",
            "guild_id": "g1",
            "member": {"user": {"id": "u1", "username": "U"}},
            "data": {"name": name},
        }
    )
    return PassthroughForward("discord", "app1", "POST", "/interactions", (), body)


async def test_interactions_reach_the_agent_as_existing_gateways_read_them(
    connector: Connector, running: Running, vectors: Callable[[str], Any]
) -> None:
    seen: list[Turn] = []

    async def listening(turn: Turn) -> None:
        seen.append(turn)

    cases = vectors("relay/passthrough.json")["cases"]
    settings = GatewaySettings(session_keys="hermes")
    async with running(listening, settings=settings) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        for case in cases:
            forward = PassthroughForward.from_dict(case["forward"])
            await connector.forward(forward, f"b-{case['id']}")
            await connector.until(lambda case=case: f"b-{case['id']}" in connector.acks)  # type: ignore[misc]
    expected = [case["event"] for case in cases if case["event"]]
    assert len(seen) == len(expected)
    for turn, event in zip(seen, expected, strict=True):
        source = {name: value for name, value in event["source"].items() if name != "guild_id"}
        assert turn.event.text == event["text"]
        assert turn.source.to_dict() == source
        assert turn.session_key == event["session_key"]
    assert gateway.counts["forwards not understood"] == len(cases) - len(expected)


def test_the_answer_uses_the_capability_by_name_and_never_a_token() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.forward(interaction())
        await connector.until(lambda: bool(connector.texts))
        (frame,) = [frame_dict(each) for each in connector.actions if each.action.op != "typing"]
        assert frame["platform"] == "discord"
        assert frame["botId"] == "app1"
        assert frame["action"] == {
            "op": "follow_up",
            "session_key": "agent:main:relay:channel:s=g1:c=c1:u=u1",
            "kind": "discord.interaction_token",
            "content": "you said ask",
            "metadata": {"scope_id": "g1", "message_id": "i1"},
        }

    virtually(scene)


def test_an_expired_capability_is_made_up_for_by_a_message() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.answers = lambda outbound: Result(
            outbound.action.op == "send", "x", "egress declined: expired"
        )
        await gateway.reached(GatewayState.RUNNING)
        await connector.forward(interaction())
        await connector.until(lambda: bool(connector.ops("send")))
        (said,) = connector.ops("send")
        assert (said.chat_id, said.content) == ("c1", "you said ask")
        assert len(connector.ops("follow_up")) == 1

    virtually(scene)


def test_a_forward_that_comes_twice_runs_once() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.forward(interaction())
        await connector.forward(interaction(), "b-1")
        await connector.until(lambda: connector.acks == ["b-1"])
        await asyncio.sleep(60)
        assert len(connector.texts) == 1
        assert gateway.counts["duplicates"] == 1

    virtually(scene)


def test_other_requests_are_read_by_whoever_knows_them() -> None:
    def read(forward: PassthroughForward) -> MessageEvent | None:
        source = SessionSource(forward.platform, "+1555", user_id="+1555")
        return MessageEvent(forward.body.decode(), source)

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.answers = lambda outbound: Result(outbound.action.op != "follow_up", "x")
        await gateway.reached(GatewayState.RUNNING)
        body = base64.b64decode("aGk=")
        await connector.forward(PassthroughForward("twilio", "+1", "POST", "/sms", (), body), "b")
        await connector.until(lambda: bool(connector.ops("send")))
        assert connector.texts[-1] == "you said hi"

    virtually(scene, settings=GatewaySettings(read_forward=read))


def test_a_reader_that_fails_costs_one_forward() -> None:
    def read(forward: PassthroughForward) -> MessageEvent | None:
        raise ValueError(forward.path)

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.forward(interaction(), "b-1")
        await connector.deliver(message("still there?"), "b-2")
        await connector.until(lambda: connector.acks == ["b-1", "b-2"] and bool(connector.texts))
        assert gateway.counts["forwards not understood"] == 1

    virtually(scene, settings=GatewaySettings(read_forward=read))
