"""The connector's outbox: a reply outlives errors of its platform and the end of the process."""

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import insert, select, update
from tests.fakes.directory import MemoryDirectory
from tests.fakes.platform import MemoryChat, MemoryPlatform

from accord.kernel.clock import SystemClock
from accord.relay.connector import DeliveryLimits, FoundCapability
from accord.relay.connector.tables import outbox
from accord.relay.rules import Action, FollowUp, Outcome, Result, Send

LIMITS = DeliveryLimits(
    renew_seconds=0.2,
    sweep_seconds=0.02,
    outbox_pause_seconds=0.02,
    outbox_longest_pause_seconds=0.05,
    answer_seconds=5.0,
)
BAD_GATEWAY = Result(False, error="it failed with 502", outcome=Outcome.RETRYABLE)
SILENCE = Result(False, error="outcome unknown", outcome=Outcome.UNKNOWN)


def send(text: str) -> dict[str, Any]:
    return {"op": "send", "chat_id": "c1", "content": text, "reply_to": None, "metadata": {}}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """What the platform answers next, instead of doing anything."""
    scripted: list[Result] = []
    perform = MemoryPlatform.perform

    async def scripted_perform(
        self: MemoryPlatform, action: Action, idempotency_key: str, capability: Any = None
    ) -> Result:
        if scripted:
            return scripted.pop(0)
        return await perform(self, action, idempotency_key, capability)

    monkeypatch.setattr(MemoryPlatform, "perform", scripted_perform)
    return scripted


async def spoken_to(world: Any) -> Any:
    world.link("ann", "alpha")
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "hello")
    await gateway.events(1)
    return gateway


async def test_one_502_does_not_lose_a_reply(open_world: Any, answers: list[Result]) -> None:
    async with open_world(limits=LIMITS) as world:
        gateway = await spoken_to(world)
        answers += [BAD_GATEWAY] * 3
        assert (await gateway.ask(send("hi")))["success"]
        assert [said.texts for said in world.chat.said] == [["hi"]]
        assert await world.delivery.outbox() == []


async def test_a_later_message_of_a_chat_waits_for_the_earlier(
    open_world: Any, answers: list[Result]
) -> None:
    async with open_world(limits=LIMITS) as world:
        gateway = await spoken_to(world)
        answers += [BAD_GATEWAY] * 3
        for number in range(5):
            outbound = {"type": "outbound", "requestId": f"n{number}"}
            gateway.say(outbound | {"action": send(str(number))})
        for _ in range(5):
            await gateway.hear("outbound_result")
        assert [said.texts[0] for said in world.chat.said] == ["0", "1", "2", "3", "4"]


async def test_what_cannot_be_sent_in_time_is_queued_and_survives_a_restart(
    open_world: Any, answers: list[Result]
) -> None:
    chat = MemoryChat()
    limits = DeliveryLimits(
        sweep_seconds=0.02, renew_seconds=0.2, answer_seconds=0.5, outbox_pause_seconds=0.2
    )
    async with open_world(limits=limits, chat=chat) as world:
        gateway = await spoken_to(world)
        answers += [BAD_GATEWAY] * 1000
        assert await gateway.ask(send("hi")) == {"success": True, "queued": True}
        (row,) = await world.delivery.outbox()
        # It may be tried just now.
        assert row.state in ("queued", "sending")
        assert row.error == "it failed with 502"
        directory = world.directory
    answers.clear()
    async with open_world(limits=limits, chat=chat, directory=directory) as world:
        await world.until(lambda: bool(chat.said))
        gateway = await world.connect("alpha")
        result = await gateway.ask(send("hi"))
        assert result == {"success": True, "message_id": chat.said[0].message_id}
        assert len(chat.said) == 1


async def test_what_could_not_be_sent_until_its_time_was_over_is_dead_and_holds_up_nothing(
    open_world: Any, answers: list[Result]
) -> None:
    assert DeliveryLimits().outbox_seconds == 86_400
    async with open_world(limits=replace(LIMITS, outbox_seconds=0.3)) as world:
        gateway = await spoken_to(world)
        answers += [BAD_GATEWAY] * 1000
        gateway.say({"type": "outbound", "requestId": "late", "action": send("too late")})
        told = await gateway.hear("outbound_result")
        assert told["result"].get("success") is not True or told["result"]["queued"]
        rows: list[Any] = []
        while not rows:
            rows = [row for row in await world.delivery.outbox() if row.state == "expired"]
            await asyncio.sleep(0.02)
        assert "could not be sent in time" in rows[0].error
        answers.clear()
        assert (await gateway.ask(send("next")))["success"]
        assert [said.texts for said in world.chat.said] == [["next"]]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_unknown_outcome_is_repeated_only_under_a_key(
    open_world: Any, answers: list[Result], idempotent: bool
) -> None:
    async with open_world(limits=LIMITS, chat=MemoryChat(idempotent=idempotent)) as world:
        gateway = await spoken_to(world)
        answers += [SILENCE]
        result = await gateway.ask(send("hi"))
        assert result["success"] is idempotent
        assert len(world.chat.said) == idempotent
        dead = await world.delivery.outbox(dead=True)
        assert [each.state for each in dead] == ([] if idempotent else ["unknown"])


