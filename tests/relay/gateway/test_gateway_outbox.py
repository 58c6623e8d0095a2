"""What an agent was told is taken is sent, whatever becomes of the connection and the process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.gateway_disk import GatewayDisk, GatewayDiskStore, disk_inbox
from tests.relay.gateway.conftest import echo, message

from accord.relay.gateway import GatewayLimits, GatewaySettings, GatewayState, RelayGateway, Turn
from accord.relay.rules import Outbound, OutboundResult, Outcome, Result, frame_dict
from accord.testing import VirtualClock, run_virtual
from accord.testing.connector import DESCRIPTOR, GATEWAY, SECRET, Connector

OURS = 90_000.0
QUEUED = Result(True, queued=True)
NOT_NOW = Result(False, error="not now", outcome=Outcome.RETRYABLE)


class JumpingClock(VirtualClock):
    """A clock whose wall time can be set."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class Home:
    """A gateway that can be started again, and the connector that it dials."""

    def __init__(self, clock: JumpingClock, request_seconds: float | None) -> None:
        self.clock = clock
        self.connector = Connector(clock=clock)
        self.connector.request_seconds = request_seconds
        self.disk = GatewayDisk()
        self.outcomes: list[Result] = []
        self.on_outcome: Callable[[Result], None] = self.outcomes.append
        self.store: GatewayDiskStore

    @asynccontextmanager
    async def running(
        self, agent: Any = echo, *, crash: bool = False, **limits: Any
    ) -> AsyncIterator[RelayGateway]:
        """Run a gateway; `crash` ends it without a last word."""
        store = self.store = GatewayDiskStore(self.disk)
        settings = GatewaySettings(
            inbox=disk_inbox(store, self.clock),
            limits=GatewayLimits(**limits),
            apology=None,
            on_outcome=self.on_outcome,
        )
        gateway = RelayGateway(
            "https://connector.example",
            secret=SECRET,
            gateway_id=GATEWAY,
            agent=agent,
            settings=settings,
            clock=self.clock,
            dial=self.connector.dial,
            chance=lambda: 1.0,
        )
        task = asyncio.create_task(gateway.run())
        try:
            await gateway.reached(GatewayState.RUNNING)
            yield gateway
        finally:
            store.dead = crash
            if crash:
                task.cancel()
            gateway.stop()
            await asyncio.wait({task})

    @property
    def sent(self) -> list[str]:
        """The texts of the distinct requests, in the order in which they first came."""
        told = {each.request_id: each.action.content for each in self.asked}
        return list(told.values())

    @property
    def asked(self) -> list[Any]:
        return [each for each in self.connector.actions if each.action.op in ("send", "edit")]

    def waiting(self) -> list[str]:
        """The requests that have not ended."""
        query = "SELECT request_id FROM actions WHERE ended_at IS NULL ORDER BY number"
        return [row[0] for row in self.disk.rows(query)]


Scene = Callable[[Home], Coroutine[Any, Any, None]]


def play(scene: Scene, request_seconds: float | None = OURS) -> None:
    """Play a scene on virtual time."""
    clock = JumpingClock()

    async def run() -> None:
        await scene(Home(clock, request_seconds))

    run_virtual(run(), clock=clock, max_seconds=400_000, max_steps=5_000_000)


def test_a_reply_is_stored_before_it_is_sent_and_ended_after() -> None:
    async def scene(home: Home) -> None:
        stored: list[list[str]] = []
        working = home.connector.answers

        def answer(outbound: Outbound) -> Result | None:
            if outbound.action.op == "send":
                stored.append(home.waiting())
            return working(outbound)

        home.connector.answers = answer
        async with home.running() as gateway:
            assert (await gateway.send("c1", "hi")).success
            await asyncio.sleep(1)
            assert stored == [[home.asked[0].request_id]]
            assert home.waiting() == []

    play(scene)


