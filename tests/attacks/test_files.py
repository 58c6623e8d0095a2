"""The border of files: a CID that stands in the log for all to see opens nothing to anybody.

Alice is an anchor, Bob is trusted, Carol is a member; each has a node on a real socket.
"""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.capabilities.chat.conftest import move_in as chatting
from tests.capabilities.file.conftest import Neighbours, move_in, some_bytes
from tests.community.node.conftest import House, Street

from accord.capabilities.chat import MessageContent, MessageEnvelope, attachments, seal
from accord.capabilities.file import CHUNK, Blobs, Manifest, cid_of
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.testing import VirtualClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEEDS = itertools.count(9000)
DAY = 86_400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Neighbours]:
    async with AsyncExitStack() as opened:
        yield await move_in(Street(tmp_path_factory.mktemp("street"), VirtualClock(), opened))


def fresh(size: int = CHUNK + 1000) -> bytes:
    return some_bytes(size, next(SEEDS))


def attachment(cid: str, recipient: House) -> dict[str, Any]:
    return {
        "client_id": f"m{next(SEEDS)}",
        "recipient": recipient.id,
        "body": "look",
        "attachments": [{"cid": cid, "name": "a"}],
    }


async def meet(files: Neighbours, house: House) -> None:
    files.clock.advance(10)
    await house.node.sync(files.community)


