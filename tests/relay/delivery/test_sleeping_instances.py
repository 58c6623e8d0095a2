"""Going idle: everything is buffered, the sleeper is woken, and nothing is lost or doubled."""

from dataclasses import replace
from typing import Any

from accord.relay.connector import apply_retention
from accord.relay.rules import (
    ChannelGrant,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
    TenantChannel,
)


async def asleep(world: Any, instance: str) -> None:
    gateway = await world.connect(instance)
    gateway.say({"type": "going_idle"})
    await gateway.hear("going_idle_ack")
    await gateway.leave()


async def test_after_the_ack_nothing_is_pushed_any_more(world: Any) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "live")
    assert await gateway.events(1) == ["live"]
    gateway.say({"type": "going_idle"})
    await gateway.hear("going_idle_ack")
    world.chat.write("ann", "c1", "buffered", event_id="b")
    await world.received("b")
    await world.until(lambda: world.directory.woken == ["alpha"])
    assert not gateway.socket._to_test
    await gateway.leave()
    gateway = await world.connect("alpha")
    assert await gateway.events(1) == ["buffered"]


async def test_what_was_taken_before_the_flip_is_still_delivered(world: Any) -> None:
    gateway = await world.connect("alpha")
    for number in range(20):
        world.chat.write("ann", "c1", str(number), event_id=f"n{number}")
    await world.received("n19")
    gateway.say({"type": "going_idle"})
    assert await gateway.events(20) == [str(number) for number in range(20)]
    await gateway.hear("going_idle_ack")
    await world.empty("alpha")


async def test_a_sleeper_is_woken_and_drained_in_order_and_then_live(world: Any) -> None:
    await asleep(world, "alpha")
    for number in range(10):
        world.chat.write("ann", "c1", str(number), event_id=f"n{number}")
    await world.received("n9")
    await world.until(lambda: "alpha" in world.directory.woken)
    gateway = world.dial("alpha")
    await gateway.hello()
    first = await gateway.hear("inbound")
    gateway.say({"type": "hello", "platform": "memory", "botId": "bot"})
    frames = [await gateway.hear() for _ in range(10)]
    texts = [frame["event"]["text"] for frame in frames if frame["type"] == "inbound"]
    assert texts == [str(number) for number in range(1, 10)]
    series = first["bufferId"].rpartition("-")[0]
    for number in range(1, 11):
        gateway.say({"type": "inbound_ack", "bufferId": f"{series}-{number}"})
    await world.until(lambda: world.delivery.hub.find("alpha").session.state.value == "live")
    woken = len(world.directory.woken)
    world.chat.write("ann", "c1", "awake")
    assert await gateway.events(1) == ["awake"]
    assert len(world.directory.woken) == woken


async def test_whoever_only_lost_its_socket_is_not_woken(world: Any) -> None:
    gateway = await world.connect("alpha")
    await gateway.leave()
    world.chat.write("ann", "c1", "x", event_id="x")
    await world.received("x")
    assert world.directory.woken == []


async def test_what_is_not_relevant_never_wakes(world: Any) -> None:
    world.link("sam", "sleeper")
    seat = PolicyKey("t1", "sleeper", "memory")
    world.directory.known = replace(
        world.directory.known,
        grants={TenantChannel("t1", "memory", "g1", "c1"): ChannelGrant("sleeper", "sam")},
        principals={seat: PrincipalRule(PrincipalPolicy.ANY)},
        relevance={seat: RelevancePolicy(require_address=True)},
    )
    await asleep(world, "sleeper")
    world.chat.write("ann", "c1", "chatter", event_id="x")
    await world.received("x")
    assert world.directory.woken == []
    world.chat.write("ann", "c1", "hey bot", addressed=True, event_id="y")
    await world.received("y")
    await world.until(lambda: world.directory.woken == ["sleeper"])


async def test_a_sleeper_with_rows_is_found_by_the_janitor(world: Any) -> None:
    await asleep(world, "alpha")
    world.chat.write("ann", "c1", "x", event_id="x")
    await world.received("x")
    tidied = await apply_retention(world.delivery.context, 0)
    assert tidied.asleep == ("alpha",)


async def test_going_idle_before_hello_is_ignored(world: Any) -> None:
    gateway = world.dial("alpha")
    gateway.say({"type": "going_idle"})
    assert (await gateway.hello())["type"] == "descriptor"
    world.chat.write("ann", "c1", "x")
    assert await gateway.events(1) == ["x"]
