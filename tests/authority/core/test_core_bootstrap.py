"""An instance presents a contract: it becomes ready, or it hears by name what it waits for."""

from typing import Any

import pytest

from accord.authority.rules import (
    AuthorityError,
    Classification,
    Code,
    Materialized,
    MaterialState,
    PlanState,
)
from accord.contracts import digest, text_digest
from accord.kernel import canonical


async def refused(awaitable: Any) -> AuthorityError:
    with pytest.raises(AuthorityError) as caught:
        await awaitable
    return caught.value


async def test_a_new_contract_waits_for_its_plan_its_resources_and_then_is_offered(
    world: Any, contracts: Any
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    key = await world.deployment("graph")

    waiting = await refused(world.bootstrap(key, graph))
    assert waiting.code is Code.AUTHORITY_UPDATE_REQUIRED
    (plan,) = await world.authority.plans.all("graph", PlanState.PENDING)
    assert (plan.classification, plan.digest) == (Classification.UPDATE, digest(graph))

    await world.authority.plans.accept(plan.id, "ada")
    assert (await refused(world.bootstrap(key, graph))).code is (
        Code.AUTHORITY_RECONCILIATION_PENDING
    )
    assert await world.authority.offers.all() == []

    await world.reconcile()
    ready = await world.bootstrap(key, graph)
    assert (ready.deployment, ready.contract_id, ready.digest) == (
        "graph",
        "graph@v1",
        digest(graph),
    )
    (offer,) = await world.authority.offers.all("graph")
    assert (offer.instance, offer.digest, offer.live) == (key, digest(graph), False)
    assert await world.acts("graph") == [
        "created",
        "instance_added",
        "presented",
        "accepted",
        "offered",
    ]


async def test_asking_again_records_no_second_plan_and_going_removes_the_first(
    world: Any, contracts: Any
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    key = await world.deployment("graph")
    for _ in range(3):
        await refused(world.bootstrap(key, graph))
    assert len(await world.authority.plans.all("graph")) == 1
    await world.authority.plans.forget(f"session {key}")
    assert await world.authority.plans.all("graph") == []


async def test_strangers_the_revoked_and_the_disabled_are_refused_before_anything_is_kept(
    world: Any, contracts: Any
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    assert (await refused(world.bootstrap(world.key(), graph))).code is Code.UNKNOWN_SESSION
    assert await world.authority.manifests.get(digest(graph)) is None

    key = await world.deploy("graph", graph)
    await world.authority.deployments.set_instance_disabled(key, True)
    assert (await refused(world.bootstrap(key, graph))).code is Code.DISABLED
    await world.authority.deployments.set_instance_disabled(key, False)
    await world.authority.deployments.set_disabled("graph", True)
    assert (await refused(world.bootstrap(key, graph))).code is Code.DISABLED
    await world.authority.deployments.set_disabled("graph", False)
    await world.authority.sessions.revoke(key, "ada")
    assert (await refused(world.bootstrap(key, graph))).code is Code.REVOKED


async def test_what_is_presented_is_what_its_digest_names_or_nothing_changes(
    world: Any, contracts: Any
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    other = contracts.contract("other", rpc=contracts.rpc("Other.Get"))
    key = await world.deployment("graph")
    present = world.authority.bootstrap.run
    name, body = digest(graph), canonical.encode(graph)
    wrong = canonical.encode({**graph, "rpc": {"Graph.Get": {"version": 1}}})

    assert (await refused(present(key, name, None, "r"))).code is Code.MANIFEST_REQUIRED
    mismatch = await refused(present(key, name, canonical.encode(other), "r"))
    assert mismatch.code is Code.DIGEST_MISMATCH
    for broken in (b"", b"{", b"[]", b'{"a":1,"a":2}', b"\xff", wrong):
        assert (await refused(present(key, name, broken, "r"))).code is Code.INVALID_CONTRACT
    assert (await refused(present(key, name, wrong, "r"))).findings
    huge = b" " * (10 * 1024 * 1024)
    assert (await refused(present(key, name, huge, "r"))).code is Code.TOO_LARGE

    assert await world.authority.manifests.get(name) is None
    assert await world.authority.plans.all() == []
    assert await world.acts("graph") == ["created", "instance_added"]
    # Also where the digest is known by then.
    await refused(present(key, name, body, "r"))
    again = await refused(present(key, name, canonical.encode(other), "r"))
    assert again.code is Code.DIGEST_MISMATCH


async def test_nobody_deploys_what_is_the_platforms_or_of_another_kind(
    world: Any, contracts: Any, builtins: Any
) -> None:
    key = await world.deployment("graph")
    core = builtins["trellis.core@v1"]
    app = contracts.contract("page", "app")
    assert (await refused(world.bootstrap(key, core))).code is Code.FORBIDDEN
    assert (await refused(world.bootstrap(key, app))).code is Code.FORBIDDEN


async def test_resources_that_cannot_be_made_are_a_conflict_with_its_reason(
    world: Any, contracts: Any
) -> None:
    kv = {"notes": {"purpose": "Notes.", "schema": {"schema": "Thing"}}}
    graph = contracts.contract("graph", resources={"kv": kv})
    key = await world.deployment("graph")
    await world.authority.plans.accept((await refused(world.bootstrap(key, graph))).where, "ada")
    version = (await world.authority.deployments.get("graph")).version
    failed = Materialized("graph", version, MaterialState.FAILED, why="a stream is in the way")
    assert await world.authority.deployments.materialize(failed)
    blocked = await refused(world.bootstrap(key, graph))
    assert blocked.code is Code.RESOURCE_CONFLICT
    assert "a stream is in the way" in str(blocked)
    assert await world.authority.offers.all() == []


async def test_what_was_made_for_an_older_wish_is_not_kept(world: Any, contracts: Any) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    key = await world.deployment("graph")
    old = (await world.authority.deployments.get("graph")).version
    await world.authority.plans.accept((await refused(world.bootstrap(key, graph))).where, "ada")
    made = Materialized("graph", old, MaterialState.CURRENT)
    assert not await world.authority.deployments.materialize(made)
    assert await world.authority.deployments.unreconciled() == ["graph"]


async def test_mutable_dev_does_not_accept_a_first_contract(world: Any, contracts: Any) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    key = await world.deployment("graph", "mutable-dev")
    assert (await refused(world.bootstrap(key, graph))).code is Code.AUTHORITY_UPDATE_REQUIRED
    (plan,) = await world.authority.plans.all("graph")
    assert plan.state is PlanState.PENDING
    assert (await world.authority.deployments.get("graph")).desired.contracts == {}


def broken(contracts: Any, **sections: Any) -> Any:
    """A contract that lost the RPC which `graph` had."""
    return contracts.contract("graph", rpc=contracts.rpc("Graph.Put"), **sections)


async def test_mutable_dev_records_a_migration_and_accepts_it_itself(
    world: Any, contracts: Any
) -> None:
    key = await world.deployment("graph", "mutable-dev")
    await world.deploy("graph", contracts.contract("graph", rpc=contracts.rpc("Graph.Get")), key)
    changed = broken(contracts)
    assert (await world.bootstrap(key, changed)).digest == digest(changed)
    plan, _first = await world.authority.plans.all("graph")
    assert (plan.state, plan.decided_by) == (PlanState.ACCEPTED, "mutable-dev")
    assert plan.classification is Classification.MIGRATION


@pytest.mark.parametrize("more", ["surface", "resource", "growth"])
async def test_mutable_dev_accepts_no_migration_that_asks_for_more(
    world: Any, contracts: Any, more: str
) -> None:
    await world.deploy("bank", contracts.contract("bank", rpc=contracts.rpc("Bank.Pay", "admin")))
    store = {"files": {"purpose": "Files.", "maxTotalBytes": 10}}
    key = await world.deployment("graph", "mutable-dev")
    first = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"), resources={"store": store})
    await world.deploy("graph", first, key)
    before = (await world.authority.deployments.get("graph")).desired
    asked: dict[str, Any] = {"resources": {"store": store}}
    if more == "surface":
        asked["uses"] = contracts.uses("required", "bank", rpc={"call": ["Bank.Pay"]})
    elif more == "resource":
        asked["resources"] = {"store": {**store, "loot": {"purpose": "More."}}}
    else:
        asked["resources"] = {"store": {"files": {**store["files"], "maxTotalBytes": 10**12}}}
    waiting = await refused(world.bootstrap(key, broken(contracts, **asked)))
    assert waiting.code is Code.AUTHORITY_MIGRATION_REQUIRED
    assert (await world.authority.deployments.get("graph")).desired == before


async def test_a_grant_of_calls_covers_callers_of_the_named_contracts_only(
    world: Any, contracts: Any
) -> None:
    for name in ("bank", "shop"):
        offered = contracts.contract(name, rpc=contracts.rpc(f"{name}.Get", f"{name}::read"))
        await world.deploy(name, offered)
    key = await world.deployment("shell")
    calling = contracts.contract(
        "shell.bank", uses=contracts.uses("required", "bank", rpc={"call": ["bank.Get"]})
    )
    assert (await refused(world.bootstrap(key, calling))).code is Code.AUTHORITY_UPDATE_REQUIRED
    await world.authority.deployments.grant_calls("shell", ["bank@v1"], by="ada")
    other = contracts.contract(
        "shell.shop", uses=contracts.uses("required", "shop", rpc={"call": ["shop.Get"]})
    )
    assert (await refused(world.bootstrap(key, other))).code is Code.AUTHORITY_UPDATE_REQUIRED
    ready = await refused(world.bootstrap(key, calling))
    assert ready.code is Code.AUTHORITY_RECONCILIATION_PENDING
    granted = [
        plan for plan in await world.authority.plans.all("shell") if plan.decided_by == "grant"
    ]
    assert {plan.contract_id for plan in granted} == {"shell.bank@v1"}
    await world.authority.deployments.grant_calls("shell", ["*"])
    await refused(world.bootstrap(key, other))
    assert "shop::read" in (await world.authority.deployments.get("shell")).desired.capabilities
    assert (await world.acts("shell")).count("calls_granted") == 2


async def test_a_grant_of_calls_lets_nobody_offer_publish_or_take_a_name(
    world: Any, contracts: Any
) -> None:
    bank = contracts.contract("bank", rpc=contracts.rpc("Bank.Get"), events=contracts.event("Paid"))
    await world.deploy("bank", bank)
    key = await world.deployment("shell")
    await world.authority.deployments.grant_calls("shell", ["*"])
    kv = {"notes": {"purpose": "Notes.", "schema": {"schema": "Thing"}}}
    for asked in (
        contracts.contract("shell.x", rpc=contracts.rpc("Shell.Get")),
        contracts.contract("shell.x", resources={"kv": kv}),
        contracts.contract(
            "shell.x", uses=contracts.uses("required", "bank", events={"publish": ["Paid"]})
        ),
    ):
        waiting = await refused(world.bootstrap(key, asked))
        assert waiting.code is Code.AUTHORITY_UPDATE_REQUIRED
    world.clock.advance(3600)
    await world.authority.offers.expire(world.clock.now())
    named = await refused(world.bootstrap(key, contracts.contract("bank")))
    assert named.code is Code.AUTHORITY_UPDATE_REQUIRED
    assert (await world.authority.deployments.get("shell")).desired.contracts == {}


@pytest.mark.parametrize("name", ["", "bank", "bank@", "b nk@v1", "**", "x" * 600 + "@v1"])
async def test_calls_are_granted_of_contracts_only(world: Any, name: str) -> None:
    await world.deployment("shell")
    refusal = await refused(world.authority.deployments.grant_calls("shell", [name]))
    assert refusal.code is Code.BAD_REQUEST
    assert (await world.authority.deployments.get("shell")).calls == frozenset()


def described(manifest: Any, text: str) -> Any:
    """The same contract with other texts."""
    return {**manifest, "displayName": text, "docs": {"markdown": text}}


async def test_other_texts_of_a_known_digest_are_taken_from_who_offers_it(
    world: Any, contracts: Any
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    key = await world.deploy("graph", graph)
    better = described(graph, "Better")
    assert digest(better) == digest(graph)
    asked = (key, digest(graph), None, "session")
    await world.authority.bootstrap.run(*asked, texts=text_digest(graph))
    unknown = await refused(world.authority.bootstrap.run(*asked, texts=text_digest(better)))
    assert unknown.code is Code.MANIFEST_REQUIRED
    await world.bootstrap(key, better)
    await world.authority.bootstrap.run(*asked, texts=text_digest(better))
    known = await world.authority.manifests.get(digest(graph))
    assert (known["displayName"], known["docs"]) == ("Better", {"markdown": "Better"})
    (listed,) = [
        each
        for each in world.authority.catalog.projection.catalog["contracts"]
        if each["id"] == "graph@v1"
    ]
    assert listed["displayName"] == "Better"
    assert (await world.authority.revisions.history())[-1].act.act == "described"


async def test_an_operator_changes_texts_and_others_do_not(world: Any, contracts: Any) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    await world.deploy("graph", graph)
    thief = await world.deployment("thief")
    await refused(world.bootstrap(thief, described(graph, "Stolen")))
    assert (await world.authority.manifests.get(digest(graph)))["displayName"] == "Graph"
    proposed = canonical.encode(described(graph, "Operated"))
    assert await world.authority.plans.propose("graph", proposed, "operator") is None
    assert (await world.authority.manifests.get(digest(graph)))["displayName"] == "Operated"


async def test_instances_that_ask_for_the_same_share_one_plan(world: Any, contracts: Any) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    body = canonical.encode(graph)
    await world.deployment("graph")
    keys = [await world.instance("graph", f"graph-{number}") for number in range(2, 5)]
    waiting = [
        await refused(world.authority.bootstrap.run(key, digest(graph), body, key)) for key in keys
    ]
    (plan,) = await world.authority.plans.all("graph")
    assert {each.where for each in waiting} == {plan.id}
    assert plan.requester == keys[0]
    # What an operator proposed does not go when a service stops asking.
    assert (await world.authority.plans.propose("graph", body, "ada")).id == plan.id
    await world.authority.plans.forget(keys[0])
    await world.authority.plans.accept(plan.id, "ada")
    assert [each.state for each in await world.authority.plans.all("graph")] == [PlanState.ACCEPTED]
    assert await world.authority.plans.propose("graph", body, "ada") is None


async def test_other_plans_for_an_accepted_digest_do_not_wait_on(
    world: Any, contracts: Any
) -> None:
    bank = contracts.contract("bank", rpc=contracts.rpc("Bank.Get"))
    graph = contracts.contract(
        "graph",
        rpc=contracts.rpc("Graph.Get"),
        uses=contracts.uses("optional", "bank", rpc={"call": ["Bank.Get"]}),
    )
    body = canonical.encode(graph)
    await world.deployment("graph")
    first = await world.authority.plans.propose("graph", body, "ada")
    await world.deploy("bank", bank)
    second = await world.authority.plans.propose("graph", body, "bob")
    assert first.id != second.id
    await world.authority.plans.accept(second.id, "ada")
    found = {each.id: each.state for each in await world.authority.plans.all("graph")}
    assert found == {first.id: PlanState.EXPIRED, second.id: PlanState.ACCEPTED}


async def test_only_the_newest_decided_plans_are_kept(
    world: Any, contracts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accord.authority.store.MAX_DECIDED", 3)
    key = await world.deployment("graph", "mutable-dev")
    await world.deploy("graph", contracts.contract("graph", rpc=contracts.rpc("Graph.Get")), key)
    for number in range(5):
        world.clock.advance(1)
        await world.bootstrap(
            key, contracts.contract("graph", rpc=contracts.rpc(f"Graph.Get{number}"))
        )
    kept = await world.authority.plans.all("graph")
    assert len(kept) == 3
    assert (
        kept[0].digest
        == (await world.authority.deployments.get("graph")).desired.contracts["graph@v1"]
    )
    assert (await world.acts("graph")).count("accepted") == 6
