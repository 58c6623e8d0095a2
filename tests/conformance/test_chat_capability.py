"""Sections 4.15, 4.16, 7.2, 8 and 12.1 of the specification as they bear on chat, over HTTP.

Everybody speaks with the own node, over its socket; what came of it is looked at on the other's.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from tests.capabilities.chat.conftest import Neighbour, Neighbours, move_in

from accord.capabilities.chat import attachments, encryption
from accord.community import peers, queries
from accord.community.client import Client
from accord.community.errors import Code
from accord.community.rules import (
    Level,
    capabilities,
    must_verify_answer,
    read_event,
    verify_event,
    wire,
)
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.kernel.identifiers import UlidSource, is_ulid
from accord.kernel.signing import SigningKey

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = itertools.count()
CID = "blake3:" + "a" * 64


@dataclass
class Chat(Neighbours):
    """The three, with dave who is away, and erin whose node knows no seals."""

    dave: Neighbour
    erin: Neighbour


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chat]:
    async with AsyncExitStack() as opened:
        folder = tmp_path_factory.mktemp("street")
        three = await move_in(folder, opened)
        dave, erin = (Neighbour(name, folder / name, three.clock) for name in ("dave", "erin"))
        for each in (dave, erin):
            await each.arrive()
            opened.push_async_callback(each.leave)
        await dave.join(three.alice)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(peers, "EXTENSIONS", ("to",))
            await erin.join(three.alice)
        await dave.leave()
        found = Chat(three.alice, three.bob, three.carol, three.clock, dave, erin)
        await found.sync()
        yield found


def message(recipient: Neighbour, **members: Any) -> dict[str, Any]:
    """A message as the specification shows one."""
    return {
        "client_id": f"client {next(NUMBERS)}",
        "recipient": recipient.id,
        "body": "Hi, hast du heute Strom?",
        **members,
    }


async def event_of(neighbour: Neighbour, event_id: str) -> dict[str, Any]:
    (found,) = await queries.find_events(neighbour.hosted, event_id)
    assert found["status"] == "accepted"
    event: dict[str, Any] = found["event"]
    return event


async def test_the_capabilities_are_described_as_the_table_says() -> None:
    described = capabilities.load_descriptors("accord.capabilities.chat")
    for descriptor in (described["chat.send@1.0"], described["chat.history@1.0"]):
        assert descriptor.stability == "stable"
        assert descriptor.trust is Level.MEMBER
        assert descriptor.idempotent
        assert not descriptor.streams
    assert must_verify_answer("chat.send")


async def test_the_node_offers_them_with_their_schema_hash(chat: Chat) -> None:
    described = capabilities.load_descriptors("accord.capabilities.chat")
    async with httpx.AsyncClient(trust_env=False) as http:
        manifest = (await http.get(f"{chat.bob.url}/manifest")).json()
    offered = {each["name"]: each["schema_hash"] for each in manifest["capabilities"]}
    for descriptor in described.values():
        assert offered[descriptor.name] == descriptor.schema_hash


# 4.15 chat.send


async def test_an_answer_names_the_event_and_the_way(chat: Chat) -> None:
    answer = await chat.bob.call("chat.send", message(chat.carol))
    assert answer.keys() == {"output", "meta"}
    assert answer["output"].keys() == {"event_id", "lamport", "delivered"}
    assert answer["meta"].keys() == {"ms"}
    assert is_ulid(answer["output"]["event_id"])
    event = await event_of(chat.carol, answer["output"]["event_id"])
    assert event["lamport"] == answer["output"]["lamport"]


async def test_it_is_direct_to_whoever_is_online(chat: Chat) -> None:
    sent = (await chat.bob.call("chat.send", message(chat.carol)))["output"]
    assert sent["delivered"] == "direct"
    assert sent["event_id"] in chat.carol.hosted.state.content.messages


async def test_it_is_forwarded_when_an_anchor_holds_it(chat: Chat) -> None:
    sent = (await chat.bob.call("chat.send", message(chat.dave)))["output"]
    assert sent["delivered"] == "forwarded"
    assert sent["event_id"] in chat.alice.hosted.state.content.messages


async def test_it_is_queued_when_there_is_no_other_anchor(chat: Chat) -> None:
    sent = (await chat.alice.call("chat.send", message(chat.dave)))["output"]
    assert sent["delivered"] == "queued"


async def test_sending_again_under_one_client_id_is_sending_once(chat: Chat) -> None:
    made = message(chat.carol)
    first = (await chat.bob.call("chat.send", made))["output"]
    assert (await chat.bob.call("chat.send", made))["output"] == first
    changed = {**made, "body": "Something else", "recipient": chat.alice.id}
    assert (await chat.bob.call("chat.send", changed))["output"] == first
    (kept,) = [
        each for each in await chat.bob.history(limit=500) if each["event_id"] == first["event_id"]
    ]
    assert (kept["body"], kept["to"]) == (made["body"], chat.carol.id)


async def test_client_ids_of_different_senders_have_nothing_to_do_with_each_other(
    chat: Chat,
) -> None:
    made = message(chat.carol)
    one, other = [await each.call("chat.send", made) for each in (chat.alice, chat.bob)]
    assert one["output"]["event_id"] != other["output"]["event_id"]


async def test_the_same_request_gets_the_same_answer(chat: Chat) -> None:
    body = {"params": {}, "input": message(chat.carol)}
    bob = chat.bob
    request = wire.sign_request(
        bob.key,
        capability="chat.send",
        version="1.0",
        request_id=UlidSource(chat.clock).new(),
        community=bob.community,
        timestamp=format_time(chat.clock.now()),
        body=body,
        to=bob.id,
    )
    async with httpx.AsyncClient(trust_env=False) as http:
        first, again = [
            await http.post(
                f"{bob.url}/bus/v1/call", headers=request.headers, content=canonical.encode(body)
            )
            for _ in range(2)
        ]
    assert first.status_code == 200
    assert again.content == first.content
    assert first.headers["X-HearthNet-Signature"] == again.headers["X-HearthNet-Signature"]


async def test_attachments_are_named_by_cid_and_read_by_both_ends_only(chat: Chat) -> None:
    alice, bob, carol = chat.everybody
    plan = b"a plan" * 100
    clear = await bob.blobs.put(plan)
    attached = [{"cid": clear, "name": "schaltplan.pdf"}]
    sent = (await bob.call("chat.send", message(carol, attachments=attached)))["output"]
    event = await event_of(carol, sent["event_id"])
    [shown] = event["data"]["attachments"]
    cid = shown["cid"]
    assert shown == {"cid": cid, "name": "sealed"}
    assert cid != clear
    (found,) = [
        each for each in await carol.history(limit=500) if each["event_id"] == sent["event_id"]
    ]
    assert found["attachments"] == [{"cid": cid, "name": "schaltplan.pdf"}]
    async with (
        carol.client() as client,
        aclosing(client.stream("file.read", {}, {"cid": cid})) as frames,  # type: ignore[type-var]
    ):
        data = [frame.data async for frame in frames if frame.event == "chunk"]
        opened = await attachments.find(client, carol.blobs, cid)
    assert plan not in canonical.decode_base64url(data[0]["data_b64"])
    assert opened is not None
    assert opened.key is not None
    parts = [part async for part in attachments.decrypted(carol.blobs, cid, opened.key)]
    assert b"".join(parts) == plan
    for wanted in (cid, clear):
        assert (await alice.refusal("file.read", {"cid": wanted}, bob)).code is Code.NOT_FOUND
    # What was attached is not what may be read.
    assert (await carol.refusal("file.read", {"cid": clear}, bob)).code is Code.NOT_FOUND


async def test_only_attachments_may_go_without_words(chat: Chat) -> None:
    cid = await chat.bob.blobs.put(b"a picture")
    silent = message(chat.carol, body="", attachments=[{"cid": cid, "name": "p.png"}])
    assert (await chat.bob.call("chat.send", silent))["output"]["delivered"] == "direct"
    error = await chat.bob.refusal("chat.send", message(chat.carol, body=""))
    assert error.code is Code.BAD_REQUEST


async def test_another_node_cannot_speak_in_this_ones_name(chat: Chat) -> None:
    for caller in (chat.alice, chat.carol):
        error = await caller.refusal("chat.send", message(chat.carol), chat.bob)
        assert error.code is Code.UNAUTHORIZED


async def test_who_is_no_member_is_not_heard(chat: Chat) -> None:
    stranger = SigningKey.from_seed(b"s" * 32)
    for capability, given in (("chat.send", message(chat.carol)), ("chat.history", {})):
        async with Client(
            chat.bob.url, stranger, chat.bob.community, chat.bob.id, clock=chat.clock
        ) as client:
            with pytest.raises(Exception, match="member") as caught:
                await client.call(capability, {}, given)
        assert caught.value.code is Code.UNAUTHORIZED  # type: ignore[attr-defined]


async def test_nothing_is_sent_to_who_is_no_member(chat: Chat) -> None:
    head = chat.bob.hosted.log.head_lamport
    stranger = SigningKey.from_seed(b"s" * 32)
    given = {**message(chat.carol), "recipient": stranger.id}
    error = await chat.bob.refusal("chat.send", given)
    assert error.code is Code.NOT_FOUND
    assert chat.bob.hosted.log.head_lamport == head


async def test_what_is_not_here_cannot_be_attached(chat: Chat) -> None:
    attached = [{"cid": CID, "name": "missing.pdf"}]
    error = await chat.bob.refusal("chat.send", message(chat.carol, attachments=attached))
    assert error.code is Code.NOT_FOUND


async def test_a_message_that_breaks_its_limits_is_a_bad_request(chat: Chat) -> None:
    right = message(chat.carol)
    head = chat.bob.hosted.log.head_lamport
    attachment = {"cid": CID, "name": "a"}
    for changes in (
        {"client_id": ""},
        {"client_id": "x" * 65},
        {"client_id": None},
        {"recipient": "carol"},
        {"recipient": chat.carol.id[:-1]},
        {"body": None},
        {"body": "x" * 30_001},
        {"body": "\x00" * 30_000},  # each six bytes long in JSON
        {"attachments": [attachment] * 33},
        {"attachments": [{"cid": "blake3:abc", "name": "a"}]},
        {"attachments": [{"cid": CID}]},
        {"attachments": [{**attachment, "name": ""}]},
        {"attachments": None},
        {"allow_clear": 1},
        {"wings": 2},
    ):
        error = await chat.bob.refusal("chat.send", {**right, **changes})
        assert error.code is Code.BAD_REQUEST, changes
    for name in ("client_id", "recipient", "body"):
        lacking = {each: value for each, value in right.items() if each != name}
        error = await chat.bob.refusal("chat.send", lacking)
        assert error.code is Code.BAD_REQUEST, name
    assert chat.bob.hosted.log.head_lamport == head


# 7.2 and 12.1: the event, and what is sealed in it


async def test_the_envelope_stays_clear_and_the_signature_covers_the_seal(chat: Chat) -> None:
    made = message(chat.carol)
    sent = (await chat.bob.call("chat.send", made))["output"]
    event = await event_of(chat.carol, sent["event_id"])
    assert event["event_type"] == "chat.message.sent"
    assert event["author"] == chat.bob.id
    assert event["data"].keys() == {"client_id", "recipient", "sealed"}
    assert event["data"]["client_id"] == made["client_id"]
    assert event["data"]["recipient"] == chat.carol.id
    verify_event(read_event(event))
    for key in (chat.bob.key, chat.carol.key):
        letter = encryption.open_sealed(key, chat.bob.community, chat.bob.id, event["data"])
        assert letter.body == made["body"]


async def test_the_recipient_can_prove_what_was_said(chat: Chat) -> None:
    made = message(chat.carol, body="an insult")
    sent = (await chat.bob.call("chat.send", made))["output"]
    (found,) = [
        each for each in await chat.carol.history(limit=500) if each["event_id"] == sent["event_id"]
    ]
    await chat.sync()
    # A moderator has the event in the own log, and is shown nonce and text.
    data = (await event_of(chat.alice, sent["event_id"]))["data"]
    nonce = canonical.decode_base64url(found["nonce"])
    assert encryption.proves(data, nonce, "an insult")
    assert not encryption.proves(data, nonce, "a compliment")


async def test_clear_text_is_never_a_silent_way_out(chat: Chat) -> None:
    made = message(chat.erin)
    error = await chat.bob.refusal("chat.send", made)
    assert error.code is Code.BAD_REQUEST
    assert "allow_clear" in str(error)
    sent = (await chat.bob.call("chat.send", {**made, "allow_clear": True}))["output"]
    data = (await event_of(chat.erin, sent["event_id"]))["data"]
    assert data == made
    (found,) = await chat.erin.history()
    assert (found["body"], found["sealed"]) == (made["body"], False)


async def test_who_ever_could_open_seals_always_can(chat: Chat) -> None:
    """A manifest that no longer says so changes nothing."""
    carol = chat.carol
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "EXTENSIONS", ("to",))
        manifest = dict(carol.node.presence.manifest(carol.hosted))
    assert manifest["extensions"] == ["to"]
    await carol.node.act(carol.community, "node.manifest.updated", {"manifest": manifest})
    await chat.sync()
    sent = (await chat.bob.call("chat.send", message(carol, allow_clear=True)))["output"]
    assert "body" not in (await event_of(carol, sent["event_id"]))["data"]


async def test_the_recipient_says_that_it_was_delivered(chat: Chat) -> None:
    sent = (await chat.bob.call("chat.send", message(chat.carol)))["output"]
    await chat.carol.until(lambda: chat.carol.receipt(sent["event_id"]) is not None)
    entries = await queries.log_entries(
        chat.carol.hosted, limit=1, author=chat.carol.id, event_type="chat.message.delivered"
    )
    event = await event_of(chat.carol, entries[0]["event_id"])
    assert event["data"].keys() == {"target_event_id", "delivered_at"}
    assert event["data"]["target_event_id"] == sent["event_id"]


# 8: the topic


async def test_the_topic_tells_the_recipient_and_nobody_else(chat: Chat) -> None:
    alice, bob, carol = chat.everybody
    topic = f"chat.message.{carol.id}"
    # At home, and at the sender's.
    for served in (carol, bob):
        async with carol.client(served) as client:
            last = served.node.bus.topics.last_seq(topic, community=bob.community)
            heard = client.subscribe(topic, last)
            async with aclosing(heard):  # type: ignore[type-var]
                listening = asyncio.ensure_future(anext(heard))
                sent = (await bob.call("chat.send", message(carol)))["output"]
                _, event = await listening
        assert event["event_id"] == sent["event_id"]
        assert event["event_type"] == "chat.message.sent"
        assert "body" not in event["data"]
    for listener in (alice, bob):
        async with listener.client(carol) as client:
            with pytest.raises(Exception, match="names") as caught:
                await client.get("/pubsub/v1/subscribe", {"topic": topic, "timeout": 1})
        assert caught.value.code is Code.UNAUTHORIZED  # type: ignore[attr-defined]


# 4.16 chat.history


async def test_history_has_the_members_that_the_specification_shows(chat: Chat) -> None:
    made = message(chat.carol)
    sent = (await chat.bob.call("chat.send", made))["output"]
    await chat.carol.until(lambda: chat.carol.receipt(sent["event_id"]) is not None)
    read_at = format_time(chat.clock.now())
    seen = {"target_event_id": sent["event_id"], "read_at": read_at}
    await chat.carol.node.act(chat.carol.community, "chat.message.read", seen)
    await chat.sync()
    answer = await chat.bob.call("chat.history", {"since_lamport": sent["lamport"] - 1})
    assert answer["meta"].keys() == {"ms"}
    (found,) = answer["output"]["messages"]
    assert found.pop("nonce")
    assert found == {
        "event_id": sent["event_id"],
        "lamport": sent["lamport"],
        "from": chat.bob.id,
        "to": chat.carol.id,
        "body": made["body"],
        "attachments": [],
        "created_at": format_time(chat.clock.now()),
        "delivered_at": chat.carol.receipt(sent["event_id"]),
        "read_at": read_at,
        "sealed": True,
    }


async def test_history_is_with_one_peer_or_with_all(chat: Chat) -> None:
    for recipient in (chat.alice, chat.carol):
        await chat.bob.call("chat.send", message(recipient))
    with_all = await chat.bob.history(limit=500)
    with_alice = await chat.bob.history(peer=chat.alice.id, limit=500)
    assert {each["to"] for each in with_all} >= {chat.alice.id, chat.carol.id}
    assert with_alice
    for each in with_alice:
        assert {each["from"], each["to"]} == {chat.alice.id, chat.bob.id}
    # What others say to each other is no part of it, though it is in the same log.
    assert all(chat.bob.id in (each["from"], each["to"]) for each in with_all)
    assert await chat.bob.history(peer=SigningKey.from_seed(b"s" * 32).id) == []


async def test_history_goes_on_behind_a_lamport_page_by_page(chat: Chat) -> None:
    sent = [
        (await chat.bob.call("chat.send", message(chat.carol)))["output"]["event_id"]
        for _ in range(5)
    ]
    # Receipts are written in the background and change what the history says.
    async with asyncio.timeout(60):
        while True:
            everything = await chat.carol.history(since_lamport=0, limit=500)
            if all(each["delivered_at"] or each["to"] != chat.carol.id for each in everything):
                break
            await asyncio.sleep(0.01)
    assert [each["event_id"] for each in everything][-5:] == sent
    pages: list[dict[str, Any]] = []
    since = 0
    while True:
        answer = await chat.carol.call("chat.history", {"since_lamport": since, "limit": 2})
        pages += answer["output"]["messages"]
        if not answer["meta"].get("more"):
            break
        since = pages[-1]["lamport"]
    assert pages == everything
    # Without a place to begin, the latest.
    assert await chat.carol.history(limit=2) == everything[-2:]


async def test_history_is_for_the_serving_node_alone(chat: Chat) -> None:
    for caller in (chat.alice, chat.bob):
        for given in ({}, {"peer": caller.id}):
            error = await caller.refusal("chat.history", given, chat.carol)
            assert error.code is Code.UNAUTHORIZED
    chat.clock.advance(10)


async def test_a_history_that_breaks_its_limits_is_a_bad_request(chat: Chat) -> None:
    for given in (
        {"peer": "carol"},
        {"peer": None},
        {"since_lamport": -1},
        {"since_lamport": 1.5},
        {"limit": 0},
        {"limit": 501},
        {"limit": "2"},
        {"wings": 2},
    ):
        error = await chat.bob.refusal("chat.history", given)
        assert error.code is Code.BAD_REQUEST, given