async def test_a_link_that_was_taken_back_refuses_what_waits(
    open_world: Any, answers: list[Result]
) -> None:
    limits = DeliveryLimits(sweep_seconds=0.02, answer_seconds=0.05, outbox_pause_seconds=0.3)
    async with open_world(limits=limits) as world:
        gateway = await spoken_to(world)
        answers += [BAD_GATEWAY]
        assert (await gateway.ask(send("hi")))["queued"]
        world.directory.known = type(world.directory.known)()
        dead: list[Any] = []
        for _ in range(500):
            if dead := await world.delivery.outbox(dead=True):
                break
            await asyncio.sleep(0.01)
        assert [each.state for each in dead] == ["refused"]
        assert world.chat.said == []


async def test_pieces_that_were_sent_are_not_sent_again(
    open_world: Any, answers: list[Result]
) -> None:
    async with open_world(limits=LIMITS, chat=MemoryChat(limit=20)) as world:
        gateway = await spoken_to(world)
        answers += [Result(True, "first"), BAD_GATEWAY]
        result = await gateway.ask(send("one two three four five six seven"))
        assert result == {"success": True, "message_id": "first"}
        assert len(world.chat.said) == 1


async def test_too_many_waiting_actions_are_refused_for_now(
    open_world: Any, answers: list[Result]
) -> None:
    limits = DeliveryLimits(answer_seconds=0.05, outbox_pause_seconds=60, outbox_rows=1)
    async with open_world(limits=limits) as world:
        gateway = await spoken_to(world)
        answers += [BAD_GATEWAY]
        assert (await gateway.ask(send("hi")))["queued"]
        full = await gateway.ask(send("ho"), "r2")
        assert (full["success"], full["outcome"]) == (False, "retryable")
        assert full["retry_after"] > 0


async def test_operators_retry_and_drop(open_world: Any, answers: list[Result]) -> None:
    async with open_world(limits=LIMITS) as world:
        gateway = await spoken_to(world)
        answers += [SILENCE, SILENCE]
        await gateway.ask(send("hi"), "r1")
        await gateway.ask(send("ho"), "r2")
        second, first = await world.delivery.outbox(dead=True)
        assert await world.delivery.drop_actions([second.number]) == [second.number]
        assert await world.delivery.retry_actions([first.number, 99]) == [first.number]
        await world.until(lambda: [said.texts for said in world.chat.said] == [["hi"]])


@dataclass
class Script:
    """What the platform answers to the next actions; it is asked only when `go` is set."""

    answers: list[Result] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """A platform that notes each call, waits to be let go, and answers as it is told."""
    script = Script()
    perform = MemoryPlatform.perform

    async def scripted(
        self: MemoryPlatform, action: Action, idempotency_key: str, capability: Any = None
    ) -> Result:
        script.asked.append(idempotency_key)
        await script.go.wait()
        if script.answers:
            return script.answers.pop(0)
        return await perform(self, action, idempotency_key, capability)

    monkeypatch.setattr(MemoryPlatform, "perform", scripted)
    return script


LONG_AGO = 300_000


async def age(world: Any) -> None:
    """Let the first attempt of everything that waits be five minutes ago, and due."""
    changed = update(outbox).values(tried_at=outbox.c.tried_at - LONG_AGO, due_at=0)
    await world.store.write(lambda c: c.execute(changed) and None)


async def put_off(world: Any) -> None:
    """Return when the action waits for as long as its platform asked for."""
    asked = (SystemClock().now() + 30) * 1000
    async with asyncio.timeout(20):
        while await world.store.read(lambda c: c.execute(select(outbox.c.due_at)).scalar()) < asked:  # noqa: ASYNC110 (the store tells nobody)
            await asyncio.sleep(0.01)


