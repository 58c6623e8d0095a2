"""What a gateway has taken survives it, and is dealt with once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, insert, select
from structlog.testing import capture_logs
from tests.relay.gateway.conftest import Running, message

from accord.relay.errors import RelayError
from accord.relay.gateway import (
    INBOX_SCHEMA,
    GatewaySettings,
    GatewayState,
    MemoryInbox,
    OpenInbox,
    ReceivedEvent,
    StoredInbox,
    Turn,
    open_memory_inbox,
    open_stored_inbox,
)
from accord.relay.rules import MessageEvent, SessionSource
from accord.storage import StoreError
from accord.testing import VirtualClock
from accord.testing.connector import Connector

Open = Callable[[], AbstractAsyncContextManager[OpenInbox]]


def delivery(
    text: str, buffer_id: str | None, number: str = "m1", chat: str = "c1"
) -> ReceivedEvent:
    return ReceivedEvent("k1", message(text, number, chat), buffer_id=buffer_id)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def open_inbox(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "memory":
        return open_memory_inbox
    where = str(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return lambda: open_stored_inbox(where, VirtualClock())


async def test_an_event_is_taken_once_by_either_of_its_names(open_inbox: Open) -> None:
    async with open_inbox() as inbox:
        first = await inbox.take([delivery("a", "b-1", "m1"), delivery("b", "b-2", "m2")])
        assert None not in first
        again = [
            delivery("a", "b-1", "m9"),  # the same entry of the connector's buffer
            delivery("a", "b-9", "m2"),  # the same message under another entry
            delivery("c", None, "m1"),  # the same message, not buffered
            delivery("d", "b-4", "m1", chat="c2"),  # the same number in another chat
        ]
        numbers = await inbox.take(again)
        assert numbers[:3] == [None, None, None]
        assert numbers[3] is not None


async def test_a_batch_may_hold_the_same_event_twice(open_inbox: Open) -> None:
    async with open_inbox() as inbox:
        numbers = await inbox.take([delivery("a", "b-1"), delivery("a", "b-1")])
        assert [number is None for number in numbers] == [False, True]


async def test_events_without_any_name_are_all_taken(open_inbox: Open) -> None:
    nameless = ReceivedEvent("k", MessageEvent("x", SessionSource("web", "c")))
    async with open_inbox() as inbox:
        assert None not in await inbox.take([nameless, nameless, nameless])


async def test_what_was_taken_comes_back_as_it_was_until_it_is_finished(open_inbox: Open) -> None:
    given = replace(delivery("grüß dich 🌍", "b-1"), platform="discord", capability="discord.x")
    async with open_inbox() as inbox:
        (number,) = await inbox.take([given])
        assert number is not None
        assert await inbox.begin(number) == given
        assert await inbox.unfinished() == [(number, "k1")]
        await inbox.finish(number)
        assert await inbox.begin(number) is None
        assert await inbox.unfinished() == []
        assert await inbox.take([given]) == [None]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_restart_keeps_order_names_and_attempts(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = str(tmp_path) if engine == "sqlite" else request.getfixturevalue("postgres_url")
    clock = VirtualClock()
    async with open_stored_inbox(where, clock) as inbox:
        numbers = await inbox.take([delivery(str(n), f"b-{n}", f"m{n}") for n in range(5)])
        first, second = numbers[0], numbers[1]
        assert first is not None
        assert second is not None
        await inbox.finish(first)
        await inbox.begin(second)
    async with open_stored_inbox(where, clock) as inbox:
        assert [number for number, _ in await inbox.unfinished()] == numbers[1:]
        assert await inbox.take([delivery("again", "b-0", "m0")]) == [None]
        begun = await inbox.begin(second)
        assert begun is not None
        assert begun.attempt == 2
        await inbox.put_back(second)
    async with open_stored_inbox(where, clock) as inbox:
        begun = await inbox.begin(second)
        assert begun is not None
        assert begun.attempt == 2


async def test_names_are_forgotten_when_no_connector_can_deliver_them_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_stored_inbox(tmp_path, clock) as inbox:
        assert isinstance(inbox, StoredInbox)
        done, waiting = await inbox.take([delivery("a", "b-1", "m1"), delivery("b", "b-2", "m2")])
        assert done is not None
        await inbox.finish(done)
        clock.advance(9 * 86_400)
        await inbox.prune()
        assert [number for number, _ in await inbox.unfinished()] == [waiting]
        first, second = await inbox.take([delivery("a", "b-1", "m1"), delivery("b", "b-2", "m2")])
        assert first is not None
        assert second is None


async def test_two_processes_cannot_share_a_folder(tmp_path: Path) -> None:
    async with open_stored_inbox(tmp_path, VirtualClock()):
        with pytest.raises(RelayError, match="another gateway uses this inbox"):
            async with open_stored_inbox(tmp_path, VirtualClock()):
                pass
    async with open_stored_inbox(tmp_path, VirtualClock()):
        pass


async def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RelayError, match="cannot be opened"):
        async with open_stored_inbox(tmp_path / "file" / "inbox", VirtualClock()):
            pass


_PART = st.sampled_from(["a", "b", "1:a", "ab"])
_NAMED = st.tuples(_PART, _PART, _PART, _PART)


@given(_NAMED, _NAMED)
def test_only_the_same_message_has_the_same_name(
    one: tuple[str, str, str, str], other: tuple[str, str, str, str]
) -> None:
    names = [
        ReceivedEvent(
            "k", MessageEvent("", SessionSource(platform, chat, scope_id=scope), message_id=number)
        ).message
        for platform, chat, scope, number in (one, other)
    ]
    assert (names[0] == names[1]) == (one == other)


async def test_a_full_inbox_in_memory_holds_back_the_connector() -> None:
    inbox = MemoryInbox(room=1)
    (number,) = await inbox.take([delivery("a", "b-1", "m1")])
    assert number is not None
    taking = asyncio.create_task(inbox.take([delivery("b", "b-2", "m2")]))
    await asyncio.sleep(0)
    assert not taking.done()
    await inbox.finish(number)
    assert None not in await taking


async def test_an_unfinished_event_has_its_turn_after_a_restart_before_what_is_new(
    connector: Connector, running: Running, tmp_path: Path
) -> None:
    begun: list[str] = []

    async def stuck(turn: Turn) -> None:
        begun.append(turn.event.text)
        await asyncio.Event().wait()

    async def answering(turn: Turn) -> AsyncIterator[str]:
        yield f"{turn.event.text} at attempt {turn.attempt}"

    settings = GatewaySettings(inbox=tmp_path)
    async with running(stuck, settings=settings) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("one", "m1"), "b-1")
        await connector.deliver(message("two", "m2"), "b-2")
        await connector.until(lambda: connector.acks == ["b-1", "b-2"] and bool(begun))
    assert begun == ["one"]
    await connector.deliver(message("three", "m3"), "b-3")
    await connector.deliver(message("one", "m1"), "b-1")
    async with running(answering, settings=settings):
        await connector.until(lambda: len(connector.texts) == 3)
        await connector.until(lambda: connector.acks[2:] == ["b-3", "b-1"])
    # A turn that the shutdown broke off does not count as an attempt.
    assert connector.texts == [f"{each} at attempt 1" for each in ("one", "two", "three")]


async def test_an_event_that_the_process_never_survives_is_given_up(
    connector: Connector, running: Running, tmp_path: Path
) -> None:
    async with open_stored_inbox(tmp_path, VirtualClock()) as inbox:
        (number,) = await inbox.take([delivery("poison", "b-1")])
        assert number is not None
        for _ in range(3):
            await inbox.begin(number)
    async with running(settings=GatewaySettings(inbox=tmp_path)) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("fine", "m2"), "b-2")
        await connector.until(lambda: bool(connector.texts))
    assert connector.texts == ["you said fine"]
    assert gateway.counts["turns given up"] == 1
    async with open_stored_inbox(tmp_path, VirtualClock()) as inbox:
        assert await inbox.unfinished() == []


async def test_nothing_is_acknowledged_while_the_store_fails(
    connector: Connector, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accord.relay.gateway.inbox.backoff", lambda *_: 0.01)
    acked: list[int] = []

    class Failing(MemoryInbox):
        async def take(self, deliveries: Sequence[ReceivedEvent]) -> list[int | None]:
            acked.append(len(connector.acks))
            if len(acked) <= 3:
                raise StoreError("the disk is full")
            return await super().take(deliveries)

    async with running(settings=GatewaySettings(inbox=nullcontext(Failing()))) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("hello"), "b-1")
        await connector.until(lambda: bool(connector.texts) and connector.acks == ["b-1"])
    assert acked == [0, 0, 0, 0]


class JumpingClock(VirtualClock):
    """A clock whose wall time can be set."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