def test_what_was_promised_is_sent_after_a_crash_under_the_same_id() -> None:
    async def scene(home: Home) -> None:
        home.connector.answers = lambda _: None
        async with home.running(crash=True) as gateway:
            result = await gateway.send("c1", "hi")
            assert (result.success, result.queued) == (True, True)
            assert home.waiting() == [result.request_id]
        home.connector.answers = lambda _: Result(True, "m1")
        async with home.running() as gateway:
            assert result.request_id is not None
            ended = await gateway.outcome(result.request_id)
            assert ended == Result(True, "m1")
            assert {each.request_id for each in home.asked} == {result.request_id}
            assert [each.request_id for each in home.outcomes] == [result.request_id]
            assert home.waiting() == []
        async with home.running() as gateway:
            assert await gateway.outcome(result.request_id) == Result(True, "m1")
            assert await gateway.outcome("unknown") is None

    play(scene)


def test_a_turn_that_is_run_again_does_not_say_the_same_twice() -> None:
    attempts: list[int] = []

    async def twice(turn: Turn) -> None:
        attempts.append(turn.attempt)
        await turn.send("one")
        await turn.send("one")
        await turn.send("two")
        if turn.attempt == 1:
            await asyncio.Event().wait()

    async def scene(home: Home) -> None:
        async with home.running(twice, crash=True):
            await home.connector.deliver(message("go"), "b-1")
            await home.connector.until(lambda: len(home.asked) == 3)
            await asyncio.sleep(1)
        async with home.running(twice):
            await asyncio.sleep(5)
        assert attempts == [1, 2]
        assert [each.action.content for each in home.asked] == ["one", "one", "two"]
        assert len({each.request_id for each in home.asked}) == 3

    play(scene)


def test_the_messages_of_a_chat_keep_their_order_and_other_chats_do_not_wait() -> None:
    async def scene(home: Home) -> None:
        refusals = [NOT_NOW] * 4

        def answer(outbound: Outbound) -> Result:
            is_late = getattr(outbound.action, "chat_id", "") == "c1" and refusals
            return refusals.pop() if is_late else Result(True, "m")

        home.connector.answers = answer
        async with home.running() as gateway:
            results = await asyncio.gather(
                *(gateway.send("c1", str(number)) for number in range(5)),
                gateway.send("c2", "elsewhere"),
            )
            assert all(each.success for each in results)
        done = [each.action.content for each in home.asked if each.action.chat_id == "c1"]
        assert done == ["0", "0", "0", "0", "0", "1", "2", "3", "4"]
        assert home.asked[1].action.content == "elsewhere"

    play(scene)


def test_the_end_of_what_the_connector_has_queued_is_asked_for() -> None:
    async def scene(home: Home) -> None:
        home.connector.answers = lambda _: QUEUED
        async with home.running() as gateway:
            result = await gateway.send("c1", "hi")
            assert (result.success, result.queued) == (True, True)
            second = await gateway.send("c1", "ho")
            assert second.queued
            await asyncio.sleep(3000)
            assert len(home.asked) < 20
            refused = Result(False, error="no", outcome=Outcome.PERMANENT)
            home.connector.answers = lambda _: refused
            assert result.request_id is not None
            assert await gateway.outcome(result.request_id) == refused
            home.connector.answers = lambda _: Result(True, "m2")
            assert second.request_id is not None
            assert await gateway.outcome(second.request_id) == Result(True, "m2")
            assert [each.success for each in home.outcomes] == [False, True]

    play(scene)


@pytest.mark.parametrize(("window", "ends_as"), [(None, Outcome.UNKNOWN), (OURS, None)])
def test_a_lost_answer_is_repeated_only_while_the_connector_knows_the_request(
    window: float | None, ends_as: Outcome | None
) -> None:
    async def scene(home: Home) -> None:
        home.connector.answers = lambda _: None
        async with home.running(crash=True) as gateway:
            result = await gateway.send("c1", "hi")
        await asyncio.sleep(700)
        before = len(home.asked)
        home.connector.answers = lambda _: Result(True, "m1")
        async with home.running() as gateway:
            assert result.request_id is not None
            ended = await gateway.outcome(result.request_id)
            assert ended is not None
            assert ended.outcome is ends_as
            assert (len(home.asked) > before) is (ends_as is None)

    play(scene, window)


