"""History shows every message once, whatever others have put into the log."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import update
from tests.capabilities.chat.conftest import Neighbour, Neighbours, move_in

from accord.capabilities.chat import MessageContent, MessageEnvelope, encryption, messages
from accord.community.store import events

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = itertools.count()
NONCE = bytes(32)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def street(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Neighbours]:
    async with AsyncExitStack() as opened:
        yield await move_in(tmp_path_factory.mktemp("street"), opened)


async def write(sender: Neighbour, recipient: Neighbour, body: str, **changes: Any) -> int:
    """Write a message into the sender's log alone; its lamport."""
    name = f"client {next(NUMBERS)}"
    envelope = MessageEnvelope(sender.community, sender.id, recipient.id, name)
    data = encryption.seal(envelope, MessageContent(body, (), NONCE))
    data["sealed"] |= changes
    return int((await sender.node.act(sender.community, "chat.message.sent", data))["lamport"])


async def pages(reader: Neighbour, since: int, limit: int) -> list[list[str]]:
    """The bodies, page by page."""
    found = []
    while True:
        answer = await reader.call("chat.history", {"since_lamport": since, "limit": limit})
        page = answer["output"]["messages"]
        found.append([each["body"] for each in page])
        if not answer["meta"].get("more"):
            return found
        since = page[-1]["lamport"]


async def test_messages_of_one_lamport_are_never_torn_apart(street: Neighbours) -> None:
    alice, bob, carol = street.everybody
    await street.sync()
    before = carol.hosted.log.head_lamport
    lamports = [
        [await write(sender, carol, f"{sender.name} {number}") for number in range(3)]
        for sender in (alice, bob)
    ]
    assert lamports[0] == lamports[1]
    await street.sync()
    found = await pages(carol, before, 1)
    assert [len(page) for page in found] == [2, 2, 2]
    assert sorted(itertools.chain(*found)) == [
        f"{name} {number}" for name in ("alice", "bob") for number in range(3)
    ]


async def test_a_broken_seal_is_shown_as_what_it_is(street: Neighbours) -> None:
    bob, carol = street.bob, street.carol
    before = bob.hosted.log.head_lamport
    await write(bob, carol, "hello", to_recipient="not sealed")
    await write(bob, carol, "hello", commit="blake3:" + "0" * 64)
    await write(bob, carol, "after")
    await street.sync()
    first, second, third = await carol.history(since_lamport=before)
    assert first["body"] is second["body"] is None
    assert "cannot be opened" in first["problem"]
    assert "nobody could prove" in second["problem"]
    assert (third["body"], "problem" in third) == ("after", False)


async def test_what_the_log_let_go_is_shown_as_gone(street: Neighbours) -> None:
    bob = street.bob
    lamport = await write(bob, street.carol, "long ago")
    forget = update(events).where(events.c.lamport == lamport).values(body=None)
    await bob.hosted.log.store.write(lambda c: c.execute(forget).rowcount)
    (found,) = await bob.history(since_lamport=lamport - 1)
    assert (found["body"], found["sealed"]) == (None, None)
    assert "no longer holds" in found["problem"]
    assert found["to"] == street.carol.id


async def test_an_answer_has_room_for_a_few_long_messages_only(
    street: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, carol = street.alice, street.carol
    await street.sync()
    before = alice.hosted.log.head_lamport
    said = [f"{number}" + "x" * 20_000 for number in range(5)]
    for each in said:
        await write(alice, carol, each)
    monkeypatch.setattr(messages, "MAX_BYTES", 130_000)
    found = await pages(alice, before, 500)
    assert [len(page) for page in found] == [2, 2, 1]
    assert list(itertools.chain(*found)) == said
    latest = await alice.call("chat.history", {"peer": carol.id})
    assert [each["body"] for each in latest["output"]["messages"]] == said[-2:]
    assert latest["meta"]["more"] is True
