"""An encrypted attachment opens with its key alone, whole or from any place, and never changed."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nacl.bindings import crypto_aead_chacha20poly1305_ietf_decrypt
from sqlalchemy import Connection
from tests.capabilities.chat.conftest import Neighbour, Neighbours

from accord.capabilities.chat import (
    MAGIC,
    SEGMENT,
    attachments,
    decrypted,
    encrypted,
    is_encrypted,
    plain_size,
)
from accord.capabilities.file import Blobs
from accord.community import peers
from accord.community.errors import Code, CommunityError
from accord.community.store import events
from accord.testing import VirtualClock

KEY = bytes(range(32))
HEADER = 48
TAG = 16
SIZES = [0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT, 3 * SEGMENT + 1000]


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs", VirtualClock(), min_free_bytes=0)


def some_bytes(size: int) -> bytes:
    return Random(size).randbytes(size)


async def in_parts(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def sealed(data: bytes, key: bytes = KEY) -> bytes:
    return b"".join([part async for part in encrypted(in_parts(data), key)])


async def opened(blobs: Blobs, cid: str, key: bytes = KEY, offset: int = 0) -> bytes:
    return b"".join([part async for part in decrypted(blobs, cid, key, offset)])


async def refused(blobs: Blobs, blob: bytes, key: bytes = KEY) -> CommunityError:
    cid = await blobs.put(blob)
    with pytest.raises(CommunityError) as caught:
        await opened(blobs, cid, key)
    assert caught.value.code is Code.BAD_REQUEST
    return caught.value


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_encrypted_is_read_whole_and_from_any_place(blobs: Blobs, size: int) -> None:
    data = some_bytes(size)
    cid = await blobs.put(encrypted(in_parts(data), KEY))
    assert plain_size(blobs.manifest(cid).size_bytes) == size
    assert await is_encrypted(blobs, cid)
    for offset in {0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 7, size - 1, size, size + 1} - {-1}:
        assert await opened(blobs, cid, offset=offset) == data[offset:]


@given(size=st.integers(0, 3 * SEGMENT), offset=st.integers(0, 3 * SEGMENT), part=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_cutting_a_file_differently_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, size: int, offset: int, part: st.DataObject
) -> None:
    blobs = Blobs(tmp_path_factory.mktemp("blobs"), VirtualClock(), min_free_bytes=0)
    data = some_bytes(size)
    parts = in_parts(data, part.draw(st.integers(1000, SEGMENT * 2)))
    cid = await blobs.put(encrypted(parts, KEY))
    assert cid == await blobs.put(await sealed(data))
    assert await opened(blobs, cid, offset=offset) == data[offset:]


async def test_the_form_is_what_the_page_says() -> None:
    from blake3 import blake3

    data = some_bytes(SEGMENT + 5)
    blob = await sealed(data)
    assert blob[:16] == MAGIC == b"accord sealed 1\n"
    commitment = blake3(KEY, derive_key_context="accord 2026 chat attachment commitment")
    assert blob[16:HEADER] == commitment.digest()
    content = blake3(KEY, derive_key_context="accord 2026 chat attachment content").digest()
    first, last = blob[HEADER : HEADER + SEGMENT + TAG], blob[HEADER + SEGMENT + TAG :]
    assert data == b"".join(
        crypto_aead_chacha20poly1305_ietf_decrypt(segment, None, nonce, content)
        for segment, nonce in ((first, bytes(12)), (last, bytes(10) + b"\x01\x01"))
    )


async def test_nothing_of_the_file_shows(blobs: Blobs) -> None:
    data = b"meet at noon " * 50_000
    blob = await sealed(data)
    assert b"noon" not in blob
    # Two keys, nothing in common: nobody can tell that it is the same file.
    other = await sealed(data, bytes(32))
    assert blob[16 : 16 + 1000] != other[16 : 16 + 1000]


async def test_another_key_opens_nothing(blobs: Blobs) -> None:
    blob = await sealed(b"meet at noon")
    await refused(blobs, blob, bytes(32))


@pytest.mark.parametrize("at", [0, 20, HEADER, HEADER + 5, -1])
async def test_a_changed_byte_is_noticed(blobs: Blobs, at: int) -> None:
    blob = bytearray(await sealed(some_bytes(1000)))
    blob[at] ^= 1
    await refused(blobs, bytes(blob))


async def test_segments_cannot_be_left_out_moved_or_added(blobs: Blobs) -> None:
    blob = await sealed(some_bytes(3 * SEGMENT))
    whole = SEGMENT + TAG
    header, segments = (
        blob[:HEADER],
        [blob[HEADER + i * whole : HEADER + (i + 1) * whole] for i in range(3)],
    )
    one, two, three = segments
    for wrong in (
        [one, two],
        [two, three],
        [one, three],
        [two, one, three],
        [one, one, three],
        [one, two, three, three],
        [],
    ):
        await refused(blobs, header + b"".join(wrong))


@pytest.mark.parametrize(
    "size", [0, HEADER, HEADER + 1, HEADER + TAG - 1, HEADER + SEGMENT + 2 * TAG]
)
async def test_a_blob_of_a_length_that_none_has_is_refused(size: int) -> None:
    with pytest.raises(CommunityError):
        plain_size(size)


async def test_a_plain_file_is_not_taken_for_an_encrypted_one(blobs: Blobs) -> None:
    for data in (b"", b"hello", MAGIC[:-1]):
        assert not await is_encrypted(blobs, await blobs.put(data))


async def test_an_attachment_gets_to_its_recipient_and_nobody_else_can_open_it(
    neighbours: Neighbours,
) -> None:
    alice, bob, carol = neighbours.everybody
    data = some_bytes(2 * SEGMENT + 77)
    attached = [{"cid": await bob.blobs.put(data), "name": "plan.pdf"}]
    await bob.send(carol, "here", attachments=attached)
    await neighbours.sync()
    [message] = await carol.history()
    [shown] = message["attachments"]
    cid = shown["cid"]
    assert shown == {"cid": cid, "name": "plan.pdf"}
    for each in (bob, carol):
        async with each.client() as client:
            async for _ in client.stream("file.read", {}, {"cid": cid}):
                pass
            found = await attachments.find(client, each.blobs, cid)
        assert found is not None
        assert (found.cid, found.name) == (cid, "plan.pdf")
        assert found.key is not None
        assert await opened(each.blobs, cid, found.key) == data
        assert await opened(each.blobs, cid, found.key, SEGMENT + 3) == data[SEGMENT + 3 :]
    # Its key is for the node's own clients; others learn nothing, wherever they ask.
    error = await alice.refusal(attachments.OPEN, {"cid": cid}, carol)
    assert error.code is Code.UNAUTHORIZED
    error = await alice.refusal(attachments.OPEN, {"cid": cid})
    assert error.code is Code.NOT_FOUND


async def test_the_same_file_sent_twice_cannot_be_recognised(neighbours: Neighbours) -> None:
    bob, carol = neighbours.bob, neighbours.carol
    clear = await bob.blobs.put(b"the same")
    for text in ("one", "two"):
        await bob.send(carol, text, attachments=[{"cid": clear, "name": "a"}])
    cids = {each["attachments"][0]["cid"] for each in await bob.history()}
    assert len(cids) == 2
    assert clear not in cids


async def test_what_was_sent_and_fetched_is_kept_and_the_clear_copy_is_not(
    neighbours: Neighbours,
) -> None:
    bob, carol = neighbours.bob, neighbours.carol
    clear = await bob.blobs.put(b"a plan")
    await bob.send(carol, "here", attachments=[{"cid": clear, "name": "a"}])
    [message] = await carol.history()
    cid = message["attachments"][0]["cid"]
    async with carol.client() as client:
        async for _ in client.stream("file.read", {}, {"cid": cid}):
            pass
    neighbours.clock.advance(2 * 86_400)
    for each in (bob, carol):
        await each.call("experimental.file.gc", {})
        assert each.blobs.has(cid)
    assert not bob.blobs.has(clear)


async def test_what_its_owner_has_opened_stays_open_when_the_log_lets_go_of_the_message(
    neighbours: Neighbours,
) -> None:
    bob, carol = neighbours.bob, neighbours.carol
    carol.blobs.shares.adopt()
    attached = [{"cid": await bob.blobs.put(b"a plan"), "name": "plan.pdf"}]
    await bob.send(carol, "here", attachments=attached)
    [message] = await carol.history()
    cid = message["attachments"][0]["cid"]
    async with carol.client() as client:
        async for _ in client.stream("file.read", {}, {"cid": cid}):
            pass
        assert (await attachments.find(client, carol.blobs, cid)) is not None

        def let_go(connection: Connection) -> None:
            connection.execute(
                events.update().where(events.c.event_type == "chat.message.sent").values(body=None)
            )

        await carol.hosted.log.store.write(let_go)
        [message] = await carol.history()
        assert message["body"] is None
        found = await attachments.find(client, carol.blobs, cid)
        assert found is not None
        assert found.key is not None
        assert await opened(carol.blobs, cid, found.key) == b"a plan"
        # The key goes with the blob.
        carol.blobs.unpin(cid, "chat")
        neighbours.clock.advance(2 * 86_400)
        await carol.call("experimental.file.gc", {})
    assert not carol.blobs.has(cid)
    assert carol.blobs.key(cid) is None


async def test_a_file_goes_to_a_node_of_the_version_before_only_if_its_sender_allows_it(
    neighbours: Neighbours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob, carol = neighbours.everybody
    erin = Neighbour("erin", tmp_path / "erin", neighbours.clock)
    await erin.arrive()
    try:
        monkeypatch.setattr(peers, "EXTENSIONS", ("to", "seal"))
        await erin.join(alice)
        await neighbours.sync()
        data = b"a plan for erin"
        cid = await bob.blobs.put(data)
        given = {"client_id": "1", "recipient": erin.id, "body": "here"}
        attached = {**given, "attachments": [{"cid": cid, "name": "plan.pdf"}]}
        head = bob.hosted.log.head_lamport
        error = await bob.refusal("chat.send", attached)
        assert error.code is Code.BAD_REQUEST
        assert "encrypted attachments" in error.what
        assert "allow_clear" in str(error)
        assert bob.hosted.log.head_lamport == head
        # Text goes as it always did, and a file if the sender says so: it stays for that one alone.
        await bob.call("chat.send", {**given, "client_id": "2"})
        await bob.call("chat.send", {**attached, "allow_clear": True})
        first, second = await erin.history()
        assert (first["sealed"], second["sealed"]) == (True, True)
        assert second["attachments"] == [{"cid": cid, "name": "plan.pdf"}]
        async with erin.client() as client:
            async for _ in client.stream("file.read", {}, {"cid": cid}):
                pass
            assert await attachments.find(client, erin.blobs, cid) is None
        assert b"".join([part async for part in erin.blobs.read(cid)]) == data
        error = await carol.refusal("file.read", {"cid": cid}, bob)
        assert error.code is Code.NOT_FOUND
    finally:
        await erin.leave()
