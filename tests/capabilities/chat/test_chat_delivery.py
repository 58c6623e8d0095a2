"""Messages reach their recipients once and in order, and senders are told the truth about it."""

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from tests.capabilities.chat.conftest import Neighbour, Neighbours

from accord.capabilities.chat import delivery
from accord.community import queries
from accord.community.peers import Endpoint, announced

MESSAGES = 6


async def test_a_recipient_who_is_there_gets_it_directly(neighbours: Neighbours) -> None:
    alice, carol = neighbours.alice, neighbours.carol
    sent = await alice.send(carol, "hello")
    assert sent["delivered"] == "direct"
    # Nobody synced: it is there because the answer says so.
    (message,) = await carol.history()
    assert (message["event_id"], message["body"]) == (sent["event_id"], "hello")
    assert (message["from"], message["to"]) == (alice.id, carol.id)
    assert message["sealed"] is True


async def test_the_recipient_says_once_that_it_has_arrived(neighbours: Neighbours) -> None:
    bob, carol = neighbours.bob, neighbours.carol
    sent = await bob.send(carol, "hello")
    await carol.until(lambda: carol.receipt(sent["event_id"]) is not None)
    await bob.sync()
    (message,) = await bob.history()
    assert message["delivered_at"] == carol.receipt(sent["event_id"])
    assert message["read_at"] is None
    await carol.leave()
    await carol.arrive()
    await carol.sync()
    receipts = await queries.log_entries(
        carol.hosted, limit=100, event_type="chat.message.delivered"
    )
    assert [each["status"] for each in receipts] == ["accepted"]


async def test_an_anchor_holds_it_for_a_recipient_who_is_away(neighbours: Neighbours) -> None:
    alice, bob, carol = neighbours.everybody
    await carol.leave()
    sent = await bob.send(carol, "call me")
    assert sent["delivered"] == "forwarded"
    await bob.leave()
    await carol.arrive()
    await carol.sync()
    (message,) = await carol.history()
    assert message["body"] == "call me"
    await carol.until(lambda: carol.receipt(sent["event_id"]) is not None)
    await carol.sync()
    assert alice.receipt(sent["event_id"]) is not None


