"""Generated packages at work on a real server: their client calls their service."""

import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from examples import gallery, shop
from tests.fabric.fabric_authority import miniature
from tests.fabric.fabric_network import graph
from tests.fabric.fabric_station import station

from accord.contracts import render_sdk, sdk
from accord.contracts.export import transport as protocols
from accord.fabric import App, Client, NotFoundError, RemoteError, Service, Session
from accord.fabric.app import shell_contract
from accord.fabric.sdk import host, transport
from accord.kernel.signing import SigningKey
from accord.testing.servers import Server as Process


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for path, text in render_sdk(graph().manifest()).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("graph_v1")
    for name in [name for name in sys.modules if name.partition(".")[0] == "graph_v1"]:
        del sys.modules[name]


def implementation(package: ModuleType) -> Any:
    base: Any = package.Service

    class Mine(base):  # type: ignore[misc]
        async def call_user_find(self, context: Any, payload: Any) -> Any:
            if payload["id"] == "0":
                raise RemoteError("Missing", "no such user", {"userId": "0"})
            return {"id": payload["id"], "by": context.caller}

        async def call_user_open(self, context: Any, payload: Any) -> Any:
            return payload

        async def feed_user_watch(self, context: Any, payload: Any) -> AsyncIterator[Any]:
            yield payload
            yield {"id": context.id}

        async def consume_changes(self, context: Any, event: str, payload: Any) -> None: ...

    return Mine()


async def test_a_generated_client_calls_a_generated_service(
    package: ModuleType, nats: Process
) -> None:
    async with miniature(nats.url) as authority:
        manifest = importlib.import_module("graph_v1.contract").manifest()
        authority.bindings = {"consumers": {"changes": {"stream": "none", "consumer": "none"}}}
        service = Service(manifest, key=SigningKey.generate(), authority=authority.url)
        await package.serve(implementation(package), host(service))
        key = SigningKey.generate()
        authority.sessions.admit(key)
        app = App(manifest, key=key, authority=authority.url)
        async with service.connect(), app.connect() as session:
            client = package.Client(transport(session.client(manifest)))
            answer = await client.call_user_find({"id": "7"})
            assert answer == {"id": "7", "by": session.key}
            missing: Any = importlib.import_module("graph_v1.errors").Missing
            with pytest.raises(missing, match="no such user") as caught:
                await client.call_user_find({"id": "0"})
            assert caught.value.body["userId"] == "0"
            assert isinstance(caught.value.__cause__, RemoteError)
            seen = [each async for each in client.feed_user_watch({"id": "1"})]
            assert seen[0] == {"id": "1"}
            assert len(seen) == 2


def test_the_fabric_is_what_generated_code_asks_for() -> None:
    """The checker of types proves it; this only names what is compared."""

    def network(
        client: Client, service: Service, session: Session
    ) -> tuple[protocols.Transport, protocols.Server, protocols.Session]:
        return transport(client), host(service), session

    assert network.__annotations__["return"]


async def test_a_subject_of_another_contract_is_refused(nats: Process) -> None:
    service = Service(graph(), key=SigningKey.generate(), authority="http://127.0.0.1:1")

    async def handler(_context: Any, _payload: Any) -> Any: ...

    with pytest.raises(NotFoundError, match="has nothing on"):
        await host(service).serve_call("rpc.v1.Nothing", handler)


@pytest.mark.slow
async def test_a_generated_client_uploads_what_an_operation_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = shop.service.contract.manifest()
    sdk(manifest, tmp_path / "packages")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    package = importlib.import_module("shop_v1")
    caller = shell_contract(manifest)
    async with station(tmp_path) as house:
        key = await house.deploy("shop", shop.service.contract)
        own = Service(caller, key=await house.deploy("callers", caller), authority=house.url)
        service = shop.service(key=key, authority=house.url)
        async with service.connect() as session, own.connect() as calling:
            client = package.Client(transport(calling.client(manifest)))
            run = await client.start_shop_show({"name": "cat"})
            assert (await run.upload(b"x" * 300_000))["size"] == 300_000
            assert (await run.wait())["output"] == 300_000
            assert await client.result_shop_show(run) == 300_000
            assert await client.call_shop_buy({"name": "ladder", "count": 2}) == {"left": 8}
            sold_out: Any = importlib.import_module("shop_v1.errors").SoldOutError
            with pytest.raises(sold_out) as caught:
                await client.call_shop_buy({"name": "ladder", "count": 9})
            assert caught.value.body["left"] == 8
            resources = package.Resources(session)
            found = await resources.state_stock().get("ladder")
            assert found.value == {"left": 8}
            packed = await resources.job_pack().run({"name": "ladder", "count": 1}, within=60)
            assert packed == "1 ladder in a box"
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop_v1"]:
        del sys.modules[name]


@pytest.mark.slow
async def test_a_generated_client_of_the_gallery_uses_feed_bucket_and_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = gallery.service.contract.manifest()
    sdk(manifest, tmp_path / "packages")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    package = importlib.import_module("gallery_v1")
    caller = shell_contract(manifest)
    async with station(tmp_path) as house:
        key = await house.deploy("gallery", gallery.service.contract)
        own = Service(caller, key=await house.deploy("callers", caller), authority=house.url)
        service = gallery.service(key=key, authority=house.url)
        async with service.connect() as session, own.connect() as calling:
            wire = transport(calling.client(manifest))
            client = package.Client(wire)
            run = await client.start_gallery_hang({"name": "cat"})
            await run.upload(b"meow" * 50_000)
            assert await client.result_gallery_hang(run) == 200_000
            grant = await client.call_gallery_fetch({"name": "cat"})
            fetched = b"".join([chunk async for chunk in wire.download(grant)])
            assert fetched == b"meow" * 50_000
            titled = {"name": "cat", "title": "A cat"}
            repeating = package.Client(transport(calling.client(manifest), key="1"))
            answers = [await repeating.call_gallery_name(titled) for _ in range(2)]
            assert answers[0] == answers[1]
            bucket = package.Resources(session).kv_titles()
            found = await bucket.get("cat")
            assert (found.value, found.revision) == (titled, answers[0]["number"])
            async with aclosing(client.feed_gallery_titles({})) as titles:
                assert await anext(titles) == titled
    for name in [name for name in sys.modules if name.partition(".")[0] == "gallery_v1"]:
        del sys.modules[name]
