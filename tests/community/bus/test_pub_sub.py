"""Pub-sub: the topics of the specification, each for its listeners, numbered and bounded."""

import asyncio
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from accord.community.bus import (
    MAX_TOPIC_BYTES,
    MAX_TOPIC_MESSAGES,
    TOPICS,
    Audience,
    BusSettings,
    RateLimits,
    TopicListener,
    Topics,
    check_listener,
)
from accord.community.client import LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.rules import Level, wire
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey
from accord.testing import VirtualClock, run_virtual

NODE = SigningKey.from_seed(b"n" * 32).id
OTHER = SigningKey.from_seed(b"o" * 32).id

MEMBER, ANCHOR = TopicListener(OTHER, Level.MEMBER), TopicListener(OTHER, Level.ANCHOR)
OWN = TopicListener(NODE, Level.ANCHOR, own=True)


def test_the_topics_are_those_of_the_specification() -> None:
    assert set(TOPICS) == {
        "community.member.added",
        "community.member.revoked",
        "node.manifest.updated",
        "marketplace.post.created",
        "marketplace.post.expired",
        "chat.message.<recipient>",
        "emergency.mode.changed",
        "federation.peer.added",
        "capability.registered",
        "capability.deregistered",
    }


@pytest.mark.parametrize("topic", TOPICS)
def test_each_topic_has_its_listeners(topic: str) -> None:
    allowed = {
        Audience.MEMBERS: {"member", "anchor", "own"},
        Audience.ANCHORS: {"anchor", "own"},
        Audience.RECIPIENT: set[str](),
        Audience.OWN: {"own"},
    }[TOPICS[topic]]
    named = topic.replace("<recipient>", SigningKey.from_seed(b"x" * 32).id)
    for name, listener in {"member": MEMBER, "anchor": ANCHOR, "own": OWN}.items():
        if name in allowed:
            check_listener(named, listener)
        else:
            with pytest.raises(CommunityError) as error:
                check_listener(named, listener)
            assert error.value.code is Code.UNAUTHORIZED


def test_a_chat_is_told_to_its_recipient_only() -> None:
    check_listener(f"chat.message.{OTHER}", MEMBER)
    for listener in (OWN, TopicListener(NODE, Level.ANCHOR)):
        with pytest.raises(CommunityError):
            check_listener(f"chat.message.{OTHER}", listener)


@pytest.mark.parametrize(
    "topic", ["", "x", "chat.message.", "chat.message.<recipient>", "chat.message.x", "a" * 9999]
)
def test_an_unknown_topic_is_not_found(topic: str) -> None:
    for act in (
        lambda: check_listener(topic, OWN),
        lambda: Topics(VirtualClock()).publish(topic, 1),
    ):
        if topic == "chat.message.<recipient>":
            continue
        with pytest.raises(CommunityError) as error:
            act()
        assert error.value.code is Code.NOT_FOUND


ADDED = "community.member.added"


def test_a_listener_hears_what_follows_and_only_in_its_community() -> None:
    async def listen() -> None:
        topics = Topics(VirtualClock())
        start = topics.last_seq(ADDED, community="a")
        waiting = asyncio.create_task(
            topics.following(ADDED, start, community="a", timeout_seconds=30)
        )
        await asyncio.sleep(1)
        topics.publish(ADDED, {"n": 0}, community="b")
        topics.publish(ADDED, {"n": 1}, community="a")
        topics.publish(ADDED, {"n": 2}, community="a")
        heard = await waiting
        assert [(message.seq - start, message.data["n"]) for message in heard] == [(1, 1), (2, 2)]

    run_virtual(listen())


def test_a_listener_is_told_when_the_time_is_over() -> None:
    async def listen() -> None:
        clock = VirtualClock()
        topics = Topics(clock)
        start = topics.last_seq(ADDED)
        assert await topics.following(ADDED, start, timeout_seconds=30) == ()

    run_virtual(listen())


