"""A whole authority on its own NATS server, for services and apps to be let in by."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette

from accord.authority.assembly import run_authority
from accord.authority.identities import Identities
from accord.authority.nats import EmbeddedServer, ListenAddress, embedded_server
from accord.authority.rules import Compatibility, DeploymentKind
from accord.authority.service import Authority
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.station.listener import Listener, bind


@dataclass
class Station:
    """An authority that serves, and what operators do with it."""

    url: str
    authority: Authority
    identities: Identities
    server: EmbeddedServer

    async def deploy(
        self, name: str, *contracts: Contract, kind: DeploymentKind = DeploymentKind.SERVICE
    ) -> SigningKey:
        """Accept contracts for a deployment and return the key of an instance of it."""
        await self.authority.deployments.create(name, kind, Compatibility.STRICT)
        for contract in contracts:
            await self.accept(name, contract)
        return await self.instance(name, "one")

    async def accept(self, deployment: str, contract: Contract) -> None:
        plan = await self.authority.plans.propose(deployment, contract.to_json(), "operator")
        if plan is not None:
            await self.authority.plans.accept(plan.id, "operator")

    async def instance(self, deployment: str, name: str) -> SigningKey:
        key = SigningKey.generate()
        await self.authority.deployments.add_instance(deployment, session_key(key), name)
        return key


@asynccontextmanager
async def station(folder: Path, clock: Clock | None = None) -> AsyncIterator[Station]:
    """Run one until the block ends."""
    clock = clock or SystemClock()
    async with (
        embedded_server(folder / "nats", ListenAddress(), clock) as server,
        run_authority(folder / "store", server.cluster, clock, token="operators") as authority,
    ):
        listener = Listener(Starlette(routes=list(authority.routes)))
        with bind("127.0.0.1", 0) as listening:
            serving = asyncio.create_task(listener.serve([listening]))
            await listener.serving.wait()
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            try:
                yield Station(url, authority.authority, authority.identities, server)
            finally:
                listener.should_exit = True
                await serving
