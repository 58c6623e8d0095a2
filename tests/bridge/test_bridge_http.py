"""The RPCs of a contract over HTTP, before a real service."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from examples import shop
from starlette.applications import Starlette
from tests.fabric.fabric_station import station

from accord.bridge.http import HttpBridge, HttpLimits
from accord.contracts.export import openapi
from accord.contracts.imports import read_openapi
from accord.fabric import Service, TypedService
from accord.fabric.app import shell_contract
from accord.kernel.clock import SystemClock
from accord.kernel.schema import compile_schema

pytestmark = pytest.mark.slow
TOKEN = "a-token-for-callers"


@dataclass
class Item:
    name: str


@asynccontextmanager
async def bridged(folder: Path, service: TypedService) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a bridge before an instance of the service."""
    manifest = service.contract.manifest()
    caller = shell_contract(manifest)
    async with AsyncExitStack() as opened:
        house = await opened.enter_async_context(station(folder))
        key = await house.deploy("served", service.contract)
        await opened.enter_async_context(service(key=key, authority=house.url).connect())
        own = Service(caller, key=await house.deploy("bridge", caller), authority=house.url)
        session = await opened.enter_async_context(own.connect())
        limits = HttpLimits(seconds=5, per_minute=60, burst=40)
        bridge = HttpBridge(session.client(manifest), TOKEN, SystemClock(), limits)
        transport = httpx.ASGITransport(Starlette(routes=list(bridge.routes())))
        yield await opened.enter_async_context(
            httpx.AsyncClient(
                transport=transport,
                base_url="http://bridge",
                headers={"authorization": f"Bearer {TOKEN}"},
            )
        )


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with bridged(tmp_path, shop.service) as client:
        yield client


async def test_rpcs_are_called_over_http_as_the_document_says(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert document == openapi(shop.service.contract.manifest())
    answer = await http.post("/rpc/Shop.Buy", json={"name": "ladder", "count": 3})
    assert (answer.status_code, answer.json()) == (200, {"left": 7})
    described = document["paths"]["/rpc/Shop.Buy"]["post"]["responses"]

    async def fails(status: int, kind: str, **request: Any) -> dict[str, Any]:
        answer = await http.post(request.pop("path", "/rpc/Shop.Buy"), **request)
        assert answer.status_code == status, answer.text
        body: dict[str, Any] = answer.json()
        assert body["type"] == kind
        if str(status) in described:
            schema = described[str(status)]["content"]["application/json"]["schema"]
            assert compile_schema(inlined(schema, document)).is_valid(body)
        return body

    sold_out = await fails(400, "SoldOutError", json={"name": "ladder", "count": 50})
    assert sold_out["left"] == 7
    wrong = await fails(422, "ValidationError", json={"name": "ladder", "count": 900})
    assert wrong["issues"][0]["path"] == "/count"
    json_type = {"content-type": "application/json"}
    await fails(422, "ValidationError", content=b'{"name": "a", "name": "b"}', headers=json_type)
    await fails(413, "ValidationError", content=b" " * (2 << 20), headers=json_type)
    await fails(415, "ValidationError", content=b"{}", headers={"content-type": "text/plain"})
    await fails(404, "NotFoundError", json={}, path="/rpc/Shop.Sell")
    for token in ("", "Bearer", "Bearer another", f"Basic {TOKEN}"):
        headers = {"authorization": token}
        await fails(401, "Unauthenticated", json={"name": "ladder"}, headers=headers)
    await fails(422, "ValidationError", json={"name": "ladder"}, headers={"idempotency-key": "a"})
    # None of these bought anything.
    answer = await http.post("/rpc/Shop.Buy", json={"name": "ladder"})
    assert answer.json() == {"left": 6}


async def test_a_request_with_a_key_is_done_once(tmp_path: Path) -> None:
    counting = TypedService("till@v1", "Counts.")
    done: list[str] = []

    @counting.rpc("Buy", once=True)
    async def buy(item: Item) -> int:
        done.append(item.name)
        return len(done)

    document = openapi(counting.contract.manifest())
    (header,) = document["paths"]["/rpc/Buy"]["post"]["parameters"]
    async with bridged(tmp_path, counting) as http:

        async def ask(name: str, key: str) -> tuple[int, Any]:
            sent = {header["name"]: key}
            answer = await http.post("/rpc/Buy", json={"name": name}, headers=sent)
            return answer.status_code, answer.json() if answer.is_success else None

        assert await ask("saw", "order-1") == (200, 1)
        assert await ask("saw", "order-1") == (200, 1)
        # As structured fields write strings.
        assert await ask("saw", '"order-1"') == (200, 1)
        assert await ask("saw", "order-2") == (200, 2)
        assert await ask("ladder", "order-1") == (409, None)
        for wrong in ("", '""', "two words", "k" * 91):
            assert await ask("saw", wrong) == (422, None)
        assert len(done) == 2


async def test_one_address_has_a_limit(http: httpx.AsyncClient) -> None:
    asked = [http.post("/rpc/Shop.Sell", json={}) for _ in range(60)]
    statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert statuses.count(429) >= 10


def inlined(schema: Any, document: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            found = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            return inlined(found, document)
        return {key: inlined(part, document) for key, part in schema.items()}
    return [inlined(part, document) for part in schema] if isinstance(schema, list) else schema


def test_what_is_exported_can_be_imported() -> None:
    manifest = shop.service.contract.manifest()
    read = read_openapi(json.loads(json.dumps(openapi(manifest))), "shop@v1")
    again = read.manifest["rpc"]["Shop.ShopBuy"]
    request = read.manifest["schemas"][again["input"]["schema"]]
    assert request["properties"]["body"] == manifest["schemas"]["Item"]