async def is_refused(files: Neighbours, caller: House, holder: House, data: bytes) -> bool:
    """Whether a caller gets neither the blob nor a chunk of it, nor sees that it is there."""
    blob = Manifest.of(
        len(data), [cid_of(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
    )
    for cid in (blob.cid, blob.chunks[0]):
        try:
            await files.stream(caller, holder, "file.read", {"cid": cid})
        except CommunityError as error:
            assert error.code is Code.NOT_FOUND
        else:
            return False
    listed = await files.call(caller, holder, "file.list", {})
    return blob.cid not in listed["output"]["cids"]


async def test_a_message_of_ones_own_that_names_a_blob_does_not_open_it(files: Neighbours) -> None:
    data = fresh()
    cid = await files.blobs[files.alice.id].put(data)
    await files.alice.node.act(files.community, "chat.message.sent", attachment(cid, files.bob))
    await meet(files, files.alice)
    # Carol reads the CID in the log, and writes to all whom it might concern.
    for recipient in (files.alice, files.bob, files.carol):
        message = attachment(cid, recipient)
        await files.carol.node.act(files.community, "chat.message.sent", message)
    await meet(files, files.carol)
    assert await is_refused(files, files.carol, files.alice, data)
    # Whom Alice sent it to may read it at Alice's node, and nobody at Bob's.
    frames = await files.stream(files.bob, files.alice, "file.read", {"cid": cid})
    assert frames[-1].event == "done"
    await files.stream(files.bob, files.bob, "file.read", {"cid": cid})
    assert files.blobs[files.bob.id].has(cid)
    assert await is_refused(files, files.carol, files.bob, data)
    assert await is_refused(files, files.alice, files.bob, data)


async def test_a_document_that_another_says_to_have_ingested_is_not_opened(
    files: Neighbours,
) -> None:
    data = fresh()
    cid = await files.blobs[files.alice.id].put(data)
    ingested = {"corpus": "stolen", "doc_cid": cid, "chunks": 1}
    await files.bob.node.act(files.community, "rag.document.ingested", ingested)
    await meet(files, files.bob)
    assert await is_refused(files, files.bob, files.alice, data)
    assert await is_refused(files, files.carol, files.alice, data)


async def test_a_file_that_another_says_to_hold_is_not_opened(files: Neighbours) -> None:
    data = fresh()
    cid = await files.blobs[files.alice.id].put(data)
    held = {"cid": cid, "sizes_bytes": len(data)}
    await files.carol.node.act(files.community, "file.cid.advertised", held)
    await files.call(files.carol, files.alice, "file.advertise", {"cids": [cid]})
    await meet(files, files.carol)
    assert await is_refused(files, files.carol, files.alice, data)


async def test_a_manifest_without_the_bytes_does_not_make_a_node_publish_a_blob(
    files: Neighbours,
) -> None:
    data = fresh(2 * CHUNK)
    cid = await files.blobs[files.alice.id].put(data)
    known = files.blobs[files.alice.id].manifest(cid)
    # Bob is trusted, and has got hold of the digests.
    longer = Manifest.of(2 * CHUNK + 1, [*known.chunks, cid_of(b"x")])
    for manifest in (known, longer):
        given = {"manifest": manifest.payload()}
        async with (
            files.ask(files.bob, files.alice) as client,
            aclosing(client.stream("file.put", {}, given)) as frames,  # type: ignore[type-var]
        ):
            ready = await anext(frames)
        assert ready.data["needed"] == list(range(len(manifest.chunks)))
    assert (cid, files.alice.id) not in files.alice.in_(files.community).state.content.files
    assert await is_refused(files, files.bob, files.alice, data)


async def test_half_an_upload_does_not_count_for_somebody_else(files: Neighbours) -> None:
    data = fresh(2 * CHUNK)
    manifest = Manifest.of(len(data), [cid_of(data[:CHUNK]), cid_of(data[CHUNK:])])
    blobs = files.blobs[files.alice.id]
    # Alice fetches it herself, and is interrupted.
    incoming = await blobs.receive(manifest)
    await incoming.take({0: data[:CHUNK]})
    async with (
        files.ask(files.bob, files.alice) as client,
        aclosing(client.stream("file.put", {}, {"manifest": manifest.payload()})) as frames,  # type: ignore[type-var]
    ):
        assert (await anext(frames)).data["needed"] == [0, 1]


async def test_what_others_mention_is_collected_all_the_same(files: Neighbours) -> None:
    blobs = files.blobs[files.alice.id]
    cids = {name: await blobs.put(fresh(100)) for name in ("chat", "corpus", "post", "held")}
    # A home of this version: whatever the one before kept was looked through when it was opened.
    await files.call(files.alice, files.alice, "experimental.file.gc", {})
    act = files.bob.node.act
    message = attachment(cids["chat"], files.alice)
    await act(files.community, "chat.message.sent", message)
    ingested = {"corpus": "kept", "doc_cid": cids["corpus"], "chunks": 1}
    await act(files.community, "rag.document.ingested", ingested)
    post = {"client_id": "p", "category": "info", "title": "Keep", "body": f"it: {cids['post']}"}
    await act(files.community, "market.post.created", post)
    held = {"cid": cids["held"], "sizes_bytes": 100}
    await act(files.community, "file.cid.advertised", held)
    await meet(files, files.bob)
    files.clock.advance(2 * DAY)
    await files.call(files.alice, files.alice, "experimental.file.gc", {})
    assert [name for name, cid in cids.items() if blobs.has(cid)] == []


async def test_what_is_shared_with_one_member_is_not_there_for_another(files: Neighbours) -> None:
    data = fresh()
    cid = await files.blobs[files.alice.id].put(data)
    given = {"cid": cid, "name": "secret.pdf", "with": [files.bob.id]}
    await files.call(files.alice, files.alice, "experimental.file.share", given)
    await meet(files, files.alice)
    assert await is_refused(files, files.carol, files.alice, data)
    listed = await files.call(files.carol, files.alice, "experimental.file.shared", {})
    assert cid not in [each["cid"] for each in listed["output"]["files"]]
    assert not any(
        known == cid for known, _ in files.carol.in_(files.community).state.content.files
    )
    frames = await files.stream(files.bob, files.alice, "file.read", {"cid": cid})
    assert canonical.decode_base64url(frames[1].data["data_b64"]) == data[:CHUNK]


@pytest.mark.parametrize("capability", ["share", "unshare", "offered"])
async def test_nobody_shares_or_takes_back_the_files_of_another(
    files: Neighbours, capability: str
) -> None:
    data = fresh(100)
    cid = await files.blobs[files.alice.id].put(data)
    given = {} if capability == "offered" else {"cid": cid}
    with pytest.raises(CommunityError) as refused:
        await files.call(files.bob, files.alice, f"experimental.file.{capability}", given)
    assert refused.value.code is Code.UNAUTHORIZED
    assert await is_refused(files, files.bob, files.alice, data)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("name", "a\nb"),
        ("name", "x" * 256),
        ("name", "invoice\u202efdp.exe"),
        ("title", "\x1b[2J"),
        ("title", "x" * 201),
    ],
)
async def test_a_name_that_deceives_a_reader_is_refused(
    files: Neighbours, member: str, value: str
) -> None:
    cid = await files.blobs[files.alice.id].put(fresh(100))
    given = {"cid": cid, member: value}
    with pytest.raises(CommunityError) as refused:
        await files.call(files.alice, files.alice, "experimental.file.share", given)
    assert refused.value.code is Code.BAD_REQUEST
    assert files.blobs[files.alice.id].shares.get(files.community, cid) is None


