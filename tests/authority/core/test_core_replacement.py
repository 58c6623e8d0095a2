"""A new digest of a contract: served beside the old one, or a migration that somebody decides."""

from typing import Any

import pytest
from sqlalchemy import delete

from accord.authority.plans import FactReader
from accord.authority.rules import (
    AuthorityError,
    Classification,
    Code,
    Materialized,
    MaterialState,
    PlanState,
)
from accord.authority.tables import contracts as contracts_table
from accord.contracts import digest
from accord.kernel import canonical

NUMBER = {"type": "object", "properties": {"id": {"type": "number"}}}


@pytest.fixture
def first(contracts: Any) -> Any:
    return contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))


@pytest.fixture
def grown(contracts: Any) -> Any:
    return contracts.contract(
        "graph", rpc={**contracts.rpc("Graph.Get"), **contracts.rpc("Graph.List")}
    )


@pytest.fixture
def broken(contracts: Any) -> Any:
    return contracts.contract(
        "graph",
        schemas={"Number": NUMBER},
        rpc={**contracts.rpc("Graph.Get", schema="Number")},
    )


async def refused(awaitable: Any) -> AuthorityError:
    with pytest.raises(AuthorityError) as caught:
        await awaitable
    return caught.value


def active(world: Any, identity: str = "graph@v1") -> set[str]:
    return set(world.authority.catalog.projection.effective[identity].digests)


async def test_a_rolling_update_has_both_digests_active_without_a_plan(
    world: Any, first: Any, grown: Any
) -> None:
    old = await world.deploy("graph", first)
    new = await world.instance("graph", "graph-2")

    assert (await world.bootstrap(new, grown)).digest == digest(grown)
    await world.authority.catalog.refresh()
    assert active(world) == {digest(first), digest(grown)}
    assert set(world.authority.catalog.projection.effective["graph@v1"].surfaces["rpc"]) == {
        "Graph.Get",
        "Graph.List",
    }
    # The old one restarts in the middle of it, and still connects.
    assert (await world.bootstrap(old, first)).digest == digest(first)
    for key, manifest in ((old, first), (new, grown)):
        assert (await world.authority.sessions.grants(key, digest(manifest))).ok
    assert (await world.authority.deployments.get("graph")).desired.contracts == {
        "graph@v1": digest(grown)
    }
    (plan,) = await world.authority.plans.all("graph")
    assert plan.digest == digest(first)


async def test_in_strict_an_incompatible_digest_waits_as_a_migration_and_the_old_one_serves_on(
    world: Any, first: Any, broken: Any
) -> None:
    key = await world.deploy("graph", first)
    second = await world.instance("graph", "graph-2")

    waiting = await refused(world.bootstrap(second, broken))
    assert waiting.code is Code.AUTHORITY_MIGRATION_REQUIRED
    (plan,) = await world.authority.plans.all("graph", PlanState.PENDING)
    assert plan.classification is Classification.MIGRATION
    assert {finding["rule"] for finding in plan.delta["findings"]} & {"payload.refused"}
    await world.authority.catalog.refresh()
    assert active(world) == {digest(first)}
    assert (await world.authority.sessions.grants(key, digest(first))).ok


async def test_an_accepted_migration_ends_the_old_digest_when_the_new_one_is_ready(
    world: Any, first: Any, broken: Any
) -> None:
    old = await world.deploy("graph", first)
    new = await world.instance("graph", "graph-2")
    plan_id = (await refused(world.bootstrap(new, broken))).where
    await world.authority.plans.accept(plan_id, "ada")

    # Accepting changes what is desired, and nothing else.
    assert (await world.bootstrap(old, first)).digest == digest(first)
    assert (await world.authority.sessions.grants(old, digest(first))).ok

    await world.reconcile()
    await world.bootstrap(new, broken)
    await world.authority.catalog.refresh()
    assert active(world) == {digest(broken)}
    assert not (await world.authority.sessions.grants(old, digest(first))).ok
    assert (await refused(world.bootstrap(old, first))).code is Code.CONTRACT_CHANGED
    assert (await world.acts("graph"))[-2:] == ["offered", "withdrawn"]


