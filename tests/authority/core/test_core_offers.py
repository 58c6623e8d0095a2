"""Offers over time, and the catalog, grants and statuses that follow from them."""

import asyncio
import dataclasses
import importlib.resources
from typing import Any

import pytest
from sqlalchemy import delete, update

from accord.authority.rules import AuthorityError, Code, SessionHolder, SessionRecord
from accord.authority.tables import contracts as contracts_table
from accord.authority.tables import offers as offers_table
from accord.contracts import digest
from accord.kernel import canonical
from accord.kernel.schema import compile_schema
from accord.storage import StoreError

READ = {"displayName": "Read", "description": "Read graphs."}


@pytest.fixture
def graph(contracts: Any) -> Any:
    return contracts.contract(
        "graph",
        capabilities={"graph::read": READ},
        rpc={**contracts.rpc("Graph.Get", "graph::read"), **contracts.rpc("Graph.Ping")},
    )


def listed(world: Any) -> set[str]:
    return {entry["id"] for entry in world.authority.catalog.projection.catalog["contracts"]}


async def test_heartbeats_keep_an_offer_and_create_none(world: Any, graph: Any) -> None:
    key = await world.deploy("graph", graph)
    for _ in range(10):
        world.clock.advance(10)
        assert await world.authority.offers.heartbeat(key, "graph@v1", digest(graph))
        assert await world.authority.offers.expire(world.clock.now()) == 0
    assert not await world.authority.offers.heartbeat(key, "graph@v1", "x" * 43)
    assert not await world.authority.offers.heartbeat(world.key(), "graph@v1", digest(graph))
    world.clock.advance(60)
    assert not await world.authority.offers.heartbeat(key, "graph@v1", digest(graph))
    assert await world.authority.offers.expire(world.clock.now()) == 1
    assert not await world.authority.offers.heartbeat(key, "graph@v1", digest(graph))
    assert await world.authority.offers.all() == []


async def test_an_offer_outlives_its_connection_by_the_grace_window(world: Any, graph: Any) -> None:
    key = await world.deploy("graph", graph)
    await world.authority.offers.disconnected(key)
    world.clock.advance(20)
    await world.authority.offers.disconnected(key)  # said twice, it begins once
    world.clock.advance(9)
    await world.authority.keep_up()
    assert "graph@v1" in listed(world)
    assert (await world.authority.sessions.grants(key, digest(graph))).ok
    world.clock.advance(1)
    assert not (await world.authority.sessions.grants(key, digest(graph))).ok
    await world.authority.keep_up()
    assert "graph@v1" not in listed(world)
    assert (await world.acts("graph"))[-1] == "expired"


async def test_a_connection_within_the_grace_window_brings_it_back(world: Any, graph: Any) -> None:
    key = await world.deploy("graph", graph)
    await world.authority.offers.disconnected(key)
    world.clock.advance(25)
    assert await world.authority.offers.connected(key, digest(graph))
    world.clock.advance(25)
    assert (await world.authority.sessions.grants(key, digest(graph))).ok


async def test_the_catalog_has_its_form_and_what_is_the_platforms(
    world: Any, graph: Any, builtins: Any
) -> None:
    assert listed(world) == {"trellis.core@v1"}
    await world.deploy("graph", graph)
    catalog = world.authority.catalog.projection.catalog
    assert [entry["id"] for entry in catalog["contracts"]] == ["graph@v1", "trellis.core@v1"]
    assert catalog["contracts"][0] == {
        "id": "graph@v1",
        "digest": digest(graph),
        "displayName": "Graph",
        "description": "The graph contract.",
    }
    data = importlib.resources.files("accord.contracts") / "data" / "trellis.catalog.v1.json"
    assert not compile_schema(canonical.decode(data.read_bytes())).findings(catalog)


async def test_a_damaged_manifest_leaves_the_catalog_until_it_is_presented_again(
    world: Any, graph: Any
) -> None:
    key = await world.deploy("graph", graph)
    before = await world.authority.offers.all(), await world.authority.deployments.get("graph")
    damaged = canonical.encode({**graph, "id": "other@v1"}).decode()
    spoil = update(contracts_table).values(manifest=damaged)
    await world.authority.store.write(lambda c: c.execute(spoil).rowcount)
    world.authority.manifests._recent._entries.clear()

    await world.authority.catalog.refresh()
    assert listed(world) == {"trellis.core@v1"}
    assert [issue.rule for issue in world.authority.catalog.projection.issues] == [
        "catalog.manifest-missing"
    ]
    assert (
        await world.authority.offers.all(),
        await world.authority.deployments.get("graph"),
    ) == before

    await world.bootstrap(key, graph)
    await world.authority.keep_up()
    assert "graph@v1" in listed(world)
    assert world.authority.catalog.projection.issues == ()


