"""Object stores on a real server, and in the form that every client of NATS reads."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.fabric.fabric_network import linked
from tests.fabric.work_network import bound, store, work

from accord.fabric import (
    ConflictError,
    FabricError,
    Link,
    NotFoundError,
    Terms,
    ValidationError,
    streams,
)
from accord.fabric.objects import CHUNK_BYTES, ObjectStore, open_store
from accord.testing.servers import Server


@pytest.fixture
async def link(nats: Server) -> AsyncIterator[Link]:
    async with linked(nats.url) as link:
        name = await store(link.nats)
        link.bound = bound(store={"files": {"name": name, "maxObjectBytes": 600_000}})
        yield link


@pytest.fixture
def files(link: Link) -> ObjectStore:
    return open_store(link, Terms(work()), "files")


async def chunks(link: Link) -> int:
    """How many messages lie in the store, descriptions aside."""
    name = link.bound.resources["store"]["files"]["name"]
    info = await streams.call(
        link.inbox, f"STREAM.INFO.OBJ_{name}", {"subjects_filter": f"$O.{name}.C.>"}
    )
    return sum((info["state"].get("subjects") or {}).values())


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 7])
async def test_what_is_stored_is_what_is_read(files: ObjectStore, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    stored = await files.put("a/b c", data[:size], content_type="text/plain", metadata={"x": "y"})
    assert await files.get("a/b c") == data[:size]
    assert await files.info("a/b c") == stored
    assert (stored.size, stored.content_type, stored.metadata) == (size, "text/plain", {"x": "y"})


async def test_what_comes_in_pieces_is_stored_as_one(files: ObjectStore, link: Link) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 4000

    stored = await files.put("pieces", pieces())
    assert (stored.size, stored.chunks) == (400_000, 4)
    assert await files.get("pieces") == b"x" * 400_000


async def test_an_object_that_replaces_another_leaves_nothing_of_it(
    files: ObjectStore, link: Link
) -> None:
    await files.put("a", b"x" * (2 * CHUNK_BYTES))
    await files.put("a", b"new")
    assert await files.get("a") == b"new"
    assert await chunks(link) == 1
    assert await files.delete("a")
    assert not await files.delete("a")
    assert await chunks(link) == 0
    with pytest.raises(NotFoundError):
        await files.get("a")
    await files.put("a", b"again")
    assert await files.get("a") == b"again"


async def test_an_object_larger_than_accepted_is_refused_and_changes_nothing(
    files: ObjectStore, link: Link
) -> None:
    await files.put("a", b"small")
    with pytest.raises(ValidationError, match="600000"):
        await files.put("a", b"x" * 600_001)
    assert await files.get("a") == b"small"
    assert await chunks(link) == 1


async def test_a_source_that_fails_changes_nothing(files: ObjectStore, link: Link) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * CHUNK_BYTES
        raise OSError("the disk is gone")

    await files.put("a", b"small")
    with pytest.raises(OSError, match="disk"):
        await files.put("a", broken())
    assert await files.get("a") == b"small"
    assert await chunks(link) == 1


async def test_objects_are_listed_without_those_deleted(files: ObjectStore) -> None:
    for key in ("b", "a", "c"):
        await files.put(key, key.encode())
    await files.delete("c")
    assert sorted([found.key async for found in files.list()]) == ["a", "b"]


async def test_of_many_who_store_one_object_one_is_left_and_nothing_else(
    files: ObjectStore, link: Link
) -> None:
    values = [str(n).encode() * 1000 for n in range(5)]
    await asyncio.gather(*(files.put("a", value) for value in values))
    assert await files.get("a") in values
    assert await chunks(link) == 1


async def test_what_is_replaced_while_it_is_read_is_not_taken_for_whole(
    files: ObjectStore,
) -> None:
    await files.put("a", b"x" * (3 * CHUNK_BYTES))
    reading = files.read("a")
    await anext(reading)
    await files.put("a", b"new")
    with pytest.raises(ConflictError):
        async for _ in reading:
            pass


async def test_bytes_that_were_changed_underneath_are_noticed(
    files: ObjectStore, link: Link
) -> None:
    stored = await files.put("a", b"true")
    name = link.bound.resources["store"]["files"]["name"]
    subject = f"$O.{name}.C.{stored.place}"
    await streams.purge(link.inbox, f"OBJ_{name}", subject)
    await streams.append(link.inbox, subject, b"liar")
    with pytest.raises(FabricError, match="not those that were stored"):
        await files.get("a")


async def test_other_clients_of_nats_read_and_write_the_same_objects(
    files: ObjectStore, link: Link
) -> None:
    name = link.bound.resources["store"]["files"]["name"]
    other = await link.nats.jetstream().object_store(name)
    await files.put("ours", b"x" * 200_000, metadata={"a": "b"})
    theirs = await other.get("ours")
    assert theirs.data == b"x" * 200_000
    await other.put("theirs", b"y" * 200_000)
    assert await files.get("theirs") == b"y" * 200_000


@pytest.mark.parametrize("key", ["", "x" * 513, "a\x00b"])
async def test_what_cannot_be_a_key_is_refused(files: ObjectStore, key: str) -> None:
    with pytest.raises(ValidationError):
        await files.put(key, b"x")
    with pytest.raises(ValidationError):
        await files.info(key)


async def test_a_description_that_is_none_is_refused(files: ObjectStore, link: Link) -> None:
    name = link.bound.resources["store"]["files"]["name"]
    await streams.append(link.inbox, f"$O.{name}.M.YQ==", b'{"name":5}')
    with pytest.raises(FabricError, match="description is malformed"):
        await files.info("a")
