"""Files up and down, on a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from tests.fabric.fabric_network import Sessions, linked
from tests.fabric.work_network import ALL, bound, bucket, calling, received, store, until, work

from accord.fabric import (
    DeadlineError,
    FabricError,
    Link,
    NotFoundError,
    Terms,
    UnauthorizedError,
    ValidationError,
    streams,
)
from accord.fabric.objects import ObjectStore, open_store
from accord.fabric.operations import OperationContext, Operations, start
from accord.fabric.rules import proofs, transfers
from accord.fabric.transfer import Downloads, Uploads, download, upload
from accord.testing.servers import Server

TERMS = Terms(work())
LARGE = bytes(range(256)) * 20_000  # more than one window, and not a whole number of chunks


class Shelf:
    """A service with a store, and a caller of it."""

    def __init__(self, link: Link, caller: Link, sessions: Sessions) -> None:
        self.link = link
        self.caller = caller
        self.sessions = sessions
        self.files: ObjectStore = open_store(link, TERMS, "files")

    async def chunks(self) -> int:
        name = self.link.bound.resources["store"]["files"]["name"]
        asked = {"subjects_filter": f"$O.{name}.C.>"}
        info = await streams.call(self.link.inbox, f"STREAM.INFO.OBJ_{name}", asked)
        return sum((info["state"].get("subjects") or {}).values())


@pytest.fixture
async def shelf(nats: Server) -> AsyncIterator[Shelf]:
    sessions = Sessions()
    async with (
        linked(nats.url) as link,
        calling(nats.url, sessions, *ALL) as caller,
    ):
        name, records = await store(link.nats), await bucket(link.nats)
        link.bound = bound(
            store={"files": {"name": name, "maxObjectBytes": 6_000_000}},
            operations={"bucket": records},
        )
        yield Shelf(link, caller, sessions)


@pytest.fixture
async def uploads(shelf: Shelf) -> AsyncIterator[Uploads]:
    async with Uploads(shelf.link, "workers") as uploads:
        await shelf.link.nats.flush()
        yield uploads


@pytest.fixture
async def downloads(shelf: Shelf) -> AsyncIterator[Downloads]:
    async with Downloads(shelf.link, "workers") as downloads:
        yield downloads


async def test_a_file_that_is_uploaded_lies_in_the_store(shelf: Shelf, uploads: Uploads) -> None:
    grant, completed = uploads.open(
        shelf.caller.session, shelf.files, "a", content_type="text/plain", metadata={"x": "y"}
    )
    info = await upload(shelf.caller, grant.wire(), LARGE)
    assert await completed() == info
    assert (info["key"], info["size"], info["contentType"]) == ("a", len(LARGE), "text/plain")
    assert await shelf.files.get("a") == LARGE


@pytest.mark.parametrize("size", [0, 1, 262_144, 262_145])
async def test_files_of_any_size_are_uploaded(shelf: Shelf, uploads: Uploads, size: int) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield LARGE[: size // 2]
        yield LARGE[size // 2 : size]

    grant, _ = uploads.open(shelf.caller.session, shelf.files, "a")
    await upload(shelf.caller, grant.wire(), pieces())
    assert await shelf.files.get("a") == LARGE[:size]


async def test_a_file_larger_than_granted_is_refused_and_leaves_nothing(
    shelf: Shelf, uploads: Uploads
) -> None:
    grant, _ = uploads.open(shelf.caller.session, shelf.files, "a", max_bytes=300_000)
    with pytest.raises(ValidationError, match="300000"):
        await upload(shelf.caller, grant.wire(), LARGE)
    again, completed = uploads.open(shelf.caller.session, shelf.files, "a", max_bytes=300_000)
    careless = replace(again, max_bytes=None)
    with pytest.raises(ValidationError, match="300000"):
        await upload(shelf.caller, careless.wire(), LARGE)
    with pytest.raises(ValidationError):
        await completed()
    assert await shelf.files.info("a") is None
    assert await shelf.chunks() == 0


async def test_the_grant_of_another_session_is_of_no_use(shelf: Shelf, uploads: Uploads) -> None:
    grant, _ = uploads.open("x" * 43, shelf.files, "a")
    with pytest.raises(UnauthorizedError):
        await upload(shelf.caller, grant.wire(), b"x")
    with pytest.raises(UnauthorizedError, match="another session's"):
        await upload(shelf.caller, replace(grant, session=shelf.caller.session).wire(), b"x")


def signed(link: Link, subject: str, data: bytes, request_id: str) -> dict[str, str]:
    now = int(link.clock.now())
    return proofs.sign(link.key, link.session, subject, data, now, request_id)


async def test_a_frame_that_is_forged_out_of_turn_or_replayed_is_refused(
    shelf: Shelf, uploads: Uploads
) -> None:
    grant, completed = uploads.open(shelf.caller.session, shelf.files, "a")
    caller, subject = shelf.caller, grant.subject

    async def send(data: bytes, sequence: int, **changes: str) -> str:
        headers = signed(caller, subject, data, transfers.frame_id(grant.id, sequence, eof=False))
        headers |= {transfers.SEQUENCE: str(sequence), **changes}
        answer = await caller.inbox.ask(subject, data, headers, 5)
        return "refused" if (answer.headers or {}).get("status") == "error" else "taken"

    assert await send(b"one", 0) == "taken"
    assert await send(b"one", 0) == "taken"  # its answer may have got lost
    assert await send(b"two", 5) == "refused"
    assert await send(b"two", 1, **{transfers.EOF: "true"}) == "refused"
    assert await send(b"two", 1, **{transfers.SEQUENCE: "01x"}) == "refused"
    assert await send(b"two", 1, proof="A" * 86) == "refused"
    assert await send(b"two", 1) == "taken"
    assert await send(b"one", 0) == "refused"
    headers = signed(caller, subject, b"", transfers.frame_id(grant.id, 2, eof=True))
    await caller.inbox.ask(
        subject, b"", headers | {transfers.SEQUENCE: "2", transfers.EOF: "true"}, 5
    )
    assert (await completed())["size"] == 6
    assert await shelf.files.get("a") == b"onetwo"


async def test_a_frame_that_jetstream_sends_is_no_frame(shelf: Shelf, uploads: Uploads) -> None:
    grant, _ = uploads.open(shelf.caller.session, shelf.files, "a")
    headers = signed(
        shelf.caller, grant.subject, b"one", transfers.frame_id(grant.id, 0, eof=False)
    )
    stored = headers | {transfers.SEQUENCE: "0", "Nats-Stream": "KV_acc_kv_carts"}
    with pytest.raises(DeadlineError):
        await shelf.caller.inbox.ask(grant.subject, b"one", stored, 0.5)
    await upload(shelf.caller, grant.wire(), b"mine")
    assert await shelf.files.get("a") == b"mine"


async def test_an_upload_that_does_not_come_runs_out(shelf: Shelf, uploads: Uploads) -> None:
    grant, completed = uploads.open(shelf.caller.session, shelf.files, "a", expires=0.05)
    with pytest.raises(DeadlineError):
        await completed()
    with pytest.raises(FabricError):
        await upload(shelf.caller, replace(grant, expires_at=1e10).wire(), b"x")
    with pytest.raises(DeadlineError):
        await upload(shelf.caller, replace(grant, expires_at=1.0).wire(), b"x")


@pytest.mark.parametrize("size", [0, 1, 131_072, len(LARGE)])
async def test_a_file_that_is_downloaded_is_the_one_that_was_stored(
    shelf: Shelf, downloads: Downloads, size: int
) -> None:
    await shelf.files.put("a", LARGE[:size])
    grant = await downloads.offer(shelf.caller.session, shelf.files, "a")
    assert grant["info"]["size"] == size
    assert b"".join([chunk async for chunk in download(shelf.caller, grant)]) == LARGE[:size]


async def test_no_more_is_sent_than_the_caller_wants(shelf: Shelf, downloads: Downloads) -> None:
    await shelf.files.put("a", b"x" * (131_072 * 40))
    grant = await downloads.offer(shelf.caller.session, shelf.files, "a")
    first = await shelf.caller.nats.subscribe(f"{grant['subject']}-0")
    came = [await first.next_msg(10) for _ in range(32)]
    # Whoever wants the second window only now gets all of it, so nothing of it was sent before.
    second = await shelf.caller.nats.subscribe(f"{grant['subject']}-1")
    came += [await second.next_msg(10) for _ in range(9)]
    assert [msg.headers[transfers.SEQUENCE] for msg in came if msg.headers] == [
        str(n) for n in range(41)
    ]
    assert came[-1].headers is not None
    assert came[-1].headers[transfers.EOF] == "true"


async def test_whoever_listens_in_on_a_download_understands_nothing(
    shelf: Shelf, downloads: Downloads, nats: Server
) -> None:
    await shelf.files.put("a", b"secret" * 100)
    heard: list[bytes] = []

    async def listen(msg: Any) -> None:
        heard.append(msg.data)

    async with linked(nats.url) as spy:
        await spy.nats.subscribe("transfer.v1.download.*.*", cb=listen)
        await spy.nats.flush()
        grant = await downloads.offer(shelf.caller.session, shelf.files, "a")

        async def has_heard() -> bool:
            return len(heard) >= 2

        await until(has_heard)
    assert not any(b"secret" in data for data in heard)
    granted = transfers.read_grant(grant)
    assert transfers.unseal(granted, heard[0], 0, eof=False) == b"secret" * 100


async def test_a_frame_that_somebody_else_sends_is_refused(
    shelf: Shelf, downloads: Downloads
) -> None:
    await shelf.files.put("a", LARGE)
    grant = await downloads.offer(shelf.caller.session, shelf.files, "a")
    await downloads.__aexit__()
    downloading = download(shelf.caller, grant)
    first = asyncio.ensure_future(anext(downloading))
    forged = transfers.seal(
        replace(transfers.read_grant(grant), seal=b"k" * 32), b"lies", 0, eof=False
    )
    probe = f"{grant['subject']}-0"

    async def has_come() -> bool:
        await shelf.link.nats.publish(probe, forged, headers={transfers.SEQUENCE: "0"})
        return first.done()

    await until(has_come)
    with pytest.raises(UnauthorizedError):
        await first


async def test_a_file_that_is_not_there_is_not_offered(shelf: Shelf, downloads: Downloads) -> None:
    with pytest.raises(NotFoundError):
        await downloads.offer(shelf.caller.session, shelf.files, "a")


async def test_a_file_that_is_replaced_while_it_is_sent_ends_in_an_error(
    shelf: Shelf, downloads: Downloads
) -> None:
    await shelf.files.put("a", b"x" * (131_072 * 40))
    grant = await downloads.offer(shelf.caller.session, shelf.files, "a")
    downloading = download(shelf.caller, grant)
    await anext(downloading)
    await shelf.files.put("a", b"new")
    with pytest.raises(FabricError):
        async for _ in downloading:
            pass


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"type": "TransferGrant"},
        {"type": "TransferGrant", "direction": "up"},
        {"type": "TransferGrant", "direction": "send", "chunkBytes": 0},
        {"type": "TransferGrant", "direction": "send", "chunkBytes": "1"},
        [],
    ],
)
def test_what_is_no_grant_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError):
        transfers.read_grant(given)


async def test_a_grant_for_the_other_direction_is_refused(shelf: Shelf, uploads: Uploads) -> None:
    grant, _ = uploads.open(shelf.caller.session, shelf.files, "a")
    with pytest.raises(ValidationError, match="not one to receive"):
        async for _ in download(shelf.caller, grant.wire()):
            pass


async def test_an_operation_waits_for_its_file_and_finds_it(shelf: Shelf) -> None:
    async def count(context: OperationContext, payload: Any) -> Any:
        assert context.transfer is not None
        return {"n": len(await shelf.files.get(context.transfer["key"]))}

    async with AsyncExitStack() as stack:
        dispatcher = await stack.enter_async_context(received(shelf.link, shelf.sessions, "work"))
        operations = Operations(shelf.link, TERMS, dispatcher)
        operations.serve("Work.Store", count)
        await stack.enter_async_context(operations)
        run = await start(shelf.caller, TERMS, "Work.Store", {"name": "a", "tags": {"x": "y"}})
        assert run.started is not None
        assert run.started.state == "pending"
        assert (await run.get()).state == "pending"
        info = await upload(shelf.caller, run.transfer, b"x" * 1234)
        ended = await run.wait()
        assert (ended.state, ended.output) == ("completed", {"n": 1234})
        assert ended.body["transfer"] == info
        assert info["metadata"] == {"x": "y"}
        late = await start(shelf.caller, TERMS, "Work.Store", {"name": "b"})
        with pytest.raises(ValidationError, match="2000000"):
            await upload(shelf.caller, late.transfer, b"x" * 2_000_001)
        with pytest.raises(ValidationError):
            await start(shelf.caller, TERMS, "Work.Store", {"name": ""})
