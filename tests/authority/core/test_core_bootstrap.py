"""An instance presents a contract: it becomes ready, or it hears by name what it waits for."""

from typing import Any

import pytest

from accord.authority.errors import AuthorityError, Code
from accord.authority.records import Classification, Materialized, MaterialState, PlanState
from accord.contracts import digest
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
    (plan,) = await world.authority.plans("graph", PlanState.PENDING)
    assert (plan.classification, plan.digest) == (Classification.UPDATE, digest(graph))

    await world.authority.accept(plan.id, "ada")
    assert (await refused(world.bootstrap(key, graph))).code is (
        Code.AUTHORITY_RECONCILIATION_PENDING
    )
    assert await world.authority.offers() == []

    await world.reconcile()
    ready = await world.bootstrap(key, graph)
    assert (ready.deployment, ready.contract_id, ready.digest) == (
        "graph",
        "graph@v1",
        digest(graph),
    )
    (offer,) = await world.authority.offers("graph")
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
    assert len(await world.authority.plans("graph")) == 1
    await world.authority.forget_requester(f"session {key}")
    assert await world.authority.plans("graph") == []


async def test_strangers_the_revoked_and_the_disabled_are_refused_before_anything_is_kept(
    world: Any, contracts: Any
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    assert (await refused(world.bootstrap(world.key(), graph))).code is Code.UNKNOWN_SESSION
    assert await world.authority.contract(digest(graph)) is None

    key = await world.deploy("graph", graph)
    await world.authority.set_instance_disabled(key, True)
    assert (await refused(world.bootstrap(key, graph))).code is Code.DISABLED
    await world.authority.set_instance_disabled(key, False)
    await world.authority.set_disabled("graph", True)
    assert (await refused(world.bootstrap(key, graph))).code is Code.DISABLED
    await world.authority.set_disabled("graph", False)
    await world.authority.revoke_session(key, "ada")
    assert (await refused(world.bootstrap(key, graph))).code is Code.REVOKED


async def test_what_is_presented_is_what_its_digest_names_or_nothing_changes(
    world: Any, contracts: Any
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    other = contracts.contract("other", rpc=contracts.rpc("Other.Get"))
    key = await world.deployment("graph")
    present = world.authority.bootstrap
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

    assert await world.authority.contract(name) is None
    assert await world.authority.plans() == []
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
    key = await world.deployment("graph", "mutable-dev")
    await refused(world.bootstrap(key, graph))
    version = (await world.authority.deployment("graph")).version
    failed = Materialized("graph", version, MaterialState.FAILED, why="a stream is in the way")
    assert await world.authority.materialize(failed)
    blocked = await refused(world.bootstrap(key, graph))
    assert blocked.code is Code.RESOURCE_CONFLICT
    assert "a stream is in the way" in str(blocked)
    assert await world.authority.offers() == []


async def test_what_was_made_for_an_older_wish_is_not_kept(world: Any, contracts: Any) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    key = await world.deployment("graph", "mutable-dev")
    old = (await world.authority.deployment("graph")).version
    await refused(world.bootstrap(key, graph))
    made = Materialized("graph", old, MaterialState.CURRENT)
    assert not await world.authority.materialize(made)
    assert await world.authority.reconciliations() == ["graph"]


async def test_mutable_dev_records_the_plan_and_accepts_it_itself(
    world: Any, contracts: Any
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    key = await world.deployment("graph", "mutable-dev")
    assert (await refused(world.bootstrap(key, graph))).code is (
        Code.AUTHORITY_RECONCILIATION_PENDING
    )
    (plan,) = await world.authority.plans("graph")
    assert (plan.state, plan.decided_by) == (PlanState.ACCEPTED, "mutable-dev")
    await world.reconcile()
    assert (await world.bootstrap(key, graph)).digest == digest(graph)
