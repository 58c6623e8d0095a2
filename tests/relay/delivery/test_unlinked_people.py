"""What is kept of people who are not linked: a count, and nothing by which they can be known."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from sqlalchemy import select

from accord.pipeline.exporter import ExportSource, export
from accord.pipeline.landing import Landing, read_records
from accord.pipeline.rules import STREAMS, redact
from accord.relay.connector import METADATA, DeliveryLimits, apply_retention, tables
from accord.relay.connector.outbox_store import action_bytes
from accord.relay.connector.retention import EXPORTED_STREAMS, OWN_STREAMS
from accord.relay.rules import Facts, OpenKey, OpenPlace, Send, decide, from_record
from accord.storage import JournalRecord, journal
from accord.testing import VirtualClock

STRANGER = "stranger-80351110224678912"
ROOM = "room-of-strangers-4711"
CELL = "direct-chat-with-stranger-0815"
TEXT = "supercalifragilistic"
DAY = 86_400


def limits(**given: Any) -> DeliveryLimits:
    return DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.1, **given)


async def entries(world: Any, stream: str) -> list[dict[str, Any]]:
    found = await world.store.read(lambda c: journal.read(c, stream))
    return [json.loads(each.body) for each in found]


async def everything(world: Any) -> str:
    """Every row of every table."""

    def read(connection: Any) -> str:
        return "\n".join(
            str(row)
            for table in METADATA.sorted_tables
            for row in connection.execute(select(table))
        )

    return str(await world.store.read(read))


def open_rooms(world: Any) -> None:
    world.chat.channel(ROOM, scope_id="g1")
    world.chat.channel(CELL, "dm")


async def strangers_write(world: Any) -> None:
    """Twice in a room of a tenant, once in a direct chat."""
    open_rooms(world)
    for number, chat in enumerate((ROOM, ROOM, CELL)):
        world.chat.write(STRANGER, chat, TEXT, event_id=f"s{number}")
    await world.received("s0", "s1", "s2")


async def test_strangers_are_counted_by_hour_and_rule_and_not_recorded(open_world: Any) -> None:
    clock = VirtualClock()
    async with open_world(clock=clock) as world:
        world.link("ann", "alpha")
        await strangers_write(world)
        world.chat.write("ann", "c1", "hello", event_id="a1")
        await world.received("a1")
        assert [each["event_id"] for each in await entries(world, "relay.inbound")] == ["a1"]
        assert len(await entries(world, "relay.decisions")) == 1
        assert await entries(world, "relay.unlinked") == []
        clock.advance(3600)
        await apply_retention(world.delivery.context, 30)
        told = await entries(world, "relay.unlinked")
        assert {(each["rule"], each["tenant"], each["messages"]) for each in told} == {
            ("candidates.unlinked", "t1", 2),
            ("tenant.no-dm-default", None, 1),
        }
        assert all(each["hour"] % 3_600_000 == 0 for each in told)
        # The hour is told once.
        await apply_retention(world.delivery.context, 30)
        assert len(await entries(world, "relay.unlinked")) == 2


async def test_a_repeated_message_is_counted_once(open_world: Any) -> None:
    async with open_world() as world:
        world.link("ann", "alpha")
        inbound = world.chat.write("eve", "c1", "x", event_id="s1")
        await world.received("s1")
        assert not await world.delivery.take(inbound)
        rows = await world.store.read(
            lambda c: c.execute(select(tables.unlinked_counts.c.messages)).scalars().all()
        )
        assert list(rows) == [1]


async def test_the_whole_store_and_its_segments_know_no_stranger(
    open_world: Any, tmp_path: Path
) -> None:
    """Also not by a digest that could be guessed from a list of ids or texts."""
    clock = VirtualClock()
    async with open_world(clock=clock) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        world.chat.write("ann", "c1", "a question", event_id="a1")
        await gateway.events(1)
        await strangers_write(world)
        clock.advance(3600)
        await apply_retention(world.delivery.context, 30)
        landing = Landing(tmp_path / "landing")
        await export([ExportSource("relay", world.store, "0a1b2c3d")], landing)
        landed = "\n".join(
            entry.body
            for stream in STREAMS
            for segment in landing.segments(stream)
            for entry in read_records(landing.read(segment))
        )
        stored = await everything(world)
    assert "candidates.unlinked" in landed
    assert "withheld" not in landed
    assert "a1" in stored
    for word in (STRANGER, ROOM, CELL, TEXT):
        digest = blake3(word.encode()).hexdigest()
        for place in (stored, landed, raw_bytes(tmp_path)):
            assert word not in place
            assert word.title() not in place
            assert digest not in place


def raw_bytes(folder: Path) -> str:
    """Every file: the store's own on SQLite, and the segments."""
    data = b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())
    return data.decode("latin-1")


