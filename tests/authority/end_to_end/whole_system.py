"""What tests of a whole system share: contracts, what is kept of them, and waiting."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from sqlalchemy import Connection, MetaData
from tests.fabric.fabric_station import Station

from accord.authority.nats import Cluster, connect
from accord.authority.reconcile import JetStream
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import connect_message, prove, session_key
from accord.fabric import Request, Service
from accord.kernel.signing import SigningKey

THING = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
SECONDS = 30.0


def shop(*more: str, schema: Mapping[str, Any] = THING) -> Contract:
    """A service with an RPC for anybody, and more of them by name."""
    contract = Contract("shop@v1", display_name="Shop", description="Sells things.")
    contract.serves_callers()
    contract.schema("Thing", dict(schema))
    for name in ("Shop.Find", *more):
        contract.rpc(name, "Thing", "Thing")
    return contract


def buyer() -> Contract:
    """A service that calls the shop."""
    contract = Contract("buyer@v1", display_name="Buyer", description="Buys things.")
    contract.uses("shop", "shop@v1", rpc=["Shop.Find"])
    return contract


def selling(house: Station, key: SigningKey, contract: Contract) -> Service:
    """An instance that answers every RPC of a shop with what it was asked."""
    service = Service(contract, key=key, authority=house.url)

    async def answer(_request: Request, payload: Any) -> Any:
        return payload

    for name in contract.manifest()["rpc"]:
        service.rpc(name)(answer)
    return service


def signed(key: SigningKey, digest: str, iat: int, **more: Any) -> dict[str, Any]:
    """The body of a bootstrap."""
    message = connect_message(digest, iat)
    return {
        "sessionKey": session_key(key),
        "contractDigest": digest,
        "iat": iat,
        "sig": prove(key, message),
        **more,
    }


async def bootstrap(url: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """What the authority answers to one."""
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{url}/bootstrap/v1", json=body)
        return answer.status_code, answer.json()


@asynccontextmanager
async def managed(cluster: Cluster) -> AsyncIterator[JetStream]:
    """JetStream, as the authority itself sees it."""
    connection = await connect("look", cluster, cluster.authority)
    try:
        yield JetStream(connection)
    finally:
        await connection.close()


async def kept(house: Station) -> dict[str, list[str]]:
    """Every row of the authority's store by table, and every stream and consumer of JetStream.

    That somebody was refused is told, and decides nothing.
    """
    rows = await house.authority.store.read(_rows)
    async with managed(house.server.cluster) as jetstream:
        streams = (await jetstream.ask("STREAM.LIST"))["streams"] or []
        rows["streams"] = sorted(json.dumps(each["config"], sort_keys=True) for each in streams)
        rows["consumers"] = []
        for each in streams:
            name = each["config"]["name"]
            found = (await jetstream.ask(f"CONSUMER.LIST.{name}"))["consumers"] or []
            rows["consumers"] += sorted(json.dumps(it["config"], sort_keys=True) for it in found)
    return rows


async def settled(house: Station) -> dict[str, list[str]]:
    """The same, once everything that was accepted has been made."""

    async def is_made() -> bool:
        return not await house.authority.deployments.unreconciled()

    await until(is_made)
    return await kept(house)


def _rows(connection: Connection) -> dict[str, list[str]]:
    found = MetaData()
    found.reflect(connection)
    return {
        table.name: sorted(
            str(tuple(row))
            for row in connection.execute(table.select())
            if getattr(row, "act", None) != "refused"
        )
        for table in found.sorted_tables
    }


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = SECONDS) -> None:
    """Wait for what happens in other tasks and processes."""
    async with asyncio.timeout(seconds):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.02)
