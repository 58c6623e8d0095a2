"""What is recorded of an event: every layer's verdict, and nothing that anybody wrote."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from accord.relay.connector import DeliveryLimits, FoundCapability, InboundKind, LinkReply
from accord.relay.errors import Code, RelayError
from accord.relay.rules import decide
from accord.storage import journal


async def entries(world: Any, stream: str) -> list[Any]:
    return list(await world.store.read(lambda c: journal.read(c, stream)))


async def test_a_delivered_and_a_dropped_event_explain_themselves(world: Any) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "hello", event_id="yes")
    world.chat.write("eve", "c1", "hello", event_id="no")
    await world.received("yes", "no")
    explained = await world.delivery.why("yes")
    assert [each.instance for each in explained.statuses] == ["alpha"]
    assert explained.recorded.decision.deliveries == ("alpha",)
    assert (await world.delivery.why(explained.event)) == explained
    dropped = await world.delivery.why("no")
    assert dropped.statuses == ()
    assert dropped.recorded.decision.verdicts[-1].rule == "candidates.unlinked"
    await gateway.events(1)
    await world.empty("alpha")
    assert (await world.delivery.why("yes")).statuses[0].state == "acked"
    assert await world.delivery.why("never heard of") is None


async def test_a_record_decides_again_to_the_same(world: Any) -> None:
    for number, user in enumerate(["ann", "ann", "eve", "ann"]):
        world.chat.write(user, "c1", "x", event_id=f"n{number}")
    await world.received("n3")
    for number in (0, 1, 3):
        recorded = (await world.delivery.why(f"n{number}")).recorded
        assert recorded.event.event_id == f"n{number}"
        assert decide(recorded.event, recorded.facts) == recorded.decision
    assert (await world.delivery.why("n2")).is_counted


async def test_facts_that_changed_are_decided_by_anew(world: Any) -> None:
    world.chat.write("ann", "c1", "x", event_id="before")
    await world.received("before")
    world.directory.known = replace(world.directory.known, bindings={})
    world.chat.write("ann", "c1", "x", event_id="after")
    await world.received("after")
    assert (await world.delivery.why("before")).recorded.decision.deliveries == ("alpha",)
    assert (await world.delivery.why("after")).recorded.decision.deliveries == ()


async def test_the_journal_holds_no_words_and_no_secrets(world: Any) -> None:
    gateway = await world.connect("alpha")
    found = [FoundCapability("memory.reply", SecretStr("the-capability"), 2**53)]
    world.chat.write("ann", "c1", "private words", found=found)
    await gateway.events(1)
    action = {"op": "send", "chat_id": "c1", "content": "an answer"}
    await gateway.ask(action)
    await world.empty("alpha")
    streams = ("relay.inbound", "relay.decisions", "relay.deliveries", "relay.outbound")
    told = {stream: await entries(world, stream) for stream in streams}
    assert all(told.values())
    everything = str(told)
    for word in ("private", "the-capability", "answer"):
        assert word not in everything


async def test_the_journal_tells_the_life_of_a_row(world: Any) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "x")
    await gateway.events(1)
    await world.empty("alpha")
    states: Counter[str] = Counter()
    for entry in await entries(world, "relay.deliveries"):
        states.update(list(json.loads(entry.body)))
    assert states == {"pending": 1, "acked": 1}


async def test_a_link_message_is_consumed_answered_and_never_routed(world: Any) -> None:
    world.chat.channel("d1", "dm")
    world.directory.replies["/link ABCDE-12345"] = LinkReply("Link to Alpha? Say yes.", "link.ask")
    inbound = world.chat.write("ann", "d1", "/link ABCDE-12345", event_id="l")
    await world.received("l")
    await world.until(lambda: len(world.chat.said) == 1)
    assert world.chat.said[0].texts == ["Link to Alpha? Say yes."]
    assert (await world.delivery.why("l")).recorded.decision.verdicts[0].rule == "link.consumed"
    world.chat.repeat(inbound)
    world.chat.write("ann", "c1", "x", event_id="after")
    await world.received("after")
    assert len(world.chat.said) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"platform": "other"},
        {"event_id": ""},
        {"event_id": "x" * 600},
        {"event_id": "\0"},
        {"event_id": "\ud800"},
        {"kind": InboundKind.PASSTHROUGH},
        {"found": (FoundCapability("other.reply", SecretStr("x"), 2**53),)},
    ],
)
async def test_what_cannot_be_kept_is_refused(world: Any, changes: dict[str, Any]) -> None:
    inbound = world.chat.write("ann", "c1", "x")
    world.chat._waiting.clear()
    with pytest.raises(RelayError) as caught:
        await world.delivery.take(replace(inbound, **changes))
    assert caught.value.code is Code.BAD_REQUEST
    assert await world.delivery.is_empty("alpha")


@pytest.mark.parametrize("text", ["\ud800", "x" * 2000])
async def test_a_text_that_no_frame_could_carry_is_refused(open_world: Any, text: str) -> None:
    async with open_world(limits=DeliveryLimits(line_bytes=1000)) as world:
        world.link("ann", "alpha")
        inbound = world.chat.write("ann", "c1", text)
        world.chat._waiting.clear()
        with pytest.raises(RelayError):
            await world.delivery.take(inbound)
        assert await world.delivery.is_empty("alpha")
