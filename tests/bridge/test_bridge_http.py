"""The RPCs of a contract over HTTP, before a real service."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
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
from accord.fabric import Service
from accord.fabric.app import shell_contract
from accord.kernel.clock import SystemClock
from accord.kernel.schema import compile_schema

pytestmark = pytest.mark.slow
TOKEN = "a-token-for-callers"


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    manifest = shop.service.contract.manifest()
    caller = shell_contract(manifest)
    async with AsyncExitStack() as opened:
        house = await opened.enter_async_context(station(tmp_path))
        key = await house.deploy("shop", shop.service.contract)
        await opened.enter_async_context(shop.service(key=key, authority=house.url).connect())
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
    # None of these bought anything.
    answer = await http.post("/rpc/Shop.Buy", json={"name": "ladder"})
    assert answer.json() == {"left": 6}


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
