"""A service from its bootstrap to its end, and an app that calls it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import Response
from tests.fabric.fabric_authority import Miniature, miniature
from tests.fabric.fabric_network import connected, graph

from accord.contracts.authoring import Contract
from accord.fabric import (
    App,
    Authority,
    BootstrapError,
    FabricError,
    NotFoundError,
    Received,
    Request,
    Service,
    UnauthorizedError,
    UnavailableError,
)
from accord.fabric.requests import REVOKED_SUBJECT
from accord.fabric.service import HEARTBEAT_SUBJECT
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.testing.servers import Server as Process

BLOCKED = {"status": "blocked", "code": "authority_update_required", "retryAfterMs": 1}


@pytest.fixture
async def authority(nats: Process) -> AsyncIterator[Miniature]:
    async with miniature(nats.url) as authority:
        yield authority


def service(authority: Miniature, **more: Any) -> Service:
    made = Service(
        graph(), partial=True, key=SigningKey.generate(), authority=authority.url, **more
    )

    @made.rpc("User.Find")
    async def find(_request: Request, payload: Any) -> Any:
        return payload

    return made


def app(authority: Miniature, key: SigningKey | None = None) -> App:
    key = key or SigningKey.generate()
    authority.sessions.admit(key)
    return App(graph(), key=key, authority=authority.url)


async def test_an_app_calls_a_service(authority: Miniature) -> None:
    async with service(authority).connect(), app(authority).connect() as session:
        client = session.client(graph())
        assert await client.call("User.Find", {"id": "7"}) == {"id": "7"}
        with pytest.raises(NotFoundError, match=r"no 'User\.Lose'"):
            await client.call("User.Lose", {})


async def test_a_service_that_could_not_tell_who_calls_does_not_start(
    authority: Miniature,
) -> None:
    contract = Contract("clock@v1", display_name="Clock", description="Tells the time.")
    contract.schema("Any", True)
    contract.rpc("Clock.Now", "Any", "Any")
    made = Service(contract, key=SigningKey.generate(), authority=authority.url)

    @made.rpc("Clock.Now")
    async def now(_request: Request, _payload: Any) -> Any:
        return 0

    with pytest.raises(FabricError, match=r"contract\.serves_callers\(\)"):
        async with made.connect():
            pass
    assert authority.asked == []


async def test_the_manifest_is_sent_only_where_it_is_asked_for(authority: Miniature) -> None:
    async with service(authority).connect():
        pass
    async with service(authority).connect():
        pass
    assert ["manifest" in asked for asked in authority.asked] == [False, True, False]


async def test_a_service_waits_until_what_blocks_it_is_gone(authority: Miniature) -> None:
    authority.script = [
        (409, BLOCKED),
        (503, Response(b"<html>bad gateway</html>", 502)),
        (409, BLOCKED | {"code": "authority_reconciliation_pending"}),
        (200, [1, 2]),
    ]
    async with service(authority).connect() as session:
        assert session.link.bound.deployment == "graphs"
    assert len(authority.asked) == 6


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"status": "refused", "code": "contract_changed", "message": "m"}, "contract_changed"),
        ({"status": "ready"}, "bad_answer"),
        ({"status": "ready", "transports": {"nats": {"urls": []}}}, "bad_answer"),
        ({}, "refused"),
    ],
)
async def test_a_refusal_ends_the_waiting(authority: Miniature, answer: Any, code: str) -> None:
    authority.script = [(409, answer)]
    with pytest.raises(BootstrapError) as caught:
        async with service(authority).connect():
            pass
    assert caught.value.code == code


async def test_patience_has_an_end(authority: Miniature) -> None:
    authority.script = [(409, BLOCKED | {"retryAfterMs": 50})] * 100
    made = Service(
        graph(),
        partial=True,
        key=SigningKey.generate(),
        authority=Authority(authority.url, patience=0.2),
    )
    with pytest.raises(BootstrapError, match="authority_update_required"):
        async with made.connect():
            pass


async def test_an_authority_that_is_not_there_is_waited_for(nats: Process) -> None:
    made = Service(
        graph(),
        partial=True,
        key=SigningKey.generate(),
        authority=Authority("http://127.0.0.1:1", patience=0.3),
    )
    with pytest.raises(BootstrapError, match="cannot be reached") as caught:
        async with made.connect():
            pass
    assert caught.value.code == "unreachable"


@pytest.mark.parametrize(
    "url", ["", "nats://", "nats://:x", "http://127.0.0.1", "nats://127.0.0.1:1"]
)
async def test_a_nats_that_cannot_be_reached_is_an_error(authority: Miniature, url: str) -> None:
    authority.nats_url = url
    made = Service(
        graph(),
        partial=True,
        key=SigningKey.generate(),
        authority=Authority(authority.url, patience=0.1),
    )
    with pytest.raises(UnavailableError, match="cannot connect to NATS"):
        async with made.connect():
            pass


async def test_a_revoked_session_is_refused_within_a_moment(
    authority: Miniature, nats: Process
) -> None:
    async with (
        service(authority).connect(),
        app(authority).connect() as session,
        connected(nats.url) as connection,
    ):
        client = session.client(graph())
        await client.call("User.Find", {"id": "7"})
        authority.sessions.known.clear()
        word = {"sessionKey": session.key, "revokedBy": "an operator", "at": 1.0}
        await connection.publish(REVOKED_SUBJECT, canonical.encode(word))
        await connection.flush()
        with pytest.raises(UnauthorizedError, match="does not exist"):
            await client.call("User.Find", {"id": "7"})


async def test_a_service_says_that_it_is_there(authority: Miniature, nats: Process) -> None:
    async with connected(nats.url) as connection:
        heard = await connection.subscribe(HEARTBEAT_SUBJECT)
        await connection.flush()
        made = service(authority)
        async with made.connect() as session:
            beat = canonical.decode((await heard.next_msg(5)).data)
    assert beat["sessionKey"] == session.key
    assert (beat["contractId"], beat["contractDigest"]) == ("graph@v1", made.terms.digest)


async def test_a_group_without_a_consumer_keeps_the_service_from_starting(
    authority: Miniature,
) -> None:
    made = service(authority)

    @made.events("changes")
    async def take(_event: Received) -> None: ...

    with pytest.raises(NotFoundError, match="no consumer is bound"):
        async with made.connect():
            pass


def test_a_handler_for_what_the_contract_lacks_is_refused() -> None:
    made = Service(graph(), partial=True, key=SigningKey.generate(), authority="http://127.0.0.1:1")
    for bind in (made.rpc, made.feed, made.events, made.operation):
        with pytest.raises(NotFoundError, match="has no 'Nothing'"):
            bind("Nothing")


async def test_a_feed_is_read_to_its_end(authority: Miniature) -> None:
    made = service(authority)
    released = asyncio.Event()

    @made.feed("User.Watch")
    async def watch(_request: Request, payload: Any) -> AsyncIterator[Any]:
        yield payload
        await released.wait()
        yield {"id": "2"}

    async with made.connect(), app(authority).connect() as session:
        seen = []
        async for value in session.client(graph()).feed("User.Watch", {"id": "1"}):
            seen.append(value)
            released.set()
    assert seen == [{"id": "1"}, {"id": "2"}]


async def test_a_surface_without_a_handler_keeps_the_service_from_starting() -> None:
    contract = Contract("shop@v1", display_name="Shop", description="Sells things.")
    contract.schema("Any", True)
    contract.rpc("Shop.Find", "Any", "Any")
    contract.rpc("Shop.Sell", "Any", "Any")
    contract.feed("Shop.Stock", "Any", "Any")
    contract.operation("Shop.Count", "Any", "Any")
    contract.job("pack", "Any", "Any")
    contract.event("Shop.Sold", "Any")
    contract.consumer("sold", own=["Shop.Sold"])
    contract.serves_callers()
    # Nobody listens there: it is refused before it asks anybody.
    where = Authority("http://127.0.0.1:1", patience=0)
    made = Service(contract, key=SigningKey.generate(), authority=where)

    @made.rpc("Shop.Find")
    async def find(_request: Request, payload: Any) -> Any:
        return payload

    with pytest.raises(FabricError, match="nothing handles") as caught:
        async with made.connect():
            pass
    for name in ("RPC Shop.Sell", "feed Shop.Stock", "operation Shop.Count", "job pack", "sold"):
        assert name in caught.value.what
    assert "Shop.Find" not in caught.value.what