async def test_a_definite_failure_does_not_settle_an_earlier_silence(
    open_world: Any, answers: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryPlatform, "idempotent_seconds", 120.0, raising=False)
    limits = DeliveryLimits(sweep_seconds=0.02, answer_seconds=0.3, outbox_pause_seconds=0.1)
    async with open_world(limits=limits, chat=MemoryChat(idempotent=True)) as world:
        gateway = await spoken_to(world)
        # The first may have been sent, the others were not; then the platform forgets its key.
        answers += [SILENCE, *[replace(BAD_GATEWAY, retry_after=60.0)] * 9]
        assert (await gateway.ask(send("hi")))["queued"]
        await put_off(world)
        await age(world)
        await world.until(lambda: world.delivery.counts["outbox unknown"] == 1)
        assert (await gateway.ask(send("hi")))["ambiguous"]
        assert world.chat.said == []


async def test_a_refusal_after_a_silence_is_reported_as_unknown(
    open_world: Any, answers: list[Result]
) -> None:
    async with open_world(limits=LIMITS, chat=MemoryChat(idempotent=True)) as world:
        gateway = await spoken_to(world)
        answers += [SILENCE, Result(False, error="no", outcome=Outcome.PERMANENT)]
        result = await gateway.ask(send("hi"))
        assert (result["outcome"], result["ambiguous"]) == ("unknown", True)


async def test_a_platform_that_is_not_there_yet_does_not_make_an_outcome_unknown(
    open_world: Any, script: Script
) -> None:
    chat = MemoryChat(idempotent=True)
    limits = replace(LIMITS, lease_seconds=0.1, finish_seconds=0.05)
    async with open_world(limits=limits, chat=chat) as world:
        gateway = await spoken_to(world)
        gateway.say({"type": "outbound", "requestId": "r1", "action": send("hi")})
        await world.until(lambda: script.asked == ["alpha/r1"])
        directory = world.directory
    async with open_world(limits=limits, chat=chat, directory=directory) as world:
        platforms = world.delivery.context.platforms
        held = dict(platforms)
        platforms.clear()
        await world.until(lambda: world.delivery.counts["outbox retries"] > 0)
        platforms.update(held)
        script.go.set()
        await world.until(lambda: world.delivery.counts["outbox sent"] == 1)
        assert [said.texts for said in chat.said] == [["hi"]]
        assert await world.delivery.outbox(dead=True) == []


async def test_a_request_id_under_way_is_not_taken_for_another_action(
    open_world: Any, script: Script
) -> None:
    async with open_world(limits=LIMITS) as world:
        gateway = await spoken_to(world)
        gateway.say({"type": "outbound", "requestId": "r1", "action": send("hi")})
        await world.until(lambda: script.asked == ["alpha/r1"])
        refused = await gateway.ask(send("ho"))
        assert (refused["success"], refused["outcome"]) == (False, "permanent")
        script.go.set()
        assert (await gateway.hear("outbound_result"))["result"]["success"]
        assert [said.texts for said in world.chat.said] == [["hi"]]


async def test_what_is_performed_when_its_instance_is_revoked_ends_as_unknown(
    open_world: Any, script: Script
) -> None:
    async with open_world(limits=LIMITS) as world:
        gateway = await spoken_to(world)
        for number in range(2):
            outbound = {"type": "outbound", "requestId": f"n{number}"}
            gateway.say(outbound | {"action": send(str(number))})
        await world.until(lambda: script.asked == ["alpha/n0"])
        waiting: list[Any] = []
        while len(waiting) < 2:
            waiting = await world.delivery.outbox()
        await world.delivery._outbox.give_up("alpha", "the instance was revoked")
        dead = {each.request_id: each.state for each in await world.delivery.outbox(dead=True)}
        assert dead == {"n0": "unknown", "n1": "refused"}
        script.go.set()


async def test_what_was_handed_over_and_not_begun_is_not_taken_for_begun(
    open_world: Any, script: Script
) -> None:
    limits = replace(LIMITS, lease_seconds=60.0)
    async with open_world(limits=limits) as world:
        gateway = await spoken_to(world)
        gateway.say({"type": "outbound", "requestId": "r1", "action": send("one")})
        await world.until(lambda: script.asked == ["alpha/r1"])
        # Its lane is free, so that the next is handed to the worker that still performs the first.
        await world.delivery._outbox.give_up("alpha", "for a test")
        gateway.say({"type": "outbound", "requestId": "r2", "action": send("two")})
        while not await world.delivery.outbox(dead=False):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        script.go.set()
        await world.until(lambda: "alpha/r2" in script.asked)
        results = [await gateway.hear("outbound_result") for _ in range(2)]
        assert {each["requestId"]: each["result"]["success"] for each in results} == {
            "r1": False,
            "r2": True,
        }


