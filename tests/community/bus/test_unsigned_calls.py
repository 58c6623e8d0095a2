"""Calls that nobody signed: refused, unless the operator takes them, and then as a stranger's."""

from typing import Any

import httpx
import pytest

from accord.community.bus import BusSettings, UnsignedCalls
from accord.community.client import LocalTransport

FLAT = {"capability": "experimental.echo", "version": "1.0", "params": {}, "input": {"say": "hi"}}
LOOPBACK = BusSettings(legacy=UnsignedCalls.LOOPBACK)


async def send(app: Any, body: Any, *, address: str = "127.0.0.1", **headers: str) -> Any:
    transport = LocalTransport(app, address=address)
    async with httpx.AsyncClient(base_url="http://node", transport=transport) as http:
        return await http.post("/bus/v1/call", json=body, headers=headers)


async def test_an_unsigned_call_is_refused_by_default(open_stage: Any) -> None:
    async with open_stage() as stage:
        answer = await send(stage.app, FLAT)
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
        assert not stage.served


async def test_on_loopback_it_is_taken_as_a_plain_members_whom_nobody_knows(
    open_stage: Any,
) -> None:
    async with open_stage(settings=LOOPBACK) as stage:
        answer = await send(stage.app, FLAT)
        assert answer.status_code == 200
        (call,) = stage.served
        assert call.level.text == "member"
        assert call.caller not in stage.village.levels
        assert not call.own


async def test_another_machine_must_sign_all_the_same(open_stage: Any) -> None:
    async with open_stage(settings=LOOPBACK) as stage:
        answer = await send(stage.app, FLAT, address="192.0.2.7")
        assert (answer.status_code, answer.json()["error"]) == (401, "invalid_signature")


async def test_whoever_comes_through_a_proxy_on_this_machine_must_sign_too(open_stage: Any) -> None:
    async with open_stage(settings=LOOPBACK) as stage:
        for header in ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"):
            answer = await send(stage.app, FLAT, **{header: "192.0.2.7"})
            assert (answer.status_code, answer.json()["error"]) == (401, "invalid_signature")
        assert not stage.served


@pytest.mark.parametrize("legacy", [UnsignedCalls.LOOPBACK, UnsignedCalls.ANYWHERE])
async def test_no_page_in_a_browser_can_call_unsigned(
    open_stage: Any, legacy: UnsignedCalls
) -> None:
    async with open_stage(settings=BusSettings(legacy=legacy)) as stage:
        for name, value in (("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")):
            answer = await send(stage.app, FLAT, **{name: value})
            assert (answer.status_code, answer.json()["error"]) == (401, "invalid_signature")
        assert not stage.served


async def test_a_call_with_some_of_the_headers_is_not_an_unsigned_one(open_stage: Any) -> None:
    async with open_stage(settings=LOOPBACK) as stage:
        answer = await send(stage.app, FLAT, **{"X-HearthNet-Capability": "experimental.echo"})
        assert answer.status_code == 400
        assert not stage.served


@pytest.mark.parametrize(
    "body",
    [
        [],
        "call",
        {"capability": 1},
        {"capability": "Nope"},
        {**FLAT, "version": 1},
        {**FLAT, "x": 1},
    ],
)
async def test_what_is_no_call_is_a_bad_request(open_stage: Any, body: Any) -> None:
    async with open_stage(settings=LOOPBACK) as stage:
        answer = await send(stage.app, body)
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


async def test_it_reaches_nothing_that_needs_more_than_a_member(open_stage: Any) -> None:
    async with open_stage(settings=LOOPBACK) as stage:

        async def secret(_call: Any) -> dict[str, Any]:
            return {"output": {}}

        stage.offer(stage.capability("secret", trust="trusted"), secret)
        answer = await send(stage.app, {**FLAT, "capability": "experimental.secret"})
        assert (answer.status_code, answer.json()["error"]) == (401, "unauthorized")
