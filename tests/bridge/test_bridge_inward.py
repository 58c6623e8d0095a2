"""A member of the community calls a service, by the rules of both."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.town import SHOP, Town, town, until

from accord.community.errors import Code, CommunityError
from accord.fabric import RemoteError, Request
from accord.kernel.identifiers import Trace
from accord.kernel.signing import SigningKey
from accord.telemetry import tracing

SERVICES = ("shop@v1/Shop.Find",)
LADDER = {"id": "ladder"}


@pytest.fixture
async def built(tmp_path: Path) -> AsyncIterator[Town]:
    async with town(tmp_path) as built:
        yield built


class Shop:
    """Answers with what it was asked, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def __call__(self, request: Request, payload: Any) -> Any:
        self.asked.append(request)
        if payload["id"] == "gone":
            raise RemoteError("SoldOut", "there is none left", {"reason": "all sold"})
        return payload


async def refused(built: Town, given: dict[str, Any], key: SigningKey | None = None) -> Any:
    async with built.member(key) as client:
        with pytest.raises(CommunityError) as caught:
            await client.call(SHOP, {}, given)
    return caught.value


async def test_a_member_s_call_is_answered_and_in_both_journals_by_one_id_and_one_trace(
    built: Town,
) -> None:
    shop = Shop()
    await built.sell(shop)
    await built.open_bridge(services=SERVICES)
    await built.crossing("inward")
    async with built.member() as client:
        answers = await asyncio.gather(*(client.call(SHOP, {}, LADDER) for _ in range(3)))
    assert [answer["output"] for answer in answers] == [LADDER] * 3
    knows = {(request.who.subject, request.who.contract_id) for request in shop.asked}
    assert knows == {("bridge", "accord.bridge@v1")}
    heard = await built.told_by_bus(SHOP, 3)
    told = await built.told("shops", "contracts.calls", 6)
    crossed = await built.told("bridge", "bridge.calls", 3)
    ids = {each["request_id"] for each in heard}
    assert ids == {each["request_id"] for each in told}
    assert ids == {each["bus_request_id"] for each in crossed}
    assert len(ids) == 3
    traces = {each["trace_id"] for each in heard}
    assert len(traces) == 3
    assert traces == {each["trace_id"] for each in (*crossed, *told)}
    assert traces == {request.trace.id for request in shop.asked}
    assert traces == {answer["meta"]["trace_id"] for answer in answers}


async def test_a_trace_that_a_member_names_is_in_both_journals(built: Town) -> None:
    await built.sell(Shop())
    await built.open_bridge(services=SERVICES)
    await built.crossing("inward")
    trace = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    async with built.member() as client:
        with tracing.incoming_span("a member's work", trace):
            await client.call(SHOP, {}, LADDER)
    (heard,) = await built.told_by_bus(SHOP)
    asked, answered = await built.told("shops", "contracts.calls", 2)
    (crossed,) = await built.told("bridge", "bridge.calls")
    assert {each["trace_id"] for each in (heard, asked, answered, crossed)} == {trace.id}


async def test_no_service_is_a_capability_unless_it_was_chosen(built: Town) -> None:
    await built.sell(Shop())
    await built.open_bridge()
    await built.crossing("outward")
    assert (await refused(built, LADDER)).code is Code.NOT_FOUND


async def test_whom_the_bus_refuses_no_service_hears_of(built: Town) -> None:
    shop = Shop()
    await built.sell(shop)
    await built.open_bridge(services=SERVICES, level="trusted")
    await built.crossing("inward")
    stranger = SigningKey.from_seed(b"stranger".ljust(32, b"."))
    assert (await refused(built, LADDER, stranger)).code is Code.UNAUTHORIZED
    assert (await refused(built, LADDER)).code is Code.UNAUTHORIZED
    anchor = built.node.key
    assert (await refused(built, {"id": 5}, anchor)).code is Code.BAD_REQUEST
    assert shop.asked == []


async def test_an_error_of_a_service_keeps_its_type_and_its_members(built: Town) -> None:
    await built.sell(Shop())
    await built.open_bridge(services=SERVICES)
    await built.crossing("inward")
    error = await refused(built, {"id": "gone"})
    assert error.code is Code.BAD_REQUEST
    said = error.details["service_error"]
    assert (said["type"], said["reason"]) == ("SoldOut", "all sold")
    (crossed,) = await built.told("bridge", "bridge.calls")
    assert (crossed["outcome"], crossed["error"]) == ("error", "SoldOut")


async def test_what_the_authority_takes_back_from_the_bridge_members_cannot_call(
    built: Town,
) -> None:
    shop = Shop()
    await built.sell(shop)
    bridge = await built.open_bridge(services=SERVICES)
    await built.crossing("inward", "outward")
    async with built.member() as client:
        await client.call(SHOP, {}, LADDER)
    await built.house.authority.deployments.narrow("bridge", capabilities=["shop::buy"])

    async def is_refused() -> bool:
        async with built.member() as client:
            try:
                await client.call(SHOP, {}, LADDER)
            except CommunityError as error:
                return error.code in (Code.UNAUTHORIZED, Code.PARTITION)
        return False

    await until(is_refused)
    assert "outward" in {way.name for way in bridge.directions if way.is_open}


async def test_a_service_that_is_gone_is_said_to_be(built: Town) -> None:
    opened = await built.sell(Shop())
    await built.open_bridge(services=SERVICES)
    await built.crossing("inward")
    await opened.aclose()
    error = await refused(built, LADDER)
    assert error.code is Code.PARTITION
    assert error.details["service_error"]["type"] == "UnavailableError"


async def test_a_service_that_is_missing_keeps_nothing_else_from_crossing(built: Town) -> None:
    bridge = await built.open_bridge(services=SERVICES)
    await built.crossing("outward")
    assert [way.name for way in bridge.directions if not way.is_open] == ["inward"]
    await built.sell(Shop())
    await built.crossing("inward")
    async with built.member() as client:
        assert (await client.call(SHOP, {}, LADDER))["output"] == LADDER


async def test_what_came_over_the_bridge_does_not_go_back_over_it(built: Town) -> None:
    await built.open_bridge(services=SERVICES)
    await built.crossing("outward")
    contract = await built.find("accord.community@v1")
    assert contract is not None

    async def asking(_request: Request, payload: Any) -> Any:
        assert built.shop is not None
        client = built.shop.session.client(contract)
        await client.call("Community.Market.List", {"params": {}, "input": {}})
        return payload

    await built.sell(asking, "Community.Market.List")
    await built.crossing("inward")
    error = await refused(built, LADDER)
    assert error.code is Code.BAD_REQUEST
    said = error.details["service_error"]
    assert (said["type"], said["code"]) == ("CommunityError", "bad_request")
    assert "does not go back" in said["message"]