async def test_a_number_that_is_used_again_is_not_ended_by_its_former_holder(
    open_world: Any, script: Script
) -> None:
    async with open_world(limits=LIMITS) as world:
        gateway = await spoken_to(world)
        gateway.say({"type": "outbound", "requestId": "r1", "action": send("one")})
        await world.until(lambda: script.asked == ["alpha/r1"])
        (row,) = await world.delivery.outbox()
        former = await world.store.read(lambda c: c.execute(select(outbox.c.epoch)).scalar())
        await world.delivery._outbox.give_up("alpha", "for a test")
        await world.delivery.drop_actions([row.number])
        values = {each.name: None for each in outbox.c} | {
            "number": row.number,
            "instance": "alpha",
            "request_id": "r9",
            "tenant": "t1",
            "lane": "c9",
            "op": "send",
            "body": "{}",
            "digest": "",
            "state": "queued",
            "attempts": 0,
            "sent": "[]",
            "created_at": 0,
            "due_at": 2**50,
            "holder": "",
            "epoch": former,
            "held_until": 2**50,
        }
        await world.store.write(lambda c: c.execute(insert(outbox), values) and None)
        script.go.set()
        await gateway.hear("outbound_result")
        await world.until(lambda: not world.delivery._outbox._lanes)
        assert [each.request_id for each in await world.delivery.outbox()] == ["r9"]


@pytest.fixture
def standstill(monkeypatch: pytest.MonkeyPatch) -> Script:
    """A process that stands still once, between holding the first action and calling the platform.

    Each decision of the egress gate is noted; the second is that of the first action's attempt.
    """
    script = Script()
    linked = MemoryDirectory.linked

    async def slowly(self: MemoryDirectory, *asked: Any) -> frozenset[str]:
        script.asked.append(asked[0].instance)
        if len(script.asked) == 2:
            await script.go.wait()
        return await linked(self, *asked)

    monkeypatch.setattr(MemoryDirectory, "linked", slowly)
    return script


async def test_what_another_process_holds_by_now_is_not_sent(
    open_world: Any, standstill: Script
) -> None:
    clock = SetClock()
    async with open_world(limits=LIMITS, clock=clock) as world:
        gateway = await spoken_to(world)
        gateway.say({"type": "outbound", "requestId": "r1", "action": send("hi")})
        await world.until(lambda: len(standstill.asked) == 2)
        theirs = {"holder": "another", "epoch": outbox.c.epoch + 1, "held_until": 2**50}
        await world.store.write(lambda c: c.execute(update(outbox).values(theirs)) and None)
        clock.elapsed = 10 * LIMITS.lease_seconds
        standstill.go.set()
        await world.until(lambda: not world.delivery._outbox._lanes)
        assert world.chat.said == []
        assert [each.state for each in await world.delivery.outbox()] == ["sending"]


async def test_what_was_dropped_is_not_sent_by_the_right_to_what_has_its_number_now(
    open_world: Any, standstill: Script
) -> None:
    async with open_world(limits=LIMITS) as world:
        gateway = await spoken_to(world)
        gateway.say({"type": "outbound", "requestId": "r1", "action": send("one")})
        await world.until(lambda: len(standstill.asked) == 2)
        (row,) = await world.delivery.outbox()
        await world.delivery._outbox.give_up("alpha", "for a test")
        await world.delivery.drop_actions([row.number])
        gateway.say({"type": "outbound", "requestId": "r2", "action": send("two")})
        while not await world.delivery.outbox(dead=False):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        standstill.go.set()
        results = [await gateway.hear("outbound_result") for _ in range(2)]
        assert {each["requestId"]: each["result"]["success"] for each in results} == {
            "r1": False,
            "r2": True,
        }
        assert [said.texts for said in world.chat.said] == [["two"]]


async def test_what_was_sent_before_a_link_ended_is_not_declined_when_it_is_asked_for_again(
    open_world: Any, answers: list[Result]
) -> None:
    limits = DeliveryLimits(sweep_seconds=0.02, answer_seconds=0.5, outbox_pause_seconds=60)
    async with open_world(limits=limits) as world:
        gateway = await spoken_to(world)
        sent = await gateway.ask(send("hi"))
        answers += [BAD_GATEWAY]
        assert (await gateway.ask(send("ho"), "r2"))["queued"]
        world.directory.known = type(world.directory.known)()
        assert await gateway.ask(send("hi")) == sent
        assert await gateway.ask(send("ho"), "r2") == {"success": True, "queued": True}
        assert (await gateway.ask(send("hu"), "r3"))["code"] == "egress_declined"


