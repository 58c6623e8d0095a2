"""Events over a real JetStream: published once, heard live, taken by durable groups."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from tests.fabric.fabric_network import graph, linked

from accord.fabric import (
    Event,
    Link,
    Received,
    Terms,
    UnavailableError,
    ValidationError,
    event_on,
    event_pattern,
    event_subject,
)
from accord.fabric.events import ConsumerGroup, consume, listen, publish
from accord.testing.servers import Server as Process


def changed(space: str = "events.v1") -> Event:
    manifest = graph().manifest()
    manifest["events"]["User.Changed"]["subject"] = f"{space}.User.Changed.{{/id}}"
    return Terms(manifest).events["User.Changed"]


EVENT = changed()


@pytest.fixture
async def link(nats: Process) -> AsyncIterator[Link]:
    async with linked(nats.url) as link:
        yield link


@asynccontextmanager
async def stream(link: Link) -> AsyncIterator[tuple[str, Event]]:
    """A stream of its own, and an event that goes there."""
    name = f"t{secrets.token_hex(6)}"
    await link.js.add_stream(name=name, subjects=[f"events.{name}.>"])
    try:
        yield name, changed(f"events.{name}")
    finally:
        await link.js.delete_stream(name)


async def durable(link: Link, name: str, **settings: Any) -> ConsumerGroup:
    config = ConsumerConfig(
        durable_name="group",
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        max_ack_pending=1,
        **settings,
    )
    await link.js.add_consumer(name, config)
    return ConsumerGroup("changes", name, "group", backoff=(0.01,))


@asynccontextmanager
async def consuming(
    link: Link, group: ConsumerGroup, event: Event, handler: Any
) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    task = asyncio.create_task(consume(link, group, [event], handler, stopping))
    try:
        yield
    finally:
        stopping.set()
        await task


async def test_an_event_is_stored_with_its_id_and_its_time(link: Link) -> None:
    async with stream(link) as (name, event):
        published = await publish(link, event, {"id": "a.b"})
        stored = await link.js.get_msg(name, 1)
        assert stored.subject == f"events.{name}.User.Changed.a~2E~b"
        assert stored.headers is not None
        assert stored.headers["Nats-Msg-Id"] == published
        assert stored.headers["Trellis-Event-Time"].endswith("Z")


async def test_an_event_that_breaks_its_contract_is_not_published(link: Link) -> None:
    async with stream(link) as (name, event):
        for payload in ({}, {"id": 5}, None, {"id": object()}):
            with pytest.raises(ValidationError):
                await publish(link, event, payload)
        assert (await link.js.stream_info(name)).state.messages == 0


async def test_an_event_that_no_stream_takes_is_an_error(link: Link) -> None:
    with pytest.raises(UnavailableError):
        await publish(link, changed("events.nowhere"), {"id": "1"}, within=0.2)


async def test_an_event_waits_for_its_stream(link: Link) -> None:
    name = f"t{secrets.token_hex(6)}"
    publishing = asyncio.create_task(publish(link, changed(f"events.{name}"), {"id": "1"}))
    await link.nats.flush()
    await link.js.add_stream(name=name, subjects=[f"events.{name}.>"])
    await publishing
    assert (await link.js.stream_info(name)).state.messages == 1
    await link.js.delete_stream(name)


async def test_a_listener_hears_every_event_from_the_moment_it_listens(link: Link) -> None:
    async with stream(link) as (_, event), listen(link, event) as events:
        await publish(link, event, {"id": "1"})
        await publish(link, event, {"id": "2"})
        heard = [await anext(events), await anext(events)]
    assert [each.payload for each in heard] == [{"id": "1"}, {"id": "2"}]
    assert heard[0].id != heard[1].id


async def test_a_listener_may_choose_by_the_tokens_of_the_subject(link: Link) -> None:
    async with stream(link) as (_, event), listen(link, event, where={"/id": "2"}) as events:
        for number in ("1", "2"):
            await publish(link, event, {"id": number})
        assert (await anext(events)).payload == {"id": "2"}


async def test_a_listener_never_sees_an_event_that_breaks_its_contract(link: Link) -> None:
    async with stream(link) as (name, event), listen(link, event) as events:
        for body in (b"{}", b"no json", b""):
            await link.nats.publish(f"events.{name}.User.Changed.x", body)
        await publish(link, event, {"id": "1"})
        assert (await anext(events)).payload == {"id": "1"}


async def test_a_group_handles_every_event_once_and_in_order(link: Link) -> None:
    async with stream(link) as (name, event):
        group = await durable(link, name)
        for number in range(20):
            await publish(link, event, {"id": str(number)})
        handled: list[str] = []
        done = asyncio.Event()

        async def handle(received: Received) -> None:
            handled.append(received.payload["id"])
            if len(handled) == 20:
                done.set()

        async with consuming(link, group, event, handle):
            await done.wait()
        assert handled == [str(number) for number in range(20)]
        assert (await link.js.consumer_info(name, "group")).num_ack_pending == 0


async def test_an_event_whose_handler_fails_comes_again_before_the_next(link: Link) -> None:
    async with stream(link) as (name, event):
        group = await durable(link, name)
        for number in range(3):
            await publish(link, event, {"id": str(number)})
        handled: list[str] = []
        done = asyncio.Event()

        async def handle(received: Received) -> None:
            handled.append(received.payload["id"])
            if handled == ["0"]:
                raise RuntimeError("not today")
            if len(handled) == 4:
                done.set()

        async with consuming(link, group, event, handle):
            await done.wait()
        assert handled == ["0", "0", "1", "2"]


async def test_a_group_is_not_held_up_by_an_event_that_breaks_its_contract(link: Link) -> None:
    async with stream(link) as (name, event):
        group = await durable(link, name)
        await link.js.publish(f"events.{name}.User.Changed.x", b"no json")
        await link.js.publish(f"events.{name}.Unknown", b'{"id":"1"}')
        await publish(link, event, {"id": "1"})
        handled: asyncio.Queue[Received] = asyncio.Queue()
        async with consuming(link, group, event, handled.put):
            assert (await handled.get()).payload == {"id": "1"}
        info = await link.js.consumer_info(name, "group")
        assert (info.num_ack_pending, info.num_pending) == (0, 0)


async def test_what_one_member_leaves_the_next_one_takes_at_once(link: Link) -> None:
    async with stream(link) as (name, event):
        group = await durable(link, name)
        first: asyncio.Queue[Received] = asyncio.Queue()
        second: asyncio.Queue[Received] = asyncio.Queue()
        async with consuming(link, group, event, first.put):
            await publish(link, event, {"id": "1"})
            await first.get()
        await publish(link, event, {"id": "2"})
        async with consuming(link, group, event, second.put):
            assert (await second.get()).payload == {"id": "2"}
        assert first.empty()


async def test_a_long_handler_keeps_its_event(link: Link) -> None:
    async with stream(link) as (name, event):
        group = await durable(link, name, ack_wait=0.5)
        group = ConsumerGroup("changes", name, "group", ack_wait=0.3)
        await publish(link, event, {"id": "1"})
        handled: list[str] = []
        began = asyncio.Event()

        async def handle(received: Received) -> None:
            handled.append(received.id)
            began.set()
            await asyncio.sleep(1.2)

        async with consuming(link, group, event, handle):
            await began.wait()
        assert len(handled) == 1
        assert (await link.js.consumer_info(name, "group")).num_pending == 0


@given(st.text(max_size=20) | st.integers(-(2**53) + 1, 2**53 - 1))
def test_any_value_is_one_token_of_a_subject(value: str | int) -> None:
    subject = event_subject(EVENT, {"id": value})
    assert subject.count(".") == EVENT.subject.count(".")
    assert event_on(subject, [EVENT]) is EVENT
    assert event_pattern(EVENT, {"/id": value}) == subject


def test_a_value_that_looks_like_a_template_is_none() -> None:
    manifest = graph().manifest()
    manifest["schemas"]["User"]["properties"]["at"] = {"type": "string"}
    manifest["events"]["User.Changed"] |= {
        "subject": "events.v1.User.Changed.{/id}.{/at}",
        "params": ["/id", "/at"],
    }
    event = Terms(manifest).events["User.Changed"]
    subject = event_subject(event, {"id": "{/at}", "at": "x"})
    assert subject == "events.v1.User.Changed.{/at}.x"


def test_a_pattern_of_another_pointer_is_refused() -> None:
    with pytest.raises(ValidationError, match="has no /name"):
        event_pattern(EVENT, {"/name": "x"})
    assert event_pattern(EVENT, None) == "events.v1.User.Changed.*"