def test_what_is_kept_of_a_topic_is_bounded_in_number_and_in_bytes() -> None:
    topics = Topics(VirtualClock())
    for number in range(3 * MAX_TOPIC_MESSAGES):
        topics.publish(ADDED, number)
    large = "x" * (MAX_TOPIC_BYTES // 4)
    for _ in range(10):
        topics.publish("node.manifest.updated", large)

    async def kept(topic: str) -> int:
        return len(await topics.following(topic, 0, timeout_seconds=1))

    assert run_virtual(kept(ADDED)) == MAX_TOPIC_MESSAGES
    assert run_virtual(kept("node.manifest.updated")) == 3


def test_numbers_rise_over_a_restart() -> None:
    clock = VirtualClock()
    before = Topics(clock)
    last = [before.publish(ADDED, number) for number in range(5)][-1]
    clock.advance(1)
    assert Topics(clock).publish(ADDED, 0) > last


def test_the_number_of_topics_is_bounded() -> None:
    topics = Topics(VirtualClock())
    for number in range(5000):
        recipient = SigningKey.from_seed(number.to_bytes(32)).id
        topics.publish(f"chat.message.{recipient}", {})
    assert len(topics._topics) == 4096


async def test_a_client_hears_a_topic_by_long_poll(stage: Any) -> None:
    async with stage.client() as client:
        start = stage.bus.topics.publish(ADDED, {"n": 1}, community=stage.community)
        told = await client.get("/pubsub/v1/subscribe", {"topic": ADDED, "last_seq": 0})
        assert told == {
            "topic": ADDED,
            "messages": [{"seq": start, "data": {"n": 1}}],
            "last_seq": start,
            "missed": False,
        }
        query = {"topic": ADDED, "last_seq": start, "timeout": 0}
        assert await client.get("/pubsub/v1/subscribe", query) == {"timeout": True}


async def test_a_client_that_missed_messages_can_see_it(stage: Any) -> None:
    first = stage.bus.topics.publish(ADDED, 0, community=stage.community)
    for number in range(1, MAX_TOPIC_MESSAGES + 3):
        stage.bus.topics.publish(ADDED, number, community=stage.community)
    async with stage.client() as client:
        told = await client.get("/pubsub/v1/subscribe", {"topic": ADDED, "last_seq": first})
    assert told["missed"] is True
    assert len(told["messages"]) == MAX_TOPIC_MESSAGES


async def test_a_client_follows_a_topic(stage: Any) -> None:
    async with stage.client() as client, aclosing(client.subscribe(ADDED, 0)) as heard:
        for number in range(3):
            stage.bus.topics.publish(ADDED, number, community=stage.community)
            assert (await anext(heard))[1] == number


BAD_QUERIES = [
    "",
    "topic",
    "last_seq=1",
    f"topic={ADDED}&topic={ADDED}",
    f"topic={ADDED}&last_seq=-1",
    f"topic={ADDED}&last_seq=x",
    f"topic={ADDED}&last_seq=%C2%B2",
    f"topic={ADDED}&timeout=61",
    f"topic={ADDED}&timeout=1.5",
    f"topic={ADDED}&more=1",
    f"topic={ADDED}&last_seq={'9' * 5000}",
]


def signed_get(stage: Any, query: str, key: SigningKey) -> Any:
    return wire.sign_path_request(
        key,
        path="/pubsub/v1/subscribe",
        query=query,
        request_id=stage.ids.new(),
        community=stage.community,
        timestamp=format_time(stage.clock.now()),
        to=stage.node.id,
    )


@pytest.mark.parametrize("query", BAD_QUERIES)
async def test_a_malformed_question_is_refused(stage: Any, query: str) -> None:
    request = signed_get(stage, query, stage.member)
    path = f"/pubsub/v1/subscribe?{query}"
    answer = await stage.send(request, b"", path=path, method="GET")
    assert (answer.status_code, answer.json()["error"]) in (
        (400, "bad_request"),
        (404, "not_found"),
    )


async def test_a_subscription_is_signed_over_its_path_and_query(stage: Any) -> None:
    request = signed_get(stage, f"topic={ADDED}", stage.member)
    other = f"/pubsub/v1/subscribe?topic=chat.message.{stage.member.id}"
    answer = await stage.send(None, b"", path=other, method="GET", headers=request.headers)
    assert answer.json()["error"] == "invalid_signature"
    bare = await stage.send(None, b"", path=f"/pubsub/v1/subscribe?topic={ADDED}", method="GET")
    assert bare.json()["error"] == "bad_request"


async def test_what_is_for_this_machine_only_never_leaves_it(stage: Any) -> None:
    topics = ["capability.registered", "capability.deregistered", "emergency.mode.changed"]
    for topic in topics:
        stage.bus.topics.publish(topic, {})
        for key, address in (
            (stage.node, "198.51.100.7"),
            (stage.member, "127.0.0.1"),
            (stage.anchor, "198.51.100.7"),
        ):
            async with stage.client(key, address=address) as client:
                with pytest.raises(CommunityError) as error:
                    await client.get("/pubsub/v1/subscribe", {"topic": topic, "last_seq": 0})
                assert error.value.code is Code.UNAUTHORIZED
        async with stage.client(stage.node, address="127.0.0.1") as client:
            told = await client.get("/pubsub/v1/subscribe", {"topic": topic, "last_seq": 0})
            assert told["messages"]


async def test_the_nodes_own_client_hears_of_capabilities(stage: Any) -> None:
    async with stage.client(stage.node, address="127.0.0.1") as client:
        heard = client.subscribe("capability.deregistered", 0)
        stage.bus.registry.deregister("experimental.echo@1.0")
        assert (await anext(heard))[1] == {"name": "experimental.echo", "version": "1.0"}
        await heard.aclose()


async def test_messages_come_as_an_event_stream_until_the_listener_leaves(stage: Any) -> None:
    request = signed_get(stage, f"topic={ADDED}&last_seq=0", stage.member)
    stage.bus.topics.publish(ADDED, {"n": 1}, community=stage.community)
    transport = LocalTransport(stage.app, address="198.51.100.7")
    async with httpx.AsyncClient(base_url="http://node", transport=transport) as http:
        named = request.headers | {"Accept": "text/event-stream"}
        path = f"/pubsub/v1/subscribe?topic={ADDED}&last_seq=0"
        async with http.stream("GET", path, headers=named) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            parts = answer.aiter_bytes()
            assert await anext(parts) == b": listening\n\n"
            assert (await anext(parts)).endswith(b'data: {"n":1}\n\n')
            stage.bus.topics.publish(ADDED, {"n": 2}, community=stage.community)
            assert (await anext(parts)).endswith(b'data: {"n":2}\n\n')
            assert stage.bus._subscriptions.listening == 1
    assert stage.bus._subscriptions.listening == 0


async def test_a_listener_that_is_revoked_hears_no_more(stage: Any) -> None:
    request = signed_get(stage, f"topic={ADDED}&last_seq=0", stage.member)
    stage.bus.topics.publish(ADDED, {"n": 1}, community=stage.community)
    transport = LocalTransport(stage.app, address="198.51.100.7")
    async with httpx.AsyncClient(base_url="http://node", transport=transport) as http:
        named = request.headers | {"Accept": "text/event-stream"}
        path = f"/pubsub/v1/subscribe?topic={ADDED}&last_seq=0"
        async with http.stream("GET", path, headers=named) as answer:
            parts = answer.aiter_bytes()
            await anext(parts)
            await anext(parts)
            stage.village.revoked.add(stage.member.id)
            stage.bus.topics.publish(ADDED, {"n": 2}, community=stage.community)
            assert b"".join([part async for part in parts]) == b""


async def test_too_many_subscriptions_are_refused(open_stage: Any) -> None:
    limits = RateLimits(per_capability=1e6, per_caller=1e6)
    settings = BusSettings(limits=limits, max_listeners=1)
    async with (
        open_stage(settings) as stage,
        stage.client() as client,
        stage.client(stage.trusted) as other,
    ):
        listening = asyncio.create_task(
            client.get("/pubsub/v1/subscribe", {"topic": ADDED, "timeout": 60})
        )
        async with asyncio.timeout(10):
            while stage.bus._subscriptions.listening == 0:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
        with pytest.raises(CommunityError) as error:
            await other.get("/pubsub/v1/subscribe", {"topic": ADDED})
        assert error.value.code is Code.CAPACITY_EXCEEDED
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        assert stage.bus._subscriptions.listening == 0
