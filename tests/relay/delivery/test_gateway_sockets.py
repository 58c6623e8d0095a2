"""Who is let in, and what a bad guest can do: nothing to anybody else."""

from typing import Any

import pytest

from accord.relay.connector import DeliveryLimits
from accord.relay.rules import UNAUTHORIZED


@pytest.fixture
def where(sqlite_where: str) -> str:
    """None of this depends on the engine."""
    return sqlite_where


async def test_a_wrong_token_closes_with_its_reason_after_accepting(world: Any) -> None:
    assert await world.dial("nobody").closed() == (UNAUTHORIZED, "unauthorized")


async def test_a_revoked_instance_loses_its_socket_and_its_letters(world: Any) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "x", event_id="x")
    await gateway.events(1, ack=False)
    await world.directory.revoke("alpha")
    assert await gateway.closed() == (UNAUTHORIZED, "revoked")
    assert [each.reason for each in await world.delivery.dead_letters()] == [
        "the instance was revoked"
    ]
    assert await world.dial("alpha").closed() == (UNAUTHORIZED, "revoked")


async def test_a_hello_that_lies_about_its_tenant_changes_nothing(world: Any) -> None:
    world.chat.channel("c2", scope_id="g2")
    world.link("cec", "gamma", scope="g2", tenant="t2")
    gateway = world.dial("alpha")
    await gateway.hello(tenant="t2", instance="gamma", instanceId="gamma")
    assert world.delivery.hub.find("gamma") is None
    world.chat.write("cec", "c2", "secret", event_id="s")
    world.chat.write("ann", "c1", "mine")
    assert await gateway.events(1) == ["mine"]
    await world.received("s")
    assert not gateway.socket._to_test


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1]",
        "null",
        '{"type":7}',
        '{"type":"hello"}',
        '{"type":"hello","platform":"memory","session_keys":"martian"}',
        '{"type":"inbound_ack","bufferId":7}',
        '{"type":"inbound_ack","bufferId":"x-1"}',
        '{"type":"inbound_ack","bufferId":"' + "9" * 500 + '"}',
        '{"type":"never heard of"}',
        '{"type":"descriptor"}',
        '{"type":"interrupt","session_key":"agent:main:nothing"}',
        '{"type":"outbound"}',
        "[" * 5000,
        '{"a":' * 5000,
        "\ud800",
        "\0",
    ],
)
async def test_a_bad_line_is_dropped_and_the_socket_serves_on(world: Any, line: str) -> None:
    gateway = await world.connect("alpha")
    gateway.socket.put(f"{line}\n\n")
    world.chat.write("ann", "c1", "still here")
    assert await gateway.events(1) == ["still here"]


async def test_an_endless_line_is_dropped_without_being_kept(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(line_bytes=1000)) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        for _ in range(100):
            gateway.socket.put("x" * 500)
        gateway.socket.put("\n")
        world.chat.write("ann", "c1", "still here")
        assert await gateway.events(1) == ["still here"]
        assert world.delivery.counts["lines too long"] == 1


async def test_frames_may_come_in_pieces_and_in_heaps(world: Any) -> None:
    gateway = world.dial("alpha")
    hello = '{"type":"hello","platform":"memory","botId":"bot"}\n'
    for character in hello:
        gateway.socket.put(character)
    await gateway.hear("descriptor")
    gateway.socket.put(hello * 3)
    for _ in range(3):
        await gateway.hear("descriptor")


async def test_a_flood_of_frames_ends_the_socket(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(frames_per_second=10)) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        gateway.socket.put('{"type":"nonsense"}\n' * 1000)
        assert await gateway.closed() == (1008, "too many frames")


async def test_acknowledgements_of_what_was_sent_are_not_counted(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(frames_per_second=1)) as world:
        world.link("ann", "alpha")
        for number in range(100):
            world.chat.write("ann", "c1", str(number), event_id=f"n{number}")
        await world.received("n99")
        gateway = await world.connect("alpha")
        assert len(await gateway.events(100)) == 100
        await world.empty("alpha")


async def test_whoever_says_no_hello_is_sent_away(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(hello_seconds=0.02)) as world:
        world.link("ann", "alpha")
        assert await world.dial("alpha").closed() == (1008, "no hello")


async def test_a_hello_for_a_platform_that_is_not_here_is_refused(world: Any) -> None:
    gateway = world.dial("alpha")
    gateway.say({"type": "hello", "platform": "telegraph", "botId": "x"})
    assert await gateway.closed() == (1008, "no such platform")


