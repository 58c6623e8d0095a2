"""Two authorities on one PostgreSQL and one NATS system, each a process: either may be killed."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.authority.end_to_end.whole_system import buyer, shop, until
from typer.testing import CliRunner

from accord.authority.nats import Cluster, ListenAddress, embedded_server
from accord.cli import app
from accord.contracts.authoring import Contract
from accord.fabric import Authority, FabricError, Request, Service
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.testing.processes import Child, python_child
from accord.testing.servers import postgres_server

pytestmark = pytest.mark.slow


@dataclass
class Serving:
    """One of the two."""

    home: Path
    url: str
    child: Child

    async def told(self, *words: str) -> Any:
        """What a command of its operator says."""
        return await asyncio.to_thread(self._run, *words)

    def _run(self, *words: str) -> Any:
        command = ["authority", *words, "--home", str(self.home), "--json"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
        return json.loads(result.stdout)

    async def propose(self, deployment: str, contract: Contract) -> str:
        file = self.home / f"{deployment}.json"
        file.write_bytes(contract.to_json())
        plan: str = (await self.told("deploy", deployment, str(file)))["plan"]["id"]
        return plan

    async def instance(self, deployment: str, name: str) -> SigningKey:
        file = self.home / f"{name}.key"
        await self.told("instance", "add", deployment, "--key-file", str(file), "--name", name)
        return SigningKey.load(file)


@contextmanager
def serving(home: Path, database: str, cluster: Cluster, keys: Path) -> Iterator[Serving]:
    env = {
        "ACCORD_STORE__URL": database,
        "ACCORD_AUTHORITY__NATS_URLS": json.dumps(cluster.urls),
        "ACCORD_AUTHORITY__NATS_KEYS": str(keys),
    }
    words = ("authority", "serve", "--home", str(home), "--port", "0", "--json")
    with python_child("-m", "accord.cli", *words, env=env) as child:
        yield Serving(home, json.loads(child.read_line())["address"], child)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Serving, Serving]]:
    with postgres_server() as database:
        async with embedded_server(tmp_path / "nats", ListenAddress(), SystemClock()) as server:
            keys = handed_over(server.cluster, tmp_path / "nats" / "keys", tmp_path / "keys")
            with (
                serving(tmp_path / "one", database.url, server.cluster, keys) as one,
                serving(tmp_path / "two", database.url, server.cluster, keys) as two,
            ):
                yield one, two


def handed_over(cluster: Cluster, keys: Path, folder: Path) -> Path:
    """The folder that the operator of a NATS system gives to its authorities."""
    folder.mkdir()
    for name in ("account.nk", "callout.nk", "xkey.nk"):
        shutil.copy(keys / name, folder / name)
    assert cluster.system is not None
    for name, credentials in (
        ("callout", cluster.callout),
        ("authority", cluster.authority),
        ("sentinel", cluster.sentinel),
        ("system", cluster.system),
    ):
        file = folder / f"{name}.creds"
        file.write_text(credentials.text)
        file.chmod(0o600)
    return folder


def selling(at: Serving, key: SigningKey) -> Service:
    service = Service(shop(), key=key, authority=Authority(at.url, 60))

    @service.rpc("Shop.Find")
    async def find(_request: Request, payload: Any) -> Any:
        return payload

    return service


async def test_both_serve_and_when_one_is_killed_the_other_goes_on(
    pair: tuple[Serving, Serving],
) -> None:
    one, two = pair
    async with AsyncExitStack() as stack:
        plan = await one.propose("shops", shop())
        first, second, third = [
            await at.instance("shops", name)
            for at, name in ((one, "first"), (two, "second"), (two, "third"))
        ]

        async def come(at: Serving, key: SigningKey) -> None:
            await stack.enter_async_context(selling(at, key).connect())

        assert [each["id"] for each in (await two.told("plans"))["plans"]] == [plan]
        coming = asyncio.create_task(come(two, first))
        await one.told("accept", plan)
        await coming
        await come(one, second)
        await two.told("accept", await two.propose("buyers", buyer()))
        key = await two.instance("buyers", "buyer")
        calling = Service(buyer(), key=key, authority=Authority(one.url, 60))
        session = await stack.enter_async_context(calling.connect())
        client = session.client(shop())
        for at in pair:
            await seen(at, ["buyers", "shops", "shops"])
        answered, done = 0, asyncio.Event()

        async def call() -> None:
            nonlocal answered
            while not done.is_set():
                asked = {"id": str(answered)}
                assert await client.call("Shop.Find", asked) == asked
                answered += 1

        calls = [asyncio.create_task(call()) for _ in range(4)]
        await until(lambda: answered > 20)
        one.child.kill()
        before = answered
        await until(lambda: answered > before + 100 or any(each.done() for each in calls))
        # Somebody else comes in, and so does a session that was cut off, by the one that is left.
        await come(two, third)
        done.set()
        await asyncio.gather(*calls)
        await session.link.nats.force_reconnect()

        async def is_back() -> bool:
            try:
                return bool(await client.call("Shop.Find", {"id": "x"}, within=2) == {"id": "x"})
            except FabricError:
                return False

        await until(is_back)
        await seen(two, ["buyers", "shops", "shops", "shops"])


async def seen(at: Serving, deployments: list[str]) -> None:
    """Wait until an authority sees exactly these offered, each by an instance that is there."""

    async def are_live() -> bool:
        offers = (await at.told("offers"))["offers"]
        return sorted(each["deployment"] for each in offers if each["live"]) == deployments

    await until(are_live)
