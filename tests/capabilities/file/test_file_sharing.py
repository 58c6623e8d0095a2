"""How blobs get from node to node, and what is kept for whom."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
import pytest_asyncio
from tests.capabilities.file.conftest import LONG, Neighbours, move_in, some_bytes
from tests.community.node.conftest import House, Street

from accord.capabilities.file import (
    CHUNK,
    FileSettings,
    HolderHints,
    Manifest,
    cid_of,
    disk_full,
    pull,
    push,
    read_chunk,
    read_listed,
    transfer,
    write_chunk,
)
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
    monkeypatch.setattr(files.blobs[files.carol.id].folder, "_min_free", 2**62)
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
                raise disk_full()

            patched.setattr(files.blobs[files.alice.id].folder, "check_room", check_room)
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
            raise disk_full()

    monkeypatch.setattr(blobs.folder, "check_room", check_room)
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


async def offered(files: Neighbours, house: House, **given: Any) -> dict[str, dict[str, Any]]:
    answer = await files.call(house, house, "experimental.file.offered", given)
    return {each["cid"]: each for each in answer["output"]["files"]}


async def test_a_friend_sees_a_shared_file_by_name_and_title_and_gets_it(
    files: Neighbours,
) -> None:
    data = some_bytes(1000, 60)
    cid = await files.blobs[files.alice.id].put(data)
    given = {"cid": cid, "name": "manuals/pump.pdf", "title": "The pump in the shed"}
    answer = await files.call(files.alice, files.alice, "experimental.file.share", given)
    assert answer["output"] == {"cid": cid, "size_bytes": 1000, "with": None}
    files.clock.advance(10)
    await files.alice.node.sync(files.community)
    shared = (await offered(files, files.carol))[cid]
    assert (shared["name"], shared["title"]) == ("pump.pdf", "The pump in the shed")
    assert (shared["holder"], shared["scope"]) == (files.alice.id, "community")
    assert (shared["size_bytes"], shared["is_here"]) == (1000, False)
    await files.stream(files.carol, files.carol, "file.read", {"cid": cid})
    assert (await offered(files, files.carol))[cid]["is_here"]


async def test_what_is_shared_can_be_taken_back(files: Neighbours) -> None:
    data = some_bytes(1000, 61)
    blobs = files.blobs[files.alice.id]
    cid = await blobs.put(data)
    await files.call(files.alice, files.alice, "experimental.file.share", {"cid": cid})
    files.clock.advance(10)
    await files.alice.node.sync(files.community)
    assert cid in await offered(files, files.carol)
    for was_shared in (True, False):
        given = {"cid": cid}
        answer = await files.call(files.alice, files.alice, "experimental.file.unshare", given)
        assert answer["output"] == {"cid": cid, "was_shared": was_shared}
    files.clock.advance(10)
    await files.alice.node.sync(files.community)
    assert cid not in await offered(files, files.carol)
    assert cid not in await offered(files, files.carol, refresh=False)
    asked = files.stream(files.carol, files.alice, "file.read", {"cid": cid})
    assert await code_of(asked) is Code.NOT_FOUND
    files.clock.advance(2 * 86_400)
    await files.call(files.alice, files.alice, "experimental.file.gc", {})
    assert not blobs.has(cid)


async def test_what_is_shared_with_one_member_is_listed_and_got_by_that_one(
    files: Neighbours,
) -> None:
    cid = await files.blobs[files.alice.id].put(some_bytes(1000, 62))
    share = {"cid": cid, "name": "will.pdf", "with": [files.bob.id]}
    await files.call(files.alice, files.alice, "experimental.file.share", share)
    assert (await offered(files, files.bob))[cid]["scope"] == "members"
    assert cid not in await offered(files, files.carol)
    # The log says nothing of it; that Alice has it is known from what she listed.
    await files.stream(files.bob, files.bob, "file.read", {"cid": cid})
    assert files.blobs[files.bob.id].has(cid)
    mine = await files.call(files.alice, files.alice, "experimental.file.shared", {})
    [shared] = [each for each in mine["output"]["files"] if each["cid"] == cid]
    assert shared["with"] == [files.bob.id]
    await files.call(files.alice, files.alice, "experimental.file.unshare", {"cid": cid})
    assert cid not in await offered(files, files.bob)


async def test_sharing_again_changes_who_may_read(files: Neighbours) -> None:
    cid = await files.blobs[files.alice.id].put(some_bytes(1000, 63))
    await files.call(files.alice, files.alice, "experimental.file.share", {"cid": cid})
    narrowed = {"cid": cid, "with": [files.bob.id]}
    await files.call(files.alice, files.alice, "experimental.file.share", narrowed)
    asked = files.stream(files.carol, files.alice, "file.read", {"cid": cid})
    assert await code_of(asked) is Code.NOT_FOUND
    await files.stream(files.bob, files.alice, "file.read", {"cid": cid})
    await files.call(files.alice, files.alice, "experimental.file.share", {"cid": cid})
    await files.stream(files.carol, files.alice, "file.read", {"cid": cid})


async def test_a_share_that_cannot_be_is_refused_and_changes_nothing(files: Neighbours) -> None:
    blobs = files.blobs[files.alice.id]
    cid = await blobs.put(some_bytes(1000, 64))
    stranger = files.street.key("stranger").id
    for given in ({"cid": cid_of(b"not here")}, {"cid": cid, "with": [stranger]}):
        asked = files.call(files.alice, files.alice, "experimental.file.share", given)
        assert await code_of(asked) is Code.NOT_FOUND
    assert blobs.shares.get(files.community, cid) is None


async def test_names_are_known_while_their_node_is_away(
    files: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    cid = await files.blobs[files.bob.id].put(some_bytes(1000, 65))
    share = {"cid": cid, "name": "map.png"}
    await files.call(files.bob, files.bob, "experimental.file.share", share)
    files.clock.advance(10)
    await files.bob.node.sync(files.community)
    assert (await offered(files, files.carol))[cid]["name"] == "map.png"

    async def dial(*_: Any, **__: Any) -> Any:
        raise CommunityError(Code.PARTITION, "nobody is there")

    monkeypatch.setattr(files.carol.node.dialler, "dial", dial)
    answer = await files.call(files.carol, files.carol, "experimental.file.offered", {})
    assert files.bob.id in answer["output"]["unreachable"]
    known = {each["cid"]: each["name"] for each in answer["output"]["files"]}
    assert known[cid] == "map.png"


async def test_a_node_of_the_version_before_is_known_by_the_log(files: Neighbours) -> None:
    # It advertises, and has no names to give.
    cid = await files.share(files.bob, some_bytes(1000, 66))
    files.clock.advance(10)
    await files.bob.node.sync(files.community)
    shared = (await offered(files, files.carol))[cid]
    assert (shared["name"], shared["shared_at"]) == ("", None)
    assert (shared["holder"], shared["scope"]) == (files.bob.id, "community")


async def test_an_attachment_can_be_withdrawn_by_its_sender(files: Neighbours) -> None:
    blobs = files.blobs[files.alice.id]
    cid = await blobs.put(some_bytes(1000, 67))
    message = {
        "client_id": "withdrawn",
        "recipient": files.bob.id,
        "body": "",
        "attachments": [{"cid": cid, "name": "a"}],
    }
    await files.alice.node.act(files.community, "chat.message.sent", message)
    await files.stream(files.bob, files.alice, "file.read", {"cid": cid})
    await files.call(files.alice, files.alice, "experimental.file.unshare", {"cid": cid})
    asked = files.stream(files.bob, files.alice, "file.read", {"cid": cid})
    assert await code_of(asked) is Code.NOT_FOUND
    files.clock.advance(2 * 86_400)
    await files.call(files.alice, files.alice, "experimental.file.gc", {})
    assert not blobs.has(cid)


async def test_what_the_version_before_kept_for_its_owner_stays_with_an_upgrade(
    files: Neighbours,
) -> None:
    blobs = files.blobs[files.bob.id]
    cids = [await blobs.put(some_bytes(100, seed)) for seed in (68, 69)]
    message = {
        "client_id": "old",
        "recipient": files.bob.id,
        "body": "",
        "attachments": [{"cid": cids[0], "name": "a"}],
    }
    await files.alice.node.act(files.community, "chat.message.sent", message)
    ingested = {"corpus": "old", "doc_cid": cids[1], "chunks": 1}
    await files.alice.node.act(files.community, "rag.document.ingested", ingested)
    files.clock.advance(10)
    await files.alice.node.sync(files.community)
    assert not blobs.shares.is_adopted
    files.clock.advance(2 * 86_400)
    await files.call(files.bob, files.bob, "experimental.file.gc", {})
    assert all(map(blobs.has, cids))
    assert blobs.shares.is_adopted


async def test_shares_are_listed_page_by_page(files: Neighbours) -> None:
    for seed in range(70, 75):
        cid = await files.blobs[files.bob.id].put(some_bytes(10, seed))
        await files.call(files.bob, files.bob, "experimental.file.share", {"cid": cid})
    whole = await files.call(files.carol, files.bob, "experimental.file.shared", {})
    assert "more" not in whole["meta"]
    found: list[str] = []
    given: dict[str, Any] = {"limit": 2}
    while True:
        page = await files.call(files.carol, files.bob, "experimental.file.shared", given)
        found += [each["cid"] for each in page["output"]["files"]]
        if not page["meta"].get("more"):
            break
        given["after"] = found[-1]
    assert found == [each["cid"] for each in whole["output"]["files"]]
    given = {"prefix": found[0][:20]}
    page = await files.call(files.carol, files.bob, "experimental.file.shared", given)
    assert [each["cid"] for each in page["output"]["files"]] == [found[0]]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"output": {"files": "many"}, "meta": {"ms": 1}},
        {"output": {"files": [{"cid": "blake3:x"}]}, "meta": {"ms": 1}},
    ],
)
async def test_a_list_that_is_none_is_refused(answer: Any) -> None:
    with pytest.raises(CommunityError) as refused:
        list(read_listed(answer))
    assert refused.value.code is Code.BAD_REQUEST


async def test_hints_are_few_and_the_newest() -> None:
    hints = HolderHints(2)
    for number in range(20):
        hints.add("community", "a", str(number))
    assert hints.holders("community", "a") == [str(number) for number in range(19, 3, -1)]
    hints.add("community", "b", "x")
    hints.add("community", "c", "x")
    assert hints.holders("community", "a") == []
    assert hints.holders("community", "c") == ["x"]


async def test_a_member_who_answers_never_holds_up_the_others(
    files: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    cid = await files.blobs[files.bob.id].put(some_bytes(10, 90))
    share = {"cid": cid, "name": "here.txt"}
    await files.call(files.bob, files.bob, "experimental.file.share", share)
    files.clock.advance(10)
    await files.bob.node.sync(files.community)
    dial = files.carol.node.dialler.dial

    async def patient(*given: Any, node_id: str, **more: Any) -> Any:
        if node_id == files.alice.id:
            await asyncio.Event().wait()
        return await dial(*given, node_id=node_id, **more)

    monkeypatch.setattr(files.carol.node.dialler, "dial", patient)
    monkeypatch.setattr(transfer, "_DIAL_SECONDS", 0.2)
    answer = await files.call(files.carol, files.carol, "experimental.file.offered", {})
    assert answer["output"]["unreachable"] == [files.alice.id]
    assert "here.txt" in [each["name"] for each in answer["output"]["files"]]


async def test_a_node_asks_by_itself_what_was_shared_is_called(files: Neighbours) -> None:
    carol = files.carol
    running = asyncio.create_task(files.serving[carol.id].run())
    try:
        cid = await files.blobs[files.bob.id].put(some_bytes(10, 91))
        share = {"cid": cid, "name": "news.txt"}
        await files.call(files.bob, files.bob, "experimental.file.share", share)
        files.clock.advance(10)
        await files.bob.node.sync(files.community)
        catalogue = files.blobs[carol.id].catalogue
        async with asyncio.timeout(20):
            while not any(  # noqa: ASYNC110 - nobody tells when it was written down
                share.name == "news.txt"
                for share in catalogue.all(files.community).get(files.bob.id, ())
            ):
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
