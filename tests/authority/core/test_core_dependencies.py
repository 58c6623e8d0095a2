"""What a contract uses of others: resolved among what is active or accepted, never in history."""

from typing import Any

import pytest

from accord.authority.rules import AuthorityError, Code, PlanState
from accord.contracts import digest
from accord.kernel import canonical

READ = {"displayName": "Read", "description": "Read accounts."}


@pytest.fixture
def bank(contracts: Any) -> Any:
    return contracts.contract(
        "bank",
        capabilities={"bank::read": READ},
        rpc={**contracts.rpc("Bank.Get", "bank::read"), **contracts.rpc("Bank.Ping")},
        events=contracts.event("Bank.Changed"),
    )


@pytest.fixture
def shop(contracts: Any) -> Any:
    return contracts.contract(
        "shop",
        rpc=contracts.rpc("Shop.Buy"),
        uses=contracts.uses("required", "bank", rpc={"call": ["Bank.Get"]}),
    )


async def refused(awaitable: Any) -> AuthorityError:
    with pytest.raises(AuthorityError) as caught:
        await awaitable
    return caught.value


async def test_an_unknown_dependency_an_inactive_one_and_a_missing_surface_have_their_names(
    world: Any, contracts: Any, bank: Any, shop: Any
) -> None:
    key = await world.deployment("shop")
    assert (await refused(world.bootstrap(key, shop))).code is Code.DEPENDENCY_UNKNOWN
    # Known is not enough: history is never searched.
    await world.authority.manifests.present(canonical.encode(bank), digest(bank))
    assert (await refused(world.bootstrap(key, shop))).code is Code.DEPENDENCY_NOT_ACTIVE
    await world.deploy("bank", bank)
    wants_more = contracts.contract(
        "shop", uses=contracts.uses("required", "bank", rpc={"call": ["Bank.Close"]})
    )
    missing = await refused(world.bootstrap(key, wants_more))
    assert missing.code is Code.DEPENDENCY_NOT_ACTIVE
    assert "Bank.Close" in str(missing)
    assert await world.authority.plans.all("shop") == []
    assert (await world.authority.deployments.get("shop")).desired.contracts == {}


async def test_accepting_gives_the_surface_and_the_capability_that_it_needs(
    world: Any, bank: Any, shop: Any
) -> None:
    await world.deploy("bank", bank)
    key = await world.deployment("shop")
    plan = await world.authority.plans.get((await refused(world.bootstrap(key, shop))).where)
    assert plan.delta["surfaces"]["added"] == ["bank@v1 rpc Bank.Get call"]
    assert plan.delta["capabilities"]["added"] == ["bank::read"]
    await world.deploy("shop", shop, key)
    granted = await world.authority.sessions.grants(key, digest(shop))
    assert "rpc.v1.Bank.Get" in granted.publish
    assert "rpc.v1.Shop.Buy" in granted.subscribe
    assert (await world.authority.sessions.get(key)).capabilities == {"bank::read"}


async def test_a_capability_that_is_taken_back_takes_its_subject_along(
    world: Any, bank: Any, shop: Any
) -> None:
    await world.deploy("bank", bank)
    key = await world.deploy("shop", shop)
    count = world.authority.changes.count
    await world.authority.deployments.narrow("shop", capabilities=["bank::read"], by="ada")
    assert await world.authority.changes.after(count) > count
    granted = await world.authority.sessions.grants(key, digest(shop))
    assert granted.ok
    assert "rpc.v1.Bank.Get" not in granted.publish
    # A surface that is required and was taken back lets nothing through at all.
    await world.authority.deployments.narrow("shop", surfaces=["bank@v1 rpc Bank.Get call"])
    assert not (await world.authority.sessions.grants(key, digest(shop))).ok
    assert (await refused(world.bootstrap(key, shop))).code is Code.AUTHORITY_UPDATE_REQUIRED


async def test_a_dependency_that_is_away_keeps_the_shape_that_was_accepted(
    world: Any, bank: Any, shop: Any
) -> None:
    await world.deploy("bank", bank)
    key = await world.deploy("shop", shop)
    world.clock.advance(20)
    await world.authority.offers.heartbeat(key, "shop@v1", digest(shop))
    world.clock.advance(35)
    await world.authority.offers.expire(world.clock.now())
    await world.authority.catalog.refresh()
    assert "bank@v1" not in world.authority.catalog.projection.effective
    assert (await world.authority.sessions.grants(key, digest(shop))).ok
    assert (await world.bootstrap(key, shop)).contract_id == "shop@v1"