async def test_a_name_never_leads_out_of_a_folder(files: Neighbours) -> None:
    cid = await files.blobs[files.alice.id].put(fresh(100))
    given = {"cid": cid, "name": "../../etc/passwd"}
    await files.call(files.alice, files.alice, "experimental.file.share", given)
    listed = await files.call(files.bob, files.alice, "experimental.file.shared", {})
    [shared] = [each for each in listed["output"]["files"] if each["cid"] == cid]
    assert shared["name"] == "passwd"


async def test_a_community_sees_nothing_of_what_is_shared_in_another(files: Neighbours) -> None:
    data = fresh()
    blobs: Blobs = files.blobs[files.alice.id]
    cid = await blobs.put(data)
    other = await files.street.found(files.alice)
    async with files.alice.client(other, files.alice) as client:
        await client.call("experimental.file.share", {}, {"cid": cid, "name": "a.pdf"})
    assert await is_refused(files, files.bob, files.alice, data)


async def test_bytes_that_a_member_got_hold_of_do_not_show_what_was_sent(tmp_path: Path) -> None:
    """Even a holder who gives everything to everybody gives nothing away."""
    async with AsyncExitStack() as opened:
        neighbours = await chatting(tmp_path, opened)
        alice, bob, carol = neighbours.everybody
        secret = b"the key is below the stone " * 1000
        attached = [{"cid": await bob.blobs.put(secret), "name": "where.txt"}]
        await bob.send(carol, "look", attachments=attached)
        await neighbours.sync()
        [messages] = alice.hosted.state.content.messages.values()
        [(cid, name)] = messages[0].attachments
        # Alice sees the CID, and that is all; her own event about it opens nothing at Bob's.
        assert name == "sealed"
        mention = {
            "client_id": "mine",
            "recipient": alice.id,
            "body": "",
            "attachments": [{"cid": cid, "name": "a"}],
        }
        await alice.node.act(alice.community, "chat.message.sent", mention)
        await neighbours.sync()
        error = await alice.refusal("file.read", {"cid": cid}, bob)
        assert error.code is Code.NOT_FOUND
        # Should she get it otherwise, it says nothing, and her own node has no key for it.
        blob = b"".join([part async for part in bob.blobs.read(cid)])
        assert b"stone" not in blob
        assert await alice.blobs.put(blob) == cid
        async with alice.client() as client:
            answer = (await client.call(attachments.OPEN, {}, {"cid": cid}))["output"]
        assert answer["key"] is None


async def test_a_wrong_key_for_anothers_attachment_does_not_lock_its_recipient_out(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as opened:
        neighbours = await chatting(tmp_path, opened)
        alice, bob, carol = neighbours.everybody
        attached = [{"cid": await bob.blobs.put(b"a plan"), "name": "plan.txt"}]
        await bob.send(carol, "look", attachments=attached)
        await neighbours.sync()
        [message] = await carol.history()
        cid = message["attachments"][0]["cid"]
        # Alice names the same blob to Carol under seal, with a key of her own and with none.
        for number, more in enumerate(({"key": canonical.encode_base64url(bytes(32))}, {})):
            envelope = MessageEnvelope(alice.community, alice.id, carol.id, f"lie {number}")
            lie = MessageContent("look", [{"cid": cid, "name": "lie.exe", **more}], bytes(32))
            await alice.node.act(alice.community, "chat.message.sent", seal(envelope, lie))
        await neighbours.sync()
        async with carol.client() as client:
            async for _ in client.stream("file.read", {}, {"cid": cid}):
                pass
            found = await attachments.find(client, carol.blobs, cid)
        assert found is not None
        assert found.name == "plan.txt"
        assert found.key is not None
        parts = [part async for part in attachments.decrypted(carol.blobs, cid, found.key)]
        assert b"".join(parts) == b"a plan"


async def test_a_name_of_any_length_in_a_seal_does_not_break_the_history(tmp_path: Path) -> None:
    async with AsyncExitStack() as opened:
        neighbours = await chatting(tmp_path, opened)
        alice, carol = neighbours.alice, neighbours.carol
        for number, name in enumerate(("", "x" * 1000)):
            envelope = MessageEnvelope(alice.community, alice.id, carol.id, f"long {number}")
            letter = MessageContent("look", [{"cid": cid_of(b""), "name": name}], bytes(32))
            await alice.node.act(alice.community, "chat.message.sent", seal(envelope, letter))
        await neighbours.sync()
        assert [each["problem"] for each in await carol.history()] == [
            "the seal does not hold a message"
        ] * 2
