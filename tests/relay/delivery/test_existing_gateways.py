"""What an unchanged gateway of others does: its keys, hellos, forms of actions, and silence."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from tests.fakes.platform import MemoryChat, MemoryPlatform

from accord.relay.connector import DeliveryLimits, FoundCapability, InboundKind, apply_retention
from accord.relay.rules import (
    PassthroughForward,
    SessionRules,
    SessionSource,
    interaction_sources,
    lookup_keys,
    session_key,
)
from accord.testing import VirtualClock

GROUP = SessionSource("slack", "C1", "group", user_id="U1", scope_id="T1")


class SecondBot(MemoryPlatform):
    """Another bot on the same platform."""

    @property
    def bot_id(self) -> str:
        """Its id."""
        return "second"


@pytest.fixture
def where(sqlite_where: str) -> str:
    """None of this depends on the engine."""
    return sqlite_where


@pytest.mark.parametrize(
    ("source", "profile", "key"),
    [
        (GROUP, None, "agent:main:slack:group:T1:C1:U1"),
        (replace(GROUP, thread_id="9"), None, "agent:main:slack:group:T1:C1:9"),
        (
            SessionSource("discord", "c1", "group", user_id="u1", prospective_thread_id="t1"),
            None,
            "agent:main:discord:thread:c1:t1",
        ),
        (
            SessionSource("discord", "d1", "dm", user_id="u1", prospective_thread_id="t1"),
            None,
            "agent:main:discord:dm:d1",
        ),
        (SessionSource("telegram", "1", "dm"), "default", "agent:main:telegram:dm:1"),
        (SessionSource("telegram", "1", "dm"), "main", "agent:main~:telegram:dm:1"),
    ],
)
def test_the_current_form_of_keys(source: SessionSource, profile: str | None, key: str) -> None:
    assert session_key(source, profile=profile, form="current") == key


def test_both_forms_are_tried_unless_one_would_be_the_key_of_another_session() -> None:
    assert SessionRules().keys(GROUP) == (
        "agent:main:slack:group:C1:U1",
        "agent:main:slack:group:T1:C1:U1",
    )
    current = SessionRules(profile="main", form="current")
    assert current.keys(GROUP) == ("agent:main~:slack:group:T1:C1:U1",)


def test_a_profile_that_was_not_declared_still_finds_its_session() -> None:
    assert lookup_keys("agent:coder:discord:dm:1") == (
        "agent:coder:discord:dm:1",
        "agent:main:discord:dm:1",
    )
    for key in ("agent:main:discord:dm:1", "agent:x", "nonsense", "agent:main:relayed:dm:1"):
        assert lookup_keys(key) == (key,)
    assert lookup_keys("agent:coder:relay:dm:1") == (
        "agent:coder:relay:dm:1",
        "agent:coder:webhook:dm:1",
        "agent:main:relay:dm:1",
        "agent:main:webhook:dm:1",
    )


def test_an_interaction_has_the_keys_of_older_and_of_current_gateways() -> None:
    body = {"id": "i", "channel_id": "c1", "guild_id": "g1", "data": {"name": "ask"}}
    body["member"] = {"user": {"id": "u1"}}
    forward = PassthroughForward("discord", body=json.dumps(body).encode())
    source = SessionSource("discord", "c1", "group", user_id="u1", scope_id="g1")
    rules = SessionRules(profile="coder")
    keys = {rules.key(each) for each in (source, *interaction_sources(forward, source))}
    assert keys == {"agent:coder:discord:group:c1:u1", "agent:coder:relay:channel:c1:u1"}


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        ({}, "agent:main:relay:group:c1:ann"),
        ({"group_sessions_per_user": False}, "agent:main:relay:group:c1"),
        ({"profile": "coder"}, "agent:coder:relay:group:c1:ann"),
        ({"profile": "default"}, "agent:main:relay:group:c1:ann"),
    ],
)
async def test_stop_reaches_the_turn_under_the_key_that_the_gateway_declares(
    world: Any, declared: dict[str, Any], key: str
) -> None:
    gateway = world.dial("alpha")
    await gateway.hello(**declared)
    world.chat.write("ann", "c1", "/stop", kind=InboundKind.INTERRUPT)
    assert (await gateway.hear("interrupt_inbound"))["session_key"] == key
    world.chat.write("ann", "c1", "x")
    await gateway.events(1)
    gateway.say({"type": "interrupt", "session_key": key})
    assert (await gateway.hear("interrupt_inbound"))["chat_id"] == "c1"


async def test_what_follows_in_a_chat_names_the_agent_that_answered_last(world: Any) -> None:
    gateway = await world.connect("alpha")

    async def told(event_id: str) -> Any:
        world.chat.write("ann", "c1", "hello", event_id=event_id)
        frame = await gateway.hear("inbound")
        gateway.say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
        return frame["event"]["source"].get("profile")

    async def answer(request_id: str, **metadata: Any) -> None:
        action = {"op": "send", "chat_id": "c1", "content": request_id, "metadata": metadata}
        assert (await gateway.ask(action, request_id))["success"]

    assert await told("e1") is None
    await answer("r1", profile="coder")
    assert await told("e2") == "coder"
    # Names that could not be part of a key say nothing; the default agent is not named.
    await answer("r2", profile="a:b")
    assert await told("e3") is None
    await answer("r3", profile="writer")
    assert await told("e4") == "writer"
    world.chat.write("ann", "c1", "/stop", kind=InboundKind.INTERRUPT)
    stopped = await gateway.hear("interrupt_inbound")
    assert stopped["session_key"] == "agent:writer:relay:group:c1:ann"
    await answer("r4")
    assert await told("e5") is None


async def test_a_forward_names_the_agent_that_answered_the_last_one_of_its_session(
    world: Any,
) -> None:
    gateway = await world.connect("alpha")
    found = [FoundCapability("memory.reply", SecretStr("the-capability"), 2**53)]
    forward = PassthroughForward("memory", "bot", "POST", "/ask", (), b"{}")
    world.chat.write(
        "ann", "c1", "/ask", kind=InboundKind.PASSTHROUGH, forward=forward, found=found
    )
    frame = await gateway.hear("passthrough_forward")
    assert "profile" not in frame["forward"]
    key = "agent:coder:relay:group:c1:ann"
    action = {"op": "follow_up", "session_key": key, "kind": "memory.reply", "content": "done"}
    assert (await gateway.ask({**action, "metadata": {"profile": "coder"}}))["success"]
    world.chat.write("ann", "c1", "/ask", kind=InboundKind.PASSTHROUGH, forward=forward)
    frame = await gateway.hear("passthrough_forward")
    assert frame["forward"]["profile"] == "coder"


async def test_a_profile_that_is_no_plain_name_is_dropped_with_its_hello(world: Any) -> None:
    gateway = world.dial("alpha")
    hello = {"type": "hello", "platform": "memory", "botId": "bot"}
    gateway.say({**hello, "profile": "a:b"})
    await world.until(lambda: world.delivery.counts["bad lines"] == 1)
    gateway.say(hello)
    await gateway.hear("descriptor")


async def test_a_hello_for_a_missing_platform_leaves_the_others_alone(world: Any) -> None:
    world.chat.write("ann", "c1", "waiting", event_id="w")
    await world.received("w")
    gateway = world.dial("alpha")
    for platform in ("telegraph", "memory"):
        gateway.say({"type": "hello", "platform": platform, "botId": ""})
    assert await gateway.hear("hello_refused") == {
        "type": "hello_refused",
        "platform": "telegraph",
        "botId": "",
        "error": "no such platform",
    }
    assert (await gateway.hear("descriptor"))["descriptor"]["platform"] == "memory"
    assert await gateway.events(1) == ["waiting"]
    assert world.directory.refused == {("alpha", "telegraph", ""): "no such platform"}
    await world.empty("alpha")
    assert await world.delivery.dead_letters() == []


async def test_the_generic_hello_works_with_several_bots(world: Any) -> None:
    world.delivery.add(SecondBot(MemoryChat()))
    gateway = world.dial("alpha")
    gateway.say({"type": "hello", "platform": "relay", "botId": ""})
    described = (await gateway.hear("descriptor"))["descriptor"]
    assert described["platform"] == "relay"
    assert "send" in described["supported_ops"]
    world.chat.write("ann", "c1", "hello")
    await gateway.events(1)
    action: dict[str, Any] = {
        "op": "send",
        "chat_id": "c1",
        "content": "hi",
        "reply_to": None,
        "metadata": {},
    }
    assert (await gateway.ask(action, platform="relay"))["success"]
    assert (await gateway.ask({**action, "chat_id": "c9"}, "r2"))["code"] == "egress_declined"


async def test_an_unknown_action_is_answered_at_once(world: Any) -> None:
    gateway = await world.connect("alpha")
    result = await gateway.ask({"op": "send_media", "chat_id": "c1"})
    error = "unsupported op: send_media"
    assert result == {"success": False, "error": error, "outcome": "permanent"}


async def test_a_gateway_that_is_silent_is_buffered_for_woken_and_drained(open_world: Any) -> None:
    clock = VirtualClock()
    limits = DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.01)
    async with open_world(clock=clock, limits=limits) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        world.chat.write("ann", "c1", "one")
        one = await gateway.hear("inbound")
        assert one["bufferId"]
        connection = world.delivery.hub.find("alpha")
        await world.until(lambda: connection._owed_since is not None)
        clock.advance(14)
        await asyncio.sleep(0.05)
        assert world.directory.woken == []
        clock.advance(2)
        await world.until(lambda: world.directory.woken == ["alpha"])
        world.chat.write("ann", "c1", "two", event_id="two")
        await world.received("two")
        await world.until(lambda: len(world.directory.woken) == 2)
        assert not gateway.socket._to_test
        gateway.say({"type": "inbound_ack", "bufferId": one["bufferId"]})
        assert await gateway.events(1) == ["two"]
        await world.empty("alpha")
        world.chat.write("ann", "c1", "three")
        assert await gateway.events(1) == ["three"]
        assert len(world.directory.woken) == 2


async def test_a_gateway_that_only_works_answers_a_ping_and_stays_live(open_world: Any) -> None:
    clock = VirtualClock()
    limits = DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.01)
    async with open_world(clock=clock, limits=limits) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        gateway.socket.answers_pings = True
        world.chat.write("ann", "c1", "one")
        one = await gateway.hear("inbound")
        connection = world.delivery.hub.find("alpha")
        for pings in range(1, 6):
            await world.until(lambda: connection._owed_since == clock.monotonic())
            clock.advance(6)
            await world.until(lambda pings=pings: gateway.socket.pings == pings)
        # Half a minute later it is still live, and what comes is sent at once.
        assert world.directory.woken == []
        world.chat.write("ann", "c1", "two")
        assert await gateway.events(1) == ["two"]
        # From now on it is frozen.
        gateway.socket.answers_pings = False
        await world.until(lambda: connection.session.unacked == 1)
        await world.until(lambda: connection._owed_since == clock.monotonic())
        clock.advance(6)
        await world.until(lambda: gateway.socket.pings == 6)
        clock.advance(10)
        await world.until(lambda: world.directory.woken == ["alpha"])
        # It is thawed: its pong ends the buffering, before it says a word.
        world.chat.write("ann", "c1", "three", event_id="three")
        await world.received("three")
        gateway.socket.pongs += 1
        assert await gateway.events(1) == ["three"]
        gateway.say({"type": "inbound_ack", "bufferId": one["bufferId"]})
        await world.empty("alpha")


async def test_a_gateway_that_never_acknowledges_loses_nothing_and_gets_it_again(
    open_world: Any,
) -> None:
    """It talks, so that it is alive, and acknowledges nothing on three connections."""
    clock = VirtualClock()
    limits = DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.01)
    async with open_world(clock=clock, limits=limits) as world:
        world.link("ann", "alpha")
        for text in ("one", "two"):
            world.chat.write("ann", "c1", text, event_id=text)
            await world.received(text)
        for _ in range(3):
            gateway = await world.connect("alpha")
            assert await gateway.events(2, ack=False) == ["one", "two"]
            for _ in range(4):
                clock.advance(10)
                gateway.say({"type": "interrupt", "session_key": "x"})
                await asyncio.sleep(0.05)
            assert world.directory.woken == []
            gateway.socket.cut()
        obedient = await world.connect("alpha")
        assert await obedient.events(2) == ["one", "two"]
        await world.empty("alpha")
        assert await world.delivery.dead_letters() == []


async def test_a_gateway_that_was_frozen_and_cut_off_is_woken_after_a_minute(
    open_world: Any,
) -> None:
    clock = VirtualClock()
    async with open_world(clock=clock, limits=DeliveryLimits(sweep_seconds=0.01)) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        gateway.socket.cut()
        await world.until(lambda: world.delivery.hub.find("alpha") is None)
        world.chat.write("ann", "c1", "one", event_id="one")
        await world.received("one")
        context = world.delivery.hub.context
        assert (await apply_retention(context, 1)).asleep == ()
        clock.advance(61)
        assert (await apply_retention(context, 1)).asleep == ("alpha",)


async def test_a_silent_gateway_that_dials_again_gets_everything(open_world: Any) -> None:
    clock = VirtualClock()
    limits = DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.01)
    async with open_world(clock=clock, limits=limits) as world:
        world.link("ann", "alpha")
        frozen = await world.connect("alpha")
        world.chat.write("ann", "c1", "one")
        await frozen.events(1, ack=False)
        connection = world.delivery.hub.find("alpha")
        await world.until(lambda: connection._owed_since is not None)
        clock.advance(16)
        await world.until(lambda: world.directory.woken == ["alpha"])
        again = await world.connect("alpha")
        assert await again.events(1) == ["one"]
        await world.empty("alpha")


@pytest.mark.parametrize("wakeable", [True, False])
async def test_the_answer_to_going_idle_says_whether_it_can_be_woken(
    world: Any, wakeable: bool
) -> None:
    if wakeable:
        world.directory.wakeable.add("alpha")
    gateway = await world.connect("alpha")
    gateway.say({"type": "going_idle"})
    assert (await gateway.hear("going_idle_ack"))["hasWakeUrl"] is wakeable
