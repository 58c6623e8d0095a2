"""The connector's outbox: a reply outlives errors of its platform and the end of the process."""

import asyncio
from typing import Any

import pytest
from tests.fakes.platform import MemoryChat, MemoryPlatform

from accord.relay.connector import DeliveryLimits
from accord.relay.rules import Action, Outcome, Result

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
        sweep_seconds=0.02, renew_seconds=0.2, answer_seconds=0.1, outbox_pause_seconds=0.2
    )
    async with open_world(limits=limits, chat=chat) as world:
        gateway = await spoken_to(world)
        answers += [BAD_GATEWAY] * 1000
        assert await gateway.ask(send("hi")) == {"success": True, "queued": True}
        (row,) = await world.delivery.outbox()
        assert (row.state, row.error) == ("queued", "it failed with 502")
        directory = world.directory
    answers.clear()
    async with open_world(limits=limits, chat=chat, directory=directory) as world:
        await world.until(lambda: bool(chat.said))
        gateway = await world.connect("alpha")
        result = await gateway.ask(send("hi"))
        assert result == {"success": True, "message_id": chat.said[0].message_id}
        assert len(chat.said) == 1


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
