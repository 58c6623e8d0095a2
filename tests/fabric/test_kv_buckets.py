"""Buckets, leases and typed values, on a real server."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.fabric.fabric_network import linked
from tests.fabric.work_network import bound, bucket, until, work

from accord.fabric import ConflictError, Link, NotFoundError, Terms, ValidationError
from accord.fabric.kv import Bucket, KeyValue, is_lease_held, open_kv, take_lease
from accord.testing.servers import Server


@pytest.fixture
async def link(nats: Server) -> AsyncIterator[Link]:
    async with linked(nats.url) as link:
        yield link


@pytest.fixture
async def raw(link: Link) -> Bucket:
    return Bucket(link.inbox, await bucket(link.nats, history=3))


@pytest.fixture
async def notes(link: Link) -> KeyValue:
    name = await bucket(link.nats, history=5)
    link.bound = bound(kv={"notes": {"bucket": name, "maxValueBytes": 100}})
    return open_kv(link, Terms(work()), "notes")


async def test_what_was_put_is_found_with_its_revision(raw: Bucket) -> None:
    revision = await raw.put("a.b", b"one")
    found = await raw.get("a.b")
    assert found is not None
    assert (found.key, found.value, found.revision) == ("a.b", b"one", revision)
    assert abs(found.at - await raw.server_time()) < 60
    assert await raw.get("a") is None


async def test_of_two_who_change_one_revision_one_loses(raw: Bucket) -> None:
    revision = await raw.create("a", b"0")
    await raw.update("a", b"1", revision)
    with pytest.raises(ConflictError):
        await raw.update("a", b"2", revision)
    with pytest.raises(ConflictError):
        await raw.create("a", b"3")
    found = await raw.get("a")
    assert found is not None
    assert found.value == b"1"


async def test_what_was_deleted_can_be_created_again(raw: Bucket) -> None:
    await raw.create("a", b"0")
    await raw.delete("a")
    assert await raw.get("a") is None
    await raw.create("a", b"1")
    assert [entry and entry.value async for entry in raw.history("a")] == [b"0", None, b"1"]


async def test_what_was_removed_leaves_nothing_behind(raw: Bucket) -> None:
    revision = await raw.create("a", b"0")
    await raw.put("b", b"0")
    with pytest.raises(ConflictError):
        await raw.remove("a", revision + 7)
    await raw.remove("a", revision)
    assert [key async for key in raw.keys(">")] == ["b"]
    await raw.create("a", b"1")


async def test_changes_by_many_at_once_are_all_made(raw: Bucket) -> None:
    async def add() -> None:
        await raw.change("n", lambda found: str(int(found.value) + 1 if found else 1).encode())

    await asyncio.gather(*(add() for _ in range(12)))
    found = await raw.get("n")
    assert found is not None
    assert found.value == b"12"


async def test_a_decision_to_leave_it_writes_nothing(raw: Bucket) -> None:
    revision = await raw.put("a", b"0")
    assert await raw.change("a", lambda _: None) == revision
    assert await raw.change("b", lambda _: None) == 0


async def test_a_lease_is_had_by_one_until_it_is_given_back(raw: Bucket) -> None:
    lease = await take_lease(raw, "l", "one", 60)
    assert lease is not None
    assert await take_lease(raw, "l", "two", 60) is None
    assert await is_lease_held(raw, "l", 60)
    await lease.renew()
    await lease.release()
    assert await take_lease(raw, "l", "two", 60) is not None


async def test_a_lease_that_was_handed_over_is_there_to_be_taken(raw: Bucket) -> None:
    lease = await take_lease(raw, "l", "one", 60)
    assert lease is not None
    await lease.hand_over()
    assert not await is_lease_held(raw, "l", 60)
    assert await take_lease(raw, "l", "two", 60) is not None


async def test_whoever_was_silent_loses_the_lease_and_notices(raw: Bucket) -> None:
    silent = await take_lease(raw, "l", "one", 60)
    assert silent is not None
    later = await raw.server_time() + 61
    other = await take_lease(raw, "l", "two", 60, later)
    assert other is not None
    with pytest.raises(ConflictError):
        await silent.renew()
    assert silent.lost.is_set()
    await silent.release()
    await other.renew()


async def test_a_renewal_whose_answer_was_lost_is_known_again(raw: Bucket) -> None:
    lease = await take_lease(raw, "l", "one", 60)
    assert lease is not None
    await raw.put("l", b"one")
    await lease.renew()
    assert not lease.lost.is_set()


async def test_a_lease_that_is_kept_outlives_its_length(raw: Bucket) -> None:
    lease = await take_lease(raw, "l", "one", 0.2)
    assert lease is not None
    written = await raw.get("l")
    assert written is not None

    async def is_older() -> bool:
        found = await raw.get("l")
        return found is not None and found.at > written.at + 0.4

    async with lease.renewed():
        await until(is_older)
        assert await take_lease(raw, "l", "two", 0.2) is None
    assert not lease.lost.is_set()


async def test_values_keep_the_schema_both_ways(link: Link, notes: KeyValue) -> None:
    await notes.put("a", {"n": 1})
    with pytest.raises(ValidationError) as refusal:
        await notes.put("a", {"n": "one"})
    assert refusal.value.issues[0]["path"] == "/n"
    found = await notes.get("a")
    assert found is not None
    assert found.value == {"n": 1}
    await Bucket(link.inbox, link.bound.resources["kv"]["notes"]["bucket"]).put("b", b'{"n":"x"}')
    with pytest.raises(ValidationError):
        await notes.get("b")


async def test_a_value_larger_than_accepted_is_refused(notes: KeyValue) -> None:
    with pytest.raises(ValidationError, match="more than the 100"):
        await notes.put("a", {"n": 1, "text": "x" * 100})
    assert await notes.get("a") is None


async def test_entries_are_listed_in_order_without_what_was_deleted(notes: KeyValue) -> None:
    for number, key in enumerate(("b.x", "a", "b.y", "c")):
        await notes.put(key, {"n": number})
    await notes.delete("c")
    assert await notes.keys() == ["a", "b.x", "b.y"]
    assert [entry.value["n"] async for entry in notes.entries("b")] == [0, 2]


async def test_a_value_is_updated_only_where_it_is_as_it_was(notes: KeyValue) -> None:
    revision = await notes.create("a", {"n": 1})
    await notes.update("a", {"n": 2}, revision)
    with pytest.raises(ConflictError):
        await notes.update("a", {"n": 3}, revision)
    with pytest.raises(ConflictError):
        await notes.delete("a", revision)
    assert [value and value.value["n"] async for value in notes.history("a")] == [1, 2]


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", "a b", "*", ">", "a\n", "x" * 513])
async def test_what_could_stand_for_more_is_no_key(notes: KeyValue, key: str) -> None:
    with pytest.raises(ValidationError):
        await notes.put(key, {"n": 1})
    with pytest.raises(ValidationError):
        await notes.get(key)


async def test_an_alias_that_is_not_bound_is_not_found(link: Link) -> None:
    with pytest.raises(NotFoundError):
        open_kv(link, Terms(work()), "notes")


@pytest.mark.slow
async def test_a_watch_yields_what_is_there_and_every_later_change(notes: KeyValue) -> None:
    await notes.put("a.one", {"n": 1})
    await notes.put("b.one", {"n": 2})
    seen = []
    async with asyncio.timeout(20):
        async for key, found in notes.watch("a"):
            seen.append((key, found and found.value))
            if len(seen) == 1:
                await notes.put("b.two", {"n": 3})
                await notes.put("a.two", {"n": 4})
                await notes.delete("a.one")
            if len(seen) == 3:
                break
    assert seen == [("a.one", {"n": 1}), ("a.two", {"n": 4}), ("a.one", None)]
