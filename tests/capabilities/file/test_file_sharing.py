"""How blobs get from node to node, and what is kept for whom."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
import pytest_asyncio
from tests.capabilities.file.conftest import LONG, Neighbours, move_in, some_bytes
from tests.community.node.conftest import Street

from accord.capabilities.file import FileSettings
from accord.capabilities.file.fetching import Hints
from accord.capabilities.file.manifests import CHUNK, Manifest, cid_of
from accord.capabilities.file.shelf import full
from accord.capabilities.file.transfer import pull, push, read_chunk, write_chunk
from accord.community.bus import Frame
from accord.community.errors import Code, CommunityError
from accord.testing import VirtualClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = FileSettings(idle_seconds=3, max_uploads=3, max_uploads_each=2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Neighbours]:
    async with AsyncExitStack() as opened:
        street = Street(tmp_path_factory.mktemp("street"), VirtualClock(), opened)
        yield await move_in(street, SETTINGS)


async def code_of(work: Any) -> Code:
    with pytest.raises(CommunityError) as refused:
        await work
    return refused.value.code


async def drain(pulling: Any) -> list[tuple[int, int]]:
    return [progress async for progress in pulling]


class Telling:
    """A client whose node says what it is told to say."""

    def __init__(self, *frames: Frame) -> None:
        self._frames = frames

    async def stream(self, *_: Any) -> AsyncIterator[Frame]:
        for frame in self._frames:
            yield frame


async def test_a_blob_is_pushed_and_pulled(files: Neighbours) -> None:
    data = some_bytes(40 * CHUNK + 7, 20)
    cid = await files.blobs[files.bob.id].put(data)
    told: list[tuple[int, int]] = []
    async with files.ask(files.bob, files.alice) as client:
        sent = await push(
            client,
            files.blobs[files.bob.id],
            cid,
            progress=lambda done, total: told.append((done, total)),
        )
    assert sent == 41
    assert told == sorted(told)
    async with files.ask(files.carol, files.alice) as client:
        progress = await drain(pull(client, files.blobs[files.carol.id], cid))
    assert progress[-1] == (len(data), len(data))
    got = [part async for part in files.blobs[files.carol.id].read(cid)]
    assert b"".join(got) == data
    async with files.ask(files.bob, files.alice) as client:
        assert await push(client, files.blobs[files.bob.id], cid) == 0


async def test_what_the_owner_asks_for_is_fetched_from_whom_the_log_names(
    files: Neighbours,
) -> None:
    data = some_bytes(20 * CHUNK, 21)
    cid = await files.share(files.bob, data)
    files.clock.advance(10)
    await files.bob.node.sync(files.community)
    frames = await files.stream(files.carol, files.carol, "file.read", {"cid": cid})
    assert frames[0].event == "progress"
    assert frames[-1].event == "done"
    assert files.blobs[files.carol.id].has(cid)
    # Another's call never makes this node fetch anything.
    other = await files.share(files.bob, some_bytes(10, 22))
    assert await code_of(files.call(files.alice, files.carol, "file.read", {"cid": other})) is (
        Code.NOT_FOUND
    )


async def test_a_full_disk_is_not_taken_for_a_holder_who_has_nothing(
    files: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    cid = await files.share(files.bob, some_bytes(10, 25))
    await files.call(files.bob, files.carol, "file.advertise", {"cids": [cid]})
    monkeypatch.setattr(files.blobs[files.carol.id].shelf, "_min_free", 2**62)
    asked = files.stream(files.carol, files.carol, "file.read", {"cid": cid})
    assert await code_of(asked) is Code.CAPACITY_EXCEEDED


async def test_what_nobody_has_is_not_found(files: Neighbours) -> None:
    missing = cid_of(b"nobody has this")
    given = {"cids": [missing]}
    await files.call(files.bob, files.carol, "file.advertise", given)
    asked = files.stream(files.carol, files.carol, "file.read", {"cid": missing})
    assert await code_of(asked) is Code.NOT_FOUND


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [Frame("manifest", Manifest.of(1, [cid_of(b"y")]).payload())],
        [Frame("manifest", {"cid": cid_of(b"x"), "size_bytes": 1, "chunks": "many"})],
        [Frame("manifest", Manifest.of(1, [cid_of(b"x")]).payload())],
        [
            Frame("manifest", Manifest.of(1, [cid_of(b"x")]).payload()),
            Frame("chunk", write_chunk(0, cid_of(b"x"), b"not x")),
        ],
        [
            Frame("manifest", Manifest.of(1, [cid_of(b"x")]).payload()),
            Frame("chunk", {"i": 0, "data_b64": "="}),
        ],
        [
            Frame("manifest", Manifest.of(1, [cid_of(b"x")]).payload()),
            Frame("chunk", {"i": None}),
        ],
        [Frame("chunk", write_chunk(0, cid_of(b"x"), b"x"))],
    ],
)
async def test_a_node_that_lies_gives_nothing(files: Neighbours, frames: list[Frame]) -> None:
    wanted = Manifest.of(1, [cid_of(b"x")])
    blobs = files.blobs[files.carol.id]
    client: Any = Telling(*frames)
    assert await code_of(drain(pull(client, blobs, wanted.cid))) is Code.BAD_REQUEST
    assert not blobs.has(wanted.cid)


async def test_a_chunk_that_is_too_long_is_not_even_decoded() -> None:
    with pytest.raises(CommunityError) as refused:
        read_chunk({"i": 0, "data_b64": "A" * 400_000})
    assert refused.value.code is Code.BAD_REQUEST


async def test_a_put_that_nobody_goes_on_with_ends_and_can_be_taken_up(files: Neighbours) -> None:
    manifest = Manifest.of(CHUNK, [cid_of(some_bytes(CHUNK, 23))])
    given = {"manifest": manifest.payload()}
    assert await code_of(files.stream(files.bob, files.alice, "file.put", given)) is Code.TIMEOUT
    async with (
        files.ask(files.bob, files.alice) as client,
        aclosing(client.stream("file.put", {}, given)) as frames,  # type: ignore[type-var]
    ):
        ready = await anext(frames)
        chunk = write_chunk(0, manifest.chunks[0], some_bytes(CHUNK, 23))
        sent = {"upload_id": ready.data["upload_id"], "chunks": [chunk]}
        await client.call("file.put", {}, sent)
        assert [frame.event async for frame in frames][-1] == "done"


async def test_there_is_an_end_to_how_much_is_received_at_once(files: Neighbours) -> None:
    def offer(number: int) -> dict[str, Any]:
        return {"manifest": Manifest.of(1, [cid_of(bytes([number]))]).payload()}

    async def begin(number: int) -> str:
        async with (
            files.ask(files.bob, files.alice) as client,
            aclosing(client.stream("file.put", {}, offer(number))) as frames,  # type: ignore[type-var]
        ):
            return (await anext(frames)).event

    files.clock.advance(601)
    for number in range(2):
        assert await begin(number) == "ready"
    assert await code_of(begin(2)) is Code.CAPACITY_EXCEEDED
    assert await begin(1) == "ready"
    # Those that nobody went on with make room for others in the end.
    files.clock.advance(601)
    assert await begin(2) == "ready"


async def test_a_disk_that_fills_up_on_the_way_loses_nothing(
    files: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.clock.advance(601)
    data = some_bytes(2 * CHUNK, 24)
    manifest = Manifest.of(len(data), [cid_of(data[:CHUNK]), cid_of(data[CHUNK:])])
    given = {"manifest": manifest.payload()}
    async with (
        files.ask(files.bob, files.alice) as client,
        aclosing(client.stream("file.put", {}, given)) as frames,  # type: ignore[type-var]
    ):
        upload_id = (await anext(frames)).data["upload_id"]

        async def send(i: int) -> Any:
            chunk = write_chunk(i, manifest.chunks[i], data[i * CHUNK : (i + 1) * CHUNK])
            return await client.call("file.put", {}, {"upload_id": upload_id, "chunks": [chunk]})

        await send(0)
        with monkeypatch.context() as patched:

            def check_room(_: int) -> None:
                raise full()

            patched.setattr(files.blobs[files.alice.id].shelf, "check_room", check_room)
            files.clock.advance(10)
            assert await code_of(send(1)) is Code.CAPACITY_EXCEEDED
        files.clock.advance(10)
        await send(1)
        assert [frame.event async for frame in frames][-1] == "done"
    assert files.blobs[files.alice.id].has(manifest.cid)


async def test_garbage_is_what_no_corpus_post_message_pin_or_promise_names(
    files: Neighbours,
) -> None:
    blobs = files.blobs[files.alice.id]
    cids = {
        name: await blobs.put(some_bytes(100, 30 + number))
        for number, name in enumerate(
            ["held", "document", "attached", "mentioned", "pinned", "nobody's", "over"]
        )
    }
    files.clock.advance(2 * 86_400)
    young = await blobs.put(some_bytes(100, 40))

    async def act(event_type: str, **data: Any) -> Any:
        return await files.alice.node.act(files.community, event_type, data)

    def post(client_id: str, cid: str) -> dict[str, Any]:
        body = f"A manual: {cid}."
        return {"client_id": client_id, "category": "info", "title": "Manual", "body": body}

    await act("file.cid.advertised", cid=cids["held"], sizes_bytes=100)
    await act("rag.document.ingested", corpus="manuals", doc_cid=cids["document"], chunks=1)
    attachment = {"cid": cids["attached"], "name": "a"}
    await act(
        "chat.message.sent",
        client_id="m",
        recipient=files.bob.id,
        body="",
        attachments=[attachment],
    )
    await act("market.post.created", **post("p1", cids["mentioned"]))
    over = await act("market.post.created", **post("p2", cids["over"]))
    await act(
        "market.post.expired",
        client_id="e",
        target_event_id=over["event_id"],
        reason="stale",
    )
    blobs.pin(cids["pinned"])
    before = set(blobs.cids())
    files.clock.advance(10)
    answer = await files.call(files.alice, files.alice, "experimental.file.gc", {})
    gone = before - set(blobs.cids())
    assert {cids["nobody's"], cids["over"]} <= gone
    assert not gone & {young, *(cids[name] for name in ("held", "document", "attached"))}
    assert not gone & {cids["mentioned"], cids["pinned"]}
    assert answer["output"]["blobs"] == len(gone)
    await act("file.cid.unpinned", cid=cids["held"])
    files.clock.advance(10)
    await files.call(files.alice, files.alice, "experimental.file.gc", {"grace_seconds": 0})
    assert not blobs.has(cids["held"])
    assert not blobs.has(young)
    assert blobs.has(cids["document"])


async def test_only_the_owner_collects_garbage(files: Neighbours) -> None:
    asked = files.call(files.bob, files.alice, "experimental.file.gc", {})
    assert await code_of(asked) is Code.UNAUTHORIZED


async def test_where_there_is_no_room_garbage_is_collected_first(
    files: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = files.blobs[files.alice.id]
    garbage = await blobs.put(some_bytes(100, 50))
    files.clock.advance(2 * 86_400)

    def check_room(_: int) -> None:
        if blobs.has(garbage):
            raise full()

    monkeypatch.setattr(blobs.shelf, "check_room", check_room)
    cid = await files.blobs[files.bob.id].put(some_bytes(100, 51))
    async with files.ask(files.bob, files.alice) as client:
        assert await push(client, files.blobs[files.bob.id], cid) == 1
    assert not blobs.has(garbage)
    assert blobs.has(cid)


async def test_a_reader_who_leaves_ends_the_reading(files: Neighbours) -> None:
    cid = await files.share(files.alice, LONG * 30)
    async with files.ask(files.carol, files.alice) as client:
        frames = client.stream("file.read", {}, {"cid": cid})
        async with aclosing(frames):  # type: ignore[type-var]
            assert (await anext(frames)).event == "manifest"
    offers = files.alice.node.bus.registry
    async with asyncio.timeout(5):
        while offers.in_hand:  # noqa: ASYNC110 - nobody tells when a call has ended
            await asyncio.sleep(0.01)


async def test_hints_are_few_and_the_newest() -> None:
    hints = Hints(2)
    for number in range(20):
        hints.add("community", "a", str(number))
    assert hints.holders("community", "a") == [str(number) for number in range(19, 3, -1)]
    hints.add("community", "b", "x")
    hints.add("community", "c", "x")
    assert hints.holders("community", "a") == []
    assert hints.holders("community", "c") == ["x"]
