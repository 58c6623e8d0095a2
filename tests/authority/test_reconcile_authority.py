"""From an accepted plan to bindings that a runtime receives, with the real authority."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.authority.reconcile_cases import everything
from tests.fabric.fabric_network import connected

from accord.authority.contracts import builtins
from accord.authority.reconcile import JetStream, Reconciler, RepairLoop
from accord.authority.rules import AuthorityError, Code, DeploymentKind, ResourceRef
from accord.authority.service import Authority, open_authority
from accord.contracts import digest
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.testing.servers import Server, nats_server

KEY = session_key(SigningKey(bytes(32)))
CLOCK = SystemClock()
IDS = UlidSource(CLOCK)


def shop(*, more: bool = False) -> Contract:
    contract = Contract("shop@v1", display_name="Shop", description="Sells.")
    contract.schema("Cart", {"type": "object"})
    contract.operation("Shop.Close", "Cart", "Cart")
    contract.event("Shop.Opened", "Cart")
    contract.kv("carts", "Cart", "Carts.")
    contract.store("scans", "Scans.", max_object_bytes=1000)
    contract.job("refund", "Cart")
    contract.consumer("audit", own=["Shop.Opened"])
    if more:
        contract.kv("prices", "Cart", "Prices.")
    return contract


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with nats_server(jetstream=True) as running:
        yield running


@pytest.fixture
async def jetstream(server: Server) -> AsyncIterator[JetStream]:
    async with connected(server.url) as nats:
        made = JetStream(nats)
        yield made
        for name in (await made.ask("STREAM.NAMES", {}))["streams"] or ():
            await made.delete(ResourceRef(name))


@pytest.fixture
async def authority(tmp_path: Path) -> AsyncIterator[Authority]:
    async with open_authority(tmp_path, CLOCK, IDS, builtins(), round_seconds=None) as opened:
        await opened.deployments.create("shop", DeploymentKind.SERVICE)
        await opened.deployments.add_instance("shop", KEY, "one")
        yield opened


async def accept(authority: Authority, contract: Contract) -> None:
    plan = await authority.plans.propose("shop", contract.to_json(), "ops")
    assert plan is not None
    await authority.plans.accept(plan.id, "ops")


async def test_what_was_accepted_is_made_and_handed_out(
    authority: Authority, jetstream: JetStream
) -> None:
    named = digest(shop().manifest())
    repair = RepairLoop(Reconciler(jetstream, authority, IDS), authority)
    await accept(authority, shop())
    with pytest.raises(AuthorityError) as caught:
        await authority.bootstrap.run(KEY, named, None, "r")
    assert caught.value.code is Code.AUTHORITY_RECONCILIATION_PENDING
    assert await repair.look(everything=True)
    ready = await authority.bootstrap.run(KEY, named, None, "r")
    assert ready.settings["kv"]["carts"]["bucket"] == ready.bindings.kv["carts"]
    assert ready.settings["operations"]["bucket"] == ready.bindings.operations
    assert ready.settings["store"]["scans"]["maxObjectBytes"] == 1000
    assert ready.settings["consumers"]["audit"]["filterSubjects"] == ["events.v1.Shop.Opened"]
    assert ready.settings["jobs"]["queues"]["refund"]["maxDeliver"] == 5
    granted = (await authority.sessions.grants(KEY, named)).publish
    assert f"$KV.{ready.bindings.kv['carts']}.>" in granted
    assert f"$KV.{ready.bindings.operations}.>" in granted
    before = await everything(jetstream)
    assert await repair.look(everything=True)
    assert await everything(jetstream) == before
    assert not await authority.deployments.unreconciled()


async def test_what_is_added_later_is_made_beside_what_is_there(
    authority: Authority, jetstream: JetStream
) -> None:
    repair = RepairLoop(Reconciler(jetstream, authority, IDS), authority)
    await accept(authority, shop())
    await repair.look(everything=True)
    before = await everything(jetstream)
    await accept(authority, shop(more=True))
    assert await repair.look(everything=False)
    after = await everything(jetstream)
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()
    ready = await authority.bootstrap.run(KEY, digest(shop(more=True).manifest()), None, "r")
    assert {"carts", "prices"} == ready.bindings.kv.keys()


async def test_a_conflict_is_what_a_service_hears(
    authority: Authority, jetstream: JetStream
) -> None:
    reconciler = Reconciler(jetstream, authority, IDS)
    await reconciler.prepare()
    await accept(authority, shop())
    record = await reconciler.reconcile("shop")
    name = f"KV_{record.bindings['shop@v1'].kv['carts']}"
    await jetstream.delete(ResourceRef(name))
    await jetstream.create(ResourceRef(name), {"name": name, "subjects": ["mine.>"]})
    repair = RepairLoop(reconciler, authority)
    assert await repair.look(everything=True)
    with pytest.raises(AuthorityError, match="was not made by this authority") as caught:
        await authority.bootstrap.run(KEY, digest(shop().manifest()), None, "r")
    assert caught.value.code is Code.RESOURCE_CONFLICT
    await jetstream.delete(ResourceRef(name))
    assert await repair.look(everything=True)
    await authority.bootstrap.run(KEY, digest(shop().manifest()), None, "r")
