"""Whom a node speaks to, and whose orders it takes."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.peers import announced
from accord.station import listener

POST = "market.post.created"
REVOKED = "community.member.revoked"


async def two(street: Any) -> tuple[Any, Any, str]:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    return alice, bob, community


async def test_a_stale_manifest_reaches_nobody(street: Any) -> None:
    alice, bob, community = await two(street)
    manifest = bob.node.presence.manifest(bob.in_(community))
    replaying = Starlette(routes=[Route("/manifest", lambda _: JSONResponse(dict(manifest)))])
    street.clock.advance(31)
    with pytest.raises(CommunityError) as refused:
        await dial_app(street, alice, replaying, community)
    assert refused.value.code is Code.EXPIRED


async def dial_app(street: Any, house: Any, app: Starlette, community: str) -> Any:
    """Dial an application on a socket of its own, as a node would."""
    with (
        listener.bind("127.0.0.1", 0) as listening,
        announced(listening.getsockname()[1]),
    ):
        server = listener.Listener(app)
        serving = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        try:
            return await house.node.dialler.dial(
                listener.address(listening), community, street.opened
            )
        finally:
            server.should_exit = True
            await serving


async def test_nodes_meet_by_tls_and_pin_what_the_manifest_names(street: Any) -> None:
    alice, bob = await street.house("alice", tls=True), await street.house("bob", tls=True)
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    await bob.post(community)
    (met,) = (await alice.node.sync(community))["met"]
    assert met["received"] == 1
    assert await alice.state(community) == await bob.state(community)


async def test_a_certificate_that_the_manifest_does_not_name_is_not_spoken_to(street: Any) -> None:
    alice = await street.house("alice")
    bob = await street.house("bob", tls=True, named=False)
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    before = await alice.state(community)
    (met,) = (await alice.node.sync(community))["met"]
    assert met["error"] == "invalid_signature"
    assert "certificate" in met["message"]
    assert await alice.state(community) == before


async def test_another_machine_is_not_dialled_without_tls(street: Any) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    street.opened.enter_context(announced(1))
    for address, code in (
        ("http://192.168.0.7:7080", Code.BAD_REQUEST),
        ("ftp://127.0.0.1:1", Code.BAD_REQUEST),
        ("http://127.0.0.1", Code.BAD_REQUEST),
        ("http://[::1", Code.BAD_REQUEST),
        ("http://127.0.0.1:1", Code.PARTITION),
        ("https://127.0.0.1:1", Code.PARTITION),
    ):
        with pytest.raises(CommunityError) as refused:
            await alice.node.dialler.dial(address, community, street.opened)
        assert refused.value.code is code, address


async def test_only_the_owner_on_its_own_machine_controls_a_node(street: Any) -> None:
    alice, bob, community = await two(street)
    async with bob.client(community, alice) as client:
        with pytest.raises(CommunityError, match="owner") as refused:
            await client.get("/node/v1/status")
    assert refused.value.code is Code.UNAUTHORIZED
    transport = LocalTransport(alice.node.application(), address="198.51.100.7")
    async with Client(
        "http://node", alice.key, community, alice.id, transport=transport, clock=street.clock
    ) as client:
        with pytest.raises(CommunityError, match="owner"):
            await client.post("/node/v1/found", {"name": "Elsewhere"})
    assert len(alice.node.communities) == 1


async def test_what_an_owner_asks_badly_is_refused_and_changes_nothing(street: Any) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    before = await alice.state(community)
    asked: list[tuple[str, Any]] = [
        ("found", {}),
        ("found", {"name": 7}),
        ("found", {"name": ""}),
        ("found", {"name": "x", "policy": []}),
        ("found", {"name": "x", "policy": {"wings": 2}}),
        ("join", {"link": ""}),
        ("act", {"event_type": "nothing.known", "data": {}}),
        ("act", {"event_type": POST}),
        ("act", {"event_type": POST, "data": {"title": 1}}),
        ("chain", {}),
        ("chain", {"node_id": alice.id, "seq": -1}),
        ("chain", {"node_id": alice.id, "seq": True}),
        ("log", {}),
        ("log", {"limit": 10**6}),
        ("log", {"limit": 1, "author": "alice"}),
        ("event", {}),
        ("event", {"name": "blake3:"}),
        ("work", {}),
        ("work", {"kind": "dance"}),
        ("work", {"kind": "export", "path": "relative"}),
        ("work", {"kind": "export", "path": "/nowhere/at/all"}),
        ("work", {"kind": "import", "path": "/nowhere/at/all"}),
    ]
    async with alice.client(community, alice) as client:
        for name, body in asked:
            with pytest.raises(CommunityError) as refused:
                await client.post(f"/node/v1/{name}", body)
            assert refused.value.code is Code.BAD_REQUEST, (name, body)
        with pytest.raises(CommunityError) as refused:
            await client.post("/node/v1/chain", {"node_id": alice.id, "seq": 99})
        assert refused.value.code is Code.NOT_FOUND
    async with alice.client(alice.id, alice) as client:
        for name, body in (("act", {"event_type": POST}), ("work", {"kind": "verify"})):
            with pytest.raises(CommunityError) as refused:
                await client.post(f"/node/v1/{name}", body)
            assert refused.value.code is Code.NOT_FOUND
    assert await alice.state(community) == before
    assert len(alice.node.communities) == 1


async def test_the_public_routes_tell_no_more_than_manifests(street: Any) -> None:
    alice = await street.house("alice")
    async with httpx.AsyncClient(base_url=alice.url, trust_env=False) as http:
        assert (await http.get("/manifest")).status_code == 404
        await street.found(alice)
        assert (await http.get("/manifest")).json()["node_id"] == alice.id
        other = {"X-HearthNet-Community": alice.id}
        assert (await http.get("/manifest", headers=other)).status_code == 404
