"""Each check of a call refuses with its code, in its order, signed, and nothing is done."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accord.community.bus import CHECKS, BusSettings
from accord.community.errors import Code
from accord.community.rules import SCHEMA_HASH, wire
from accord.kernel import canonical
from accord.kernel.clock import format_time

BODY: dict[str, Any] = {"params": {}, "input": {"say": "hello"}}


async def test_a_call_that_passes_every_check_is_served_and_its_answer_is_signed(
    stage: Any,
) -> None:
    answer = await stage.call(body=BODY)
    assert answer.status_code == 200
    assert answer.json()["output"] == {"say": "hello"}
    (call,) = stage.served
    assert (call.caller, call.level.text, call.community) == (
        stage.member.id,
        "member",
        stage.community,
    )


def test_the_table_names_each_check_once_and_only_codes_of_the_protocol() -> None:
    assert [check.name for check in CHECKS] == [
        "size",
        "address_rate",
        "headers",
        "signature",
        "freshness",
        "membership",
        "replay",
        "trust",
        "schema",
        "caller_rate",
        "capability",
    ]
    assert all(check.codes for check in CHECKS)


def test_the_documentation_shows_the_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "concepts" / "bus.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    expected = [
        f"| `{check.name}` | {check.asks} | "
        + ", ".join(f"`{code.value}`" for code in Code if code in check.codes)
        + " |"
        for check in CHECKS
    ]
    assert rows[: len(expected)] == expected


async def test_a_body_that_is_too_long_is_refused_by_its_declared_size(open_stage: Any) -> None:
    async with open_stage(BusSettings(max_body=1000)) as stage:
        answer = await stage.call(body={"params": {}, "input": {"say": "x" * 1000}})
        stage.refused(answer, "size", Code.BAD_REQUEST)
        assert answer.headers["connection"] == "close"


async def test_an_address_that_sends_too_often_is_refused_before_anything_is_read(
    open_stage: Any,
) -> None:
    async with open_stage(BusSettings()) as stage:
        for _ in range(1000):
            await stage.send(None, b"", address="203.0.113.5")
        before = len(stage.bus.metrics.refusals)
        answer = await stage.call(address="203.0.113.5")
        assert (answer.status_code, answer.json()["error"]) == (429, "rate_limited")
        assert answer.json()["retry_after_ms"] >= 1
        assert len(stage.bus.metrics.refusals) == before + 1
        assert (await stage.call(address="203.0.113.6")).status_code == 200
        stage.clock.advance(0.01)
        assert (await stage.call(address="203.0.113.5")).status_code == 200


Change = Callable[[Any, dict[str, str]], dict[str, str]]
CHANGED: dict[str, Change] = {
    "another capability": lambda stage, _: {wire.CAPABILITY: "experimental.other"},
    "another version": lambda stage, _: {wire.VERSION: "1.1"},
    "another id": lambda stage, _: {wire.REQUEST_ID: stage.ids.new()},
    "another caller": lambda stage, _: {wire.FROM: stage.anchor.id},
    "another community": lambda stage, _: {wire.COMMUNITY: stage.member.id},
    "another time": lambda stage, _: {wire.TIMESTAMP: format_time(stage.clock.now() + 1)},
    "another signature": lambda stage, _: {wire.SIGNATURE: stage.sign({}).headers[wire.SIGNATURE]},
}


@pytest.mark.parametrize("what", CHANGED)
async def test_whatever_is_changed_breaks_the_signature(stage: Any, what: str) -> None:
    named = stage.sign(BODY).headers
    named |= CHANGED[what](stage, named)
    answer = await stage.send(None, canonical.encode(BODY), headers=named)
    stage.refused(answer, "signature", Code.INVALID_SIGNATURE)


async def test_another_body_breaks_the_signature(stage: Any) -> None:
    request = stage.sign(BODY)
    answer = await stage.send(None, b'{"params":{},"input":{}}', headers=request.headers)
    stage.refused(answer, "signature", Code.INVALID_SIGNATURE)


async def test_a_call_to_another_node_is_refused(stage: Any) -> None:
    answer = await stage.call(to=stage.anchor.id)
    stage.refused(answer, "signature", Code.INVALID_SIGNATURE)


async def test_a_recipient_that_is_stripped_breaks_the_signature(stage: Any) -> None:
    named = stage.sign(BODY, to=stage.node.id).headers
    del named[wire.TO]
    answer = await stage.send(None, canonical.encode(BODY), headers=named)
    stage.refused(answer, "signature", Code.INVALID_SIGNATURE)


async def test_a_caller_that_knows_only_the_specification_may_leave_out_the_recipient(
    stage: Any,
) -> None:
    assert (await stage.call(to=None)).status_code == 200


async def test_a_caller_that_declared_it_may_not_leave_out_the_recipient(stage: Any) -> None:
    stage.village.naming.add(stage.member.id)
    stage.refused(await stage.call(to=None), "signature", Code.INVALID_SIGNATURE)


async def test_a_node_may_require_the_recipient_of_everybody(open_stage: Any) -> None:
    async with open_stage(BusSettings(require_to=True)) as stage:
        stage.refused(await stage.call(to=None), "signature", Code.INVALID_SIGNATURE)


@pytest.mark.parametrize("seconds", [-3600, -61, 61, 3600])
async def test_a_clock_that_is_off_is_refused(stage: Any, seconds: int) -> None:
    answer = await stage.call(timestamp=format_time(stage.clock.now() + seconds))
    stage.refused(answer, "freshness", Code.EXPIRED)


@pytest.mark.parametrize("seconds", [-60, 60])
async def test_a_clock_that_is_off_by_a_minute_is_borne(stage: Any, seconds: int) -> None:
    answer = await stage.call(timestamp=format_time(stage.clock.now() + seconds))
    assert answer.status_code == 200


async def test_a_community_that_the_node_is_not_in_is_not_found(stage: Any) -> None:
    stage.refused(await stage.call(community=stage.anchor.id), "membership", Code.NOT_FOUND)


async def test_a_stranger_is_refused(stage: Any) -> None:
    answer = await stage.call(key=stage.stranger)
    stage.refused(answer, "membership", Code.UNAUTHORIZED)


async def test_a_revoked_member_is_refused_whatever_else_the_log_says_of_it(stage: Any) -> None:
    stage.village.levels[stage.revoked.id] = stage.village.levels[stage.anchor.id]
    answer = await stage.call(key=stage.revoked)
    stage.refused(answer, "membership", Code.REVOKED)


async def test_a_member_that_is_revoked_between_two_calls_is_refused(stage: Any) -> None:
    assert (await stage.call()).status_code == 200
    stage.village.revoked.add(stage.member.id)
    assert (await stage.call()).status_code == 403


async def test_a_caller_that_is_not_trusted_enough_is_refused(stage: Any) -> None:
    stage.offer(stage.capability("grave", trust="trusted"))
    answer = await stage.call("experimental.grave")
    stage.refused(answer, "trust", Code.UNAUTHORIZED)
    assert (await stage.call("experimental.grave", key=stage.trusted)).status_code == 200
    assert (await stage.call("experimental.grave", key=stage.anchor)).status_code == 200


async def test_another_major_version_is_a_mismatch_that_names_what_there_is(stage: Any) -> None:
    stage.offer(stage.capability("echo", version="1.2"))
    answer = await stage.call(version="2.0")
    body = stage.refused(answer, "schema", Code.SCHEMA_MISMATCH)
    assert body["alt_capabilities"] == ["experimental.echo@1.0", "experimental.echo@1.2"]
    assert body["schema_hash_expected"] == stage.capability("echo", version="1.2").schema_hash


async def test_a_caller_gets_the_newest_version_that_serves_it(stage: Any) -> None:
    for version in ("1.2", "1.10", "2.0"):
        stage.offer(stage.capability("echo", version=version))
    for version in ("1.0", "1.3"):
        assert (await stage.call(version=version)).status_code == 200
        assert stage.served[-1].capability == "experimental.echo@1.10"
    assert (await stage.call(version="1.11")).json()["error"] == "schema_mismatch"


async def test_a_caller_with_other_schemas_is_told_which_are_expected(stage: Any) -> None:
    expected = stage.capability("echo").schema_hash
    answer = await stage.call(headers={SCHEMA_HASH: "blake3:" + "0" * 64})
    body = stage.refused(answer, "schema", Code.SCHEMA_MISMATCH)
    assert body["schema_hash_expected"] == expected
    assert (await stage.call(headers={SCHEMA_HASH: expected})).status_code == 200


WRONG: list[Any] = [
    {},
    {"params": {}},
    {"params": [], "input": {"n": 1}},
    {"params": {}, "input": {"n": "1"}},
    {"params": {}, "input": {"n": 1.5}},
    {"params": {}, "input": {"n": None}},
    {"params": {}, "input": {"n": 1, "more": 1}},
]


@pytest.mark.parametrize("body", WRONG)
async def test_a_body_that_breaks_the_schema_is_refused(stage: Any, body: Any) -> None:
    strict = {
        "type": "object",
        "required": ["params", "input"],
        "properties": {
            "params": {"type": "object"},
            "input": {
                "type": "object",
                "required": ["n"],
                "properties": {"n": {"type": "integer"}},
                "additionalProperties": False,
            },
        },
    }
    stage.offer(stage.capability("strict", request_schema=strict))
    answer = await stage.call("experimental.strict", body)
    stage.refused(answer, "schema", Code.BAD_REQUEST)


async def test_a_caller_that_calls_too_often_is_refused_and_told_when_to_come_back(
    open_stage: Any,
) -> None:
    async with open_stage(BusSettings()) as stage:
        for _ in range(10):
            assert (await stage.call()).status_code == 200
        stage.served.clear()
        answer = await stage.call()
        body = stage.refused(answer, "caller_rate", Code.RATE_LIMITED)
        assert (await stage.call(key=stage.trusted)).status_code == 200
        stage.clock.advance(body["retry_after_ms"] / 1000)
        assert (await stage.call()).status_code == 200


async def test_the_nodes_own_clients_on_this_machine_are_not_limited(open_stage: Any) -> None:
    async with open_stage(BusSettings()) as stage:
        for _ in range(30):
            answer = await stage.call(key=stage.node, address="127.0.0.1")
            assert answer.status_code == 200
        away = [await stage.call(key=stage.node, address="198.51.100.7") for _ in range(11)]
        assert away[-1].status_code == 429


async def test_a_capability_that_is_not_offered_is_not_found(stage: Any) -> None:
    answer = await stage.call("experimental.nothing")
    stage.refused(answer, "capability", Code.NOT_FOUND)


async def test_a_capability_that_is_offered_no_more_is_not_found(stage: Any) -> None:
    stage.bus.registry.deregister("experimental.echo@1.0")
    stage.refused(await stage.call(), "capability", Code.NOT_FOUND)


async def test_a_request_that_fails_every_check_is_refused_by_the_first(open_stage: Any) -> None:
    """What is wrong is mended check by check, and each time the next one refuses."""
    settings = BusSettings(max_body=2000)
    async with open_stage(settings) as stage:
        stage.offer(stage.capability("grave", trust="trusted"), max_concurrent=0)
        for _ in range(1000):
            await stage.send(None, b"", address="203.0.113.5")
        for _ in range(10):
            await stage.call("experimental.grave", key=stage.trusted, address="127.0.0.1")
        old = format_time(stage.clock.now() - 3600)
        long = {"params": {}, "input": {"x": "x" * 2000}}
        bad: dict[str, Any] = {"key": stage.stranger, "timestamp": old, "to": stage.anchor.id}
        bad |= {"name": "experimental.grave", "version": "9.0", "address": "203.0.113.5"}
        seen = [await stage.call(body=long, **bad)]
        seen.append(await stage.call(**bad))
        bad["address"] = "203.0.113.9"
        request = stage.sign(BODY, **{key: bad[key] for key in ("key", "timestamp", "to")})
        seen.append(await stage.send(None, b"[]", headers=request.headers))
        seen.append(await stage.call(**bad))
        bad["to"] = stage.node.id
        seen.append(await stage.call(**bad))
        del bad["timestamp"]
        seen.append(await stage.call(**bad))
        bad["key"] = stage.member
        used = stage.ids.new()
        await stage.call(request_id=used)
        seen.append(await stage.call(request_id=used, **bad))
        seen.append(await stage.call(**bad))
        bad["key"] = stage.trusted
        seen.append(await stage.call(**bad))
        bad["version"] = "1.0"
        seen.append(await stage.call(**bad))
        stage.clock.advance(1)
        seen.append(await stage.call(**bad))
        assert [answer.json()["error"] for answer in seen] == [
            "bad_request",
            "rate_limited",
            "bad_request",
            "invalid_signature",
            "expired",
            "unauthorized",
            "bad_request",
            "unauthorized",
            "schema_mismatch",
            "rate_limited",
            "capacity_exceeded",
        ]
