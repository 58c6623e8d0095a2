"""The authority's store: its tables, its history, and several authorities on one of them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from accord.authority import store as deployments
from accord.authority.revisions import STREAM
from accord.authority.rules import (
    AuthorityError,
    Classification,
    Code,
    Compatibility,
    Deployment,
    DeploymentKind,
    Desired,
    Materialized,
    MaterialState,
    PlanState,
)
from accord.authority.service import Authority, open_authority
from accord.authority.tables import AUTHORITY
from accord.contracts import Bindings, digest
from accord.contracts.permissions import ConsumerBinding, QueueBinding
from accord.kernel import canonical
from accord.kernel.identifiers import UlidSource
from accord.pipeline.rules import check
from accord.storage import check as check_store
from accord.storage import open_store, roll_back
from accord.storage.journal import read as read_journal
from accord.testing import VirtualClock


async def everything(authority: Authority) -> tuple[Any, ...]:
    """The catalog, the history and the deployments."""
    deployments = await authority.deployments.all()
    return authority.catalog.projection.catalog, await authority.revisions.history(), deployments


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path)
    url: str = request.getfixturevalue("postgres_url")
    return url


async def test_the_revisions_make_exactly_the_declared_tables(place: str) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection)
        return list(compare_metadata(context, AUTHORITY.metadata))

    async with open_store(place, AUTHORITY) as store:
        assert await store.read(differences) == []


async def test_what_is_desired_and_what_was_made_come_back_as_they_went_in(place: str) -> None:
    desired = Desired(
        contracts={"a@v1": "x" * 43, "b@v1": "y" * 43},
        surfaces=frozenset({"b@v1 rpc B.Get call"}),
        capabilities=frozenset({"b::read"}),
        resources={("kv", "a@v1", "notes"): {"history": 3}, ("job", "a@v1", "q"): {"dlq": True}},
        shapes={"b@v1": "z" * 43},
    )
    deployment = Deployment(
        "a",
        DeploymentKind.DEVICE,
        Compatibility.MUTABLE_DEV,
        True,
        desired,
        7,
        frozenset({"bank@v1"}),
    )
    bindings = Bindings(
        kv={"notes": "acc_kv_1"},
        store={"files": "acc_os_1"},
        consumers={"group": ConsumerBinding("trellis", "acc_ec_1")},
        jobs={"q": QueueBinding("ns", "q", "c", key_bucket="acc_kv_2")},
    )
    settings = {"a@v1": {"kv": {"notes": {"bucket": "acc_kv_1"}}}}
    made = Materialized("a", 7, MaterialState.FAILED, {"a@v1": bindings}, settings, "why")

    def write(connection: Connection) -> None:
        deployments.insert_deployment(connection, deployment)
        deployments.write_deployment(connection, deployment)
        deployments.write_materialized(connection, made)

    async with open_store(place, AUTHORITY) as store:
        await store.write(write)
        assert await store.read(lambda c: deployments.read_deployment(c, "a")) == deployment
        assert await store.read(lambda c: deployments.read_materialized(c, "a")) == made
        assert await store.read(deployments.read_unreconciled) == ["a"]
        assert await store.read(deployments.read_deployments) == [deployment]


async def test_every_step_of_a_contracts_life_is_a_record_that_the_pipeline_takes(
    world: Any, contracts: Any, tmp_path: Path
) -> None:
    first = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    second = contracts.contract("graph", rpc=contracts.rpc("Graph.Else"))
    key = await world.deploy("graph", first)
    with pytest.raises(AuthorityError) as waiting:
        await world.bootstrap(key, second)
    await world.authority.plans.reject(waiting.value.where, "ada", "no")
    await world.deploy("graph", second, key)
    world.clock.advance(3600)
    await world.authority.offers.expire(world.clock.now())

    entries = await world.authority.store.read(lambda c: read_journal(c, STREAM))
    verdicts = [check(STREAM, entry.id, entry.body) for entry in entries]
    assert [verdict.rule for verdict in verdicts] == [None] * len(entries)
    told = [canonical.decode(entry.body.encode()) for entry in entries]
    assert [step["kind"] for step in told] == [
        *("presented", "accepted", "offered"),
        *("presented", "rejected", "presented", "accepted", "offered", "withdrawn"),
        "expired",
    ]
    accepted = told[6]
    assert (accepted["classification"], accepted["previous"], accepted["by"]) == (
        "migration",
        digest(first),
        "operator",
    )
    steps = await world.authority.revisions.history("graph")
    kinds = {step["kind"] for step in told}
    assert [step.act.act for step in steps if step.act.act in kinds] == [s["kind"] for s in told]
    later = await world.authority.revisions.history("graph", since=steps[-2].revision)
    assert [step.act.act for step in later] == ["expired"]
    for limit in range(1, len(steps)):
        page = await world.authority.revisions.history("graph", limit=limit)
        rest = await world.authority.revisions.history("graph", since=page[-1].revision)
        assert [*page, *rest] == steps


async def test_the_store_passes_its_own_check_and_opens_again_as_it_was(
    tmp_path: Path, clock: VirtualClock, contracts: Any, make_world: Callable[[Any], Any]
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    async with open_authority(tmp_path, clock, UlidSource(clock), round_seconds=None) as one:
        await make_world(one).deploy("graph", graph)
        before = await everything(one)
    report = check_store(tmp_path, AUTHORITY)
    assert report.ok
    assert report.records
    async with open_authority(tmp_path, clock, UlidSource(clock), round_seconds=None) as again:
        assert await everything(again) == before


async def test_two_authorities_on_one_store_agree_and_never_lose_a_decision(
    place: str, clock: VirtualClock, contracts: Any, make_world: Callable[[Any], Any]
) -> None:
    ids = UlidSource(clock)
    async with (
        open_authority(place, clock, ids, round_seconds=None) as one,
        open_authority(place, clock, ids, round_seconds=None) as two,
    ):
        here, there = make_world(one), make_world(two)
        keys = [await here.deployment(f"svc{number}") for number in range(8)]
        manifests = [
            contracts.contract(f"svc{number}", rpc=contracts.rpc(f"Svc{number}.Get"))
            for number in range(8)
        ]

        async def wait(world: Any, number: int) -> str:
            with pytest.raises(AuthorityError) as caught:
                await world.bootstrap(keys[number], manifests[number])
            return str(caught.value.where)

        both = [here, there] * 4
        plans = await asyncio.gather(*(wait(both[n], n) for n in range(8)))
        await asyncio.gather(
            *(both[n - 1].authority.plans.accept(plans[n], "ada") for n in range(8))
        )
        await here.reconcile()
        await asyncio.gather(*(both[n].bootstrap(keys[n], manifests[n]) for n in range(8)))
        count = two.changes.count
        await asyncio.gather(one.keep_up(), two.keep_up())
        assert one.catalog.projection.catalog == two.catalog.projection.catalog
        assert len(one.catalog.projection.catalog["contracts"]) == 8
        # All that the other did in the meantime is one change to hear of, and only once.
        assert two.changes.count <= count + 1
        await two.keep_up()
        assert two.changes.count <= count + 1
        # Revisions number decisions without gaps in what each of them says.
        steps = await one.revisions.history()
        assert len({(s.revision, s.place) for s in steps}) == len(await two.revisions.history())


async def test_of_two_that_want_the_same_subject_at_once_only_one_is_accepted(
    place: str, clock: VirtualClock, contracts: Any, make_world: Callable[[Any], Any]
) -> None:
    ids = UlidSource(clock)
    async with (
        open_authority(place, clock, ids, round_seconds=None) as one,
        open_authority(place, clock, ids, round_seconds=None) as two,
    ):
        world = make_world(one)
        plans = []
        for name in ("left", "right"):
            await world.deployment(name)
            wanted = contracts.contract(name, rpc=contracts.rpc("Same.Get"))
            plan = await one.plans.propose(name, canonical.encode(wanted), "ada")
            assert plan is not None
            plans.append(plan)
        results = await asyncio.gather(
            one.plans.accept(plans[0].id, "ada"),
            two.plans.accept(plans[1].id, "bob"),
            return_exceptions=True,
        )
        refusals = [result for result in results if isinstance(result, AuthorityError)]
        assert [refusal.code for refusal in refusals] == [Code.SUBJECT_COLLISION]
        states = {(await one.plans.get(plan.id)).state for plan in plans}
        assert states == {PlanState.ACCEPTED, PlanState.PENDING}


async def test_of_two_that_cannot_run_beside_each_other_only_one_comes_in(
    place: str, clock: VirtualClock, contracts: Any, make_world: Callable[[Any], Any]
) -> None:
    def graph(schema: Any) -> Any:
        rpcs = {**contracts.rpc("Graph.Get"), **contracts.rpc("Graph.More", schema="More")}
        return contracts.contract("graph", schemas={"More": schema}, rpc=rpcs)

    first = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    left, right = graph({"type": "number"}), graph({"type": "string"})
    ids = UlidSource(clock)
    async with (
        open_authority(place, clock, ids, round_seconds=None) as one,
        open_authority(place, clock, ids, round_seconds=None) as two,
    ):
        here, there = make_world(one), make_world(two)
        await here.deploy("graph", first)
        keys = [await here.instance("graph", name) for name in ("left", "right")]
        results = await asyncio.gather(
            here.bootstrap(keys[0], left),
            there.bootstrap(keys[1], right),
            return_exceptions=True,
        )
        refusals = [result for result in results if isinstance(result, AuthorityError)]
        assert [refusal.code for refusal in refusals] == [Code.AUTHORITY_MIGRATION_REQUIRED]
        await one.catalog.refresh()
        assert one.catalog.projection.issues == ()


async def test_another_authority_hears_of_a_change_within_its_round(
    tmp_path: Path, clock: VirtualClock, contracts: Any, make_world: Callable[[Any], Any]
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    ids = UlidSource(clock)
    async with (
        open_authority(tmp_path, clock, ids, round_seconds=None) as one,
        open_authority(tmp_path, clock, ids, round_seconds=0.01) as two,
    ):
        count = two.changes.count
        await make_world(one).deploy("graph", graph)
        async with asyncio.timeout(20):
            while "graph@v1" not in two.catalog.projection.effective:
                count = await two.changes.after(count)


async def test_the_catalog_follows_a_change_without_being_asked(
    tmp_path: Path, clock: VirtualClock, contracts: Any, make_world: Callable[[Any], Any]
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    async with open_authority(tmp_path, clock, UlidSource(clock), round_seconds=3600) as authority:
        key = await make_world(authority).deploy("graph", graph)
        await authority.deployments.set_instance_disabled(key, True)
        async with asyncio.timeout(20):
            while "graph@v1" in authority.catalog.projection.effective:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)


async def test_a_storm_of_bootstraps_ends_with_everybody_ready(world: Any, contracts: Any) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    await world.deploy("graph", graph)
    keys = [await world.instance("graph", f"more-{number}") for number in range(40)]
    ready = await asyncio.gather(*(world.bootstrap(key, graph) for key in keys))
    assert {each.digest for each in ready} == {digest(graph)}
    assert len(await world.authority.offers.all("graph")) == 41
    offered = [step for step in await world.acts("graph") if step == "offered"]
    assert len(offered) == 1


async def test_plans_that_wait_are_bounded(world: Any, contracts: Any) -> None:
    await world.deployment("graph")
    for number in range(64):
        body = canonical.encode(contracts.contract(f"graph{number}"))
        plan = await world.authority.plans.propose("graph", body, f"r{number}")
        assert plan.classification is Classification.UPDATE
    with pytest.raises(AuthorityError) as caught:
        await world.authority.plans.propose(
            "graph", canonical.encode(contracts.contract("x")), "more"
        )
    assert caught.value.code is Code.RATE_LIMITED


@pytest.mark.parametrize("text", ["", "\0", "a\0b", "\ud800", "\udfff\0", "'; --", "x" * 100_000])
async def test_no_text_from_outside_is_more_than_a_text(
    place: str, clock: VirtualClock, contracts: Any, make_world: Callable[[Any], Any], text: str
) -> None:
    async def ask(asked: Any) -> Any:
        try:
            return await asked
        except AuthorityError as error:
            assert str(error).encode()
            return error

    async with open_authority(place, clock, UlidSource(clock), round_seconds=None) as authority:
        world = make_world(authority)
        key = await world.deployment("graph")
        graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
        body = canonical.encode(graph)
        plan = await authority.plans.propose("graph", body, text)
        assert plan is not None
        assert isinstance(await ask(authority.plans.accept(text, text)), AuthorityError)
        await ask(authority.plans.reject(plan.id, text, text))
        await authority.plans.forget(text)
        for refused in (
            authority.manifests.present(None, text),
            authority.manifests.present(body, text),
            authority.deployments.create(text, DeploymentKind.SERVICE),
            authority.deployments.get(text),
            authority.deployments.set_disabled(text, True),
            authority.deployments.set_disabled(text, False),
            authority.deployments.add_instance("graph", text, "two"),
            authority.deployments.set_instance_disabled(text, True),
            authority.deployments.remove_instance(text),
            authority.bootstrap.run(text, digest(graph), body, text),
            authority.bootstrap.run(key, text, None, text),
            authority.plans.propose(text, body, "ada"),
            authority.plans.get(text),
            authority.sessions.revoke(text, text),
        ):
            assert isinstance(await ask(refused), AuthorityError)
        assert not (await authority.sessions.grants(text, digest(graph))).ok
        assert not (await authority.sessions.grants(key, text)).ok
        assert await authority.manifests.get(text) is None
        assert await authority.sessions.get(text) is None
        assert await authority.deployments.materialized(text) is None
        assert not await authority.offers.heartbeat(text, text, text)
        assert not await authority.offers.connected(text, text)
        await authority.offers.disconnected(text, text)
        for nothing in (
            authority.plans.all(text),
            authority.offers.all(text, text),
            authority.deployments.instances(text),
            authority.sessions.all(subject=text),
            authority.revisions.history(text),
        ):
            assert await nothing == []
        status = await authority.sessions.surface_status(key, text, text, text, text)
        assert status.to_dict() == {"status": "unknown_contract"}
        await authority.deployments.narrow("graph", surfaces=[text], capabilities=[text], by=text)
        assert (await authority.deployments.get("graph")).desired.contracts == {}
        assert len(await authority.revisions.history()) == 4


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 129, "../x", "-x"])
async def test_names_that_are_none_are_refused(world: Any, name: str) -> None:
    with pytest.raises(AuthorityError) as caught:
        await world.authority.deployments.create(name, DeploymentKind.SERVICE)
    assert caught.value.code is Code.BAD_REQUEST
    await world.authority.deployments.create("fine", DeploymentKind.SERVICE)
    with pytest.raises(AuthorityError):
        await world.authority.deployments.add_instance("fine", world.key(), name)
    with pytest.raises(AuthorityError):
        await world.authority.deployments.add_instance("fine", "A" * 42 + "B", "one")
    assert await world.authority.deployments.instances("fine") == []


async def test_a_builtin_that_is_broken_opens_no_authority(
    tmp_path: Path, clock: VirtualClock, builtins: Any
) -> None:
    core = builtins["trellis.core@v1"]
    for wrong in ({"trellis.other@v1": core}, {"trellis.core@v1": {**core, "rpc": 1}}):
        with pytest.raises(AuthorityError):
            async with open_authority(tmp_path, clock, UlidSource(clock), wrong):
                pass


async def test_a_home_of_the_version_before_keeps_its_shell_and_can_go_back(
    tmp_path: Path, clock: VirtualClock, builtins: Any
) -> None:
    where = tmp_path / "stores"
    ids = UlidSource(clock)
    async with open_authority(where, clock, ids, builtins, round_seconds=None) as authority:
        for name in ("shell", "graph"):
            await authority.deployments.create(
                name, DeploymentKind.SERVICE, Compatibility.MUTABLE_DEV
            )
    undone = [each.revision for each in roll_back(where, AUTHORITY, "0.1.0")]
    assert undone == ["authority_0004", "authority_0003", "authority_0002"]
    async with open_authority(where, clock, ids, builtins, round_seconds=None) as authority:
        calls = {each.id: each.calls for each in await authority.deployments.all()}
    assert calls == {"shell": frozenset({"*"}), "graph": frozenset()}
