"""A trace is kept with what waits: in the connector's buffer, among dead letters, in an inbox."""

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import text, update
from tests.relay.delivery.conftest import Open, World
from tests.relay.delivery.conftest import open_world as open_world
from tests.relay.delivery.conftest import sqlite_stores as sqlite_stores
from tests.relay.delivery.conftest import sqlite_where as sqlite_where

from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import Trace, parse_traceparent
from accord.relay.connector import RELAY
from accord.relay.gateway import INBOX_SCHEMA, ReceivedEvent, open_stored_inbox
from accord.relay.gateway import inbox as inbox_tables
from accord.relay.rules import MessageEvent, SessionSource
from accord.storage import open_store, roll_back

PLACE = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01")


@pytest.fixture
def where(sqlite_where: str) -> str:
    return sqlite_where


async def heard(world: World) -> dict[str, Any]:
    gateway = await world.connect("alpha")
    frame = await gateway.hear("inbound")
    gateway.say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
    await world.empty("alpha")
    return frame


def trace_of(recorded: InMemorySpanExporter, name: str) -> str:
    (span,) = [each for each in recorded.get_finished_spans() if each.name == name]
    return f"{span.context.trace_id:032x}"


async def test_what_waited_for_a_restarted_connector_goes_on_in_the_trace_in_which_it_came(
    open_world: Open, recorded: InMemorySpanExporter
) -> None:
    async with open_world() as world:
        world.link("ann", "alpha")
        await world.received(world.chat.write("ann", "c1", "hello").event_id)
    async with open_world(directory=world.directory) as again:
        place = parse_traceparent((await heard(again))["traceparent"])
    assert place is not None
    assert place.id == trace_of(recorded, "relay ingest") == trace_of(recorded, "relay deliver")


async def test_a_dead_letter_that_is_replayed_is_in_its_trace_again(
    open_world: Open, recorded: InMemorySpanExporter
) -> None:
    async with open_world() as world:
        world.link("ann", "alpha")
        await world.received(world.chat.write("ann", "c1", "hello").event_id)
        await world.delivery.dead_letter("alpha", "a test")
        (letter,) = await world.delivery.dead_letters()
        await world.delivery.replay("alpha", [letter.seq])
        place = parse_traceparent((await heard(world))["traceparent"])
    assert place is not None
    assert place.id == trace_of(recorded, "relay ingest")


async def test_a_store_that_was_rolled_back_still_delivers_what_waits_only_without_its_trace(
    open_world: Open, where: str
) -> None:
    async with open_world() as world:
        world.link("ann", "alpha")
        await world.received(world.chat.write("ann", "c1", "hello").event_id)
    assert "delivery_0003" in [each.revision for each in roll_back(where, RELAY, "0.1.0")]
    async with open_world(directory=world.directory) as again:
        frame = await heard(again)
    assert frame["event"]["text"] == "hello"
    assert "traceparent" not in frame


async def test_a_turn_that_a_dead_process_left_is_in_its_trace(tmp_path: Path) -> None:
    event = MessageEvent("hello", SessionSource("web", "c1", "dm"), message_id="m1")
    async with open_stored_inbox(tmp_path, SystemClock()) as inbox:
        await inbox.take([ReceivedEvent("s1", event, buffer_id="b1", trace=PLACE)])
    async with open_stored_inbox(tmp_path, SystemClock()) as inbox:
        ((number, _),) = await inbox.unfinished()
        left = await inbox.begin(number)
    assert left is not None
    assert (left.event, left.trace) == (event, PLACE)


async def test_what_an_older_gateway_took_has_its_turn_without_a_trace(tmp_path: Path) -> None:
    event = MessageEvent("hello", SessionSource("web", "c1", "dm"), message_id="m1")
    async with open_stored_inbox(tmp_path, SystemClock()) as inbox:
        await inbox.take([ReceivedEvent("s1", event, buffer_id="b1", trace=PLACE)])
    older = text("json_remove(body, '$.traceparent')")
    async with open_store(tmp_path, INBOX_SCHEMA) as store:
        await store.write(
            lambda c: c.execute(update(inbox_tables.events).values(body=older)).rowcount
        )
    async with open_stored_inbox(tmp_path, SystemClock()) as inbox:
        ((number, _),) = await inbox.unfinished()
        left = await inbox.begin(number)
    assert left is not None
    assert (left.event, left.trace) == (event, None)
