"""What agents say: where they may, once, and cut to size."""

import asyncio
from typing import Any

import orjson
import pytest
from blake3 import blake3
from pydantic import SecretStr
from tests.fakes.platform import MemoryChat

from accord.relay.connector import DeliveryLimits, FoundCapability, outbox_store
from accord.relay.connector.outbox_store import AskedAction
from accord.relay.rules import Send
from accord.storage import journal

SEND: dict[str, Any] = {
    "op": "send",
    "chat_id": "c1",
    "content": "hi",
    "reply_to": None,
    "metadata": {},
}


UNKNOWN = {
    "success": False,
    "error": "outcome unknown",
    "outcome": "unknown",
    "ambiguous": True,
}


@pytest.fixture
async def talking(world: Any) -> tuple[Any, Any]:
    """A world in which alpha has heard something in c1."""
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "hello")
    await gateway.events(1)
    return world, gateway


async def test_an_agent_answers_where_it_was_spoken_to(talking: Any) -> None:
    world, gateway = talking
    result = await gateway.ask(SEND)
    (said,) = world.chat.said
    assert result == {"success": True, "message_id": said.message_id}
    assert (said.chat_id, said.texts) == ("c1", ["hi"])


@pytest.mark.parametrize(
    ("action", "rule"),
    [
        ({"chat_id": "c9"}, "egress.unknown-chat"),
        ({"metadata": {"scope_id": "g2"}}, "egress.scope-mismatch"),
    ],
)
async def test_elsewhere_it_is_declined(talking: Any, action: dict[str, Any], rule: str) -> None:
    """The answer is the same for every reason; the journal has the reason."""
    world, gateway = talking
    result = await gateway.ask(SEND | action)
    assert result == {
        "success": False,
        "error": "egress declined: this instance may not do this there",
        "outcome": "permanent",
        "code": "egress_declined",
    }
    assert world.chat.said == []
    (record,) = await world.store.read(lambda c: [*journal.read(c, "relay.outbound")])
    assert orjson.loads(record.body)["rule"] == rule


async def test_the_chats_of_another_instance_are_not_ones_own(talking: Any) -> None:
    world, _ = talking
    world.link("bob", "beta")
    beta = await world.connect("beta")
    assert "declined" in (await beta.ask(SEND))["error"]
    for op in ("typing", "get_chat_info"):
        assert "declined" in (await beta.ask({"op": op, "chat_id": "c1"}, op))["error"]
    assert world.chat.typed == []


async def test_a_channel_that_it_holds_needs_no_earlier_word(world: Any) -> None:
    world.directory.held.add(("alpha", "memory", "c1", "g1"))
    gateway = await world.connect("alpha")
    assert (await gateway.ask(SEND))["success"]


async def test_only_ones_own_messages_can_be_edited(talking: Any) -> None:
    world, gateway = talking
    sent = await gateway.ask(SEND)
    edit = {"op": "edit", "chat_id": "c1", "content": "hi!", "metadata": {}}
    assert (await gateway.ask(edit | {"message_id": sent["message_id"]}, "r2"))["success"]
    assert world.chat.said[0].texts == ["hi", "hi!"]
    assert "declined" in (await gateway.ask(edit | {"message_id": "m1"}, "r3"))["error"]


async def test_typing_and_chat_info(talking: Any) -> None:
    world, gateway = talking
    assert await gateway.ask({"op": "typing", "chat_id": "c1"}) == {"success": True}
    info = await gateway.ask({"op": "get_chat_info", "chat_id": "c1"}, "r2")
    assert info == {"success": True, "chat_info": {"name": "c1", "type": "group"}}
    assert world.chat.typed == ["c1"]


async def test_a_request_id_is_an_idempotency_key(talking: Any) -> None:
    world, gateway = talking
    first = await gateway.ask(SEND)
    assert await gateway.ask(SEND) == first
    assert len(world.chat.said) == 1
    other = await gateway.ask(SEND | {"content": "something else"})
    assert other["error"] == "this requestId was used for another action"
    assert other["outcome"] == "permanent"


async def test_the_same_request_id_of_two_instances_is_two_requests(open_world: Any) -> None:
    async with open_world(chat=MemoryChat(idempotent=True)) as world:
        world.link("ann", "alpha", "beta")
        gateways = [await world.connect("alpha"), await world.connect("beta")]
        world.chat.write("ann", "c1", "hello")
        for gateway in gateways:
            await gateway.events(1)
            assert (await gateway.ask(SEND))["success"]
        assert [said.key for said in world.chat.said] == ["alpha/r1", "beta/r1"]


async def test_the_same_request_under_way_is_made_once(talking: Any) -> None:
    world, gateway = talking
    world.chat.hang = asyncio.Event()
    frame = {"type": "outbound", "requestId": "r1", "action": SEND}
    gateway.say(frame, frame, frame)
    await asyncio.sleep(0)
    world.chat.hang.set()
    results = [(await gateway.hear("outbound_result"))["result"] for _ in range(3)]
    assert results[0] == results[1] == results[2]
    assert len(world.chat.said) == 1