@pytest.mark.parametrize(
    "more",
    [
        {"profile": "a:b"},
        {"profile": "x" * 65},
        {"profile": 7},
        {"group_sessions_per_user": "yes"},
        {"thread_sessions_per_user": 1},
        {"session_keys": "theirs"},
        {"session_key_form": "1999"},
        {"platform": ""},
        {"platform": "x" * 600},
        {"botId": 7},
    ],
)
async def test_a_hello_with_a_bad_member_is_dropped_whole(world: Any, more: dict[str, Any]) -> None:
    gateway = world.dial("alpha")
    gateway.say({"type": "hello", "platform": "memory", "botId": "bot", **more})
    await world.until(lambda: world.delivery.counts["bad lines"] == 1)
    assert "alpha" not in world.directory.rules
    assert world.directory.refused == {}
    await gateway.hello()


async def test_what_is_kept_of_refused_hellos_is_bounded(world: Any) -> None:
    gateway = await world.connect("alpha")
    gateway.say({"type": "hello", "platform": "p" * 500, "botId": "b" * 500_000})
    assert (await gateway.hear("hello_refused"))["botId"] == "b" * 500_000
    assert list(world.directory.refused) == [("alpha", "p" * 80, "b" * 80)]
    for number in range(62):
        gateway.say({"type": "hello", "platform": f"p{number}", "botId": ""})
        await gateway.hear("hello_refused")
    gateway.say({"type": "hello", "platform": "memory", "botId": ""})
    assert await gateway.closed() == (1008, "too many hellos")


async def test_acknowledgements_twice_in_disorder_and_of_others_harm_nobody(world: Any) -> None:
    world.link("bob", "beta")
    gateway, other = await world.connect("alpha"), await world.connect("beta")
    for text in ("one", "two", "three"):
        world.chat.write("ann", "c1", text)
    ids = [(await gateway.hear("inbound"))["bufferId"] for _ in range(3)]
    for name in (*ids, "", "x", f"{ids[0]}0", ids[0].upper(), "\x00"):
        other.say({"type": "inbound_ack", "bufferId": name})
    await world.until(lambda: world.delivery.counts["acks of nothing"] >= 3)
    assert not await world.delivery.is_empty("alpha")
    gateway.say(*({"type": "inbound_ack", "bufferId": name} for name in reversed(ids)))
    gateway.say(*({"type": "inbound_ack", "bufferId": name} for name in ids))
    await world.empty("alpha")
    world.chat.write("ann", "c1", "four")
    assert await gateway.events(1) == ["four"]
    await world.until(lambda: world.delivery.counts["acks"] == 4)


async def test_an_acknowledgement_recorded_on_another_connection_is_worth_nothing(
    world: Any,
) -> None:
    first = await world.connect("alpha")
    world.chat.write("ann", "c1", "one")
    name = (await first.hear("inbound"))["bufferId"]
    second = world.dial("alpha")
    # Before the hello nothing was sent on this connection, so there is nothing to acknowledge.
    second.say({"type": "inbound_ack", "bufferId": name})
    await world.until(lambda: world.delivery.counts["acks of nothing"] == 1)
    assert not await world.delivery.is_empty("alpha")
    await second.hello()
    assert await second.events(1) == ["one"]
    await world.empty("alpha")
    first.say({"type": "inbound_ack", "bufferId": name})
    assert (await first.closed()) == (4409, "replaced")


async def test_a_replayed_action_is_done_once(world: Any) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "hello")
    await gateway.events(1)
    action: dict[str, Any] = {"op": "send", "chat_id": "c1", "content": "hi", "metadata": {}}
    first = await gateway.ask(action)
    assert await gateway.ask(action) == first
    # The same id for something else is an error, and is not done.
    assert "another action" in (await gateway.ask({**action, "content": "else"}))["error"]
    again = await world.connect("alpha")
    assert await again.ask(action) == first
    assert [each.texts for each in world.chat.said] == [["hi"]]


async def test_a_gateway_that_fronts_one_bot_need_not_name_it(world: Any) -> None:
    gateway = world.dial("alpha")
    gateway.say({"type": "hello", "platform": "relay"})
    assert (await gateway.hear("descriptor"))["descriptor"]["platform"] == "memory"


async def test_the_dialect_of_session_keys_cannot_change_under_what_is_kept(world: Any) -> None:
    await (await world.connect("alpha")).leave()
    gateway = world.dial("alpha")
    gateway.say({"type": "hello", "platform": "memory", "botId": "bot", "session_keys": "scoped"})
    code, reason = await gateway.closed()
    assert code == 1008
    assert "session keys" in reason


async def test_a_stopping_connector_says_that_it_restarts(open_world: Any) -> None:
    async with open_world() as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
    assert gateway.socket.closed is None or gateway.socket.closed[0] != UNAUTHORIZED
