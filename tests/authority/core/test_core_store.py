"""The authority's store: its tables, its history, and several authorities on one of them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from accord.authority.errors import AuthorityError, Code
from accord.authority.history import STREAM
from accord.authority.opening import open_authority
from accord.authority.records import (
    Classification,
    Compatibility,
    Deployment,
    Desired,
    Kind,
    Materialized,
    MaterialState,
    PlanState,
)
from accord.authority.schema import AUTHORITY
from accord.authority.stored import deployments
from accord.contracts import Bindings, digest
from accord.contracts.permissions import Consumer, Queue
from accord.kernel import canonical
from accord.kernel.ulid import UlidSource
from accord.pipeline.checks.checking import check
from accord.storage import check as check_store
from accord.storage import open_store
from accord.storage.journal import read as read_journal
from accord.testing import VirtualClock


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
    deployment = Deployment("a", Kind.DEVICE, Compatibility.MUTABLE_DEV, True, desired, 7)
    bindings = Bindings(
        kv={"notes": "acc_kv_1"},
        store={"files": "acc_os_1"},
        consumers={"group": Consumer("trellis", "acc_ec_1")},
        jobs={"q": Queue("ns", "q", "c", key_bucket="acc_kv_2")},
    )
    settings = {"a@v1": {"kv": {"notes": {"bucket": "acc_kv_1"}}}}
    made = Materialized("a", 7, MaterialState.FAILED, {"a@v1": bindings}, settings, "why")

    def write(connection: Connection) -> None:
        deployments.create(connection, deployment)
        deployments.write(connection, deployment)
        deployments.write_materialized(connection, made)

    async with open_store(place, AUTHORITY) as store:
        await store.write(write)
        assert await store.read(lambda c: deployments.read(c, "a")) == deployment
        assert await store.read(lambda c: deployments.read_materialized(c, "a")) == made
        assert await store.read(deployments.unreconciled) == ["a"]
        assert await store.read(deployments.read_all) == [deployment]


async def test_every_step_of_a_contracts_life_is_a_record_that_the_pipeline_takes(
    world: Any, contracts: Any, tmp_path: Path
) -> None:
    first = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    second = contracts.contract("graph", rpc=contracts.rpc("Graph.Else"))
    key = await world.deploy("graph", first)
    with pytest.raises(AuthorityError) as waiting:
        await world.bootstrap(key, second)
    await world.authority.reject(waiting.value.where, "ada", "no")
    await world.deploy("graph", second, key)
    world.clock.advance(3600)
    await world.authority.expire(world.clock.now())

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
    steps = await world.authority.history("graph")
    kinds = {step["kind"] for step in told}
    assert [step.act.act for step in steps if step.act.act in kinds] == [s["kind"] for s in told]
    later = await world.authority.history("graph", since=steps[-2].revision)
    assert [step.act.act for step in later] == ["expired"]
    for limit in range(1, len(steps)):
        page = await world.authority.history("graph", limit=limit)
        rest = await world.authority.history("graph", since=page[-1].revision)
        assert [*page, *rest] == steps


async def test_the_store_passes_its_own_check_and_opens_again_as_it_was(
    tmp_path: Path, clock: VirtualClock, contracts: Any, make_world: Callable[[Any], Any]
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    async with open_authority(tmp_path, clock, UlidSource(clock), round_seconds=None) as one:
        await make_world(one).deploy("graph", graph)
        before = one.catalog(), await one.history(), await one.deployments()
    report = check_store(tmp_path, AUTHORITY)
    assert report.ok
    assert report.records
    async with open_authority(tmp_path, clock, UlidSource(clock), round_seconds=None) as again:
        assert (again.catalog(), await again.history(), await again.deployments()) == before


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
        await asyncio.gather(*(both[n - 1].authority.accept(plans[n], "ada") for n in range(8)))
        await here.reconcile()
        await asyncio.gather(*(both[n].bootstrap(keys[n], manifests[n]) for n in range(8)))
        count = two.changes.count
        await asyncio.gather(one.keep_up(), two.keep_up())
        assert one.catalog() == two.catalog()
        assert len(one.catalog()["contracts"]) == 8
        # All that the other did in the meantime is one change to hear of, and only once.
        assert two.changes.count <= count + 1
        await two.keep_up()
        assert two.changes.count <= count + 1
        # Revisions number decisions without gaps in what each of them says.
        assert len({(s.revision, s.place) for s in await one.history()}) == len(await two.history())


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
            plan = await one.propose(name, canonical.encode(wanted), "ada")
            assert plan is not None
            plans.append(plan)
        results = await asyncio.gather(
            one.accept(plans[0].id, "ada"), two.accept(plans[1].id, "bob"), return_exceptions=True
        )
        refusals = [result for result in results if isinstance(result, AuthorityError)]
        assert [refusal.code for refusal in refusals] == [Code.SUBJECT_COLLISION]
        states = {(await one.plan(plan.id)).state for plan in plans}
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
        await one.refresh()
        assert one.issues() == ()


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
            while "graph@v1" not in two.effective():
                count = await two.changes.after(count)


async def test_the_catalog_follows_a_change_without_being_asked(
    tmp_path: Path, clock: VirtualClock, contracts: Any, make_world: Callable[[Any], Any]
) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    async with open_authority(tmp_path, clock, UlidSource(clock), round_seconds=3600) as authority:
        key = await make_world(authority).deploy("graph", graph)
        await authority.set_instance_disabled(key, True)
        async with asyncio.timeout(20):
            while "graph@v1" in authority.effective():  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)


async def test_a_storm_of_bootstraps_ends_with_everybody_ready(world: Any, contracts: Any) -> None:
    graph = contracts.contract("graph", rpc=contracts.rpc("Graph.Get"))
    await world.deploy("graph", graph)
    keys = [await world.instance("graph", f"more-{number}") for number in range(40)]
    ready = await asyncio.gather(*(world.bootstrap(key, graph) for key in keys))
    assert {each.digest for each in ready} == {digest(graph)}
    assert len(await world.authority.offers("graph")) == 41
    offered = [step for step in await world.acts("graph") if step == "offered"]
    assert len(offered) == 1


async def test_plans_that_wait_are_bounded(world: Any, contracts: Any) -> None:
    await world.deployment("graph")
    body = canonical.encode(contracts.contract("graph"))
    for number in range(64):
        plan = await world.authority.propose("graph", body, f"r{number}")
        assert plan.classification is Classification.UPDATE
    with pytest.raises(AuthorityError) as caught:
        await world.authority.propose("graph", body, "one more")
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
        plan = await authority.propose("graph", body, text)
        assert plan is not None
        assert isinstance(await ask(authority.accept(text, text)), AuthorityError)
        await ask(authority.reject(plan.id, text, text))
        await authority.forget_requester(text)
        for refused in (
            authority.present(None, text),
            authority.present(body, text),
            authority.create_deployment(text, Kind.SERVICE),
            authority.deployment(text),
            authority.set_disabled(text, True),
            authority.set_disabled(text, False),
            authority.add_instance("graph", text, "two"),
            authority.set_instance_disabled(text, True),
            authority.remove_instance(text),
            authority.bootstrap(text, digest(graph), body, text),
            authority.bootstrap(key, text, None, text),
            authority.propose(text, body, "ada"),
            authority.plan(text),
            authority.revoke_session(text, text),
        ):
            assert isinstance(await ask(refused), AuthorityError)
        assert not (await authority.grants(text, digest(graph))).ok
        assert not (await authority.grants(key, text)).ok
        assert await authority.contract(text) is None
        assert await authority.session(text) is None
        assert await authority.materialized(text) is None
        assert not await authority.heartbeat(text, text, text)
        assert not await authority.connected(text, text)
        await authority.disconnected(text, text)
        for nothing in (
            authority.plans(text),
            authority.offers(text, text),
            authority.instances(text),
            authority.sessions(subject=text),
            authority.history(text),
        ):
            assert await nothing == []
        status = await authority.surface_status(key, text, text, text, text)
        assert status.to_dict() == {"status": "unknown_contract"}
        await authority.narrow("graph", surfaces=[text], capabilities=[text], by=text)
        assert (await authority.deployment("graph")).desired.contracts == {}
        assert len(await authority.history()) == 4


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 129, "../x", "-x"])
async def test_names_that_are_none_are_refused(world: Any, name: str) -> None:
    with pytest.raises(AuthorityError) as caught:
        await world.authority.create_deployment(name, Kind.SERVICE)
    assert caught.value.code is Code.BAD_REQUEST
    await world.authority.create_deployment("fine", Kind.SERVICE)
    with pytest.raises(AuthorityError):
        await world.authority.add_instance("fine", world.key(), name)
    with pytest.raises(AuthorityError):
        await world.authority.add_instance("fine", "A" * 42 + "B", "one")
    assert await world.authority.instances("fine") == []


async def test_a_builtin_that_is_broken_opens_no_authority(
    tmp_path: Path, clock: VirtualClock, builtins: Any
) -> None:
    core = builtins["trellis.core@v1"]
    for wrong in ({"trellis.other@v1": core}, {"trellis.core@v1": {**core, "rpc": 1}}):
        with pytest.raises(AuthorityError):
            async with open_authority(tmp_path, clock, UlidSource(clock), wrong):
                pass
