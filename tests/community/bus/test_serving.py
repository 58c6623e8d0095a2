"""Offers, handlers, routes of one's own, several communities, and what anyone may ask."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette

from accord.community.bus import AdmittedRequest, Call, public_routes
from accord.community.client import LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.rules import Level, wire
from accord.kernel.signing import SigningKey

OTHER = SigningKey.from_seed(b"o" * 32)


async def test_a_handler_that_fails_tells_its_caller_nothing_of_the_inside(stage: Any) -> None:
    async def fail(_call: Call) -> dict[str, Any]:
        raise KeyError("the password is swordfish")

    stage.offer(stage.capability("fail"), fail)
    answer = await stage.call("experimental.fail")
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
    assert "swordfish" not in answer.text
    assert stage.bus.registry.in_hand == 0


@pytest.mark.parametrize("made", [{"output": 1}, [], None, "text", {"output": {"x": float("inf")}}])
async def test_a_handler_that_breaks_its_own_schema_is_an_internal_error(
    stage: Any, made: Any
) -> None:
    async def wrong(_call: Call) -> Any:
        return made

    schema = {"type": "object", "properties": {"output": {"type": "object"}}}
    stage.offer(stage.capability("wrong", response_schema=schema), wrong)
    answer = await stage.call("experimental.wrong")
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")


async def test_a_handler_that_takes_too_long_is_cancelled(stage: Any) -> None:
    calls: list[Call] = []
    ended = asyncio.Event()

    async def slow(call: Call) -> dict[str, Any]:
        calls.append(call)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    stage.offer(stage.capability("slow"), slow, seconds=0.01)
    answer = await stage.call("experimental.slow")
    assert (answer.status_code, answer.json()["error"]) == (408, "timeout")
    assert ended.is_set()
    assert calls[0].gone.is_set()


async def test_a_capability_serves_only_so_many_at_once(stage: Any) -> None:
    may_end, started = asyncio.Event(), asyncio.Semaphore(0)

    async def wait(_call: Call) -> dict[str, Any]:
        started.release()
        await may_end.wait()
        return {}

    stage.offer(stage.capability("wait"), wait, max_concurrent=2)
    waiting = [asyncio.create_task(stage.call("experimental.wait")) for _ in range(2)]
    for _ in waiting:
        await started.acquire()
    refused = await stage.call("experimental.wait")
    assert (refused.status_code, refused.json()["error"]) == (429, "capacity_exceeded")
    assert refused.json()["retry_after_ms"] > 0
    may_end.set()
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]
    assert (await stage.call("experimental.wait")).status_code == 200


@pytest.mark.parametrize("name", ["ocr.read", "tts.say", "federation.peer", "weather.now", "x"])
async def test_names_that_belong_to_nobody_cannot_be_offered(stage: Any, name: str) -> None:
    descriptor = replace(stage.capability("x"), name=name)
    with pytest.raises(CommunityError) as error:
        stage.bus.registry.register(descriptor, lambda _call: None)
    assert error.value.code is Code.BAD_REQUEST


async def test_a_capability_is_offered_once_and_listed_for_the_manifest(stage: Any) -> None:
    descriptor = stage.capability("echo", version="1.1")
    stage.offer(descriptor, params={"model": "small"}, max_concurrent=3)
    with pytest.raises(CommunityError):
        stage.offer(descriptor)
    with pytest.raises(CommunityError) as error:
        stage.bus.registry.deregister("experimental.echo@9.9")
    assert error.value.code is Code.NOT_FOUND
    listed = stage.bus.registry.listings()
    assert [each["version"] for each in listed] == ["1.0", "1.1"]
    assert listed[1] == {
        "name": "experimental.echo",
        "version": "1.1",
        "stability": "experimental",
        "schema_hash": descriptor.schema_hash,
        "params": {"model": "small"},
        "max_concurrent": 3,
    }


async def test_a_node_serves_several_communities_and_keeps_them_apart(stage: Any) -> None:
    other = replace(stage.village, community_id=OTHER.id, levels={stage.stranger.id: Level.MEMBER})
    stage.bus.join(other)
    there = {"community": OTHER.id}
    assert (await stage.call(key=stage.stranger, **there)).status_code == 200
    assert stage.served[-1].community == OTHER.id
    assert (await stage.call(key=stage.member, **there)).status_code == 401
    assert (await stage.call(key=stage.stranger)).status_code == 401
    assert (await stage.call(key=stage.member)).status_code == 200
    stage.bus.leave(OTHER.id)
    assert (await stage.call(key=stage.stranger, **there)).status_code == 404


async def test_a_plane_may_have_signed_routes_of_its_own(stage: Any) -> None:
    async def heads(guest: AdmittedRequest) -> dict[str, Any]:
        return {"asked by": guest.request.caller, "level": guest.level.text}

    async def mirror(guest: AdmittedRequest) -> bytes:
        return bytes(reversed(guest.body))

    async def greet(guest: AdmittedRequest) -> dict[str, Any]:
        return {"level": guest.level.text}

    stage.app.routes.extend(
        [
            stage.bus.signed_route("/sync/v1/heads", heads),
            stage.bus.signed_route("/sync/v1/bytes", mirror, methods=["POST"], opaque=True),
            stage.bus.signed_route("/sync/v1/join", greet, strangers=True),
        ]
    )
    async with stage.client() as client:
        told = await client.get("/sync/v1/heads", {"since": 3})
        assert told == {"asked by": stage.member.id, "level": "member"}
        assert await client.post_bytes("/sync/v1/bytes", b"\x00\x01\xff") == b"\xff\x01\x00"
    async with stage.client(stage.stranger) as client:
        with pytest.raises(CommunityError) as error:
            await client.get("/sync/v1/heads")
        assert error.value.code is Code.UNAUTHORIZED
        assert await client.get("/sync/v1/join") == {"level": "unknown"}


async def test_figures_count_answers_and_refusals_without_names_that_callers_choose(
    stage: Any,
) -> None:
    await stage.call()
    await stage.call("experimental.made_up")
    registry = CollectorRegistry()
    registry.register(stage.bus.metrics)
    lines = generate_latest(registry).decode().splitlines()
    assert 'accord_bus_answers_total{capability="experimental.echo"} 1.0' in lines
    refusal = 'accord_bus_refusals_total{check="capability",code="not_found"} 1.0'
    assert refusal in lines
    assert not any("made_up" in line for line in lines)


async def test_anyone_may_ask_for_the_nodes_manifest_and_health() -> None:
    manifests = {None: {"version": 1}, OTHER.id: {"version": 2}}
    is_ready = False
    routes = public_routes(
        manifest=manifests.get,
        is_ready=lambda: is_ready,
    )
    transport = LocalTransport(Starlette(routes=list(routes)))
    async with httpx.AsyncClient(base_url="http://node", transport=transport) as http:
        assert (await http.get("/manifest")).json() == {"version": 1}
        other = await http.get("/manifest", headers={wire.COMMUNITY: OTHER.id})
        assert other.json() == {"version": 2}
        unknown = await http.get("/manifest", headers={wire.COMMUNITY: "nobody"})
        assert (unknown.status_code, unknown.json()["error"]) == (404, "not_found")
        assert (await http.get("/health")).json() == {"status": "ok"}
        assert (await http.get("/ready")).status_code == 503
        is_ready = True
        assert (await http.get("/ready")).json() == {"ready": True}
        for path in ("/community/manifest", "/metrics"):
            assert (await http.get(path)).status_code == 404
