"""A log as a file, and the proof of a whole log."""

import asyncio
import io
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, update

from accord.community import retention
from accord.community.errors import Code, CommunityError
from accord.community.log import export_log, import_log
from accord.community.queries import LogAudit, verify_log
from accord.community.rules import Event, state_bytes
from accord.community.store import events, snapshots
from accord.kernel.signing import SigningKey

POST = "market.post.created"


async def filled(town: Any, log: Any, post_data: Callable[..., Any], count: int = 30) -> None:
    await town.found(log)
    for number in range(count):
        await log.append(POST, post_data(f"p{number}", body="grüß dich \u2028"))
    await log.receive([event.encode() for event in town.chain(SigningKey(b"x" * 32), None, 3)])


async def test_an_exported_log_is_imported_whole_and_twice_changes_nothing(
    town: Any, where: str, post_data: Callable[..., Any]
) -> None:
    seen: list[int] = []
    async with town.log(where=where) as log:
        await filled(town, log, post_data)
        file = io.BytesIO()
        assert await export_log(log, file, progress=seen.append) == 34
        state = await log.view(state_bytes)
    assert seen[-1] == 34
    lines = file.getvalue().splitlines()
    header = {"community_id": town.id, "format": "accord.community.log.v1"}
    assert json.loads(lines[0]) == header
    assert [json.loads(line)["lamport"] for line in lines[1:]] == sorted(
        json.loads(line)["lamport"] for line in lines[1:]
    )
    async with town.log(SigningKey(b"y" * 32)) as other:
        for accepted, duplicates in ((34, 0), (0, 34)):
            file.seek(0)
            done = await import_log(other, file, progress=seen.append)
            assert (done.accepted, done.duplicates, done.rejected) == (accepted, duplicates, 0)
        assert await other.view(state_bytes) == state


async def test_bad_lines_are_named_and_the_rest_is_taken(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await filled(town, log, post_data, 3)
        file = io.BytesIO()
        await export_log(log, file)
    lines = file.getvalue().splitlines()
    lines[2] = lines[2].replace(b"Ladder", b"Lender")
    lines.insert(4, b"x" * 2_000_000)
    lines.append(b"")
    async with town.log(SigningKey(b"y" * 32)) as other:
        done = await import_log(other, io.BytesIO(b"\n".join(lines) + b"\n"))
    assert (done.accepted, done.rejected) == (6, 3)
    assert [(line.number, line.code) for line in done.lines] == [
        (3, Code.INVALID_SIGNATURE),
        (5, Code.BAD_REQUEST),
        (10, Code.BAD_REQUEST),
    ]


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not json", '{"format":"other"}'])
async def test_what_is_no_log_is_not_imported(text: str, town: Any) -> None:
    async with town.log() as log:
        with pytest.raises(CommunityError, match="not an exported log") as error:
            await import_log(log, io.BytesIO(text.encode()))
        assert error.value.code is Code.BAD_REQUEST


async def test_the_log_of_another_community_is_not_imported(town: Any) -> None:
    header = {"community_id": SigningKey(b"z" * 32).id, "format": "accord.community.log.v1"}
    async with town.log() as log:
        with pytest.raises(CommunityError, match="another community"):
            await import_log(log, io.BytesIO(json.dumps(header).encode()))


def rules(audit: LogAudit) -> set[str]:
    return {finding.rule for finding in audit.findings}


async def test_a_sound_log_is_found_sound(
    town: Any, where: str, post_data: Callable[..., Any]
) -> None:
    async with town.log(where=where) as log:
        await filled(town, log, post_data)
        await retention.take_snapshot(log, 20)
        audit = await verify_log(log)
        assert audit.ok, audit.findings
        assert (audit.events, audit.stubs) == (34, 0)


async def test_a_log_that_many_use_at_once_is_sound_while_they_do(
    town: Any, post_data: Callable[..., Any]
) -> None:
    chance = random.Random(4)
    guests = [SigningKey(f"guest {n}".encode().ljust(32, b".")) for n in range(4)]
    async with town.log() as log:
        await town.found(log)
        brought: list[Event] = []
        for guest in guests:
            _, joined = await town.admit(log, guest)
            brought += town.chain(guest, joined, 30, name=guest.id[-6:])
        chance.shuffle(brought)

        async def look() -> list[LogAudit]:
            return [await verify_log(log) for _ in range(4)]

        async def bring(part: list[Event]) -> None:
            for event in part:
                await log.receive([event.encode()])

        async def say() -> None:
            for number in range(30):
                await log.append(POST, post_data(f"own {number}"))

        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(look())
            tasks.create_task(say())
            for start in range(3):
                tasks.create_task(bring(brought[start::3]))
        audits = looking.result()
        audits.append(await verify_log(log))
    assert [audit.findings for audit in audits] == [()] * 5
    assert audits[-1].events == 1 + 2 * len(guests) + len(brought) + 30


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        ({"status": "void", "rule": "floor"}, "log.verdict"),
        ({"author_seq": 7}, "log.column"),
        ({"body": "{}"}, "log.bad_request"),
        ({"body": "not json"}, "log.bad_request"),
    ],
)
async def test_damage_is_found_and_told(
    damage: dict[str, Any], rule: str, town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await filled(town, log, post_data, 5)
        third = update(events).where(events.c.lamport == 3).values(**damage)
        await log.store.write(lambda c: c.execute(third).close())
        assert rule in rules(await verify_log(log))


async def test_a_changed_body_or_signature_or_snapshot_is_found(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await filled(town, log, post_data, 5)
        await retention.take_snapshot(log, 4)
        body = select(events.c.body).where(events.c.author_seq == 3)
        text = await log.store.read(lambda c: c.execute(body).first()[0])
        changed = update(events).where(events.c.body == text)
        forged = changed.values(body=text.replace("Ladder", "Lender"))
        await log.store.write(lambda c: c.execute(forged).close())
        assert "log.invalid_signature" in rules(await verify_log(log))
        back = update(events).where(events.c.body == text.replace("Ladder", "Lender"))
        await log.store.write(lambda c: c.execute(back.values(body=text)).close())
        assert (await verify_log(log)).ok
        wrong = update(snapshots).values(signature="ed25519:" + "A" * 86)
        await log.store.write(lambda c: c.execute(wrong).close())
        assert rules(await verify_log(log)) == {"log.snapshot"}