async def rows(inbox: OpenInbox) -> int:
    assert isinstance(inbox, StoredInbox)
    count = select(func.count())
    return await inbox.store.read(
        lambda c: sum(
            c.execute(count.select_from(INBOX_SCHEMA.metadata.tables[name])).scalar_one()
            for name in ("events", "actions")
        )
    )


async def finished(inbox: OpenInbox) -> None:
    """An event that is finished, and an action that has ended."""
    assert isinstance(inbox, StoredInbox)
    (number,) = await inbox.take([delivery("a", "b-1")])
    assert number is not None
    await inbox.finish(number)
    ended = {
        "request_id": "r1",
        "lane": "c1",
        "created_at": 1,
        "ended_at": int(inbox.retention.clock.now() * 1000),
    }
    table = INBOX_SCHEMA.metadata.tables["actions"]
    await inbox.store.write(lambda c: c.execute(insert(table).values(ended)).rowcount)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_clock_that_jumps_ahead_forgets_nothing(tmp_path: Path, is_restarted: bool) -> None:
    clock = JumpingClock()
    async with open_stored_inbox(tmp_path, clock) as inbox:
        await finished(inbox)
        if not is_restarted:
            clock.ahead = 400 * 86_400.0
            with capture_logs() as logs:
                await inbox.prune()  # type: ignore[attr-defined]
                await inbox.prune()  # type: ignore[attr-defined]
            assert [each["event"] for each in logs] == ["retention waits"]
            assert "accord relay gateway retention confirm" in logs[0]["mend"]
            assert await rows(inbox) == 2
            clock.ahead = 0.0
            await inbox.prune()  # type: ignore[attr-defined]
            clock.advance(9 * 86_400.0)  # time that has really passed
            await inbox.prune()  # type: ignore[attr-defined]
            assert await rows(inbox) == 0
            return
    clock.ahead = 400 * 86_400.0
    async with open_stored_inbox(tmp_path, clock) as inbox:
        assert await rows(inbox) == 2
        # A repetition is still known, and somebody confirms the clock.
        assert await inbox.take([delivery("a", "b-1")]) == [None]
        assert isinstance(inbox, StoredInbox)
        passed_at, verdict = await inbox.retention.status()
        assert passed_at is not None
        assert not verdict.trusted
        await inbox.retention.confirm()
        await inbox.prune()
        assert await rows(inbox) == 0


async def test_a_gateway_that_slept_for_some_days_needs_nobody(tmp_path: Path) -> None:
    clock = JumpingClock()
    async with open_stored_inbox(tmp_path, clock, keep=3 * 86_400.0) as inbox:
        await finished(inbox)
        clock.ahead = 5 * 86_400.0
        await inbox.prune()  # type: ignore[attr-defined]
        assert await rows(inbox) == 0


async def test_a_clock_that_goes_back_forgets_nothing_and_is_not_waited_for(
    tmp_path: Path,
) -> None:
    clock = JumpingClock()
    async with open_stored_inbox(tmp_path, clock) as inbox:
        await finished(inbox)
        clock.ahead = -4000 * 86_400.0
        await inbox.prune()  # type: ignore[attr-defined]
        assert await rows(inbox) == 2
        clock.ahead = 0.0
        clock.advance(9 * 86_400.0)
        await inbox.prune()  # type: ignore[attr-defined]
        assert await rows(inbox) == 0
