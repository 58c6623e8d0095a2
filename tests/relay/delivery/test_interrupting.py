"""Interrupts, both ways: exactly one session is told."""

from typing import Any

import pytest

from accord.kernel import canonical
from accord.relay.connector import BusHint, InboundKind, Topic
from accord.relay.rules import MessageEvent, SessionRules, SessionSource, stop_message

KEY = "agent:main:relay:group:c1:ann"


@pytest.fixture
def where(sqlite_where: str) -> str:
    """None of this depends on the engine."""
    return sqlite_where


async def test_a_user_stops_the_turn_of_their_own_session(world: Any) -> None:
    world.link("bob", "beta")
    gateways = [await world.connect(name) for name in ("alpha", "beta")]
    world.chat.write("ann", "c1", "/stop", kind=InboundKind.INTERRUPT, event_id="s")
    frame = await gateways[0].hear("interrupt_inbound")
    assert frame == {"type": "interrupt_inbound", "session_key": KEY, "chat_id": "c1"}
    await world.received("s")
    assert not gateways[1].socket._to_test
    assert await world.delivery.is_empty("alpha")


async def test_a_scoped_gateway_is_told_its_own_key(world: Any) -> None:
    gateway = world.dial("alpha")
    await gateway.hello(session_keys="scoped")
    world.chat.write("ann", "c1", "/stop", kind=InboundKind.INTERRUPT)
    frame = await gateway.hear("interrupt_inbound")
    assert frame["session_key"] == "agent:main:memory:group:s=g1:c=c1:u=ann"


async def test_a_gateway_stops_a_session_that_it_has(world: Any) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "x")
    await gateway.events(1)
    gateway.say({"type": "interrupt", "session_key": KEY, "reason": None})
    frame = await gateway.hear("interrupt_inbound")
    assert frame == {"type": "interrupt_inbound", "session_key": KEY, "chat_id": "c1"}


async def test_nobody_stops_the_session_of_another_instance(world: Any) -> None:
    world.link("bob", "beta")
    alpha, beta = await world.connect("alpha"), await world.connect("beta")
    world.chat.write("ann", "c1", "x")
    await alpha.events(1)
    beta.say({"type": "interrupt", "session_key": KEY})
    await world.until(lambda: world.delivery.counts["interrupts of nothing"] == 1)
    assert not alpha.socket._to_test
    assert not beta.socket._to_test


async def test_an_interrupt_for_nobody_connected_is_gone(world: Any) -> None:
    world.chat.write("ann", "c1", "/stop", kind=InboundKind.INTERRUPT, event_id="s")
    await world.received("s")
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "next")
    assert await gateway.events(1) == ["next"]


def said(platform: str) -> MessageEvent:
    source = SessionSource(platform, "c1", "group", "Friends", "ann", "Ann", scope_id="g1")
    return MessageEvent("/STOP ", source, message_id="m1", bot_id="bot")


def test_only_where_existing_gateways_have_no_adapter_of_their_own_is_stop_a_message() -> None:
    assert stop_message(said("webchat")) is None
    assert stop_message(said("relay")) is None
    told = stop_message(said("telegram"))
    assert told is not None
    assert (told.text, told.message_id, told.bot_id) == ("/stop", "m1", "bot")
    # The session is the same, and no names are in it.
    assert SessionRules().key(told.source) == SessionRules().key(said("telegram").source)
    assert "Ann" not in str(told)
    assert "Friends" not in str(told)


async def test_a_stop_reaches_the_socket_in_another_process(world: Any) -> None:
    gateway = await world.connect("alpha")
    told = stop_message(said("telegram"))
    assert told is not None
    written = canonical.encode(told.to_dict()).decode()
    hub = world.delivery.hub
    for nonsense in ("", "[]", "{}", written[:-1]):
        hub.receive_hint(BusHint(Topic.STOP, "t1", "alpha", 0, nonsense))
    hub.receive_hint(BusHint(Topic.STOP, "another tenant", "alpha", 0, written))
    hub.receive_hint(BusHint(Topic.STOP, "t1", "alpha", 0, written))
    frame = await gateway.hear("inbound")
    assert (frame["event"]["text"], "bufferId" in frame) == ("/stop", False)
    assert not gateway.socket._to_test


async def test_a_gateway_whose_turns_end_by_interrupts_is_told_no_message(world: Any) -> None:
    gateway = world.dial("alpha")
    await gateway.hello(interrupts=True)
    world.delivery.hub.stop("t1", "alpha", said("telegram"))
    world.delivery.hub.interrupt("t1", "alpha", KEY, "c1")
    assert (await gateway.hear())["type"] == "interrupt_inbound"
