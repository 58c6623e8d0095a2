"""The blob store: what goes in comes out, or nothing does."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.capabilities.file.conftest import LONG, some_bytes

from accord.capabilities.file import CHUNK, Blobs, FileShare, Label, Manifest, ShareMark, cid_of
from accord.capabilities.file import blob_folder as shelves
from accord.community.errors import Code, CommunityError
from accord.testing import VirtualClock


async def stream(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def whole(blobs: Blobs, cid: str, offset: int = 0) -> bytes:
    return b"".join([part async for part in blobs.read(cid, offset)])


def stored(blobs: Blobs, cid: str) -> Path:
    return blobs.folder.path / cid[7:9] / cid[9:]


async def code_of(work: Any) -> Code:
    with pytest.raises(CommunityError) as refused:
        await work
    return refused.value.code


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 17 * CHUNK, 17 * CHUNK + 3]),
    part=st.sampled_from([1000, CHUNK, CHUNK + 1, 20 * CHUNK]),
)
def test_a_blob_is_the_same_from_bytes_a_file_and_a_stream(
    blobs: Blobs, tmp_path: Path, size: int, part: int
) -> None:
    async def run() -> None:
        data = some_bytes(size)
        (tmp_path / "file").write_bytes(data)
        cids = [
            await blobs.put(data),
            await blobs.put(tmp_path / "file"),
            await blobs.put(stream(data, part)),
        ]
        chunks = [cid_of(data[start : start + CHUNK]) for start in range(0, size, CHUNK)]
        assert cids == [Manifest.of(size, chunks).cid] * 3
        assert blobs.manifest(cids[0]) == Manifest.of(size, chunks)
        assert await whole(blobs, cids[0]) == data
        assert list((blobs.folder.path / "drafts").iterdir()) == []

    asyncio.run(run())


@pytest.mark.parametrize("offset", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, len(LONG), 10**9])
async def test_a_blob_is_read_from_an_offset(blobs: Blobs, offset: int) -> None:
    cid = await blobs.put(LONG)
    assert await whole(blobs, cid, offset) == LONG[offset:]


async def test_a_chunk_is_found_by_its_own_name_in_whichever_blob_has_it(blobs: Blobs) -> None:
    await blobs.put(LONG)
    await blobs.put(LONG[CHUNK:] + b"more")
    for i in range(3):
        part = LONG[i * CHUNK : (i + 1) * CHUNK]
        assert blobs.chunk(cid_of(part)) == part
    with pytest.raises(CommunityError) as refused:
        blobs.chunk(cid_of(b"nothing"))
    assert refused.value.code is Code.NOT_FOUND


async def test_what_was_put_is_found_by_another_process(blobs: Blobs) -> None:
    cid = await blobs.put(LONG)
    other = Blobs(blobs.folder.path)
    assert other.has(cid)
    assert other.cids() == [cid]
    assert await whole(other, cid) == LONG


async def test_it_is_synced_before_its_name_is_told(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        assert not any(blobs.folder.path.glob("??/*.json")) or len(synced) > 2
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    cid = await blobs.put(LONG)
    drafts = [path for path in synced if "/drafts/" in path]
    assert len(drafts) == 2  # the bytes and the manifest, before either has its name
    assert synced[-1] == str(stored(blobs, cid).parent)


@pytest.mark.parametrize("damage", [b"", LONG[:-1], LONG[:-1] + b"?", LONG + b"more"])
async def test_damaged_bytes_are_never_read(blobs: Blobs, damage: bytes) -> None:
    cid = await blobs.put(LONG)
    stored(blobs, cid).write_bytes(damage)
    assert await code_of(whole(blobs, cid)) is Code.NOT_FOUND
    assert await blobs.put(LONG) == cid
    assert await whole(blobs, cid) == LONG


async def test_a_damaged_manifest_is_never_read(blobs: Blobs) -> None:
    cid = await blobs.put(LONG)
    manifest = stored(blobs, cid).with_name(cid[9:] + ".json")
    manifest.write_bytes(Manifest.of(5, [cid_of(b"other")]).content)
    with pytest.raises(CommunityError) as refused:
        blobs.manifest(cid)
    assert refused.value.code is Code.NOT_FOUND


async def test_what_is_not_here_is_not_found(blobs: Blobs) -> None:
    assert not blobs.has(cid_of(b"nothing"))
    assert blobs.cids() == []
    assert await code_of(whole(blobs, cid_of(b"nothing"))) is Code.NOT_FOUND
    assert not blobs.folder.path.exists()


@pytest.mark.parametrize("cid", ["", "..", "blake3:../../x", "blake3:" + "g" * 64, "a" * 64])
async def test_no_name_leads_out_of_the_store(blobs: Blobs, cid: str) -> None:
    for ask in (blobs.has, blobs.manifest, blobs.chunk, blobs.pin, blobs.unpin):
        with pytest.raises(CommunityError) as refused:
            ask(cid)
        assert refused.value.code is Code.BAD_REQUEST
    with pytest.raises(CommunityError):
        blobs.pin(cid_of(b""), "../../elsewhere")
    assert not blobs.folder.path.exists()


async def test_a_file_that_cannot_be_read_leaves_nothing(blobs: Blobs, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        assert await code_of(blobs.put(path)) is Code.BAD_REQUEST
    assert list(blobs.folder.path.glob("*/*")) == []


async def test_a_full_disk_leaves_nothing(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = await blobs.put(b"kept")

    def fail(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(shelves, "_sync", fail)
        assert await code_of(blobs.put(LONG)) is Code.CAPACITY_EXCEEDED
    assert blobs.cids() == [kept]
    assert list((blobs.folder.path / "drafts").iterdir()) == []
    assert await whole(blobs, kept) == b"kept"


async def test_an_endless_stream_ends_where_the_room_does(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_room(_: int) -> None:
        (draft,) = (blobs.folder.path / "drafts").iterdir()
        if draft.stat().st_size > 100 * CHUNK:
            raise shelves.disk_full()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(CHUNK)

    monkeypatch.setattr(blobs.folder, "check_room", check_room)
    assert await code_of(blobs.put(endless())) is Code.CAPACITY_EXCEEDED
    assert list((blobs.folder.path / "drafts").iterdir()) == []
    assert blobs.cids() == []


async def test_too_long_a_stream_is_refused(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    from accord.capabilities.file import rules

    monkeypatch.setattr(rules, "MAX_SIZE", 2 * CHUNK)
    assert await code_of(blobs.put(stream(LONG, CHUNK))) is Code.BAD_REQUEST
    assert list((blobs.folder.path / "drafts").iterdir()) == []


async def test_who_stops_putting_leaves_nothing(blobs: Blobs) -> None:
    begun = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LONG * 8
        begun.set()
        await asyncio.Event().wait()

    putting = asyncio.create_task(blobs.put(slow()))
    await begun.wait()
    putting.cancel()
    await asyncio.wait({putting})
    assert list((blobs.folder.path / "drafts").iterdir()) == []


async def test_the_store_leaves_room_for_others(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", min_free_bytes=2**62)
    assert await code_of(blobs.put(b"x")) is Code.CAPACITY_EXCEEDED


async def test_a_blob_is_received_in_any_order_and_after_any_interruption(blobs: Blobs) -> None:
    chunks = [LONG[start : start + CHUNK] for start in range(0, len(LONG), CHUNK)]
    manifest = Manifest.of(len(LONG), map(cid_of, chunks))
    first = await blobs.receive(manifest)
    assert first.missing == {0, 1, 2, 3}
    await first.take({3: chunks[3], 1: chunks[1]})
    assert await code_of(first.finish()) is Code.BAD_REQUEST
    second = await Blobs(blobs.folder.path, min_free_bytes=0).receive(manifest)
    assert second.missing == {0, 2}
    await second.take({2: chunks[2], 0: chunks[0]})
    assert not blobs.has(manifest.cid)
    await second.finish()
    assert await whole(blobs, manifest.cid) == LONG
    assert (await blobs.receive(manifest)).missing == set()
    assert list((blobs.folder.path / "drafts").iterdir()) == []


async def test_a_draft_that_was_damaged_is_asked_for_again(blobs: Blobs) -> None:
    manifest = Manifest.of(CHUNK + 1, [cid_of(bytes(CHUNK)), cid_of(b"x")])
    incoming = await blobs.receive(manifest)
    await incoming.take({0: bytes(CHUNK), 1: b"x"})
    (draft,) = (blobs.folder.path / "drafts").iterdir()
    draft.write_bytes(b"?" + bytes(CHUNK - 1) + b"x")
    assert (await blobs.receive(manifest)).missing == {0}


async def test_a_draft_longer_than_the_blob_is_only_looked_at(blobs: Blobs) -> None:
    manifest = Manifest.of(1, [cid_of(b"x")])
    await blobs.receive(manifest)
    (draft,) = (blobs.folder.path / "drafts").iterdir()
    draft.write_bytes(bytes(5 * CHUNK))
    incoming = await blobs.receive(manifest)
    await incoming.take({0: b"x"})
    await incoming.finish()
    assert await whole(blobs, manifest.cid) == b"x"
    assert stored(blobs, manifest.cid).stat().st_size == 1


async def test_two_who_receive_the_same_blob_do_not_disturb_each_other(blobs: Blobs) -> None:
    manifest = Manifest.of(1, [cid_of(b"x")])
    one, other = await blobs.receive(manifest), await blobs.receive(manifest)
    await one.take({0: b"x"})
    await one.finish()
    await other.take({0: b"x"})
    await other.finish()
    assert await whole(blobs, manifest.cid) == b"x"
    assert list((blobs.folder.path / "drafts").iterdir()) == []


async def test_a_draft_that_another_took_is_asked_for_again(blobs: Blobs) -> None:
    data = some_bytes(2 * CHUNK)
    manifest = Manifest.of(len(data), [cid_of(data[:CHUNK]), cid_of(data[CHUNK:])])
    one, other = await blobs.receive(manifest), await blobs.receive(manifest)
    await other.take({0: data[:CHUNK]})
    await one.take({0: data[:CHUNK], 1: data[CHUNK:]})
    await one.finish()
    blobs.collect([], before=2**40)
    await other.take({1: data[CHUNK:]})
    assert await code_of(other.finish()) is Code.BAD_REQUEST
    assert other.missing == {0}
    assert not blobs.has(manifest.cid)


async def test_a_manifest_that_names_nothing_as_a_chunk_never_becomes_a_blob(blobs: Blobs) -> None:
    lying = Manifest.of(5, [cid_of(b"")])
    incoming = await blobs.receive(lying)
    assert incoming.missing == {0}
    assert await code_of(incoming.take({0: b""})) is Code.BAD_REQUEST
    assert await code_of(incoming.finish()) is Code.BAD_REQUEST
    assert not blobs.has(lying.cid)


async def test_pins_belong_to_their_owners(blobs: Blobs) -> None:
    cid = cid_of(b"x")
    blobs.pin(cid)
    blobs.pin(cid, "rag-personal")
    assert blobs.unpin(cid)
    assert not blobs.unpin(cid)
    assert blobs.pinned() == {cid}
    assert blobs.pinned("owner") == set()
    assert Blobs(blobs.folder.path).pinned("rag-personal") == {cid}


async def test_collecting_removes_only_what_is_old_and_neither_named_nor_pinned(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    blobs = Blobs(tmp_path / "blobs", clock, min_free_bytes=0)
    old, named, pinned = [await blobs.put(some_bytes(CHUNK + n, n)) for n in (1, 2, 3)]
    half = Manifest.of(2 * CHUNK, [cid_of(LONG[:CHUNK]), cid_of(LONG[CHUNK : 2 * CHUNK])])
    spared = Manifest.of(CHUNK, [cid_of(LONG[:CHUNK])])
    for manifest in (half, spared):
        incoming = await blobs.receive(manifest)
        if manifest is half:
            await incoming.take({0: LONG[:CHUNK]})
    for draft in (blobs.folder.path / "drafts").iterdir():
        os.utime(draft, (clock.now(), clock.now()))
    blobs.pin(pinned)
    clock.advance(100)
    young = await blobs.put(b"young")
    assert blobs.collect([named], before=clock.now() - 200).blobs == 0
    collected = blobs.collect([named], incoming=[spared.cid], before=clock.now() - 50)
    assert collected.blobs == 1
    assert collected.size_bytes >= 2 * CHUNK + 1
    assert set(blobs.cids()) == {named, pinned, young}
    assert not stored(blobs, old).exists()
    left = [path.name for path in (blobs.folder.path / "drafts").iterdir()]
    assert left == [spared.cid[7:]]
    for cid in (named, pinned, young):
        for chunk in blobs.manifest(cid).chunks:
            assert blobs.chunk(chunk)


async def test_putting_what_is_here_makes_it_young_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    blobs = Blobs(tmp_path / "blobs", clock, min_free_bytes=0)
    await blobs.put(b"x")
    received = await blobs.put(b"y")
    clock.advance(100)
    await blobs.put(b"x")
    await blobs.receive(blobs.manifest(received))
    assert blobs.collect([], before=clock.now()).blobs == 0


async def test_an_index_that_was_lost_is_built_anew(blobs: Blobs) -> None:
    await blobs.put(LONG)
    for file in (blobs.folder.path / "chunks").iterdir():
        file.write_bytes(file.read_bytes()[:50])
    assert blobs.with_chunk(cid_of(LONG[:CHUNK])) == []
    again = some_bytes(CHUNK, 7)
    await blobs.put(again)
    assert blobs.chunk(cid_of(again)) == again
    blobs.collect(blobs.cids(), before=0)
    assert blobs.chunk(cid_of(LONG[:CHUNK])) == LONG[:CHUNK]
    assert blobs.chunk(cid_of(again)) == again


def test_shares_are_remembered_for_each_community_and_dropped_everywhere(blobs: Blobs) -> None:
    shares = blobs.shares
    cid, other = cid_of(b"a"), cid_of(b"b")
    for community in ("one", "two"):
        shares.put(community, FileShare(cid, 1, "a.txt", readers=("somebody",)))
    shares.mark("one", ShareMark.DOCUMENT, other)
    assert shares.get("one", cid) == FileShare(cid, 1, "a.txt", readers=("somebody",))
    assert shares.get("one", other) is None
    assert shares.get("three", cid) is None
    assert shares.referenced() == {cid, other}
    assert shares.marked("one", ShareMark.DOCUMENT) == {other}
    assert shares.remove("one", cid)
    assert not shares.remove("one", cid)
    assert shares.referenced() == {cid, other}
    assert shares.drop(cid)
    assert shares.drop(other)
    assert not shares.drop(cid)
    assert shares.referenced() == set()


def test_a_damaged_share_opens_nothing_and_is_not_lost(blobs: Blobs) -> None:
    cid = cid_of(b"a")
    blobs.shares.put("one", FileShare(cid, 1))
    [record] = (blobs.folder.path / "shares").glob("*/files/*")
    assert record.stat().st_mode & 0o777 == 0o600
    record.write_bytes(b"{")
    assert blobs.shares.get("one", cid) is None
    assert blobs.shares.all("one") == {}
    assert blobs.shares.referenced() == {cid}


def test_what_a_member_listed_is_forgotten_with_the_member(blobs: Blobs) -> None:
    cid = cid_of(b"a")
    blobs.catalogue.put("one", "ann", [FileShare(cid, 1, "a.txt")])
    blobs.catalogue.put("one", "ben", [FileShare(cid, 1, readers=())])
    assert sorted(blobs.catalogue.holders("one", cid)) == ["ann", "ben"]
    assert blobs.catalogue.holders("two", cid) == []
    blobs.catalogue.forget("one", ["ann"])
    assert blobs.catalogue.all("one") == {"ann": [FileShare(cid, 1, "a.txt")]}


def test_a_pin_says_what_its_owner_calls_the_file(blobs: Blobs) -> None:
    cid = cid_of(b"a")
    blobs.pin(cid, label=Label("a.txt", "The a"))
    blobs.pin(cid)
    assert blobs.labels() == {cid: Label("a.txt", "The a")}
    assert blobs.pinned() == {cid}
    assert blobs.unpin(cid)
    assert blobs.labels() == {}