async def test_a_recipient_who_takes_the_call_and_says_nothing_counts_as_away(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, carol = neighbours.bob, neighbours.carol
    with ExitStack() as opened:
        silent = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = silent.getsockname()[1]
        opened.enter_context(announced(port))
        carol.node.presence.endpoints = (Endpoint("http", "127.0.0.1", port),)
        manifest = dict(carol.node.presence.manifest(carol.hosted))
        await carol.node.act(carol.community, "node.manifest.updated", {"manifest": manifest})
        await neighbours.sync()
        await carol.leave()
        monkeypatch.setattr(delivery, "_ANSWER_SECONDS", 0.05)
        sent = await bob.send(carol, "are you there?")
        assert sent["delivered"] in ("forwarded", "queued")
        monkeypatch.setattr(delivery, "_ANSWER_SECONDS", 20.0)
        again = await bob.send(neighbours.alice, "she is not")
        assert again["delivered"] == "direct"


async def test_without_an_anchor_it_waits_here(neighbours: Neighbours) -> None:
    alice, bob, carol = neighbours.everybody
    await carol.leave()
    await alice.leave()
    sent = await bob.send(carol, "anybody there?")
    assert sent["delivered"] == "queued"
    assert [each["body"] for each in await bob.history()] == ["anybody there?"]
    await alice.arrive()
    await alice.sync()
    # The same message again: nothing new is said, and an anchor has it now.
    again = await bob.send(carol, "anybody there?")
    assert again == {**sent, "delivered": "forwarded"}
    await carol.arrive()
    await carol.sync()
    assert [each["body"] for each in await carol.history()] == ["anybody there?"]


async def test_an_anchor_that_sends_does_not_forward_by_keeping(neighbours: Neighbours) -> None:
    await neighbours.carol.leave()
    sent = await neighbours.alice.send(neighbours.carol, "hello")
    assert sent["delivered"] == "queued"


async def test_a_member_who_is_no_anchor_is_not_asked_to_hold_it(neighbours: Neighbours) -> None:
    alice, bob, carol = neighbours.everybody
    await bob.leave()
    sent = await alice.send(bob, "hello")
    assert sent["delivered"] == "queued"
    assert sent["event_id"] not in carol.hosted.state.content.messages


async def test_what_was_delivered_is_not_sent_again(neighbours: Neighbours) -> None:
    bob, carol = neighbours.bob, neighbours.carol
    sent = await bob.send(carol, "hello")
    await carol.until(lambda: carol.receipt(sent["event_id"]) is not None)
    await bob.sync()
    await carol.leave()
    # It is with carol for good, whether she is there now or not.
    assert await bob.send(carol, "hello") == sent


async def test_who_was_away_gets_everything_once_and_in_order_per_sender(
    neighbours: Neighbours,
) -> None:
    alice, bob, carol = neighbours.everybody
    await carol.leave()

    async def say(sender: Neighbour) -> list[str]:
        return [
            (await sender.send(carol, f"{number} of {sender.name}"))["event_id"]
            for number in range(MESSAGES)
        ]

    said = dict(zip((alice.id, bob.id), await asyncio.gather(say(alice), say(bob)), strict=True))
    await carol.arrive()
    topics = carol.node.bus.topics
    topic = f"chat.message.{carol.id}"
    last = topics.last_seq(topic, community=carol.community)
    for _ in range(2):
        await carol.sync()
    found = await carol.history(limit=500)
    assert len(found) == 2 * MESSAGES
    told = await topics.following(topic, last, community=carol.community, timeout_seconds=5)
    for sender in (alice, bob):
        mine = [each for each in found if each["from"] == sender.id]
        assert [each["event_id"] for each in mine] == said[sender.id]
        assert [each["body"] for each in mine] == [
            f"{number} of {sender.name}" for number in range(MESSAGES)
        ]
        heard = [each.data["event_id"] for each in told if each.data["author"] == sender.id]
        assert heard == said[sender.id]

    def all_delivered() -> bool:
        return all(carol.receipt(event_id) for ids in said.values() for event_id in ids)

    await carol.until(all_delivered)
    entries = await queries.log_entries(
        carol.hosted, limit=500, event_type="chat.message.delivered"
    )
    assert Counter(each["status"] for each in entries) == {"accepted": 2 * MESSAGES}


async def test_many_at_once_share_meetings_and_all_arrive(neighbours: Neighbours) -> None:
    bob, carol = neighbours.bob, neighbours.carol
    async with bob.client() as client:

        async def send(number: int) -> dict[str, Any]:
            given = {"client_id": str(number), "recipient": carol.id, "body": str(number)}
            return await client.call("chat.send", {}, given)

        answers = await asyncio.gather(*(send(number) for number in range(12)))
    assert {each["output"]["delivered"] for each in answers} == {"direct"}
    assert len({each["output"]["event_id"] for each in answers}) == 12
    assert {each["body"] for each in await carol.history()} == set(map(str, range(12)))


async def test_one_client_id_at_once_sends_once(neighbours: Neighbours) -> None:
    bob, carol = neighbours.bob, neighbours.carol
    sent = await asyncio.gather(*(bob.send(carol, "once") for _ in range(6)))
    assert len({each["event_id"] for each in sent}) == 1
    assert len(await carol.history()) == 1


async def test_a_note_to_oneself_is_delivered(neighbours: Neighbours) -> None:
    bob = neighbours.bob
    sent = await bob.send(bob, "buy bread")
    assert sent["delivered"] == "direct"
    await bob.until(lambda: bob.receipt(sent["event_id"]) is not None)
    (message,) = await bob.history(peer=bob.id)
    assert message["body"] == "buy bread"


async def test_a_community_that_is_joined_later_gets_receipts_too(neighbours: Neighbours) -> None:
    bob, carol = neighbours.bob, neighbours.carol
    first = bob.community
    await bob.found()
    await carol.join(bob)
    sent = await bob.send(carol, "in the new one")
    await carol.until(lambda: carol.receipt(sent["event_id"]) is not None)
    assert sent["event_id"] not in bob.node.community(first).state.content.messages
