"""An operator sees what a gateway keeps, sends it again and drops it."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import insert
from tests.fakes.gateway_disk import GatewayDiskStore
from tests.relay.gateway.conftest import message
from tests.relay.gateway.test_gateway_outbox import Home, play
from typer.testing import CliRunner

from accord.cli import app
from accord.kernel.clock import SystemClock
from accord.kernel.errors import AccordError
from accord.relay.errors import RelayError
from accord.relay.gateway import INBOX_SCHEMA, ReceivedEvent, open_stored_inbox
from accord.relay.gateway.outbox import StoredActions
from accord.relay.rules import Outcome, Result
from accord.storage import Store, open_store

REFUSED = Result(False, error="the chat is closed", outcome=Outcome.PERMANENT)


def stored(home: Home) -> StoredActions:
    return StoredActions(cast("Store", GatewayDiskStore(home.disk)))


def test_what_was_refused_is_sent_again_under_another_id() -> None:
    async def scene(home: Home) -> None:
        home.connector.answers = lambda _: REFUSED
        async with home.running() as gateway:
            assert not (await gateway.send("c1", "hi")).success
            await asyncio.sleep(1)
        actions = stored(home)
        [failed] = await actions.list_entries(10)
        assert (failed.state, failed.lane, failed.error) == ("failed", "c1", "the chat is closed")
        assert (await actions.backlog(home.clock.now())).failed == 1
        assert await actions.retry([failed.number], home.clock.now(), lambda: "again") == 1
        # It is there once, and what it was before is settled.
        [waiting] = await actions.list_entries(10)
        assert (waiting.state, waiting.request_id) == ("waiting", "again")
        with pytest.raises(RelayError, match="no action"):
            await actions.retry([failed.number], home.clock.now(), lambda: "twice")
        home.connector.answers = lambda _: Result(True, "m1")
        async with home.running() as gateway:
            assert await gateway.outcome("again") == Result(True, "m1")
            await asyncio.sleep(1)
        assert [each.request_id for each in home.asked] == [failed.request_id, "again"]
        assert home.asked[0].action == home.asked[1].action
        assert await actions.list_entries(10) == []
        # What was sent leaves no words behind.
        assert home.disk.rows("SELECT line FROM actions WHERE line IS NOT NULL") == []

    play(scene)


def test_what_waits_is_listed_with_its_age_and_can_be_dropped() -> None:
    async def scene(home: Home) -> None:
        home.connector.answers = lambda _: None
        async with home.running() as gateway:
            doubtful = await gateway.send("c1", "hi")
            behind = asyncio.create_task(gateway.send("c1", "ho"))
            await asyncio.sleep(100)
            assert gateway.outbox_waiting == 2
            assert 130 <= gateway.outbox_oldest_seconds < 140
            await behind
        actions = stored(home)
        backlog = await actions.backlog(home.clock.now())
        assert (backlog.rows, backlog.failed) == (2, 0)
        assert backlog.oldest_seconds >= 130
        first, second = await actions.list_entries(10, dead=False)
        assert first.request_id == doubtful.request_id
        assert first.state == "sent, not answered"
        asked = len(home.asked)
        assert await actions.drop([first.number, second.number], home.clock.now()) == 2
        assert await actions.list_entries(10) == []
        home.connector.answers = lambda _: Result(True, "m1")
        async with home.running() as gateway:
            await asyncio.sleep(100)
            assert len(home.asked) == asked
            assert gateway.outbox_waiting == 0
            ended = await gateway.outcome(str(doubtful.request_id))
            assert ended is not None
            # It may have been sent before.
            assert (ended.success, ended.outcome) == (False, Outcome.UNKNOWN)

    play(scene)


def test_a_turn_that_is_run_again_does_not_say_what_was_dropped() -> None:
    async def scene(home: Home) -> None:
        async def agent(turn: Any) -> None:
            await turn.send("one")

        home.connector.answers = lambda _: None
        async with home.running(agent, crash=True):
            await home.connector.deliver(message("go"), "b-1")
            await home.connector.until(lambda: bool(home.asked))
        actions, asked = stored(home), len(home.asked)
        [waiting] = await actions.list_entries(10)
        await actions.drop([waiting.number], home.clock.now())
        home.connector.answers = lambda _: Result(True, "m1")
        async with home.running(agent) as gateway:
            await asyncio.sleep(60)
            assert gateway.counts["turns done"] == 1
        assert len(home.asked) == asked

    play(scene)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["relay", "gateway", *words])


def ask(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, f"{words}: {result.output} {result.exception}"
    return json.loads(result.stdout)


async def fill(folder: Path) -> None:
    """A reply that waits and one that was refused."""
    async with open_stored_inbox(folder, SystemClock()):
        pass
    line = '{"type":"outbound","requestId":"r%d","platform":"web","action":'
    line += '{"op":"send","chat_id":"c1","content":"a secret","metadata":{}}}\n'
    refused = '{"success":false,"error":"closed","outcome":"permanent"}'
    common = {"lane": "c1", "created_at": 1_800_000_000_000}
    rows = [
        common | {"request_id": "r1", "line": line % 1},
        common | {"request_id": "r2", "line": line % 2, "result": refused, "ended_at": 2**41},
    ]
    table = INBOX_SCHEMA.metadata.tables["actions"]
    async with open_store(folder, INBOX_SCHEMA) as store:
        for row in rows:
            await store.write(lambda c, row=row: c.execute(insert(table).values(**row)).rowcount)  # type: ignore[misc]


def test_the_commands_show_no_words_and_want_the_gateway_stopped_for_changes(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "inbox"
    at = ("--inbox", str(folder))
    asyncio.run(fill(folder))
    told = ask("outbox", "list", *at)
    assert (told["rows"], told["failed"]) == (1, 1)
    assert [each["request_id"] for each in told["actions"]] == ["r1", "r2"]
    assert "secret" not in json.dumps(told)
    assert "secret" not in run("outbox", "list", *at).stdout
    assert [each["request_id"] for each in ask("outbox", "list", "--dead", *at)["actions"]] == [
        "r2"
    ]
    numbers = [str(each["number"]) for each in told["actions"]]

    async def while_it_runs() -> None:
        async with open_stored_inbox(folder, SystemClock()):
            listed = await asyncio.to_thread(ask, "outbox", "list", *at)
            assert listed["rows"] == 1
            for verb in ("retry", "drop"):
                refused = await asyncio.to_thread(run, "outbox", verb, *numbers, *at)
                assert isinstance(refused.exception, AccordError)
                assert "another gateway uses this inbox" in str(refused.exception)

    asyncio.run(while_it_runs())
    assert ask("outbox", "retry", numbers[1], *at) == {"retried": 1}
    assert ask("outbox", "drop", numbers[0], *at) == {"dropped": 1}
    [left] = ask("outbox", "list", *at)["actions"]
    assert left["state"] == "waiting"
    assert left["request_id"] not in ("r1", "r2")
    missing = run("outbox", "drop", "99", *at)
    assert "there is no action 99" in str(missing.exception)


def test_the_clock_of_a_gateway_is_shown_and_confirmed(tmp_path: Path) -> None:
    folder = tmp_path / "inbox"
    at = ("--inbox", str(folder))

    async def long_ago() -> None:
        class Past(SystemClock):
            def now(self) -> float:
                return super().now() - 100 * 86_400

        async with open_stored_inbox(folder, Past()) as inbox:
            await inbox.take([ReceivedEvent("k", message("hi"), buffer_id="b-1")])

    asyncio.run(long_ago())
    shown = ask("retention", "show", *at)
    assert (shown["trusted"], shown["rule"]) == (False, "clock.jumped")
    assert "100.0 days ahead" in run("retention", "show", *at).stdout
    assert ask("retention", "confirm", *at)["trusted"]
    assert ask("retention", "show", *at)["trusted"]


def test_a_gateway_that_was_never_here_is_told_from_one_that_keeps_nothing(tmp_path: Path) -> None:
    result = run("outbox", "list", "--inbox", str(tmp_path / "nothing"))
    assert isinstance(result.exception, AccordError)
    assert "has kept nothing" in str(result.exception)
    assert not (tmp_path / "nothing").exists()