async def test_two_that_need_each_other_are_staged_by_a_reviewed_shape(
    world: Any, contracts: Any
) -> None:
    def pair(name: str, other: str) -> Any:
        title = name.title()
        return contracts.contract(
            name,
            rpc=contracts.rpc(f"{title}.Get"),
            uses=contracts.uses("required", other, rpc={"call": [f"{other.title()}.Get"]}),
        )

    hen, egg = pair("hen", "egg"), pair("egg", "hen")
    hens, eggs = await world.deployment("hen"), await world.deployment("egg")
    body = canonical.encode(hen)
    blocked = await refused(world.authority.plans.propose("hen", body, "ada"))
    assert blocked.code is Code.DEPENDENCY_UNKNOWN
    plan = await world.authority.plans.propose("hen", body, "ada", [canonical.encode(egg)])
    await world.authority.plans.accept(plan.id, "ada")
    await world.deploy("egg", egg, eggs)
    assert (await world.bootstrap(hens, hen)).contract_id == "hen@v1"


async def test_an_optional_dependency_blocks_nobody_and_needs_a_plan_once_it_is_there(
    world: Any, contracts: Any, bank: Any
) -> None:
    shop = contracts.contract(
        "shop", uses=contracts.uses("optional", "bank", rpc={"call": ["Bank.Get", "Bank.Ping"]})
    )
    key = await world.deploy("shop", shop)
    await world.deploy("bank", bank)

    assert (await world.bootstrap(key, shop)).contract_id == "shop@v1"
    granted = await world.authority.sessions.grants(key, digest(shop))
    assert granted.ok
    # Not even what asks for no capability.
    assert not granted.publish
    (plan,) = await world.authority.plans.all("shop", PlanState.PENDING)
    await world.authority.plans.accept(plan.id, "ada")
    granted = await world.authority.sessions.grants(key, digest(shop))
    assert set(granted.publish) == {"rpc.v1.Bank.Get", "rpc.v1.Bank.Ping"}


async def test_a_consumer_group_takes_subjects_that_are_there_or_blocks(
    world: Any, contracts: Any, bank: Any
) -> None:
    uses = contracts.uses("optional", "bank", events={"subscribe": ["Bank.Changed"]})
    group = {"changes": {"uses": {"bank": ["Bank.Changed"]}}}
    shop = contracts.contract("shop", uses=uses, eventConsumers=group)
    key = await world.deployment("shop")
    assert (await refused(world.bootstrap(key, shop))).code is Code.DEPENDENCY_NOT_ACTIVE
    await world.deploy("bank", bank)
    await world.deploy("shop", shop, key)
    resources = (await world.authority.deployments.get("shop")).desired.resources
    assert resources["consumer", "shop@v1", "changes"]["filters"] == ["events.v1.Bank.Changed.*"]


async def test_a_subject_that_another_lineage_owns_is_refused_by_name(
    world: Any, contracts: Any, builtins: Any
) -> None:
    graph = contracts.contract("graph", events=contracts.event("Graph.Changed"))
    await world.deploy("graph", graph)
    key = await world.deployment("thief")

    def thief(subject: str) -> Any:
        stolen = contracts.rpc("Thief.Get")
        stolen["Thief.Get"]["subject"] = subject
        return contracts.contract("thief", rpc=stolen)

    for subject in ("events.v1.Graph.Changed.x", "rpc.v1.Trellis.Catalog"):
        collision = await refused(world.bootstrap(key, thief(subject)))
        assert collision.code is Code.SUBJECT_COLLISION
    assert await world.authority.plans.all("thief") == []
    # What is disabled owns nothing, and cannot be enabled once somebody else does.
    await world.authority.deployments.set_disabled("graph", True)
    await world.deploy("thief", thief("events.v1.Graph.Changed.x"), key)
    again = await refused(world.authority.deployments.set_disabled("graph", False))
    assert again.code is Code.SUBJECT_COLLISION
    assert (await world.authority.deployments.get("graph")).disabled


async def test_resource_requests_that_contradict_themselves_block(
    world: Any, contracts: Any
) -> None:
    store = {"files": {"purpose": "Files.", "maxTotalBytes": 10, "maxObjectBytes": 11}}
    graph = contracts.contract("graph", resources={"store": store})
    key = await world.deployment("graph", "mutable-dev")
    assert (await refused(world.bootstrap(key, graph))).code is Code.RESOURCE_CONFLICT
    assert (await world.authority.deployments.get("graph")).desired.contracts == {}
