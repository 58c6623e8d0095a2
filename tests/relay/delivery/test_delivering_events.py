"""From a chat to an agent: live, in order, and until it is acknowledged."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, select

from accord.relay.connector import DeliveryLimits, InboundKind, apply_retention, tables
from accord.relay.rules import REPLACED, PassthroughForward

FORWARD = PassthroughForward("memory", "bot", "POST", "/hook", (("a", "b"),), b"\xff\x00body")


async def test_an_event_reaches_its_instance_and_is_gone_once_acknowledged(world: Any) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "hello")
    frame = await gateway.hear("inbound")
    assert frame["event"]["text"] == "hello"
    assert frame["event"]["source"]["scope_id"] == "g1"
    assert not await world.delivery.is_empty("alpha")
    gateway.say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
    await world.empty("alpha")


async def test_what_comes_while_nobody_is_connected_waits_and_keeps_its_order(world: Any) -> None:
    for number in range(30):
        world.chat.write("ann", "c1", str(number), event_id=f"w{number}")
    await world.received("w29")
    gateway = await world.connect("alpha")
    assert await gateway.events(30) == [str(number) for number in range(30)]
    world.chat.write("ann", "c1", "live")
    assert await gateway.events(1) == ["live"]
    await world.empty("alpha")


async def test_an_event_is_taken_once_however_often_it_is_told(world: Any) -> None:
    gateway = await world.connect("alpha")
    inbound = world.chat.write("ann", "c1", "once", event_id="x")
    await world.received("x")
    world.chat.repeat(inbound)
    world.chat.write("ann", "c1", "next")
    assert await gateway.events(2) == ["once", "next"]
    assert world.delivery.counts["duplicates"] == 1


async def test_only_the_unacknowledged_tail_comes_again(world: Any) -> None:
    gateway = await world.connect("alpha")
    for number in range(6):
        world.chat.write("ann", "c1", str(number))
    frames = [await gateway.hear("inbound") for _ in range(6)]
    for frame in (*frames[:2], frames[4]):
        gateway.say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
    await world.until(lambda: world.delivery.hub.find("alpha").session.unacked == 3)
    await gateway.leave()
    gateway = await world.connect("alpha")
    assert await gateway.events(3) == ["2", "3", "5"]
    await world.empty("alpha")


async def test_no_more_is_sent_than_the_window_allows(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(window=2, renew_seconds=0.2)) as world:
        world.link("ann", "alpha")
        for number in range(5):
            world.chat.write("ann", "c1", str(number), event_id=f"w{number}")
        await world.received("w4")
        gateway = await world.connect("alpha")
        first, second = await gateway.hear("inbound"), await gateway.hear("inbound")
        assert world.delivery.hub.find("alpha").session.is_stuck
        assert not gateway.socket._to_test
        gateway.say({"type": "inbound_ack", "bufferId": second["bufferId"]})
        assert await gateway.events(1, ack=False) == ["2"]
        gateway.say({"type": "inbound_ack", "bufferId": first["bufferId"]})
        assert await gateway.events(1) == ["3"]
        assert await gateway.events(1) == ["4"]


async def test_nobody_else_receives_it(world: Any) -> None:
    world.chat.channel("c2", scope_id="g2")
    world.link("bob", "beta")
    world.link("cec", "gamma", scope="g2", tenant="t2")
    gateways = {name: await world.connect(name) for name in ("alpha", "beta", "gamma")}
    world.chat.write("ann", "c1", "of ann")
    world.chat.write("bob", "c1", "of bob")
    world.chat.write("cec", "c2", "of cec")
    world.chat.write("ann", "c2", "in another tenant", event_id="lost")
    world.chat.write("eve", "c1", "of nobody", event_id="eve")
    for name, text in (("alpha", "of ann"), ("beta", "of bob"), ("gamma", "of cec")):
        assert await gateways[name].events(1) == [text]
    await world.received("lost", "eve")
    for name in gateways:
        await world.empty(name)
        assert not gateways[name].socket._to_test


async def test_the_newest_socket_wins_and_the_loser_cannot_acknowledge(world: Any) -> None:
    first = await world.connect("alpha")
    world.chat.write("ann", "c1", "one")
    frame = await first.hear("inbound")
    second = await world.connect("alpha")
    assert await first.closed() == (REPLACED, "replaced")
    again = await second.hear("inbound")
    assert again["bufferId"] == frame["bufferId"]
    claim = ("alpha", world.delivery.hub.find("alpha").session.epoch - 1)
    world.delivery._writer.acked(claim, [1])
    world.chat.write("ann", "c1", "two")
    assert await second.events(1) == ["two"]
    assert not await world.delivery.is_empty("alpha")
    second.say({"type": "inbound_ack", "bufferId": again["bufferId"]})
    await world.empty("alpha")


async def test_a_restarted_connector_delivers_what_it_had_taken(open_world: Any) -> None:
    async with open_world() as world:
        world.link("ann", "alpha")
        world.chat.write("ann", "c1", "before", event_id="b")
        await world.received("b")
    async with open_world(name="connector-2") as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        assert await gateway.events(1) == ["before"]


async def test_a_poison_event_is_dead_after_five_deliveries_and_can_be_replayed(
    world: Any,
) -> None:
    world.chat.write("ann", "c1", "poison", event_id="p")
    world.chat.write("ann", "c1", "cure", event_id="c")
    await world.received("p", "c")
    for time in range(5):
        gateway = await world.connect("alpha")
        assert await gateway.events(1, ack=False) == ["poison"]
        if time == 0:
            assert await gateway.events(1) == ["cure"]
        await world.until(lambda: world.delivery.hub.find("alpha").session.unacked == 1)
        await gateway.leave()
    gateway = await world.connect("alpha")
    await world.empty("alpha")
    (letter,) = await world.delivery.dead_letters("alpha")
    assert (letter.reason, letter.deliveries) == ("delivered too often", 5)
    world.chat.write("ann", "c1", "later")
    assert await gateway.events(1) == ["later"]
    await world.delivery.replay("alpha", [letter.seq])
    assert await gateway.events(1) == ["poison"]
    assert await world.delivery.dead_letters() == []


async def test_a_live_forward_carries_no_buffer_id_and_is_done_when_written(world: Any) -> None:
    gateway = await world.connect("alpha")
    await world.until(lambda: world.delivery.hub.find("alpha").session.state.value == "live")
    world.chat.write("ann", "c1", "do", kind=InboundKind.PASSTHROUGH, forward=FORWARD)
    frame = await gateway.hear("passthrough_forward")
    assert "bufferId" not in frame
    assert PassthroughForward.from_dict(frame["forward"]) == FORWARD
    await world.empty("alpha")


async def test_a_buffered_forward_is_retried_three_times_and_holds_nobody_back(world: Any) -> None:
    world.chat.write("ann", "c1", "do", kind=InboundKind.PASSTHROUGH, forward=FORWARD, event_id="f")
    world.chat.write("ann", "c1", "after", event_id="a")
    await world.received("f", "a")
    for time in range(4):
        gateway = await world.connect("alpha")
        assert "bufferId" in await gateway.hear("passthrough_forward")
        if time == 0:
            assert await gateway.events(1) == ["after"]
        await world.until(lambda: world.delivery.hub.find("alpha").session.state.value == "live")
        await gateway.leave()
    gateway = await world.connect("alpha")
    await world.empty("alpha")
    (letter,) = await world.delivery.dead_letters("alpha")
    assert letter.kind == "passthrough"


async def test_a_gateway_may_acknowledge_a_buffered_forward(world: Any) -> None:
    world.chat.write("ann", "c1", "do", kind=InboundKind.PASSTHROUGH, forward=FORWARD, event_id="f")
    await world.received("f")
    gateway = await world.connect("alpha")
    frame = await gateway.hear("passthrough_forward")
    gateway.say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
    await world.empty("alpha")


async def test_a_socket_that_is_not_read_is_closed_and_its_rows_stay(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(send_seconds=0.05, message_bytes=100)) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha", buffered=2)
        for number in range(5):
            world.chat.write("ann", "c1", f"{number} {'x' * 200}", event_id=f"s{number}")
        await world.received("s4")
        async with asyncio.timeout(20):
            await gateway.serving
        assert gateway.socket.closed == (1013, "too slow")
        gateway = await world.connect("alpha")
        assert [text[0] for text in await gateway.events(5)] == list("01234")


async def test_a_gateway_that_acknowledges_nothing_is_sent_away(open_world: Any) -> None:
    limits = DeliveryLimits(window=1, ack_seconds=0.05, sweep_seconds=0.02)
    async with open_world(limits=limits) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        world.chat.write("ann", "c1", "one")
        assert await gateway.events(1, ack=False) == ["one"]
        assert await gateway.closed() == (1013, "nothing was acknowledged")
        assert not await world.delivery.is_empty("alpha")


async def test_a_row_too_old_or_one_too_many_is_buried(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(buffer_rows=3)) as world:
        world.link("ann", "alpha")
        for number in range(5):
            world.chat.write("ann", "c1", str(number), event_id=f"r{number}")
        await world.received("r4")
        await apply_retention(world.delivery.context, 0)
        assert [each.reason for each in await world.delivery.dead_letters()] == [
            "too many were waiting"
        ] * 2
    async with open_world(limits=DeliveryLimits(buffer_seconds=-1, dead_seconds=1e6)) as world:
        await apply_retention(world.delivery.context, 0)
        assert await world.delivery.is_empty("alpha")
        assert len(await world.delivery.dead_letters()) == 5


async def test_what_is_long_done_with_is_forgotten(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(receipt_seconds=-1)) as world:
        world.chat.write("ann", "c1", "x", event_id="x")
        await world.received("x")
        await apply_retention(world.delivery.context, 0)
        count = select(func.count()).select_from(tables.receipts)
        assert await world.store.read(lambda c: c.execute(count).scalar()) == 0


@pytest.mark.parametrize("text", ["\0", "grüß 😀 \u2028", '"}\n{"type":"x"}', "x" * 300_000])
async def test_any_text_arrives_as_it_was_written(world: Any, text: str) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", text)
    assert await gateway.events(1) == [text]
