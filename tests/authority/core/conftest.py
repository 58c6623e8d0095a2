"""A small world of contracts, and an authority in which they live."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from accord.authority.rules import Compatibility, DeploymentKind, Materialized, MaterialState
from accord.authority.service import Authority, open_authority
from accord.contracts import digest
from accord.contracts.session_proof import session_key
from accord.kernel import canonical
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.testing import VirtualClock

Manifest = dict[str, Any]
OBJECT = {"type": "object", "properties": {"id": {"type": "string"}}}


def contract(name: str, kind: str = "service", **sections: Any) -> Manifest:
    """A manifest with one schema, and whatever sections are given."""
    return {
        "format": "trellis.contract.v1",
        "id": f"{name}@v1",
        "displayName": name.title(),
        "description": f"The {name} contract.",
        "kind": kind,
        "schemas": {"Thing": OBJECT, **sections.pop("schemas", {})},
        **sections,
    }


def rpc(name: str, *capabilities: str, schema: str = "Thing") -> Manifest:
    """An RPC of that name, for those who hold the capabilities."""
    entry: Manifest = {
        "version": "v1",
        "subject": f"rpc.v1.{name}",
        "input": {"schema": "Thing"},
        "output": {"schema": schema},
    }
    if capabilities:
        entry["capabilities"] = {"call": list(capabilities)}
    return {name: entry}


def event(name: str) -> Manifest:
    """An event of that name, with one token."""
    return {
        name: {
            "version": "v1",
            "subject": f"events.v1.{name}.{{/id}}",
            "params": ["/id"],
            "event": {"schema": "Thing"},
        }
    }


def uses(group: str, alias: str, **selected: Any) -> Manifest:
    """A use of the contract of that name."""
    return {group: {alias: {"contract": f"{alias}@v1", **selected}}}


class World:
    """What a test tells an authority, in few words."""

    def __init__(self, authority: Authority, clock: VirtualClock) -> None:
        self.authority = authority
        self.clock = clock
        self._keys = 0

    def key(self) -> str:
        """A new session key."""
        self._keys += 1
        return session_key(SigningKey.from_seed(self._keys.to_bytes(32, "big")))

    async def deployment(self, name: str, mode: str = "strict", kind: str = "service") -> str:
        """A deployment with one instance, whose key it gives."""
        await self.authority.deployments.create(name, DeploymentKind(kind), Compatibility(mode))
        return await self.instance(name, f"{name}-1")

    async def instance(self, deployment: str, name: str) -> str:
        """One more instance, whose key it gives."""
        key = self.key()
        await self.authority.deployments.add_instance(deployment, key, name)
        return key

    async def reconcile(self) -> None:
        """Make everything that is desired, out of nothing."""
        for name in await self.authority.deployments.unreconciled():
            version = (await self.authority.deployments.get(name)).version
            made = Materialized(name, version, MaterialState.CURRENT)
            assert await self.authority.deployments.materialize(made)

    async def bootstrap(self, key: str, manifest: Manifest) -> Any:
        """Present a contract."""
        body = canonical.encode(manifest)
        return await self.authority.bootstrap.run(key, digest(manifest), body, f"session {key}")

    async def deploy(self, name: str, manifest: Manifest, key: str | None = None) -> str:
        """Propose, accept, make and offer a contract; the key of the instance that offers it."""
        if key is None:
            key = await self.deployment(name)
        plan = await self.authority.plans.propose(name, canonical.encode(manifest), "operator")
        if plan is not None:
            await self.authority.plans.accept(plan.id, "operator")
        await self.reconcile()
        await self.bootstrap(key, manifest)
        await self.authority.offers.connected(key)
        await self.authority.catalog.refresh()
        return key

    async def acts(self, deployment: str) -> list[str]:
        """The words of a deployment's history."""
        return [step.act.act for step in await self.authority.revisions.history(deployment)]


@pytest.fixture
def contracts() -> Any:
    """Makers of contracts."""

    class Makers:
        contract = staticmethod(contract)
        rpc = staticmethod(rpc)
        event = staticmethod(event)
        uses = staticmethod(uses)

    return Makers


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def builtins() -> dict[str, Manifest]:
    """One contract of the platform's own."""
    capability = {"displayName": "Read", "description": "Read the catalog."}
    core = contract(
        "trellis.core",
        rpc=rpc("Trellis.Catalog", "trellis.core::catalog.read"),
        capabilities={"trellis.core::catalog.read": capability},
    )
    return {"trellis.core@v1": core}


@pytest.fixture
async def world(
    tmp_path: Path, clock: VirtualClock, builtins: dict[str, Manifest]
) -> AsyncIterator[World]:
    ids = UlidSource(clock)
    async with open_authority(tmp_path, clock, ids, builtins, round_seconds=None) as authority:
        yield World(authority, clock)


@pytest.fixture
def make_world(clock: VirtualClock) -> Callable[[Authority], World]:
    return lambda authority: World(authority, clock)
