"""Messages are found by their words, and stay when the log drops them; no word is stored."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Connection, select
from tests.capabilities.chat.conftest import Neighbour, Neighbours, move_in

from accord.capabilities.chat import search
from accord.capabilities.chat.search import WordDigests, asked_words, words_of
from accord.community import messages, store
from accord.community.errors import Code, CommunityError
from accord.community.store import events, message_words
from accord.kernel.signing import SigningKey

NUMBERS = itertools.count()

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def street(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Neighbours]:
    async with AsyncExitStack() as opened:
        yield await move_in(tmp_path_factory.mktemp("street"), opened)


def holding(folder: Path, text: bytes) -> list[Path]:
    """The files below a folder that have a text in them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if text in path.read_bytes()]


async def find(reader: Neighbour, query: str, **more: object) -> list[str]:
    answer = await reader.call("experimental.chat.search", {"query": query, **more})
    return [each["body"] for each in answer["output"]["messages"]]


async def say(sender: Neighbour, recipient: Neighbour, *texts: str) -> None:
    for text in texts:
        given = {"client_id": f"say {next(NUMBERS)}", "recipient": recipient.id, "body": text}
        await sender.call("chat.send", given)


async def test_both_sides_find_a_message_by_its_words_in_any_order_and_case(
    street: Neighbours,
) -> None:
    alice, bob, carol = street.everybody
    await say(alice, bob, "The ladder is in the SHED", "Café at noon?", "the shed is locked")
    await street.sync()
    for reader in (alice, bob):
        assert await find(reader, "shed") == ["the shed is locked", "The ladder is in the SHED"]
        assert await find(reader, "shed ladder") == ["The ladder is in the SHED"]
        assert await find(reader, "CAFE") == ["Café at noon?"]
        assert await find(reader, "ladder noon") == []
    assert await find(carol, "shed") == []
    assert await find(alice, "shed", peer=carol.id) == []
    assert len(await find(alice, "shed", peer=bob.id)) == 2


async def test_pages_go_on_where_the_last_one_ended(street: Neighbours) -> None:
    alice, bob = street.alice, street.bob
    said = [f"apple number {number}" for number in range(5)]
    await say(alice, bob, *said)
    found: list[str] = []
    before: dict[str, int] = {}
    while True:
        asked = {"query": "apple", "limit": 2, **before}
        answer = await alice.call("experimental.chat.search", asked)
        found += [each["body"] for each in answer["output"]["messages"]]
        if "more" not in answer["meta"]:
            break
        before = {"before": answer["meta"]["more"]}
    assert found == said[::-1]


async def test_a_message_outlives_the_log_until_the_archive_ends(street: Neighbours) -> None:
    alice, bob = street.alice, street.bob
    await say(alice, bob, "remember the walnut tree")
    log = alice.hosted.log
    head, now = log.head_lamport, 1000

    def drop(connection: Connection) -> int:
        messages.archive_bodies(connection, log.number, head, now)
        forget = events.update().where(events.c.event_type == "chat.message.sent")
        return connection.execute(forget.values(body=None)).rowcount

    assert await log.store.write(drop)
    assert await find(alice, "walnut") == ["remember the walnut tree"]
    (kept,) = [each for each in await alice.history() if each["body"] == "remember the walnut tree"]
    assert kept["sealed"] is True
    dropped = await log.store.write(lambda c: messages.drop_archived(c, log.number, now))
    assert dropped == 0
    assert await log.store.write(lambda c: messages.drop_archived(c, log.number, now + 1))
    assert await find(alice, "walnut") == []
    latest = (await alice.history())[-1]
    assert latest["body"] is None
    assert "no longer holds" in latest["problem"]


async def test_strangers_and_empty_queries_are_refused(street: Neighbours) -> None:
    alice, bob = street.alice, street.bob
    with pytest.raises(CommunityError) as refused:
        await bob.call("experimental.chat.search", {"query": "shed"}, to=alice)
    assert refused.value.code is Code.UNAUTHORIZED
    for query in ("?!", " ".join(map(str, range(9)))):
        with pytest.raises(CommunityError) as refused:
            await alice.call("experimental.chat.search", {"query": query})
        assert refused.value.code is Code.BAD_REQUEST


async def test_no_word_is_stored_and_digests_differ_by_node_and_community(
    street: Neighbours,
) -> None:
    alice, bob = street.alice, street.bob
    await say(alice, bob, "xylophone")
    assert await find(alice, "xylophone")
    stored = await alice.hosted.log.store.read(
        lambda c: list(c.execute(select(message_words.c.word)).scalars())
    )
    assert WordDigests(alice.key, alice.community).of("xylophone") in map(bytes, stored)
    assert WordDigests(bob.key, alice.community).of("xylophone") not in map(bytes, stored)
    other = SigningKey(b"o" * 32).id
    assert WordDigests(alice.key, other).of("xylophone") not in map(bytes, stored)
    await street.sync()
    await alice.leave()
    try:
        assert not holding(alice.folder, b"xylophone")
    finally:
        await alice.arrive()
    assert await find(alice, "xylophone")


async def test_rows_are_made_anew_from_the_log_where_they_are_missing(
    street: Neighbours,
) -> None:
    alice, bob = street.alice, street.bob
    await say(alice, bob, "a note about zinnias")
    log = alice.hosted.log
    before = await alice.history()

    def clear(connection: Connection) -> None:
        for table in (store.message_words, store.message_files, store.messages):
            connection.execute(table.delete())

    await log.store.write(clear)
    assert await alice.history() == []
    await log.refold()
    seen = [each for each in before if each["body"] is not None]
    assert [each for each in await alice.history() if each["body"] is not None] == seen
    assert await find(alice, "zinnias") == ["a note about zinnias"]


@pytest.mark.asyncio(loop_scope="function")
async def test_words_of_scripts_with_and_without_spaces() -> None:
    assert list(words_of("Über-groß, naïve CAFÉ 3x")) == ["uber", "gross", "naive", "cafe", "3x"]
    assert list(words_of("東京タワー")) == [*"東京タワー", "東京", "京タ", "タワ", "ワー"]
    assert asked_words("東京 shed shed") == ["東京", "shed"]
    assert asked_words("京") == ["京"]
    assert [len(each) for each in words_of("x" * 100)] == [64]
    digests = WordDigests(SigningKey(b"k" * 32), "town")
    many = " ".join(f"word{number}" for number in range(search.WORDS_OF_A_MESSAGE + 5))
    assert len(digests.of_text(many)) == search.WORDS_OF_A_MESSAGE