async def test_a_sample_is_recorded_under_pseudonyms_that_decide_the_same(open_world: Any) -> None:
    async with open_world(limits=limits(unlinked_sample=1.0)) as world:
        world.link("ann", "alpha")
        await strangers_write(world)
        inbound = await entries(world, "relay.inbound")
        decisions = await entries(world, "relay.decisions")
        assert len(inbound) == len(decisions) == 3
        assert len({each["user_id"] for each in inbound}) == 1
        assert len({each["chat_id"] for each in inbound}) == 2
        assert len({each["event_id"] for each in inbound}) == 3
        told = json.dumps([inbound, decisions])
        for word in (STRANGER, ROOM, CELL, TEXT, '"s0"'):
            assert word not in told
        for body in decisions:
            recorded = from_record(body)
            assert decide(recorded.event, recorded.facts) == recorded.decision
            assert redact("relay.decisions", json.dumps(body)) == json.dumps(body)
        found = await world.delivery.why("s0")
        assert not found.is_counted
        assert found.recorded.decision.refusal.rule == "candidates.unlinked"
        assert found.recorded.event.author.startswith("~")


async def test_who_is_answered_in_open_mode_bears_one_pseudonym_in_every_stream(
    open_world: Any,
) -> None:
    async with open_world() as world:
        world.directory.admit("alpha")
        opened = {OpenKey("memory", "", ""): OpenPlace("t1", "alpha")}
        world.directory.known = Facts(open=opened)
        gateway = await world.connect("alpha")
        open_rooms(world)
        world.chat.write(STRANGER, CELL, TEXT, event_id="s0")
        [heard] = [await gateway.hear("inbound")]
        assert heard["event"]["source"]["user_id"] == STRANGER
        gateway.say({"type": "inbound_ack", "bufferId": heard["bufferId"]})
        await gateway.ask({"op": "send", "chat_id": CELL, "content": TEXT})
        await world.empty("alpha")
        streams = {name: await entries(world, name) for name in EXPORTED_STREAMS}
        [inbound], [outbound] = streams["relay.inbound"], streams["relay.outbound"]
        recorded = from_record(streams["relay.decisions"][0])
        assert inbound["chat_id"] == outbound["chat_id"] == recorded.event.chat_id
        assert inbound["user_id"] == recorded.event.author
        assert decide(recorded.event, recorded.facts) == recorded.decision
        assert recorded.decision.deliveries == ("alpha",)
        for word in (STRANGER, CELL, TEXT, blake3(TEXT.encode()).hexdigest()):
            assert word not in json.dumps(streams)


