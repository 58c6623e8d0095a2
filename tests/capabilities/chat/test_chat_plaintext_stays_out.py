"""What is said in a sealed message stands in no journal, no store, no log line of any node."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import pytest
import pytest_asyncio
import structlog
from tests.capabilities.chat.conftest import Neighbour, Neighbours, move_in

from accord.community.bus import BUS_STORE
from accord.community.bus import CALL_STREAM as CALLS
from accord.community.store import COMMUNITY_STORE
from accord.pipeline.rules import COMMUNITY_EVENTS, redaction
from accord.storage import journal, open_store

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "Wednesday at the old mill"
NAME = "the-treasure-map.pdf"


@dataclass
class Told:
    """What is left when everybody is gone."""

    neighbours: Neighbours
    event_id: str
    lines: list[Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def told(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Told]:
    async with AsyncExitStack() as opened:
        neighbours = await move_in(tmp_path_factory.mktemp("street"), opened)
        with structlog.testing.capture_logs() as lines:
            event_id = await tell_everything(neighbours)
            for each in neighbours.everybody:
                await each.leave()
        yield Told(neighbours, event_id, list(lines))


async def tell_everything(neighbours: Neighbours) -> str:
    """Do everything that touches the text: send, forward, receive, give receipts, read back."""
    bob, carol = neighbours.bob, neighbours.carol
    attached = [{"cid": await bob.blobs.put(b"a map"), "name": NAME}]
    sent = await bob.send(carol, SECRET, client_id="one", attachments=attached)
    await carol.until(lambda: carol.receipt(sent["event_id"]) is not None)
    for each in (bob, carol):
        (message,) = await each.history()
        assert (message["body"], message["attachments"][0]["name"]) == (SECRET, NAME)
    await neighbours.sync()
    await carol.leave()
    await bob.send(carol, SECRET, client_id="two")
    await bob.refusal("chat.send", {"client_id": "three", "recipient": SECRET, "body": SECRET})
    await bob.refusal("chat.send", {"client_id": "four", "recipient": carol.id, "text": SECRET})
    return str(sent["event_id"])


async def records(neighbour: Neighbour) -> dict[str, list[str]]:
    """Every record of the node's journals, by stream."""
    found = {}
    for schema, stream in ((COMMUNITY_STORE, COMMUNITY_EVENTS), (BUS_STORE, CALLS)):
        async with open_store(neighbour.folder / "stores", schema) as store:
            entries = await store.read(partial(journal.read, stream=stream, limit=10_000))
            found[stream] = [entry.body for entry in entries]
    return found


async def test_no_journal_holds_it(told: Told) -> None:
    for each in told.neighbours.everybody:
        kept = await records(each)
        assert all(kept.values())
        assert any(told.event_id in body for body in kept[COMMUNITY_EVENTS])
        for body in (*kept[COMMUNITY_EVENTS], *kept[CALLS]):
            assert SECRET not in body
            assert NAME not in body


async def test_no_file_of_any_node_holds_it(told: Told) -> None:
    for each in told.neighbours.everybody:
        files = [path for path in each.folder.rglob("*") if path.is_file()]
        assert files
        for file in files:
            data = file.read_bytes()
            assert SECRET.encode() not in data, file
            assert NAME.encode() not in data, file


async def test_no_log_line_holds_it(told: Told) -> None:
    assert told.lines
    assert SECRET not in repr(told.lines)
    assert NAME not in repr(told.lines)


async def test_a_sealed_message_lands_as_it_is(told: Told) -> None:
    bodies = (await records(told.neighbours.alice))[COMMUNITY_EVENTS]
    (sealed,) = [body for body in bodies if f'"event_id":"{told.event_id}"' in body]
    assert redaction.redact(COMMUNITY_EVENTS, sealed) == sealed
    data = orjson.loads(sealed)["data"]
    assert data.keys() == {"client_id", "recipient", "sealed", "attachments"}
    assert data["sealed"].keys() == {"algorithm", "commit", "to_recipient", "to_sender"}
    assert data["sealed"]["algorithm"] == "x25519-sealed"
