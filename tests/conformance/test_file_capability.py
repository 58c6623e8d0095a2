"""Sections 4.7 to 4.10 of the specification, line by line, from a second node over HTTP."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
import pytest_asyncio
from blake3 import blake3
from tests.capabilities.file.conftest import Neighbours, move_in, some_bytes
from tests.community.node.conftest import Street

from accord.capabilities.file import CHUNK, Manifest, cid_of
from accord.community.errors import Code, CommunityError
from accord.community.rules import Level, capabilities
from accord.kernel import canonical
from accord.testing import VirtualClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEEDS = itertools.count(100)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Neighbours]:
    """One street for all tests, of which each brings bytes of its own."""
    async with AsyncExitStack() as opened:
        yield await move_in(Street(tmp_path_factory.mktemp("street"), VirtualClock(), opened))


def fresh(size: int = 3 * CHUNK + 1000) -> bytes:
    return some_bytes(size, next(SEEDS))


def manifest_of(data: bytes) -> dict[str, Any]:
    """The manifest of a blob, written out from the specification."""
    chunks = [data[start : start + 262144] for start in range(0, len(data), 262144)]
    body = {
        "chunk_size_bytes": 262144,
        "chunks": [
            {"i": i, "cid": "blake3:" + blake3(chunk).hexdigest()} for i, chunk in enumerate(chunks)
        ],
        "size_bytes": len(data),
    }
    return {"cid": "blake3:" + blake3(canonical.encode(body)).hexdigest(), **body}


def chunk_of(data: bytes, i: int) -> dict[str, Any]:
    part = data[i * CHUNK : (i + 1) * CHUNK]
    return {"i": i, "cid": cid_of(part), "data_b64": canonical.encode_base64url(part)}


async def refused(work: Any) -> CommunityError:
    with pytest.raises(CommunityError) as caught:
        await work
    return caught.value


async def test_the_capabilities_are_described_as_the_table_says() -> None:
    described = capabilities.load_descriptors("accord.capabilities.file")
    for name, trust, streams in (
        ("file.read@1.0", Level.MEMBER, True),
        ("file.list@1.0", Level.MEMBER, False),
        ("file.advertise@1.0", Level.MEMBER, False),
        ("file.put@1.0", Level.TRUSTED, True),
    ):
        assert described[name].stability == "stable"
        assert described[name].trust is trust
        assert described[name].streams is streams
    assert described["file.advertise@1.0"].idempotent
    assert Code.NOT_FOUND in described["file.read@1.0"].errors


async def test_a_node_lists_its_capabilities_with_the_hash_of_their_schemas(
    files: Neighbours,
) -> None:
    described = capabilities.load_descriptors("accord.capabilities.file")
    manifest = files.alice.node.presence.manifest(files.alice.in_(files.community))
    listed = {f"{each['name']}@{each['version']}": each for each in manifest["capabilities"]}
    for name, descriptor in described.items():
        assert listed[name]["schema_hash"] == descriptor.schema_hash


# 4.7 file.read


async def test_a_blob_is_read_as_a_manifest_and_its_chunks_in_order(files: Neighbours) -> None:
    data = fresh()
    cid = await files.share(files.alice, data)
    frames = await files.stream(files.carol, files.alice, "file.read", {"cid": cid})
    assert [frame.event for frame in frames] == ["manifest", *["chunk"] * 4, "done"]
    first, *chunks, last = [dict(frame.data) for frame in frames]
    assert first == manifest_of(data)
    assert first["cid"] == cid
    for i, chunk in enumerate(chunks):
        assert chunk.keys() == {"i", "cid", "size_bytes", "data_b64"}
        part = canonical.decode_base64url(chunk["data_b64"])
        assert (chunk["i"], chunk["size_bytes"]) == (i, len(part))
        assert chunk["cid"] == "blake3:" + blake3(part).hexdigest() == first["chunks"][i]["cid"]
    assert b"".join(canonical.decode_base64url(chunk["data_b64"]) for chunk in chunks) == data
    assert last.keys() == {"chunks", "ms"}
    assert last["chunks"] == 4


async def test_a_chunk_is_read_at_once(files: Neighbours) -> None:
    data = fresh()
    await files.share(files.alice, data)
    for part in (data[:CHUNK], data[3 * CHUNK :]):
        answer = await files.call(files.carol, files.alice, "file.read", {"cid": cid_of(part)})
        assert answer["output"] == {
            "cid": cid_of(part),
            "size_bytes": len(part),
            "data_b64": canonical.encode_base64url(part),
        }
        assert answer["meta"].keys() == {"ms"}


async def test_an_empty_blob_has_a_manifest_and_no_chunks(files: Neighbours) -> None:
    cid = await files.share(files.alice, b"")
    frames = await files.stream(files.carol, files.alice, "file.read", {"cid": cid})
    assert [frame.event for frame in frames] == ["manifest", "done"]
    assert frames[0].data["size_bytes"] == 0
    assert frames[1].data["chunks"] == 0


async def test_what_a_node_does_not_have_is_not_found(files: Neighbours) -> None:
    data = fresh()
    for cid in (cid_of(b"nothing"), cid_of(data[:CHUNK])):
        error = await refused(files.call(files.carol, files.alice, "file.read", {"cid": cid}))
        assert error.code is Code.NOT_FOUND


async def test_what_is_no_cid_is_a_bad_request(files: Neighbours) -> None:
    for cid in ("", "blake3:../../../etc/passwd", "blake3:" + "A" * 64, "sha256:" + "a" * 64, 7):
        error = await refused(files.call(files.carol, files.alice, "file.read", {"cid": cid}))
        assert error.code is Code.BAD_REQUEST


async def test_what_a_community_does_not_name_is_not_shown_to_it(files: Neighbours) -> None:
    private = fresh(CHUNK + 5)
    cid = await files.blobs[files.alice.id].put(private)
    for asked in (cid, cid_of(private[:CHUNK])):
        error = await refused(files.call(files.bob, files.alice, "file.read", {"cid": asked}))
        assert error.code is Code.NOT_FOUND
    listed = await files.call(files.bob, files.alice, "file.list", {})
    assert cid not in listed["output"]["cids"]
    frames = await files.stream(files.alice, files.alice, "file.read", {"cid": cid})
    assert frames[-1].event == "done"


async def test_an_attachment_is_read_by_the_two_who_write_to_each_other(files: Neighbours) -> None:
    attached = fresh(1000)
    cid = await files.blobs[files.alice.id].put(attached)
    message = {
        "client_id": "m1",
        "recipient": files.bob.id,
        "body": "here",
        "attachments": [{"cid": cid, "name": "../plan.pdf"}],
    }
    await files.alice.node.act(files.community, "chat.message.sent", message)
    frames = await files.stream(files.bob, files.alice, "file.read", {"cid": cid})
    assert frames[-1].event == "done"
    error = await refused(files.call(files.carol, files.alice, "file.read", {"cid": cid}))
    assert error.code is Code.NOT_FOUND


async def test_a_document_of_a_corpus_is_read_by_every_member(files: Neighbours) -> None:
    document = fresh(1000)
    cid = await files.blobs[files.alice.id].put(document)
    error = await refused(files.call(files.carol, files.alice, "file.read", {"cid": cid}))
    assert error.code is Code.NOT_FOUND
    ingested = {"corpus": "water", "doc_cid": cid, "chunks": 1}
    await files.alice.node.act(files.community, "rag.document.ingested", ingested)
    frames = await files.stream(files.carol, files.alice, "file.read", {"cid": cid})
    assert frames[-1].event == "done"


async def test_a_damaged_blob_is_not_given_away(files: Neighbours) -> None:
    data = fresh()
    cid = await files.share(files.alice, data)
    folder = files.street.path / "alice" / "blobs"
    stored = folder / cid[7:9] / cid[9:]
    stored.write_bytes(data[:-1] + b"?")
    error = await refused(files.stream(files.carol, files.alice, "file.read", {"cid": cid}))
    assert error.code is Code.NOT_FOUND
    assert "damaged" in error.what


# 4.8 file.list


async def test_blobs_are_listed_by_prefix(files: Neighbours) -> None:
    before = (await files.call(files.carol, files.alice, "file.list", {}))["output"]["cids"]
    shared = [await files.share(files.alice, fresh(10)) for _ in range(8)]
    cids = sorted([*before, *shared])
    answer = await files.call(files.carol, files.alice, "file.list", {})
    assert answer["output"] == {"cids": cids}
    assert answer["meta"].keys() == {"ms"}
    for prefix in ("blake3:", cids[0][:8], cids[0][:12], cids[0]):
        answer = await files.call(files.carol, files.alice, "file.list", {"prefix": prefix})
        assert answer["output"]["cids"] == [cid for cid in cids if cid.startswith(prefix)]
    error = await refused(
        files.call(files.carol, files.alice, "file.list", {"prefix": "blake3:../"})
    )
    assert error.code is Code.BAD_REQUEST


# 4.9 file.advertise


async def test_a_node_that_hears_of_a_holder_finds_the_blob_there(files: Neighbours) -> None:
    data = fresh()
    # Bob holds it and lets it be read, but the log that Alice has does not say so.
    cid = await files.share(files.bob, data)
    given = {"cids": [cid]}
    for _ in range(2):
        answer = await files.call(files.bob, files.alice, "file.advertise", given)
        assert answer["output"] == {"recorded": 1}
        assert answer["meta"].keys() == {"ms"}
    frames = await files.stream(files.alice, files.alice, "file.read", {"cid": cid})
    assert frames[-1].event == "done"
    assert files.blobs[files.alice.id].has(cid)


async def test_what_is_advertised_must_be_cids(files: Neighbours) -> None:
    for cids in ([], ["blake3:x"], [cid_of(b"")] * 1001):
        error = await refused(files.call(files.bob, files.alice, "file.advertise", {"cids": cids}))
        assert error.code is Code.BAD_REQUEST


# 4.10 file.put


async def test_a_blob_is_put_by_its_manifest_and_the_chunks_that_are_needed(
    files: Neighbours,
) -> None:
    data = fresh()
    manifest = manifest_of(data)
    async with (
        files.ask(files.bob, files.alice) as client,
        aclosing(client.stream("file.put", {}, {"manifest": manifest})) as frames,  # type: ignore[type-var]
    ):
        ready = await anext(frames)
        assert ready.event == "ready"
        assert ready.data["needed"] == [0, 1, 2, 3]
        upload_id = ready.data["upload_id"]
        for i in range(4):
            assert not files.blobs[files.alice.id].has(manifest["cid"])
            sent = {"upload_id": upload_id, "chunks": [chunk_of(data, i)]}
            answer = await client.call("file.put", {}, sent)
            assert answer["output"] == {"received": i + 1, "missing": 3 - i}
        assert files.blobs[files.alice.id].has(manifest["cid"])
        rest = [frame async for frame in frames]
    assert {frame.event for frame in rest[:-1]} <= {"progress"}
    assert rest[-1].event == "done"
    assert rest[-1].data["received"] == 4
    assert rest[-1].data.keys() == {"received", "ms"}
    read = [part async for part in files.blobs[files.alice.id].read(manifest["cid"])]
    assert b"".join(read) == data


async def test_a_blob_that_was_put_is_advertised_and_read_by_others(files: Neighbours) -> None:
    manifest = manifest_of(b"a pamphlet")
    await _put(files, b"a pamphlet")
    held = files.alice.in_(files.community).state.content.files
    assert held[manifest["cid"], files.alice.id] == len(b"a pamphlet")
    frames = await files.stream(files.carol, files.alice, "file.read", {"cid": manifest["cid"]})
    assert canonical.decode_base64url(frames[1].data["data_b64"]) == b"a pamphlet"


async def _put(files: Neighbours, data: bytes) -> list[Any]:
    async with (
        files.ask(files.bob, files.alice) as client,
        aclosing(client.stream("file.put", {}, {"manifest": manifest_of(data)})) as frames,  # type: ignore[type-var]
    ):
        said = []
        async for frame in frames:
            said.append(frame)
            if frame.event == "ready" and frame.data["needed"]:
                chunks = [chunk_of(data, i) for i in frame.data["needed"]]
                sent = {"upload_id": frame.data["upload_id"], "chunks": chunks}
                await client.call("file.put", {}, sent)
        return said


async def test_only_chunks_that_are_not_here_are_needed(files: Neighbours) -> None:
    data = fresh()
    await _put(files, data)
    again = await _put(files, data)
    assert again[0].data["needed"] == []
    assert again[-1].data["received"] == 0
    longer = data[: 2 * CHUNK] + fresh(CHUNK)
    said = await _put(files, longer)
    assert said[0].data["needed"] == [2]
    assert said[-1].data["received"] == 1


async def test_an_interrupted_put_goes_on_with_what_is_still_needed(files: Neighbours) -> None:
    data = fresh()
    manifest = manifest_of(data)
    async with (
        files.ask(files.bob, files.alice) as client,
        aclosing(client.stream("file.put", {}, {"manifest": manifest})) as frames,  # type: ignore[type-var]
    ):
        ready = await anext(frames)
        chunks = [chunk_of(data, i) for i in (2, 0)]
        sent = {"upload_id": ready.data["upload_id"], "chunks": chunks}
        await client.call("file.put", {}, sent)
    said = await _put(files, data)
    assert said[0].data["needed"] == [1, 3]
    assert said[-1].event == "done"
    assert files.blobs[files.alice.id].has(manifest["cid"])


async def test_a_member_who_is_not_trusted_may_not_put(files: Neighbours) -> None:
    given = {"manifest": manifest_of(b"x")}
    error = await refused(files.call(files.carol, files.alice, "file.put", given))
    assert error.code is Code.UNAUTHORIZED


async def test_a_full_disk_is_told_before_anything_is_sent(
    files: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fresh()
    folder = files.blobs[files.alice.id].folder
    monkeypatch.setattr(folder, "_min_free", 2**62)
    error = await refused(
        files.call(files.bob, files.alice, "file.put", {"manifest": manifest_of(data)})
    )
    assert error.code is Code.CAPACITY_EXCEEDED
    assert error.details["retry_after_ms"] > 0
    assert not files.blobs[files.alice.id].has(manifest_of(data)["cid"])


async def test_a_chunk_that_does_not_match_its_cid_is_refused_with_all_that_came_along(
    files: Neighbours,
) -> None:
    data = fresh()
    manifest = manifest_of(data)
    async with (
        files.ask(files.bob, files.alice) as client,
        aclosing(client.stream("file.put", {}, {"manifest": manifest})) as frames,  # type: ignore[type-var]
    ):
        upload_id = (await anext(frames)).data["upload_id"]
        good = chunk_of(data, 0)
        for bad in (
            {**chunk_of(data, 1), "data_b64": canonical.encode_base64url(b"something else")},
            {**chunk_of(data, 1), "cid": chunk_of(data, 2)["cid"]},
            {**chunk_of(data, 1), "i": 4},
            {**chunk_of(data, 1), "data_b64": chunk_of(data, 1)["data_b64"][:-1] + "_"},
        ):
            sent = {"upload_id": upload_id, "chunks": [good, bad]}
            error = await refused(client.call("file.put", {}, sent))
            assert error.code is Code.BAD_REQUEST
    said = await _put(files, data)
    assert said[0].data["needed"] == [0, 1, 2, 3]


async def test_a_manifest_that_lies_is_refused(files: Neighbours) -> None:
    data = fresh()
    right = manifest_of(data)
    for changes in (
        {"cid": cid_of(b"another")},
        {"size_bytes": right["size_bytes"] + CHUNK},
        {"size_bytes": -1},
        {"chunks": right["chunks"][::-1]},
        {"chunks": right["chunks"][:-1]},
        {"chunk_size_bytes": 1024},
    ):
        given = {"manifest": {**right, **changes}}
        error = await refused(files.call(files.bob, files.alice, "file.put", given))
        assert error.code is Code.BAD_REQUEST, changes


async def test_a_manifest_that_lies_about_the_last_chunk_never_becomes_a_blob(
    files: Neighbours,
) -> None:
    chunk = b"ten bytes."
    lying = Manifest.of(9, [cid_of(chunk)])
    async with (
        files.ask(files.bob, files.alice) as client,
        aclosing(client.stream("file.put", {}, {"manifest": lying.payload()})) as frames,  # type: ignore[type-var]
    ):
        ready = await anext(frames)
        sent = {"upload_id": ready.data["upload_id"], "chunks": [chunk_of(chunk, 0)]}
        error = await refused(client.call("file.put", {}, sent))
    assert error.code is Code.BAD_REQUEST
    assert "size is wrong" in error.what
    assert not files.blobs[files.alice.id].has(lying.cid)


async def test_an_upload_is_known_only_to_whoever_began_it(files: Neighbours) -> None:
    data = fresh()
    async with (
        files.ask(files.bob, files.alice) as client,
        aclosing(client.stream("file.put", {}, {"manifest": manifest_of(data)})) as frames,  # type: ignore[type-var]
    ):
        upload_id = (await anext(frames)).data["upload_id"]
        sent = {"upload_id": upload_id, "chunks": [chunk_of(data, 0)]}
        error = await refused(files.call(files.alice, files.alice, "file.put", sent))
        assert error.code is Code.NOT_FOUND
    sent = {"upload_id": files.street.ids.new(), "chunks": [chunk_of(data, 0)]}
    error = await refused(files.call(files.bob, files.alice, "file.put", sent))
    assert error.code is Code.NOT_FOUND