def test_what_was_never_sent_to_an_existing_connector_does_not_become_unknown() -> None:
    async def scene(home: Home) -> None:
        async with home.running() as gateway:
            home.connector.describes = False
            home.connector.drop()
            await asyncio.sleep(1)
            result = await gateway.send("c1", "hi")
            assert result.queued
            await asyncio.sleep(5000)
            home.connector.describes = True
            home.connector.drop()
            assert result.request_id is not None
            ended = await gateway.outcome(result.request_id)
            assert ended is not None
            assert ended.success

    play(scene, None)


@pytest.mark.parametrize(
    ("answer", "asked", "outcome"),
    [
        (Result(False, error="chat not found"), 1, None),
        (Result(False, error="maybe", outcome=Outcome.UNKNOWN), 1, Outcome.UNKNOWN),
        (Result(False, error="no", outcome=Outcome.PERMANENT), 1, Outcome.PERMANENT),
    ],
)
def test_a_definite_answer_is_not_asked_for_again(
    answer: Result, asked: int, outcome: Outcome | None
) -> None:
    async def scene(home: Home) -> None:
        home.connector.answers = lambda _: answer
        async with home.running() as gateway:
            result = await gateway.send("c1", "hi")
            assert (result.success, result.outcome, result.error) == (False, outcome, answer.error)
            await asyncio.sleep(100)
            assert len(home.asked) == asked

    play(scene, None)


def test_a_rate_limit_of_an_existing_connector_is_waited_out() -> None:
    async def scene(home: Home) -> None:
        limited = Result(False, error="429 Too Many Requests, retry after 40")
        left = [limited]
        home.connector.answers = lambda _: left.pop() if left else Result(True, "m1")
        async with home.running() as gateway:
            at = home.clock.monotonic()
            result = await gateway.send("c1", "hi")
            assert result.queued
            assert result.request_id is not None
            ended = await gateway.outcome(result.request_id)
            assert ended == Result(True, "m1")
            assert 40 <= home.clock.monotonic() - at < 60

    play(scene, None)


def test_what_cannot_be_sent_in_time_expires_with_a_reason() -> None:
    async def scene(home: Home) -> None:
        home.connector.answers = lambda _: NOT_NOW
        async with home.running(outbox=300.0) as gateway:
            result = await gateway.send("c1", "hi")
            assert result.queued
            assert result.request_id is not None
            ended = await gateway.outcome(result.request_id)
            assert ended is not None
            assert (ended.success, ended.outcome) == (False, Outcome.PERMANENT)
            assert "in time" in (ended.error or "")
            home.connector.answers = lambda _: Result(True, "m1")
            assert (await gateway.send("c1", "ho")).success

    play(scene)


@pytest.mark.parametrize(
    ("answer", "window", "outcome"),
    [(None, None, Outcome.UNKNOWN), (NOT_NOW, OURS, Outcome.PERMANENT)],
)
def test_what_was_given_up_stays_so_when_the_gateway_crashes_while_it_tells(
    answer: Result | None, window: float | None, outcome: Outcome
) -> None:
    async def scene(home: Home) -> None:
        told: list[Result] = []

        def crash(result: Result) -> None:
            told.append(result)
            home.store.dead = True

        home.connector.answers = lambda _: answer
        home.on_outcome = crash
        async with home.running(crash=True, outbox=300.0) as gateway:
            assert (await gateway.send("c1", "hi")).queued
            await asyncio.sleep(2000)
        assert len(home.waiting()) == 1  # the end was not stored
        before = len(home.asked)
        home.connector.answers = lambda _: Result(True, "m1")
        home.on_outcome = told.append
        async with home.running():
            await asyncio.sleep(100)
        assert [each.outcome for each in told] == [outcome, outcome]
        assert told[0] == told[1]
        assert (len(home.asked), home.waiting()) == (before, [])

    play(scene, window)