async def test_a_migration_ends_whatever_still_runs_and_cannot_run_beside_it(
    world: Any, first: Any, grown: Any, broken: Any
) -> None:
    oldest = await world.deploy("graph", first)
    older = await world.instance("graph", "graph-2")
    await world.bootstrap(older, grown)
    new = await world.instance("graph", "graph-3")
    plan_id = (await refused(world.bootstrap(new, broken))).where
    await world.authority.plans.accept(plan_id, "ada")
    await world.reconcile()
    await world.bootstrap(new, broken)
    await world.authority.catalog.refresh()
    assert active(world) == {digest(broken)}
    assert world.authority.catalog.projection.issues == ()
    assert [offer.instance for offer in await world.authority.offers.all()] == [new]
    for key, manifest in ((oldest, first), (older, grown)):
        assert not (await world.authority.sessions.grants(key, digest(manifest))).ok


async def test_mutable_dev_goes_there_and_back_again_on_record(
    world: Any, first: Any, broken: Any
) -> None:
    key = await world.deployment("graph", "mutable-dev")
    await world.deploy("graph", first, key)
    for manifest in (first, broken, first):
        try:
            await world.bootstrap(key, manifest)
        except AuthorityError as error:
            assert error.code is Code.AUTHORITY_RECONCILIATION_PENDING
            await world.reconcile()
            await world.bootstrap(key, manifest)
        await world.authority.catalog.refresh()
        assert active(world) == {digest(manifest)}
    plans = await world.authority.plans.all("graph")
    assert [plan.classification.value for plan in plans] == ["migration", "migration", "update"]
    assert {plan.state for plan in plans} == {PlanState.ACCEPTED}


async def test_the_latest_accepted_digest_counts_after_its_offer_expired(
    world: Any, first: Any, broken: Any
) -> None:
    key = await world.deploy("graph", first)
    world.clock.advance(3600)
    assert await world.authority.offers.expire(world.clock.now()) == 1
    assert await world.authority.offers.all() == []
    assert (await refused(world.bootstrap(key, broken))).code is (Code.AUTHORITY_MIGRATION_REQUIRED)


async def test_an_update_that_has_become_a_migration_must_be_reviewed_again(
    world: Any, contracts: Any, first: Any
) -> None:
    await world.deploy("graph", first)
    await world.deployment("second")
    other = contracts.contract(
        "graph", rpc={**contracts.rpc("Graph.Get"), **contracts.rpc("Graph.More")}
    )
    plan = await world.authority.plans.propose("second", canonical.encode(other), "ada")
    assert plan.classification is Classification.UPDATE
    more = contracts.contract(
        "graph",
        schemas={"Number": NUMBER},
        rpc={**contracts.rpc("Graph.Get"), **contracts.rpc("Graph.More", schema="Number")},
    )
    await world.bootstrap(await world.instance("graph", "graph-2"), more)
    assert (await refused(world.authority.plans.accept(plan.id, "ada"))).code is Code.CONFLICT
    again = await world.authority.plans.propose("second", canonical.encode(other), "ada")
    assert again.classification is Classification.MIGRATION


async def test_a_rejected_plan_changes_nothing_and_is_asked_for_again(
    world: Any, first: Any
) -> None:
    key = await world.deployment("graph")
    plan_id = (await refused(world.bootstrap(key, first))).where
    before = await world.authority.deployments.get("graph")
    rejected = await world.authority.plans.reject(plan_id, "ada", "not now")
    assert (rejected.state, rejected.decided_by) == (PlanState.REJECTED, "ada")
    assert await world.authority.deployments.get("graph") == before
    assert (await refused(world.authority.plans.accept(plan_id, "ada"))).code is Code.NOT_FOUND
    assert (await refused(world.bootstrap(key, first))).where != plan_id
    why = [step.act.why for step in await world.authority.revisions.history("graph")]
    assert "not now" in why


