"""Ids of actions: the same in every attempt of a turn, and nothing that tells what was written."""

import asyncio
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from blake3 import blake3
from sqlalchemy import select, update
from tests.relay.gateway.conftest import message
from tests.relay.gateway.test_gateway_with_connector import World, served, world

from accord.kernel import canonical
from accord.relay.connector import METADATA
from accord.relay.gateway import INBOX_SCHEMA, ReceivedEvent, Turn, open_stored_inbox
from accord.relay.rules import Send
from accord.relay.rules.frames import write_action
from accord.storage import journal, open_store
from accord.storage.revisions import migration_transaction, run_revisions
from accord.storage.store import locate
from accord.testing import VirtualClock

__all__ = ["world"]

TEXTS = ("no", "yes")


class Agent:
    """Says two things, and in its first attempt does not come to an end."""

    def __init__(self) -> None:
        self.ids: list[list[str | None]] = []
        self.metadata: dict[str, str] = {}

    async def __call__(self, turn: Turn) -> None:
        sent = [await turn.send(text) for text in TEXTS]
        self.ids.append([each.request_id for each in sent])
        self.metadata = turn._place.metadata
        if len(self.ids) == 1:
            await asyncio.Event().wait()


def gateway_table(name: str) -> Any:
    return INBOX_SCHEMA.metadata.tables[name]


def step_back(where: Path) -> None:
    """Make it a store of the version before keys of turns."""
    place = locate(where, INBOX_SCHEMA)
    with migration_transaction(place, INBOX_SCHEMA) as connection:
        run_revisions(
            connection,
            place,
            INBOX_SCHEMA,
            lambda config: command.downgrade(config, "gateway_0002"),
        )


def old_digest(told: Sequence[Any]) -> str:
    """The digest of an action as versions before made it."""
    return hashlib.sha256(canonical.encode(list(told))).hexdigest()[:24]


def guesses(metadata: dict[str, str]) -> set[str]:
    """Digests that somebody makes who guesses what was said, where, and how it was written."""
    said = [write_action(Send("c1", text, None, metadata)) for text in TEXTS]
    written = [
        form
        for action in said
        for form in (
            canonical.encode(action),
            canonical.encode([action, "memory", "bot"]),
            canonical.encode([action, "memory", None]),
        )
    ]
    written += [text.encode() for text in TEXTS]
    made = {hashlib.sha256(each).hexdigest() for each in written}
    made |= {blake3(each).hexdigest() for each in written}
    made |= {hashlib.blake2b(each, digest_size=12).hexdigest() for each in written}
    return {each[:24] for each in made}


async def rows(store: Any, metadata: Any) -> str:
    def read(connection: Any) -> str:
        tables = metadata.sorted_tables
        return "\n".join(str(row) for table in tables for row in connection.execute(select(table)))

    return str(await store.read(read))


async def test_a_turn_that_is_run_again_after_a_restart_asks_under_the_same_ids(
    world: World, tmp_path: Path
) -> None:
    agent, where = Agent(), tmp_path / "inbox"
    async with served(world, agent, where):
        world.chat.write("ann", "c1", "go")
        await world.until(lambda: len(agent.ids) == 1)
    async with served(world, agent, where) as gateway:
        await world.until(lambda: gateway.counts["turns done"] == 1)
    first, second = agent.ids
    assert first == second
    assert len(set(first)) == 2
    assert world.shown() == list(TEXTS)


