"""What a node says itself: in one chain, above all it has seen, and never in vain."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from accord.community.errors import Code, CommunityError
from accord.community.log import SigningMarker
from accord.community.rules import Event, Status
from accord.community.store import COMMUNITY_STORE
from accord.kernel.signing import SigningKey
from accord.storage import StoreError, backup, restore

POST = "market.post.created"
GUEST = SigningKey(b"guest".ljust(32, b"."))


async def refused(log: Any, event_type: str, data: Any, **options: Any) -> CommunityError:
    with pytest.raises(CommunityError) as error:
        await log.append(event_type, data, **options)
    return error.value


async def test_a_community_begins_with_its_founding(town: Any) -> None:
    async with town.log() as log:
        created = await town.found(log)
        assert (created.author, created.lamport, created.author_seq) == (town.id, 0, 1)
        assert log.state.is_founded


async def test_events_of_many_callers_make_one_chain(
    town: Any, where: str, post_data: Callable[..., Any]
) -> None:
    async with town.log(where=where) as log:
        await town.found(log)
        posts = await asyncio.gather(
            *(log.append(POST, post_data(f"p{number}")) for number in range(50))
        )
        chain = sorted(posts, key=lambda event: event.author_seq or 0)
        assert [event.author_seq for event in chain] == list(range(1, 51))
        assert chain[0].prev is None
        assert all(b.prev == a.hash for a, b in itertools.pairwise(chain))
        assert [event.lamport for event in chain] == list(range(1, 51))
        assert len(log.state.content.posts) == 50


async def test_a_lamport_rises_above_everything_received(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
        _, joined = await town.admit(log, GUEST)
        [far] = town.chain(GUEST, joined, 1, lamport=5000)
        await log.receive([far.encode()])
        assert (await log.append(POST, post_data("a"))).lamport == 5001


async def test_a_quarantined_lamport_does_not_count(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
        _, joined = await town.admit(log, GUEST)
        [poison] = town.chain(GUEST, joined, 1, lamport=9_000_000_000)
        await log.receive([poison.encode()])
        event = await log.append(POST, post_data("a"))
        assert event.lamport == joined.lamport + 1
        assert log.head_lamport == event.lamport


async def test_the_chain_goes_on_after_a_restart(
    town: Any, where: str, post_data: Callable[..., Any]
) -> None:
    async with town.log(where=where) as log:
        await town.found(log)
        first = await log.append(POST, post_data("a"))
    async with town.log(where=where) as log:
        second = await log.append(POST, post_data("b"))
    assert (second.author_seq, second.prev) == (2, first.hash)
    assert second.lamport == first.lamport + 1


async def test_a_node_does_not_say_what_would_not_stand(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        assert (await refused(log, POST, post_data("a"))).code is Code.UNAUTHORIZED
        await town.found(log)
        post = await log.append(POST, post_data("a"))
        before = dict(log.state.content.counts)
        again = await refused(log, POST, post_data("a"))
        assert again.code is Code.BAD_REQUEST
        assert again.details == {"rule": "market.duplicate"}
        missing = {"client_id": "x", "target_event_id": "0" * 26, "reason": "withdrawn"}
        assert (await refused(log, "market.post.expired", missing)).code is Code.NOT_FOUND
        assert (await refused(log, POST, {"client_id": "x"})).code is Code.BAD_REQUEST
        assert (await refused(log, "no.such.type", {})).code is Code.BAD_REQUEST
        by_root = await refused(log, POST, post_data("r"), key=town.root)
        assert by_root.code is Code.UNAUTHORIZED
        policy = {"policy": dict(log.state.roster.policy)}
        only_root = await refused(log, "community.policy.updated", policy)
        assert only_root.code is Code.UNAUTHORIZED
        assert log.state.content.counts == before
        assert (await log.append(POST, post_data("b"))).author_seq == 2
        ended = {"client_id": "x", "target_event_id": post.event_id, "reason": "withdrawn"}
        await log.append("market.post.expired", ended)
        assert (await refused(log, "market.post.expired", ended)).code is Code.EXPIRED


async def test_of_two_that_exclude_each_other_one_is_said(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
        outcomes = await asyncio.gather(
            *(log.append(POST, post_data("same")) for _ in range(5)), return_exceptions=True
        )
        said = [each for each in outcomes if isinstance(each, Event)]
        assert len(said) == 1
        assert len(log.state.content.posts) == 1
        assert log.state.content.counts[Status.REFUSED] == 0


async def test_a_revoked_node_is_told_that_it_is(town: Any, post_data: Callable[..., Any]) -> None:
    async with town.log() as host, town.log(GUEST) as log:
        created = await town.found(host)
        events = [created, *await town.admit(host, GUEST)]
        await log.receive([event.encode() for event in events])
        await log.append(POST, post_data("a"))
        joined = events[-1]
        revoked = await host.append(
            "community.member.revoked",
            {
                "target_node_id": GUEST.id,
                "reason": "compromised",
                "client_id": "r",
                "target_last_seq": 1,
                "target_last_hash": joined.hash,
                "co_signers": [],
            },
        )
        await log.receive([revoked.encode()])
        assert (await refused(log, POST, post_data("b"))).code is Code.REVOKED


async def test_what_was_signed_but_not_stored_is_stored_at_the_next_start(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
        await log.append(POST, post_data("a"))
        signed = [
            (await log._author(town.founder)).compose(POST, post_data("b"), author_head(log), 1)
        ]
        log._authors[town.founder.id].write_marker(signed)  # and then the power fails
    async with town.log() as log:
        assert not log.is_recovering
        assert log.state.content.posts.keys() >= {signed[0].event_id}
        assert (await log.append(POST, post_data("c"))).prev == signed[0].hash


def author_head(log: Any) -> Any:
    return log._authors[log.key.id].head


async def test_a_restored_node_is_silent_until_it_has_heard_from_another(
    town: Any, tmp_path: Any, post_data: Callable[..., Any]
) -> None:
    folder = tmp_path / town.founder.id[-8:]
    async with town.log() as log:
        await town.found(log)
        await log.append(POST, post_data("a"))
        backup(folder, COMMUNITY_STORE, tmp_path / "old.db")
        later = [await log.append(POST, post_data(f"b{n}")) for n in range(3)]
    for file in folder.glob("community.db*"):
        file.unlink()
    restore(tmp_path / "old.db", folder, COMMUNITY_STORE)
    async with town.log() as log:
        assert log.is_recovering
        error = await refused(log, POST, post_data("c"))
        assert error.code is Code.PARTITION
        assert "sync with another member" in str(error)
        await log.receive([event.encode() for event in later])
        assert log.is_recovering
        await log.recovered()
        event = await log.append(POST, post_data("c"))
        assert (event.author_seq, event.prev) == (5, later[-1].hash)
        assert log.state.chains[town.founder.id].is_whole


async def test_an_operator_can_say_that_a_node_was_restored(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
    async with town.log(recovering=True) as log:
        assert (await refused(log, POST, post_data("a"))).code is Code.PARTITION
        await log.recovered()
        await log.append(POST, post_data("a"))


async def test_a_damaged_record_of_what_was_signed_is_told(town: Any, tmp_path: Any) -> None:
    async with town.log() as log:
        await town.found(log)
    folder = tmp_path / town.founder.id[-8:]
    file = folder / f"signed.{town.founder.id.removeprefix('ed25519:')}"
    file.write_bytes(b"garbage\n")
    with pytest.raises(CommunityError, match="signed last is damaged"):
        async with town.log():
            pass
    assert SigningMarker(folder / "absent").read() == []


async def test_nothing_is_stored_that_could_not_be_written_down_first(
    town: Any, tmp_path: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
        log._authors[town.founder.id].marker = SigningMarker(tmp_path / "missing" / "signed")
        error = await refused(log, POST, post_data("a"))
        assert error.code is Code.INTERNAL_ERROR
        assert log.state.chains.get(town.founder.id) is None
        log._authors[town.founder.id].marker = SigningMarker(tmp_path / "signed")
        assert (await log.append(POST, post_data("a"))).author_seq == 1


async def test_an_event_whose_storing_failed_comes_before_the_next(
    town: Any, post_data: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town.log() as log:
        await town.found(log)
        write = log.store.write

        async def full(_: Any) -> Any:
            raise StoreError("the disk is full")

        monkeypatch.setattr(log.store, "write", full)
        with pytest.raises(StoreError, match="disk is full"):
            await log.append(POST, post_data("a"))
        with pytest.raises(StoreError, match="disk is full"):
            await log.append(POST, post_data("b"))
        monkeypatch.setattr(log.store, "write", write)
        event = await log.append(POST, post_data("b"))
        assert event.author_seq == 2
        assert log.state.chains[town.founder.id].is_whole
        assert len(log.state.content.posts) == 2