async def test_offers_that_do_not_stand_together_keep_what_was_there_and_raise_an_issue(
    world: Any, contracts: Any, graph: Any
) -> None:
    await world.deploy("graph", graph)
    other = contracts.contract("graph", rpc=contracts.rpc("Graph.Else"))
    key = await world.deployment("second")
    # A race let it in: as if it had been accepted when nothing else was there.
    await world.authority.deployments.set_disabled("graph", True)
    world.clock.advance(1)
    await world.deploy("second", other, key)
    await world.authority.deployments.set_disabled("graph", False)
    await world.authority.catalog.refresh()
    assert world.authority.catalog.projection.effective["graph@v1"].digests == (digest(graph),)
    assert [issue.rule for issue in world.authority.catalog.projection.issues] == [
        "catalog.incompatible-offers"
    ]


async def test_a_refresh_that_fails_leaves_the_catalog_as_it_was(
    world: Any, graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.deploy("graph", graph)
    before = world.authority.catalog.projection.catalog

    async def broken(_work: Any) -> Any:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(world.authority.revisions, "read", broken)
    with pytest.raises(StoreError):
        await world.authority.catalog.refresh()
    assert world.authority.catalog.projection.catalog is before


async def test_nobody_sees_half_a_catalog_while_it_is_made_anew(world: Any, contracts: Any) -> None:
    names = [f"svc{number}" for number in range(6)]
    manifests = {
        name: contracts.contract(name, rpc=contracts.rpc(f"{name.title()}.Get")) for name in names
    }
    for name in names:
        await world.deploy(name, manifests[name])
    whole = {f"{name}@v1" for name in names} | {"trellis.core@v1"}
    seen: list[set[str]] = []
    done = asyncio.Event()

    async def look() -> None:
        while not done.is_set():
            seen.append(listed(world))
            assert listed(world) == set(world.authority.catalog.projection.effective)
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    for _ in range(5):
        await asyncio.gather(*(world.authority.catalog.refresh() for _ in range(4)))
    await world.authority.deployments.set_disabled("svc0", True)
    await asyncio.gather(*(world.authority.catalog.refresh() for _ in range(4)))
    done.set()
    await looking
    assert {frozenset(each) for each in seen} <= {frozenset(whole), frozenset(whole - {"svc0@v1"})}
    assert seen[-1] == whole - {"svc0@v1"}


async def test_a_person_touches_what_their_contract_uses_and_their_capabilities_open(
    world: Any, contracts: Any, graph: Any
) -> None:
    graph_key = await world.deploy("graph", graph)
    page = contracts.contract(
        "page",
        "app",
        uses=contracts.uses("required", "graph", rpc={"call": ["Graph.Get", "Graph.Ping"]}),
    )
    await world.authority.manifests.present(canonical.encode(page), digest(page))
    key = world.key()
    now = world.clock.now()
    session = SessionRecord(
        key,
        SessionHolder.PERSON,
        "ada",
        "page@v1",
        digest(page),
        created_at=now,
        expires_at=now + 60,
    )
    assert not (await world.authority.sessions.grants(key, digest(page))).ok
    await world.authority.sessions.put(session)
    granted = await world.authority.sessions.grants(key, digest(page))
    assert set(granted.publish) == {"rpc.v1.Graph.Ping"}
    status = world.authority.sessions.surface_status
    answer = await status(key, "graph@v1", "rpc", "Graph.Get", "call")
    assert answer.to_dict() == {"status": "unauthorized", "missingCapabilities": ["graph::read"]}

    # Agreed to less than the contract asks for, it is let in once it has asked again.
    ping = frozenset({"graph@v1 rpc Graph.Ping call"})
    await world.authority.sessions.put(dataclasses.replace(session, surfaces=ping))
    (blocker,) = (await world.authority.sessions.grants(key, digest(page))).blockers
    assert blocker.rule == "consent_required"
    await world.authority.sessions.put(session)

    # While nothing of it is active, what was accepted elsewhere stands for it.
    await world.authority.deployments.set_instance_disabled(graph_key, True)
    assert (await world.authority.sessions.grants(key, digest(page))).ok
    await world.authority.deployments.set_disabled("graph", True)
    assert not (await world.authority.sessions.grants(key, digest(page))).ok
    await world.authority.deployments.set_disabled("graph", False)

    assert not (await world.authority.sessions.grants(key, "x" * 43)).ok
    world.clock.advance(60)
    assert not (await world.authority.sessions.grants(key, digest(page))).ok
    await world.authority.sessions.revoke(key, "ada")
    assert (await world.authority.sessions.grants(key, digest(page))).blockers[0].rule == "revoked"


async def test_a_key_is_one_session_and_no_instances_key_logs_in(world: Any, graph: Any) -> None:
    instance = await world.deploy("graph", graph)
    for key, subject in ((instance, "ada"), ("short", "ada")):
        with pytest.raises(AuthorityError):
            await world.authority.sessions.put(SessionRecord(key, SessionHolder.PERSON, subject))
    key = world.key()
    await world.authority.sessions.put(SessionRecord(key, SessionHolder.PERSON, "ada"))
    with pytest.raises(AuthorityError) as caught:
        await world.authority.sessions.put(SessionRecord(key, SessionHolder.PERSON, "bob"))
    assert caught.value.code is Code.CONFLICT
    with pytest.raises(AuthorityError):
        await world.authority.deployments.add_instance("graph", key, "graph-2")


async def test_the_status_of_a_surface_has_every_outcome(
    world: Any, contracts: Any, graph: Any
) -> None:
    graph_key = await world.deploy("graph", graph)
    shop = contracts.contract(
        "shop", uses=contracts.uses("required", "graph", rpc={"call": ["Graph.Get"]})
    )
    key = await world.deploy("shop", shop)

    async def status(surface: str = "Graph.Get", contract: str = "graph@v1") -> dict[str, Any]:
        answer = await world.authority.sessions.surface_status(key, contract, "rpc", surface)
        return dict(answer.to_dict())

    live = {"status": "available", "liveImplementer": True, "runtime": "live"}
    assert await status(contract="nothing@v1") == {"status": "unknown_contract"}
    assert await status("Graph.Nothing") == {"status": "unknown_surface"}
    assert await status("Graph.Ping") == {"status": "unavailable"}
    assert await status() == live
    await world.authority.offers.disconnected(graph_key)
    quiet = {"status": "available", "liveImplementer": False}
    assert await status() == {**quiet, "runtime": "no_live_implementer"}
    await world.authority.deployments.set_instance_disabled(graph_key, True)
    assert await status() == {**quiet, "runtime": "disabled"}
    await world.authority.deployments.narrow("shop", capabilities=["graph::read"])
    assert await status() == {"status": "unauthorized", "missingCapabilities": ["graph::read"]}
    await world.authority.deployments.narrow("shop", surfaces=["graph@v1 rpc Graph.Get call"])
    assert await status() == {"status": "unavailable"}


async def test_a_surface_that_nobody_offers_any_more_says_that_its_contract_is_not_active(
    world: Any, contracts: Any, graph: Any
) -> None:
    await world.deploy("graph", graph)
    shop = contracts.contract(
        "shop", uses=contracts.uses("required", "graph", rpc={"call": ["Graph.Get"]})
    )
    key = await world.deploy("shop", shop)
    gone = delete(offers_table).where(offers_table.c.contract_id == "graph@v1")
    await world.authority.store.write(lambda c: c.execute(gone).rowcount)
    answer = await world.authority.sessions.surface_status(
        key, "graph@v1", "rpc", "Graph.Get", "call"
    )
    assert answer.to_dict() == {"status": "unavailable", "reason": "dependency_not_active"}


async def test_an_instance_that_is_removed_offers_nothing_and_its_key_stays_away(
    world: Any, graph: Any
) -> None:
    key = await world.deploy("graph", graph)
    await world.authority.deployments.remove_instance(key)
    assert await world.authority.offers.all() == []
    assert not (await world.authority.sessions.grants(key, digest(graph))).ok
    assert (await world.acts("graph"))[-3:] == ["withdrawn", "revoked", "instance_removed"]
    with pytest.raises(AuthorityError):
        await world.authority.deployments.add_instance("graph", key, "graph-1")