async def test_replayed_requests_of_every_order_are_done_once(open_world: Any) -> None:
    async with open_world(limits=LIMITS) as world:
        gateway = await spoken_to(world)
        frames = [
            {"type": "outbound", "requestId": f"n{number}", "action": send(str(number))}
            for number in (0, 1, 2)
        ]
        for frame in (*frames, *reversed(frames), *frames):
            gateway.say(frame)
        heard = [await gateway.hear("outbound_result") for _ in range(9)]
        by_request = {each["requestId"]: each["result"]["message_id"] for each in heard}
        assert len(by_request) == 3
        assert all(by_request[each["requestId"]] == each["result"]["message_id"] for each in heard)
        assert [said.texts for said in world.chat.said] == [["0"], ["1"], ["2"]]


@pytest.mark.parametrize("hours", [-3, 3, 48])
async def test_a_clock_that_jumps_loses_nothing_that_waits(
    open_world: Any, answers: list[Result], hours: int
) -> None:
    clock = SetClock()
    limits = replace(LIMITS, answer_seconds=0.05, outbox_pause_seconds=0.1)
    async with open_world(limits=limits, clock=clock) as world:
        gateway = await spoken_to(world)
        answers += [BAD_GATEWAY] * 5
        assert (await gateway.ask(send("hi")))["queued"]
        clock.ahead = hours * 3600.0
        answers.clear()
        await world.until(lambda: bool(world.chat.said))
        assert await world.delivery.outbox(dead=True) == []


class SetClock(SystemClock):
    """A clock whose wall time can be set."""

    ahead = 0.0
    elapsed = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.elapsed


async def test_what_still_waits_is_known_when_its_request_is_forgotten(
    open_world: Any, answers: list[Result]
) -> None:
    limits = DeliveryLimits(answer_seconds=0.05, outbox_pause_seconds=60, request_seconds=0)
    async with open_world(limits=limits) as world:
        gateway = await spoken_to(world)
        answers += [BAD_GATEWAY]
        assert (await gateway.ask(send("hi")))["queued"]
        assert await gateway.ask(send("hi")) == {"success": True, "queued": True}
        assert (await gateway.ask(send("ho")))["outcome"] == "permanent"
        assert len(await world.delivery.outbox()) == 1


@pytest.mark.parametrize("seed", range(6))
async def test_follow_ups_and_messages_of_a_chat_are_done_in_the_order_of_their_requests(
    open_world: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also by several requests at once, by two people's sessions, and where some fail at first."""
    chance = random.Random(seed)
    done: list[tuple[str, str]] = []

    async def perform(
        self: MemoryPlatform, action: Action, idempotency_key: str, capability: Any = None
    ) -> Result:
        await asyncio.sleep(chance.uniform(0, 0.003))
        if chance.random() < 0.3:
            return BAD_GATEWAY
        assert isinstance(action, Send | FollowUp)
        place = capability.get_secret_value() if isinstance(action, FollowUp) else action.chat_id
        done.append((place, action.content))
        return Result(True, f"b{len(done)}")

    monkeypatch.setattr(MemoryPlatform, "perform", perform)
    async with open_world(limits=replace(LIMITS, outbox_rows=100)) as world:
        for person in ("ann", "bob"):
            world.link(person, "alpha")
        gateway = await world.connect("alpha")
        world.chat.channel("c2", scope_id="g1")
        sessions: dict[str, list[str]] = {"c1": [], "c2": []}
        expiry = world.delivery.context.now() + 600_000
        for chat_id, keys in sessions.items():
            for person in ("ann", "bob"):
                found = [FoundCapability("memory.token", SecretStr(chat_id), expiry)]
                world.chat.write(person, chat_id, "hello", found=found)
                await gateway.events(1)
                keys.append(world.directory.kept[-1].session_key)
        wanted: dict[str, list[str]] = {"c1": [], "c2": []}
        for number in range(30):
            chat_id = chance.choice(["c1", "c2"])
            action = {**send(str(number)), "chat_id": chat_id}
            if chance.random() < 0.5:
                key = chance.choice(sessions[chat_id])
                action = {"op": "follow_up", "session_key": key, "kind": "memory.token"}
                action["content"] = str(number)
            wanted[chat_id].append(str(number))
            gateway.say({"type": "outbound", "requestId": f"n{number}", "action": action})
        results = [(await gateway.hear("outbound_result"))["result"] for _ in range(30)]
        assert all(each["success"] for each in results)
        for chat_id, texts in wanted.items():
            assert [text for place, text in done if place == chat_id] == texts