def test_a_connector_that_never_answers_leaves_nothing_stuck_or_lost() -> None:
    async def scene(home: Home) -> None:
        home.connector.answers = lambda _: None
        async with home.running() as gateway:
            results = [await gateway.send("c1", str(number)) for number in range(3)]
            assert all(each.queued for each in results)
            await asyncio.sleep(1000)
            assert [each.outcome for each in home.outcomes[:1]] == [Outcome.UNKNOWN]
            home.connector.answers = lambda _: Result(True, "m")
            await asyncio.sleep(1000)
            assert home.waiting() == []
            assert len(home.outcomes) == 3

    play(scene, None)


def test_answers_that_are_late_doubled_replayed_or_garbage_change_nothing() -> None:
    async def scene(home: Home) -> None:
        connector = home.connector
        connector.answers = lambda _: None
        async with home.running() as gateway:
            sending = asyncio.create_task(gateway.send("c1", "one"))
            await connector.until(lambda: len(home.asked) == 1)
            name = home.asked[0].request_id
            for bad in ({"result": "garbage"}, {}):
                frame = {"type": "outbound_result", "requestId": name, **bad}
                await connector.raw(json.dumps(frame) + "\n")
            await asyncio.sleep(31)  # nobody waits for this answer any more
            assert (await sending).queued
            await connector.send(OutboundResult(name, Result(True, "m1")))
            await connector.send(OutboundResult(name, Result(False, error="replayed")))
            await asyncio.sleep(100)
            assert [(each.success, each.request_id) for each in home.outcomes] == [(True, name)]
            await connector.send(OutboundResult(name, Result(True, "again")))
            await asyncio.sleep(1)
            assert gateway.counts["answers to nothing"] == 1
            assert gateway.counts["bad lines"] == 2
            assert len(home.outcomes) == 1

    play(scene)


@pytest.mark.parametrize("ahead", [-7200.0, 200_000.0])
def test_a_clock_that_jumps_neither_loses_nor_doubles(ahead: float) -> None:
    async def scene(home: Home) -> None:
        done: dict[str, Result] = {}

        def answer(outbound: Outbound) -> Result:
            """As a connector does that knows its requests."""
            known = done.setdefault(outbound.request_id, Result(True, f"m{len(done)}"))
            return known if home.clock.ahead else NOT_NOW

        home.connector.answers = answer
        async with home.running() as gateway:
            result = await gateway.send("c1", "hi")
            assert result.queued
            home.clock.ahead = ahead
            assert result.request_id is not None
            ended = await gateway.outcome(result.request_id)
            assert ended == Result(True, "m0")
            assert home.waiting() == []

    play(scene)


def test_too_many_waiting_actions_are_refused_for_now() -> None:
    async def scene(home: Home) -> None:
        home.connector.answers = lambda _: NOT_NOW
        async with home.running(outbox_rows=2) as gateway:
            results = await asyncio.gather(*(gateway.send("c1", str(n)) for n in range(3)))
            assert [each.queued for each in results] == [True, True, False]
            assert (results[2].outcome, results[2].retry_after) == (Outcome.RETRYABLE, 5.0)

    play(scene)


def test_an_interrupted_turn_withdraws_what_was_not_sent() -> None:
    async def stubborn(turn: Turn) -> None:
        await turn.send("too late")

    async def scene(home: Home) -> None:
        async with home.running(stubborn) as gateway:
            home.connector.answers = lambda _: NOT_NOW
            blocked = await gateway.send("c1", "first")
            assert blocked.queued
            await home.connector.deliver(message("go"), "b-1")
            await home.connector.until(lambda: home.connector.acks == ["b-1"])
            await asyncio.sleep(1)
            gateway._host.sessions.interrupt("agent:main:web:group:s=s1:c=c1:u=u1")
            await asyncio.sleep(1)
            home.connector.answers = lambda _: Result(True, "m")
            await asyncio.sleep(100)
            assert home.sent == ["first"]
            assert home.waiting() == []

    play(scene)


