"""The real authority behind a real server: what it takes back is gone within seconds."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nats.errors import NoServersError
from tests.authority.nats_cases import BOUND, CLERK, SHOP, STOCK, dialled, until

from accord.authority.nats import (
    Cluster,
    ConnectRefusal,
    ListenAddress,
    NatsControl,
    control_nats,
    embedded_server,
)
from accord.authority.offers import Offers
from accord.authority.rules import (
    Code,
    DeploymentKind,
    Materialized,
    MaterialState,
    Offer,
    SessionHolder,
    SessionRecord,
)
from accord.authority.service import Authority, open_authority
from accord.contracts import digest
from accord.contracts.session_proof import session_key
from accord.kernel import canonical
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey

SECONDS = 5.0
CLOCK = SystemClock()
BEATS = "events.v1.Health.Heartbeat"


@dataclass
class Plane:
    authority: Authority
    cluster: Cluster
    ruled: NatsControl
    refusals: list[ConnectRefusal]

    async def deploy(self, name: str, contract: dict[str, Any]) -> SigningKey:
        """Run a contract as a deployment of one instance, whose key it gives."""
        key, manifest = SigningKey.generate(), canonical.encode(contract)
        await self.authority.deployments.create(name, DeploymentKind.SERVICE)
        await self.authority.deployments.add_instance(name, session_key(key), f"{name}-1")
        plan = await self.authority.plans.propose(name, manifest, "operator")
        if plan is not None:
            await self.authority.plans.accept(plan.id, "operator")
        version = (await self.authority.deployments.get(name)).version
        bindings = {contract["id"]: BOUND}
        made = Materialized(name, version, MaterialState.CURRENT, bindings)
        assert await self.authority.deployments.materialize(made)
        await self.authority.bootstrap.run(session_key(key), digest(contract), manifest, name)
        return key

    async def offered(self, deployment: str, *, live: bool) -> Offer:
        """Wait until what a deployment offers is live, or is not."""
        async with asyncio.timeout(SECONDS):
            while (offer := (await self.authority.offers.all(deployment))[0]).live is not live:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return offer


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    refusals: list[ConnectRefusal] = []

    async def audit(refusal: ConnectRefusal) -> None:
        refusals.append(refusal)

    async with (
        open_authority(tmp_path / "store", CLOCK, UlidSource(CLOCK)) as authority,
        embedded_server(tmp_path / "nats", ListenAddress(), CLOCK) as server,
        control_nats(authority, server.cluster, CLOCK, heartbeats=BEATS, audit=audit) as ruled,
    ):
        yield Plane(authority, server.cluster, ruled, refusals)


async def test_a_service_comes_in_is_live_and_touches_what_it_was_accepted_for(
    plane: Plane,
) -> None:
    await plane.deploy("stock", STOCK)
    key = await plane.deploy("shop", SHOP)
    async with dialled(plane.cluster, key, SHOP) as shop:
        assert await shop.may_publish("rpc.v1.Stock.Count")
        assert await shop.may_publish("$KV.acc_kv_carts.one")
        assert not await shop.may_publish("rpc.v1.Stock.Secret")
        await plane.offered("shop", live=True)
        await shop.client.close()
        offer = await plane.offered("shop", live=False)
    assert CLOCK.now() < offer.expires_at < CLOCK.now() + 31


async def test_a_surface_that_an_operator_takes_back_is_gone_within_seconds(plane: Plane) -> None:
    await plane.deploy("stock", STOCK)
    optional = {**SHOP, "uses": {"optional": SHOP["uses"]["required"]}}
    key = await plane.deploy("shop", optional)
    async with dialled(plane.cluster, key, optional) as shop:
        assert await shop.may_publish("rpc.v1.Stock.Count")
        held = (await plane.authority.deployments.get("shop")).desired.surfaces
        taken = next(each for each in held if "Stock.Count" in each)
        await plane.authority.deployments.narrow("shop", surfaces=[taken])
        await until(lambda: shop.cuts == 1, SECONDS)
        await until(lambda: shop.client.is_connected, SECONDS)
        assert not await shop.may_publish("rpc.v1.Stock.Count")
        assert await shop.may_publish("events.v1.Shop.Sold")


@pytest.mark.parametrize("how", ["instance disabled", "instance removed", "deployment disabled"])
async def test_an_instance_that_may_not_run_is_out_within_seconds(plane: Plane, how: str) -> None:
    key = await plane.deploy("stock", STOCK)
    name = session_key(key)
    async with dialled(plane.cluster, key, STOCK) as stock:
        await until(lambda: plane.ruled.presence.is_connected(name))
        if how == "instance disabled":
            await plane.authority.deployments.set_instance_disabled(name, True)
        elif how == "instance removed":
            await plane.authority.deployments.remove_instance(name)
        else:
            await plane.authority.deployments.set_disabled("stock", True)
        await until(lambda: stock.client.is_closed, SECONDS)
    assert plane.refusals[0].key == name


async def test_a_person_whose_session_is_revoked_is_out_within_seconds(plane: Plane) -> None:
    await plane.deploy("stock", STOCK)
    await plane.deploy("shop", SHOP)
    await plane.authority.manifests.present(canonical.encode(CLERK), digest(CLERK))
    key = SigningKey.generate()
    name = session_key(key)
    await plane.authority.sessions.put(
        SessionRecord(
            name, SessionHolder.PERSON, "ada", CLERK["id"], digest(CLERK), created_at=CLOCK.now()
        )
    )
    async with dialled(plane.cluster, key, CLERK) as clerk:
        assert await clerk.may_publish("rpc.v1.Shop.Buy")
        await until(lambda: plane.ruled.presence.is_connected(name))
        await plane.authority.sessions.revoke(name, "operator")
        await until(lambda: clerk.client.is_closed, SECONDS)
    assert plane.refusals[0].code is Code.REVOKED


async def test_who_has_not_bootstrapped_is_not_let_in(plane: Plane) -> None:
    key = SigningKey.generate()
    await plane.authority.deployments.create("stock", DeploymentKind.SERVICE)
    await plane.authority.deployments.add_instance("stock", session_key(key), "stock-1")
    with pytest.raises(NoServersError):
        async with dialled(plane.cluster, key, STOCK):
            pass
    assert plane.refusals[0].code is Code.MANIFEST_REQUIRED


async def test_a_heartbeat_refreshes_an_offer(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await plane.deploy("stock", STOCK)
    name, heard = session_key(key), list[tuple[str, str, str]]()
    usual = plane.authority.offers.heartbeat

    async def heartbeat(_: Offers, key: str, contract_id: str, digest: str) -> bool:
        heard.append((key, contract_id, digest))
        return await usual(key, contract_id, digest)

    monkeypatch.setattr(Offers, "heartbeat", heartbeat)
    beat = {"sessionKey": name, "contractId": STOCK["id"], "contractDigest": digest(STOCK)}
    async with dialled(plane.cluster, key, STOCK):
        await plane.offered("stock", live=True)
        await plane.authority.offers.disconnected(name)
        await plane.ruled.nats.publish(BEATS, canonical.encode(beat))
        await until(lambda: heard == [(name, STOCK["id"], digest(STOCK))])
        await plane.offered("stock", live=True)
