"""`trellis.auth@v1` and `trellis.core@v1` over a real server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.authority.services_cases import TERMS, House, house, notes
from tests.fabric.fabric_network import connected

from accord.authority.contracts import builtins
from accord.authority.nats import ConnectionChange
from accord.authority.rules import SessionHolder
from accord.authority.services import connection_announcer
from accord.contracts import digest, validate
from accord.fabric import NotFoundError, UnauthorizedError
from accord.kernel.clock import SystemClock
from accord.testing.servers import Server, nats_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with nats_server(jetstream=True) as running:
        yield running


@pytest.fixture
async def home(server: Server, tmp_path: Path) -> AsyncIterator[House]:
    async with house(server.url, tmp_path) as opened:
        yield opened


def test_the_built_in_contracts_are_valid_and_always_the_same() -> None:
    assert [*builtins()] == [
        "trellis.core@v1",
        "trellis.auth@v1",
        "trellis.state@v1",
        "trellis.health@v1",
        "trellis.jobs@v1",
    ]
    for identity, manifest in builtins().items():
        assert manifest["id"] == identity
        assert not validate(manifest)


def test_what_baseline_uses_select_is_there() -> None:
    assert {"Auth.Sessions.Me", "Auth.Sessions.Logout"} <= TERMS["trellis.auth@v1"].rpc.keys()
    assert {"State.Get", "State.Put", "State.Delete", "State.List"} == TERMS[
        "trellis.state@v1"
    ].rpc.keys()
    assert "Health.Heartbeat" in TERMS["trellis.health@v1"].events


async def test_the_catalog_and_contracts_are_for_those_who_may_read_them(home: House) -> None:
    nobody = await home.session()
    with pytest.raises(UnauthorizedError, match=r"trellis\.core::catalog\.read"):
        await nobody("Trellis.Catalog")
    reader = await home.session(
        capabilities=("trellis.core::catalog.read", "trellis.core::contract.read")
    )
    catalog = (await reader("Trellis.Catalog"))["catalog"]
    assert catalog["format"] == "trellis.catalog.v1"
    assert {entry["id"] for entry in catalog["contracts"]} == {*builtins()}
    entry = next(each for each in catalog["contracts"] if each["id"] == "trellis.core@v1")
    found = await reader("Trellis.Contract.Get", digest=entry["digest"])
    assert digest(found["contract"]) == entry["digest"]
    own = digest(notes().manifest())
    assert (await reader("Trellis.Contract.Get", digest=own))["contract"]["id"] == "notes@v1"
    with pytest.raises(NotFoundError):
        await reader("Trellis.Contract.Get", digest="x" * 43)


async def test_anybody_may_ask_how_a_surface_stands_for_them(home: House) -> None:
    ann = await home.session()
    known = {"contractId": "trellis.state@v1", "kind": "rpc", "surface": "State.Get"}
    assert await ann("Trellis.Surface.Status", **known) == {
        "status": "available",
        "liveImplementer": True,
        "runtime": "live",
    }
    unknown = await ann("Trellis.Surface.Status", **{**known, "surface": "State.Got"})
    assert unknown["status"] == "unknown_surface"
    nowhere = await ann("Trellis.Surface.Status", **{**known, "contractId": "nobody@v1"})
    assert nowhere["status"] == "unknown_contract"


async def test_a_session_learns_who_it_is(home: House) -> None:
    ann = await home.session(capabilities=("b", "a"))
    me = await ann("Auth.Sessions.Me")
    assert me["sessionKey"] == ann.key
    assert (me["holder"], me["subject"], me["contractId"]) == ("person", "ann", "notes@v1")
    assert me["capabilities"] == ["a", "b"]
    assert "expiresAt" not in me


async def test_services_resolve_their_callers_and_people_do_not(home: House) -> None:
    ann = await home.session(capabilities=("a",), expires_at=4e9)
    service = await home.session("shop", holder=SessionHolder.SERVICE)
    assert await service("Auth.Sessions.Resolve", sessionKey=ann.key) == {
        "holder": "person",
        "subject": "ann",
        "contractId": "notes@v1",
        "digest": digest(notes().manifest()),
        "capabilities": ["a"],
        "expiresAt": 4e9,
    }
    with pytest.raises(NotFoundError):
        await service("Auth.Sessions.Resolve", sessionKey="x" * 43)
    with pytest.raises(UnauthorizedError, match="only a service or a device"):
        await ann("Auth.Sessions.Resolve", sessionKey=service.key)


async def test_a_session_that_logs_out_is_over_and_everybody_hears_of_it(
    home: House, server: Server
) -> None:
    ann, service = await home.session(), await home.session("shop", holder=SessionHolder.SERVICE)
    async with connected(server.url) as listener:
        heard = await listener.subscribe("events.v1.Auth.Sessions.Revoked")
        await listener.flush()
        assert await ann("Auth.Sessions.Logout") == {"done": True}
        told = await heard.next_msg(10)
    body = orjson.loads(told.data)
    assert (body["sessionKey"], body["revokedBy"]) == (ann.key, ann.key)
    with pytest.raises(UnauthorizedError, match="has ended"):
        await ann("Auth.Sessions.Me")
    with pytest.raises(NotFoundError):
        await service("Auth.Sessions.Resolve", sessionKey=ann.key)


async def test_a_revocation_from_elsewhere_is_told_once(home: House, server: Server) -> None:
    ann = await home.session()
    async with connected(server.url) as listener:
        heard = await listener.subscribe("events.v1.Auth.Sessions.Revoked")
        await listener.flush()
        await home.authority.sessions.revoke(ann.key, "operator")
        assert orjson.loads((await heard.next_msg(10)).data)["revokedBy"] == "operator"
        await home.authority.sessions.revoke(ann.key, "operator")
        other = await home.session()
        await home.authority.sessions.revoke(other.key, "operator")
        assert orjson.loads((await heard.next_msg(10)).data)["sessionKey"] == other.key


async def test_a_session_that_expired_may_nothing(home: House) -> None:
    ann = await home.session(expires_at=1.0)
    with pytest.raises(UnauthorizedError):
        await ann("Auth.Sessions.Me")


async def test_sessions_are_listed_and_ended_by_those_who_may(home: House) -> None:
    admin = await home.session(
        "root", capabilities=("trellis.auth::sessions.read", "trellis.auth::sessions.revoke")
    )
    people = [await home.session(f"p{number}") for number in range(4)]
    await home.session("gone", expires_at=1.0)
    seen: list[Any] = []
    after: dict[str, Any] = {}
    while True:
        page = await admin("Auth.Sessions.List", limit=2, **after)
        seen += [entry["sessionKey"] for entry in page["sessions"]]
        if "next" not in page:
            break
        after = {"after": page["next"]}
    assert seen == sorted([admin.key, *(each.key for each in people)])
    only = await admin("Auth.Sessions.List", subject="p1")
    assert [entry["subject"] for entry in only["sessions"]] == ["p1"]
    assert await admin("Auth.Sessions.Revoke", sessionKey=people[0].key) == {"done": True}
    with pytest.raises(NotFoundError):
        await admin("Auth.Sessions.Revoke", sessionKey=people[0].key)
    with pytest.raises(UnauthorizedError):
        await people[1]("Auth.Sessions.Revoke", sessionKey=admin.key)


async def test_connections_are_listed_and_ended_by_those_who_may(home: House) -> None:
    admin = await home.session(
        capabilities=("trellis.auth::connections.read", "trellis.auth::connections.kick")
    )
    people = [await home.session(f"p{number}") for number in range(3)]
    for number, each in enumerate(people):
        home.present.add(each.key, 2 * number)
        home.present.add(each.key, 2 * number + 1)
    home.present.add("x" * 43, 99)  # of a session that nobody knows any more
    seen: list[Any] = []
    after: dict[str, Any] = {}
    while True:
        page = await admin("Auth.Connections.List", limit=2, **after)
        seen += [(entry["sessionKey"], entry["clientId"]) for entry in page["connections"]]
        if "next" not in page:
            break
        after = {"after": page["next"]}
    assert seen == sorted(
        (each.key, 2 * number + more) for number, each in enumerate(people) for more in (0, 1)
    )
    only = await admin("Auth.Connections.List", subject="p1")
    assert {entry["subject"] for entry in only["connections"]} == {"p1"}
    assert await admin("Auth.Connections.Kick", sessionKey=people[0].key) == {"done": True}
    assert await admin("Auth.Connections.Kick", sessionKey=admin.key) == {"done": False}
    assert home.present.kicked[0] == (people[0].key, admin.key)
    with pytest.raises(UnauthorizedError):
        await people[0]("Auth.Connections.Kick", sessionKey=admin.key)


async def test_two_authorities_tell_of_a_connection_once(home: House, server: Server) -> None:
    ann = await home.session()
    home.present.add(ann.key, 7)
    (connection,) = home.present.all()
    async with connected(server.url) as one, connected(server.url) as other:
        before = (await one.jetstream().stream_info("trellis")).state.messages
        heard = await one.subscribe("events.v1.Auth.Connections.*")
        clock = SystemClock()
        await asyncio.gather(
            *(
                connection_announcer(each, home.authority, clock)(
                    ConnectionChange.KICKED, connection, "operator"
                )
                for each in (one, other)
            )
        )
        body = orjson.loads((await heard.next_msg(10)).data)
        assert (body["sessionKey"], body["by"]) == (ann.key, "operator")
        assert (await one.jetstream().stream_info("trellis")).state.messages == before + 1