async def begun(world: Any) -> None:
    """A request was written down and then the process died; an older version of it."""
    principal = world.directory.tokens["token-alpha"]
    asked = AskedAction(principal, Send("c1", "hi"))
    digest = blake3(outbox_store.action_bytes(asked.action)).hexdigest()
    request = outbox_store.OutboundRequest(asked, "r1", world.delivery.context.now(), digest)
    terms = outbox_store.AdmissionTerms("another process", 0, 0, 0, 10)
    await world.store.write(lambda c: outbox_store.admit(c, request, terms, None))


async def test_after_a_crash_between_send_and_record_the_outcome_is_unknown(talking: Any) -> None:
    world, gateway = talking
    await begun(world)
    assert await gateway.ask(SEND) == UNKNOWN
    assert world.chat.said == []


async def test_where_the_platform_knows_the_key_it_is_made_again(open_world: Any) -> None:
    async with open_world(chat=MemoryChat(idempotent=True)) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        world.chat.write("ann", "c1", "hello")
        await gateway.events(1)
        await begun(world)
        said = world.chat.say("c1", "hi", "alpha/r1")
        result = await gateway.ask(SEND)
        assert result == {"success": True, "message_id": said.message_id}
        assert len(world.chat.said) == 1


async def test_a_platform_that_hangs_leaves_the_outcome_unknown(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(outbound_seconds=0.05, renew_seconds=0.2)) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        world.chat.write("ann", "c1", "hello")
        await gateway.events(1)
        world.chat.hang = asyncio.Event()
        assert await gateway.ask(SEND) == UNKNOWN
        world.chat.hang = None
        assert await gateway.ask(SEND) == UNKNOWN
        assert world.chat.said == []


async def test_a_platforms_refusal_is_told_and_remembered(talking: Any) -> None:
    world, gateway = talking
    world.chat.fails = 1
    refused = {"success": False, "error": "the service failed", "outcome": "permanent"}
    assert await gateway.ask(SEND) == refused
    assert await gateway.ask(SEND) == refused


async def test_a_long_text_is_cut_and_a_mass_mention_is_taken_out(open_world: Any) -> None:
    async with open_world(chat=MemoryChat(limit=20)) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        world.chat.write("ann", "c1", "hello")
        await gateway.events(1)
        text = "@everyone look: " + "word " * 10
        result = await gateway.ask(SEND | {"content": text})
        texts = [said.texts[0] for said in world.chat.said]
        assert all(len(each) <= 20 for each in texts)
        assert "".join(texts).replace("\u200b", "") == text
        assert "@everyone" not in "".join(texts)
        assert result["message_id"] == world.chat.said[0].message_id
        long = {"op": "edit", "chat_id": "c1", "message_id": result["message_id"]}
        edited = await gateway.ask(long | {"content": "x" * 30}, "r2")
        assert edited["error"] == "the text does not fit into one message"


async def test_actions_in_one_chat_are_done_in_the_order_they_were_asked_for(talking: Any) -> None:
    world, gateway = talking
    for number in range(20):
        action = SEND | {"content": str(number)}
        gateway.say({"type": "outbound", "requestId": f"n{number}", "action": action})
    for _ in range(20):
        await gateway.hear("outbound_result")
    assert [said.texts[0] for said in world.chat.said] == [str(number) for number in range(20)]


async def test_too_many_actions_at_once_are_refused(open_world: Any) -> None:
    async with open_world(limits=DeliveryLimits(pending_outbound=2, renew_seconds=0.2)) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        world.chat.write("ann", "c1", "hello")
        await gateway.events(1)
        world.chat.hang = asyncio.Event()
        for number in range(3):
            gateway.say({"type": "outbound", "requestId": f"n{number}", "action": SEND})
        answer = await gateway.hear("outbound_result")
        assert answer["requestId"] == "n2"
        assert answer["result"]["error"] == "too many actions are under way"
        world.chat.hang.set()
        await gateway.hear("outbound_result")
        await gateway.hear("outbound_result")


@pytest.mark.parametrize(
    "action",
    [None, 7, {}, {"op": "fly"}, {"op": "send"}, {"op": "send", "chat_id": "", "content": 7}],
)
async def test_a_bad_action_is_answered(talking: Any, action: Any) -> None:
    _, gateway = talking
    result = await gateway.ask(action)
    assert not result["success"]
    assert result["error"]


async def test_a_follow_up_acts_by_what_the_vault_keeps_for_this_session(world: Any) -> None:
    world.link("bob", "beta")
    alpha, beta = await world.connect("alpha"), await world.connect("beta")
    found = [FoundCapability("memory.reply", SecretStr("the-capability"), 2**53)]
    world.chat.write("ann", "c1", "click", found=found)
    frame = await alpha.hear("inbound")
    assert "the-capability" not in str(frame)
    key = "agent:main:relay:group:c1:ann"
    action = {"op": "follow_up", "session_key": key, "kind": "memory.reply", "content": "done"}
    assert (await alpha.ask(action))["success"]
    assert world.chat.followed == [("the-capability", "done")]
    declined = await beta.ask(action)
    assert "declined" in declined["error"]
    assert "declined" in (await alpha.ask(action | {"session_key": "other"}, "r2"))["error"]
    assert "declined" in (await alpha.ask(action | {"kind": "memory.other"}, "r3"))["error"]
    other = await alpha.ask(action, "r4", platform="elsewhere")
    assert other["error"] == "there is no such platform here"
    assert len(world.chat.followed) == 1