def test_a_reply_of_several_messages_goes_on_after_one_whose_outcome_is_unknown() -> None:
    results: list[Result] = []

    async def long(turn: Turn) -> None:
        results.append(await turn.reply("word " * 60))

    async def scene(home: Home) -> None:
        home.connector.descriptor = replace(DESCRIPTOR, max_message_length=100)
        unknown = [Result(False, error="silence", outcome=Outcome.UNKNOWN)]
        home.connector.answers = lambda each: (
            unknown.pop() if unknown and each.action.op == "send" else Result(True, "m")
        )
        async with home.running(long):
            await home.connector.deliver(message("go"), "b-1")
            await home.connector.until(lambda: "".join(home.sent).count("word") == 60)
            await asyncio.sleep(1)
        assert [each.outcome for each in results] == [Outcome.UNKNOWN]

    play(scene)


def test_only_the_last_text_of_a_growing_message_is_stored() -> None:
    async def growing(turn: Turn) -> AsyncIterator[str]:
        for word in ("one ", "two ", "three ", "four"):
            yield word
            await asyncio.sleep(2)

    async def scene(home: Home) -> None:
        async with home.running(growing):
            await home.connector.deliver(message("go"), "b-1")
            await home.connector.until(lambda: "one two three four" in home.connector.texts)
            await asyncio.sleep(3)
        kept = {row[0] for row in home.disk.rows("SELECT request_id FROM actions")}
        stored = [each.action.content for each in home.asked if each.request_id in kept]
        assert stored[0] == "one"
        assert len(stored) <= 2
        assert len(home.asked) > 2

    play(scene)


def test_what_ended_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accord.relay.gateway.outbox._PRUNE_EVERY", 3)

    async def scene(home: Home) -> None:
        async with home.running() as gateway:
            await gateway.send("c1", "one")
            home.clock.ahead = 9 * 86_400.0
            await gateway.send("c1", "two")
            await gateway.send("c1", "three")
            await asyncio.sleep(1)
        assert len(home.disk.rows("SELECT number FROM actions")) == 2

    play(scene)


def test_frames_of_stored_actions_are_those_of_others() -> None:
    async def scene(home: Home) -> None:
        async with home.running() as gateway:
            await gateway.send("c1", "hi")
        (sent,) = [frame_dict(each) for each in home.asked]
        sent.pop("traceparent")
        assert sent == {
            "type": "outbound",
            "requestId": sent["requestId"],
            "action": {
                "op": "send",
                "chat_id": "c1",
                "content": "hi",
                "reply_to": None,
                "metadata": {},
            },
        }

    play(scene)


def test_what_waited_behind_another_is_repeated_when_its_answer_is_lost() -> None:
    """That it was written after it was stored is no sign of a clock that was set back."""

    async def scene(home: Home) -> None:
        refusals, silences = [NOT_NOW] * 3, [None]

        def answer(outbound: Outbound) -> Result | None:
            if outbound.action.op != "send":
                return Result(True)
            if getattr(outbound.action, "content", "") == "first":
                return refusals.pop() if refusals else Result(True, "m1")
            return silences.pop() if silences else Result(True, "m2")

        home.connector.answers = answer
        async with home.running() as gateway:
            first, second = await asyncio.gather(
                gateway.send("c1", "first"), gateway.send("c1", "second")
            )
            assert first.success
            assert second.request_id is not None
            assert await gateway.outcome(second.request_id) == Result(
                True, "m2", request_id=second.request_id
            )
        assert [each.action.content for each in home.asked][-2:] == ["second", "second"]

    play(scene)