async def test_a_plan_that_is_rejected_while_somebody_accepts_it_stays_rejected(
    world: Any, first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await world.deployment("graph")
    plan_id = (await refused(world.bootstrap(key, first))).where
    gather = FactReader.gather

    async def slowly(*arguments: Any, **more: Any) -> Any:
        gathered = await gather(*arguments, **more)
        await world.authority.plans.reject(plan_id, "bob", "no")
        return gathered

    monkeypatch.setattr(FactReader, "gather", slowly)
    assert (await refused(world.authority.plans.accept(plan_id, "ada"))).code is Code.NOT_FOUND
    assert (await world.authority.plans.get(plan_id)).state is PlanState.REJECTED
    assert (await world.authority.deployments.get("graph")).desired.contracts == {}


async def test_a_plan_whose_ground_has_moved_cannot_be_accepted(
    world: Any, contracts: Any, first: Any
) -> None:
    key = await world.deployment("graph")
    bucket = {"purpose": "Notes.", "schema": {"schema": "Thing"}}
    with_notes = contracts.contract("graph", resources={"kv": {"notes": bucket}})
    stale = (await refused(world.bootstrap(key, with_notes))).where
    await world.deploy("graph", first, key)
    assert (await refused(world.authority.plans.accept(stale, "ada"))).code is Code.CONFLICT
    assert (await world.authority.plans.get(stale)).state is PlanState.EXPIRED


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ({}, {"history": 5}, Code.AUTHORITY_UPDATE_REQUIRED),
        ({"history": 5}, {}, Code.AUTHORITY_MIGRATION_REQUIRED),
        ({"ttlMs": 0}, {"ttlMs": 1000}, Code.AUTHORITY_MIGRATION_REQUIRED),
        ({"ttlMs": 1000}, {"ttlMs": 0}, Code.AUTHORITY_UPDATE_REQUIRED),
        ({}, None, Code.AUTHORITY_MIGRATION_REQUIRED),
        (None, {}, Code.AUTHORITY_UPDATE_REQUIRED),
    ],
)
async def test_growth_of_a_resource_is_an_update_and_its_loss_a_migration(
    world: Any, contracts: Any, before: Any, after: Any, code: Code
) -> None:
    def graph(settings: Any) -> Any:
        if settings is None:
            return contracts.contract("graph")
        bucket = {"purpose": "Notes.", "schema": {"schema": "Thing"}, **settings}
        return contracts.contract("graph", resources={"kv": {"notes": bucket}})

    key = await world.deploy("graph", graph(before))
    assert (await refused(world.bootstrap(key, graph(after)))).code is code


async def test_what_needs_something_new_is_ready_only_once_that_was_made(
    world: Any, contracts: Any, first: Any
) -> None:
    key = await world.deploy("graph", first)
    operation = {
        "version": "v1",
        "subject": "operations.v1.Graph.Build",
        "input": {"schema": "Thing"},
        "output": {"schema": "Thing"},
    }
    building = contracts.contract(
        "graph", rpc=contracts.rpc("Graph.Get"), operations={"Graph.Build": operation}
    )
    bucket = {"purpose": "Notes.", "schema": {"schema": "Thing"}}
    keeping = {**building, "resources": {"kv": {"notes": bucket}}}
    for manifest in (building, keeping):
        plan = await world.authority.plans.propose("graph", canonical.encode(manifest), "ada")
        if plan is not None:
            await world.authority.plans.accept(plan.id, "ada")
        pending = await refused(world.bootstrap(key, manifest))
        assert pending.code is Code.AUTHORITY_RECONCILIATION_PENDING
        await world.reconcile()
        assert (await world.bootstrap(key, manifest)).digest == digest(manifest)


async def test_what_runs_goes_on_when_the_resources_of_a_newer_digest_cannot_be_made(
    world: Any, contracts: Any, first: Any
) -> None:
    key = await world.deploy("graph", first)
    bucket = {"purpose": "Notes.", "schema": {"schema": "Thing"}}
    keeping = {**first, "resources": {"kv": {"notes": bucket}}}
    plan = await world.authority.plans.propose("graph", canonical.encode(keeping), "ada")
    await world.authority.plans.accept(plan.id, "ada")
    version = (await world.authority.deployments.get("graph")).version
    failed = Materialized("graph", version, MaterialState.FAILED, why="in the way")
    await world.authority.deployments.materialize(failed)
    newer = await world.instance("graph", "graph-2")
    assert (await refused(world.bootstrap(newer, keeping))).code is Code.RESOURCE_CONFLICT
    assert (await world.bootstrap(key, first)).digest == digest(first)
    assert (await world.authority.sessions.grants(key, digest(first))).ok
    assert (await world.authority.deployments.get("graph")).desired.contracts["graph@v1"] == (
        digest(keeping)
    )


async def test_a_manifest_that_was_lost_is_not_taken_for_compatible(
    world: Any, first: Any, grown: Any
) -> None:
    key = await world.deploy("graph", first)
    await world.authority.store.write(lambda c: c.execute(delete(contracts_table)).rowcount)
    world.authority.manifests._recent._entries.clear()
    blocked = await refused(world.bootstrap(key, grown))
    assert blocked.code is Code.AUTHORITY_MIGRATION_REQUIRED
