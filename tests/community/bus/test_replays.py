"""A request is done once: over duplicates, restarts and crashes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from hypothesis import given
from hypothesis import strategies as st

from accord.community.bus import BUS_STORE, MAX_KEPT_ANSWER, BusSettings, Call
from accord.community.errors import CommunityError
from accord.community.rules import REPLAY_SECONDS, ReplayGuard
from accord.kernel import canonical
from accord.storage import StoreError, check, open_store

BODY: dict[str, Any] = {"params": {}, "input": {"say": "hello"}}
RAW = canonical.encode(BODY)


async def test_the_revisions_build_the_tables_that_are_declared(
    tmp_path: Path, postgres_url: str
) -> None:
    def differences(connection: sa.Connection) -> list[Any]:
        options = {"include_schemas": False}
        context = MigrationContext.configure(connection, opts=options)
        found: list[Any] = compare_metadata(context, BUS_STORE.metadata)
        return found

    for where in (str(tmp_path), postgres_url):
        async with open_store(where, BUS_STORE) as store:
            assert await store.read(differences) == []


async def test_a_request_that_comes_twice_is_refused_and_done_once(stage: Any) -> None:
    request = stage.sign(BODY)
    assert (await stage.send(request, RAW)).status_code == 200
    again = await stage.send(request, RAW)
    assert (again.status_code, again.json()["error"]) == (400, "bad_request")
    assert len(stage.served) == 1


async def test_two_callers_may_choose_the_same_id(stage: Any) -> None:
    name = stage.ids.new()
    assert (await stage.call(request_id=name)).status_code == 200
    assert (await stage.call(request_id=name, key=stage.trusted)).status_code == 200


async def test_a_replay_is_refused_after_a_restart(open_stage: Any) -> None:
    async with open_stage() as stage:
        request = stage.sign(BODY)
        assert (await stage.send(request, RAW)).status_code == 200
    async with open_stage() as stage:
        assert (await stage.send(request, RAW)).json()["error"] == "bad_request"
        assert stage.served == []


async def test_a_replay_is_refused_on_postgresql_after_a_restart(
    open_stage: Any, postgres_url: str
) -> None:
    async with open_stage(where=postgres_url) as stage:
        request = stage.sign(BODY)
        assert (await stage.send(request, RAW)).status_code == 200
    async with open_stage(where=postgres_url) as stage:
        assert (await stage.send(request, RAW)).json()["error"] == "bad_request"


async def test_a_request_is_on_disk_before_its_handler_begins(
    open_stage: Any, tmp_path: Path
) -> None:
    kept: list[int] = []

    async with open_stage() as stage:

        async def look(_call: Call) -> dict[str, Any]:
            count = sa.text("SELECT count(*) FROM requests")
            kept.append(await stage.store.read(lambda c: c.execute(count).scalar_one()))
            return {}

        stage.offer(stage.capability("look"), look)
        await stage.call("experimental.look")
    assert kept == [1]


async def test_what_was_refused_after_the_replay_check_cannot_be_replayed(
    open_stage: Any,
) -> None:
    async with open_stage() as stage:
        stage.offer(stage.capability("grave", trust="trusted"))
        request = stage.sign(BODY, "experimental.grave")
        assert (await stage.send(request, RAW)).json()["error"] == "unauthorized"
    async with open_stage() as stage:
        stage.offer(stage.capability("grave", trust="member"))
        assert (await stage.send(request, RAW)).json()["error"] == "bad_request"
        assert stage.served == []


async def test_an_idempotent_request_gets_the_very_same_answer_again(stage: Any) -> None:
    stage.offer(stage.capability("again", idempotent=True))
    request = stage.sign(BODY, "experimental.again")
    first = await stage.send(request, RAW)
    stage.clock.advance(30)
    second = await stage.send(request, RAW)
    assert len(stage.served) == 1
    assert (first.content, first.headers.raw) == (second.content, second.headers.raw)


async def test_asking_for_an_answer_again_counts_as_a_call(open_stage: Any) -> None:
    async with open_stage(BusSettings()) as stage:
        stage.offer(stage.capability("again", idempotent=True))
        request = stage.sign(BODY, "experimental.again")
        statuses = [(await stage.send(request, RAW)).status_code for _ in range(11)]
        assert statuses == [200] * 10 + [429]


async def test_an_idempotent_answer_is_kept_over_a_restart(open_stage: Any) -> None:
    async with open_stage() as stage:
        stage.offer(stage.capability("again", idempotent=True))
        request = stage.sign(BODY, "experimental.again")
        first = await stage.send(request, RAW)
    async with open_stage() as stage:
        stage.offer(stage.capability("again", idempotent=True))
        second = await stage.send(request, RAW)
        assert stage.served == []
    assert (first.content, first.headers.raw) == (second.content, second.headers.raw)


async def test_another_body_under_the_id_of_an_idempotent_request_is_refused(stage: Any) -> None:
    stage.offer(stage.capability("again", idempotent=True))
    name = stage.ids.new()
    assert (await stage.call("experimental.again", BODY, request_id=name)).status_code == 200
    other = await stage.call("experimental.again", request_id=name)
    assert (other.status_code, other.json()["error"]) == (400, "bad_request")


async def test_duplicates_of_an_idempotent_request_wait_for_one_answer(stage: Any) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    turns = 0

    async def slow(_call: Call) -> dict[str, Any]:
        nonlocal turns
        turns += 1
        started.set()
        await may_end.wait()
        return {"turn": turns}

    stage.offer(stage.capability("slow", idempotent=True), slow)
    request = stage.sign(BODY, "experimental.slow")
    sending = [asyncio.create_task(stage.send(request, RAW)) for _ in range(5)]
    await started.wait()
    may_end.set()
    answers = await asyncio.gather(*sending)
    assert [answer.json() for answer in answers] == [{"turn": 1}] * 5


async def test_an_idempotent_request_that_failed_is_done_again(open_stage: Any) -> None:
    async with open_stage() as stage:
        fails = True

        async def moody(_call: Call) -> dict[str, Any]:
            if fails:
                raise ValueError("not today")
            return {"mood": "good"}

        stage.offer(stage.capability("moody", idempotent=True), moody)
        request = stage.sign(BODY, "experimental.moody")
        assert (await stage.send(request, RAW)).json()["error"] == "internal_error"
        fails = False
        first = await stage.send(request, RAW)
        assert first.json() == {"mood": "good"}
        fails = True
        assert (await stage.send(request, RAW)).json() == {"mood": "good"}
    async with open_stage() as stage:
        stage.offer(stage.capability("moody", idempotent=True))
        assert (await stage.send(request, RAW)).content == first.content


async def test_an_answer_too_long_to_keep_is_made_again(stage: Any) -> None:
    turns = 0

    async def long(_call: Call) -> dict[str, Any]:
        nonlocal turns
        turns += 1
        return {"text": "x" * MAX_KEPT_ANSWER}

    stage.offer(stage.capability("long", idempotent=True), long)
    request = stage.sign(BODY, "experimental.long")
    answers = [await stage.send(request, RAW) for _ in range(2)]
    assert turns == 2
    assert answers[0].content == answers[1].content


async def test_ids_are_forgotten_after_ten_minutes_in_memory_and_on_disk(stage: Any) -> None:
    for _ in range(20):
        await stage.call()
    stage.clock.advance(REPLAY_SECONDS + 1)
    await stage.call()
    await stage.call()
    assert len(stage.ledger.replay) == 2
    count = sa.text("SELECT count(*) FROM requests")
    assert await stage.store.read(lambda c: c.execute(count).scalar_one()) == 2


async def test_the_journal_tells_who_called_what_and_nothing_of_what_was_said(
    stage: Any, tmp_path: Path
) -> None:
    await stage.call(body={"params": {}, "input": {"say": "a secret"}})
    await stage.call("experimental.nothing")
    good, bad = await stage.journal()
    assert good == {
        "request_id": good["request_id"],
        "trace_id": good["trace_id"],
        "community": stage.community,
        "caller": stage.member.id,
        "capability": "experimental.echo",
        "version": "1.0",
        "status": 200,
        "code": None,
        "check": None,
        "ms": 0,
        "request_bytes": good["request_bytes"],
        "response_bytes": good["response_bytes"],
        "request_digest": good["request_digest"],
        "response_digest": good["response_digest"],
    }
    assert good["request_digest"].startswith("blake3:")
    assert good["response_digest"].startswith("blake3:")
    assert (bad["status"], bad["code"], bad["check"]) == (404, "not_found", "capability")
    assert "a secret" not in str(good)


async def test_what_strangers_and_floods_send_is_not_written_down(open_stage: Any) -> None:
    async with open_stage(BusSettings()) as stage:
        for _ in range(5):
            await stage.call(key=stage.stranger)
        for _ in range(15):
            await stage.call()
        assert len(await stage.journal()) == 10


async def test_concurrent_calls_share_commits(stage: Any) -> None:
    commits = 0
    write = stage.store.write

    async def counted(work: Any) -> Any:
        nonlocal commits
        commits += 1
        return await write(work)

    stage.store.write = counted
    answers = await asyncio.gather(*(stage.call() for _ in range(64)))
    assert {answer.status_code for answer in answers} <= {200, 429}
    assert commits <= 20


async def test_a_disk_that_fails_refuses_calls_and_runs_no_handler(stage: Any) -> None:
    write = stage.store.write

    async def full(_work: Any) -> Any:
        raise StoreError("the disk is full")

    stage.store.write = full
    answer = await stage.call()
    assert (answer.status_code, answer.json()["error"]) == (429, "capacity_exceeded")
    assert "disk" not in answer.text
    assert stage.served == []
    stage.store.write = write
    assert (await stage.call()).status_code == 200


async def test_the_store_passes_its_check(open_stage: Any, tmp_path: Path) -> None:
    async with open_stage() as stage:
        stage.offer(stage.capability("again", idempotent=True))
        for name in ("experimental.echo", "experimental.again", "experimental.nothing"):
            await stage.call(name)
    report = check(tmp_path / "stores", BUS_STORE)
    assert not report.findings


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.integers(0, 400)), max_size=60))
def test_an_id_is_new_once_in_ten_minutes(events: list[tuple[int, bool, int]]) -> None:
    replay = ReplayGuard()
    now, seen = 0.0, dict[int, float]()
    for name, idempotent, pause in events:
        now += pause
        known = name in seen and now - seen[name] <= REPLAY_SECONDS
        try:
            claim, is_new = replay.claim("a", str(name), "digest", now, idempotent=idempotent)
        except CommunityError:
            assert (known, idempotent) == (True, False)
            continue
        assert is_new is not known
        seen[name] = claim.seen_at
        assert len(replay) <= len(seen)


def test_when_more_come_than_can_be_remembered_the_newest_are_refused() -> None:
    replay = ReplayGuard(most=10)
    for number in range(10):
        replay.claim("a", str(number), "", 0.0, idempotent=False)
    with pytest.raises(CommunityError, match="can be remembered"):
        replay.claim("a", "10", "", 0.0, idempotent=False)
    replay.claim("a", "10", "", 131.0, idempotent=False)
    assert len(replay) == 1
