"""Each session has its turns in order, and an interrupt reaches exactly one of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.relay.gateway.conftest import message, virtually

from accord.relay.gateway import (
    GatewaySettings,
    GatewayState,
    RelayGateway,
    Sessions,
    Turn,
    TurnEnd,
)
from accord.relay.rules import session_key
from accord.testing import VirtualClock, run_virtual
from accord.testing.connector import Connector


def key(chat: str, user: str = "u1") -> str:
    return session_key(message("", chat=chat, user=user).source, dialect="scoped")


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=25),
    st.integers(1, 3),
)
def test_turns_of_a_session_never_overlap_or_change_places(
    offered: list[tuple[str, int]], turns: int
) -> None:
    keys = [session for session, _ in offered]
    begun: dict[str, list[int]] = {}
    running: set[str] = set()
    most = 0

    async def work(number: int, session: str) -> None:
        nonlocal most
        assert session not in running
        running.add(session)
        most = max(most, len(running))
        begun.setdefault(session, []).append(number)
        await asyncio.sleep(offered[number][1])
        running.discard(session)

    async def ended(_number: int, ending: TurnEnd) -> None:
        assert ending is TurnEnd.DONE

    async def play() -> None:
        sessions = Sessions(work, ended, turns)
        for number, session in enumerate(keys):
            sessions.offer(number, session)
        await sessions.quiet()
        assert sessions.is_quiet

    run_virtual(play())
    assert most <= turns
    for session, numbers in begun.items():
        assert numbers == [number for number, each in enumerate(keys) if each == session]
    assert sum(map(len, begun.values())) == len(keys)


def test_an_interrupt_cancels_exactly_one_session() -> None:
    ended: list[str] = []
    turns: dict[str, Turn] = {}

    async def slow(turn: Turn) -> AsyncIterator[str]:
        turns[turn.source.chat_id] = turn
        try:
            await asyncio.sleep(10)
            yield f"done {turn.source.chat_id}"
        finally:
            ended.append(turn.source.chat_id)

    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        for chat in ("c1", "c2", "c3"):
            await connector.deliver(message("go", f"m-{chat}", chat), f"b-{chat}")
        await connector.until(lambda: len(connector.acks) == 3)
        await asyncio.sleep(1)
        await connector.interrupt(key("c2"), "c2")
        await connector.interrupt(key("c9"), "c9")
        await asyncio.sleep(1)
        assert ended == ["c2"]
        assert turns["c2"].cancelled
        assert not turns["c1"].cancelled
        await connector.until(lambda: len(connector.ops("send")) == 2)
        assert sorted(connector.texts) == ["done c1", "done c3"]
        assert gateway.counts["interrupts"] == gateway.counts["interrupts of nothing"] == 1
        assert clock.monotonic() < 20

    virtually(scene, slow)


def test_what_waits_behind_an_interrupted_turn_has_its_own() -> None:
    async def slow(turn: Turn) -> str:
        await asyncio.sleep(5)
        return turn.event.text

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("one", "m1"), "b-1")
        await connector.deliver(message("two", "m2"), "b-2")
        await connector.until(lambda: len(connector.acks) == 2)
        await connector.interrupt(key("c1"))
        await connector.until(lambda: bool(connector.texts))
        assert connector.texts == ["two"]

    virtually(scene, slow)


def test_a_user_stops_a_running_turn_by_a_word_that_the_agent_never_sees() -> None:
    seen: list[str] = []

    async def slow(turn: Turn) -> str:
        seen.append(turn.event.text)
        await asyncio.sleep(5)
        return "done"

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("go", "m1"), "b-1")
        await connector.deliver(message("go", "m2", user="u2"), "b-2")
        await asyncio.sleep(1)
        await connector.deliver(message(" /stop ", "m3"), "b-3")
        await connector.until(lambda: len(connector.acks) == 3)
        await connector.until(lambda: bool(connector.texts))
        await asyncio.sleep(60)
        assert seen == ["go", "go"]
        assert connector.texts == ["done"]
        await connector.deliver(message("/stop", "m4"), "b-4")
        await asyncio.sleep(60)
        assert seen[2:] == ["/stop"], "with nothing to stop it is a message like others"

    virtually(scene, slow)


@pytest.mark.parametrize(
    ("when_busy", "said"), [("queue", ["one", "two", "three"]), ("interrupt", ["three"])]
)
def test_a_message_in_a_busy_session_waits_or_interrupts_as_it_was_chosen(
    when_busy: str, said: list[str]
) -> None:
    async def slow(turn: Turn) -> str:
        await asyncio.sleep(5)
        return turn.event.text

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        for number, text in enumerate(("one", "two", "three")):
            await connector.deliver(message(text, f"m{number}"), f"b-{number}")
            await asyncio.sleep(1)
        await asyncio.sleep(60)
        assert connector.texts == said

    chosen = GatewaySettings(when_busy=when_busy)  # type: ignore[arg-type]
    virtually(scene, slow, settings=chosen)


def test_an_agent_may_cancel_its_own_turn() -> None:
    async def giving_up(turn: Turn) -> AsyncIterator[str]:
        yield "so far"
        await asyncio.sleep(2)
        turn.cancel()
        await asyncio.sleep(0)
        yield "and no further"

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("go"), "b-1")
        await asyncio.sleep(60)
        assert connector.texts == ["so far"]
        assert gateway.counts["turns interrupted"] == 1

    virtually(scene, giving_up)


@pytest.mark.parametrize("mistake", [RuntimeError("oops"), ValueError(), RecursionError()])
def test_an_agents_failure_ends_its_turn_and_nothing_else(mistake: Exception) -> None:
    async def failing(turn: Turn) -> AsyncIterator[str]:
        yield "I think"
        if turn.event.text == "bad":
            raise mistake
        yield " so"

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("bad", "m1"), "b-1")
        await connector.deliver(message("good", "m2"), "b-2")
        await asyncio.sleep(60)
        assert connector.texts == ["I think", "Sorry, something went wrong.", "I think so"]
        assert gateway.counts["agent failures"] == 1
        assert gateway.health.state is GatewayState.RUNNING

    virtually(scene, failing)


def test_an_agent_that_gives_no_text_has_failed() -> None:
    async def wrong(_: Turn) -> AsyncIterator[int]:
        yield 7

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("go"), "b-1")
        await asyncio.sleep(60)
        assert connector.texts == []
        assert gateway.counts["agent failures"] == 1

    virtually(scene, wrong, settings=GatewaySettings(apology=None))


def test_a_gateway_stops_a_session_elsewhere_by_an_interrupt() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        assert not await gateway.interrupt("k")
        await gateway.reached(GatewayState.RUNNING)
        assert await gateway.interrupt("agent:main:web:dm:c=1", "the user said so")
        await connector.until(lambda: bool(connector.interrupts))
        (told,) = connector.interrupts
        assert (told.session_key, told.reason) == ("agent:main:web:dm:c=1", "the user said so")

    virtually(scene)
