"""A service of the fabric asks the community, by the rules of both."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.town import Town, asker, town, until

from accord.authority.rules import PlanState
from accord.bridge.calls import ask_service
from accord.fabric import Client, RemoteError, UnauthorizedError, ValidationError
from accord.kernel.identifiers import Trace
from accord.telemetry import tracing

CONTRACT = "accord.community@v1"
CHAT = "Community.Llm.Chat"
POSTS = "Community.Market.List"
HELLO = {
    "params": {"model": "echo"},
    "input": {"messages": [{"role": "user", "content": "Good morning"}], "stream": True},
}
ANY_POSTS: dict[str, Any] = {"params": {}, "input": {}}


@pytest.fixture
async def built(tmp_path: Path) -> AsyncIterator[Town]:
    async with town(tmp_path) as built:
        yield built


async def client_of(built: Town, *rpcs: str) -> Client:
    contract = await built.find(CONTRACT)
    assert contract is not None
    session = await built.session(asker(*rpcs), "askers")
    return session.client(contract)


async def test_a_service_gets_the_answer_of_a_capability_and_is_not_taken_for_the_owner(
    built: Town,
) -> None:
    await built.open_bridge()
    await built.crossing("outward")
    client = await client_of(built, CHAT, POSTS)
    answer = await client.call(CHAT, HELLO)
    assert answer["output"]["message"]["content"] == "Good morning"
    assert (await client.call(POSTS, ANY_POSTS))["output"]["posts"] == []
    (call,) = built.asked
    assert (call.caller, call.own) == (built.node.key.id, False)


async def test_what_the_contract_does_not_allow_never_reaches_the_bus(built: Town) -> None:
    await built.open_bridge()
    await built.crossing("outward")
    client = await client_of(built, POSTS)
    with pytest.raises(UnauthorizedError):
        await client.call(CHAT, HELLO)
    with pytest.raises(ValidationError):
        await client.call(POSTS, {"params": {}, "input": {"limit": 0}})
    assert built.asked == []
    assert await built.told("bridge", "bridge.calls", 0) == []


async def test_the_community_s_limits_hold_for_services_and_its_code_comes_back(
    built: Town,
) -> None:
    await built.open_bridge()
    await built.crossing("outward")
    client = await client_of(built, POSTS)
    answers = await asyncio.gather(
        *(client.call(POSTS, ANY_POSTS) for _ in range(60)), return_exceptions=True
    )
    refused = [each for each in answers if isinstance(each, RemoteError)]
    assert refused
    assert {each.type for each in refused} == {"CommunityError"}
    said = refused[0].members()
    assert (said["code"], said["retryable"]) == ("rate_limited", True)
    assert said["details"]["retry_after_ms"] > 0


async def test_nothing_is_offered_until_somebody_accepts_the_plan(built: Town) -> None:
    bridge = await built.open_bridge(accept=False)
    await until(lambda: "accept" in bridge.directions[0].reason)
    assert await built.find(CONTRACT) is None
    await built.asked_for_admission()
    (plan,) = await built.house.authority.plans.all("bridge", PlanState.PENDING)
    assert plan.id in bridge.directions[0].reason
    await built.house.authority.plans.accept(plan.id, "operator")
    await built.crossing("outward")
    assert (await (await client_of(built, POSTS)).call(POSTS, ANY_POSTS))["output"]["posts"] == []


async def test_a_call_is_in_both_journals_by_one_id_and_one_trace(built: Town) -> None:
    await built.open_bridge()
    await built.crossing("outward")
    client = await client_of(built, CHAT)
    place = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    with tracing.incoming_span("somebody's work", place):
        await client.call(CHAT, HELLO)
    asked, answered = await built.told("bridge", "contracts.calls", 2)
    (heard,) = await built.told_by_bus("llm.chat")
    (crossed,) = await built.told("bridge", "bridge.calls")
    assert asked["request_id"] == answered["request_id"] == heard["request_id"]
    assert "payload" not in asked.keys() | answered.keys()
    traces = {each["trace_id"] for each in (asked, answered, heard, crossed)}
    assert traces == {"0af7651916cd43dd8448eb211c80319c"}
    assert crossed["bus_request_id"] == crossed["fabric_request_id"] == heard["request_id"]
    assert (crossed["direction"], crossed["caller"]) == ("outward", "askers")
    assert (crossed["outcome"], crossed["error"]) == ("ok", None)


async def test_an_id_that_the_bus_cannot_have_gets_another_one_and_both_are_told(
    built: Town,
) -> None:
    await built.open_bridge()
    await built.crossing("outward")
    client = await client_of(built, POSTS)
    rpc = client.terms.rpc[POSTS]
    await ask_service(client.link, rpc, ANY_POSTS, request_id="any~text", within=10)
    asked, _ = await built.told("bridge", "contracts.calls", 2)
    (heard,) = await built.told_by_bus("market.list")
    (crossed,) = await built.told("bridge", "bridge.calls")
    assert asked["request_id"] == crossed["fabric_request_id"] == "any~text"
    assert heard["request_id"] == crossed["bus_request_id"]