async def test_no_store_and_no_journal_has_a_digest_that_can_be_guessed(
    world: World, tmp_path: Path
) -> None:
    agent, where = Agent(), tmp_path / "inbox"
    agent.ids.append([])  # its turn ends at once
    async with served(world, agent, where) as gateway:
        world.chat.write("ann", "c1", "go")
        await world.until(lambda: gateway.counts["turns done"] == 1)
        world.chat.write("ann", "c1", "go")
        await world.until(lambda: gateway.counts["turns done"] == 2)
    async with open_store(where, INBOX_SCHEMA) as store:
        own = await rows(store, INBOX_SCHEMA.metadata)
        keys = await store.read(
            lambda c: c.execute(select(gateway_table("events").c.turn_key)).scalars().all()
        )
    theirs = await rows(world.delivery.context.store, METADATA)
    outbound = await world.delivery.context.store.read(lambda c: journal.read(c, "relay.outbound"))
    ids = [each for asked in agent.ids for each in asked]
    digests = [str(each).split("-")[1] for each in ids]
    assert all(digest in own and digest in theirs for digest in digests)
    # The same words have another digest in another turn, and the keys are gone with the turns.
    assert len(set(digests)) == 4
    assert keys == [None, None]
    for guess in guesses(agent.metadata):
        assert guess not in own
        assert guess not in theirs
    # The journal does not name what a gateway made up.
    assert len({each.id for each in outbound}) == len(outbound) >= 4
    for entry, name in itertools.product(outbound, [*map(str, ids), *digests]):
        assert name not in entry.id + entry.body


async def test_a_record_in_the_journal_does_not_bear_the_id_that_a_gateway_chose(
    world: World, tmp_path: Path
) -> None:
    """Other gateways may make their ids from what was written."""

    async def quiet(turn: Turn) -> None:
        pass

    async with served(world, quiet, tmp_path / "inbox") as gateway:
        world.chat.write("ann", "c1", "go")
        await world.until(lambda: gateway.counts["turns done"] == 1)
        requests = gateway._host.requests
        guessable = hashlib.sha256(b"yes").hexdigest()
        result = await requests.perform(Send("c1", "yes"), "memory", request_id=guessable)
        assert result.success
    store = world.delivery.context.store
    told = await store.read(lambda c: journal.read(c, "relay.outbound"))
    assert told
    for entry in told:
        assert guessable not in entry.id + entry.body


async def test_an_upgrade_in_the_middle_of_a_turn_repeats_nothing(
    world: World, tmp_path: Path
) -> None:
    agent, where = Agent(), tmp_path / "inbox"
    events = gateway_table("events")
    async with served(world, agent, where) as gateway:
        store = gateway._host.inbox.store  # type: ignore[attr-defined]
        begin = gateway._host.inbox.begin

        async def begin_as_before(number: int) -> ReceivedEvent | None:
            # As the version before took it.
            await store.write(lambda c: c.execute(update(events).values(turn_key=None)).rowcount)
            return await begin(number)

        gateway._host.inbox.begin = begin_as_before  # type: ignore[method-assign]
        world.chat.write("ann", "c1", "go")
        await world.until(lambda: len(agent.ids) == 1)
    step_back(where)
    # What the version before has stored, to the letter.
    turn = str(agent.ids[0][0]).split("-")[0]
    for text, name in zip(TEXTS, agent.ids[0], strict=True):
        action = write_action(Send("c1", text, None, agent.metadata))
        assert name == f"{turn}-{old_digest([action, 'memory', 'bot'])}-1"

    async with served(world, agent, where) as gateway:
        await world.until(lambda: gateway.counts["turns done"] == 1)
        assert agent.ids[0] == agent.ids[1]
        assert world.shown() == list(TEXTS)
        # The next turn is one of this version.
        world.chat.write("ann", "c1", "go")
        await world.until(lambda: gateway.counts["turns done"] == 2)
    assert world.shown() == [*TEXTS, *TEXTS]
    digests = [str(name).split("-")[1] for asked in agent.ids for name in asked]
    assert set(digests[:2]) & set(digests[4:]) == set()


@pytest.mark.parametrize("key", [None, b"k" * 32])
async def test_a_key_is_kept_until_its_turn_is_finished(tmp_path: Path, key: bytes | None) -> None:
    events = gateway_table("events")
    async with open_stored_inbox(tmp_path, VirtualClock()) as inbox:
        (number,) = await inbox.take([ReceivedEvent("k1", message("hi"), buffer_id="b-1")])
        assert number is not None
        store = inbox.store  # type: ignore[attr-defined]
        await store.write(lambda c: c.execute(update(events).values(turn_key=key)).rowcount)
        found = await inbox.begin(number)
        assert found is not None
        assert found.turn_key == key
        assert repr(b"k" * 32) not in repr(found)
        await inbox.finish(number)
        assert await store.read(lambda c: c.execute(select(events.c.turn_key)).scalar()) is None