async def test_an_open_channel_keeps_its_name_and_its_people_do_not(open_world: Any) -> None:
    async with open_world() as world:
        world.link("ann", "alpha")
        known = world.directory.known
        place = {OpenKey("memory", "g1", "c1"): OpenPlace("t1", "alpha")}
        world.directory.known = replace(known, open=place)
        world.chat.write("eve", "c1", TEXT, event_id="s0", addressed=True)
        world.chat.write("eve", "c1", TEXT, event_id="s1")
        await world.received("s0", "s1")
        [inbound] = await entries(world, "relay.inbound")
        assert inbound["chat_id"] == "c1"
        assert inbound["user_id"] not in (None, "eve")
        # What the agent did not want to hear is counted with its name.
        found = await world.delivery.why("s1")
        assert found.is_counted
        assert found.recorded.decision.refusal.rule == "relevance.unaddressed"
        counted = await world.store.read(
            lambda c: c.execute(select(tables.unlinked_counts)).mappings().all()
        )
        assert [(row["instance"], row["messages"]) for row in counted] == [("alpha", 1)]


async def test_digests_of_what_was_written_cannot_be_guessed(world: Any) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "yes", event_id="a1")
    await gateway.events(1)
    await gateway.ask({"op": "send", "chat_id": "c1", "content": "no"})
    told = json.dumps([await entries(world, name) for name in EXPORTED_STREAMS])
    stored = await everything(world)
    guesses = [b"yes", b"no", action_bytes(Send("c1", "no"))]
    for guess in guesses:
        assert blake3(guess).hexdigest() not in told
        assert blake3(guess).hexdigest() not in stored
    names = await world.directory.secret.load(world.store)
    assert names.digest(b"yes") in told
    assert names.digest(action_bytes(Send("c1", "no"))) in told


async def test_a_request_is_recognised_by_its_keyed_digest_after_a_restart(open_world: Any) -> None:
    action = {"op": "send", "chat_id": "c1", "content": "hi"}
    async with open_world() as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        world.chat.write("ann", "c1", "x")
        await gateway.events(1)
        first = await gateway.ask(action, "r1")
        chat, directory = world.chat, world.directory
    # Another process reads the same secret from the store.
    directory.secret = type(directory.secret)(directory.secret.keyring)
    async with open_world(chat=chat, directory=directory) as world:
        gateway = await world.connect("alpha")
        assert await gateway.ask(action, "r1") == first
        other = await gateway.ask({**action, "content": "ho"}, "r1")
        assert "used for another action" in other["error"]
        assert len(world.chat.said) == 1


async def old_records(world: Any, clock: VirtualClock) -> None:
    """A record in each stream, then one more after 89 and 2 days."""
    for days, name in ((0, "old"), (89, "middle"), (2, "new")):
        clock.advance(days * DAY)
        now = int(clock.now() * 1000)
        records = [
            JournalRecord(stream, name, now, "test", "{}")
            for stream in (*OWN_STREAMS, *EXPORTED_STREAMS)
        ]
        await world.store.write(lambda c, records=records: journal.append(c, records))


async def left(world: Any) -> dict[str, list[str]]:
    return {
        stream: [
            entry.id
            for entry in await world.store.read(lambda c, stream=stream: journal.read(c, stream))
        ]
        for stream in (*OWN_STREAMS, *EXPORTED_STREAMS)
    }


@pytest.mark.parametrize(
    ("given", "own", "exported"),
    [
        ({}, 2, 2),
        ({"is_exported": True}, 2, 3),
        ({"journal_seconds": 0.0}, 3, 3),
        ({"journal_seconds": 1.0 * DAY}, 1, 1),
    ],
)
async def test_the_journal_is_kept_for_ninety_days_unless_it_is_said_otherwise(
    open_world: Any, given: dict[str, Any], own: int, exported: int
) -> None:
    clock = VirtualClock()
    async with open_world(clock=clock, limits=limits(**given)) as world:
        await old_records(world, clock)
        await apply_retention(world.delivery.context, 30)
        found = Counter({stream: len(ids) for stream, ids in (await left(world)).items()})
        assert {found[stream] for stream in OWN_STREAMS} == {own}
        assert {found[stream] for stream in EXPORTED_STREAMS} == {exported}
