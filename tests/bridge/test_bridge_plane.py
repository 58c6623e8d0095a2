"""The plane: it bridges whenever the station's community and its authority are both up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from tests.bridge.town import asker, until

from accord.authority.assembly import RunningAuthority
from accord.bridge.settings import BridgeSettings
from accord.capabilities import market
from accord.community.node import Node, open_node
from accord.contracts.session_proof import session_key
from accord.fabric import FabricError, Service
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station import Plane, PlaneContext, Settings, load
from accord.station.authority import AuthorityPlane
from accord.station.bridge import BridgePlane
from accord.station.listener import Listener, bind
from accord.station.plane import HasParts

POSTS = "Community.Market.List"
ANY_POSTS: dict[str, Any] = {"params": {}, "input": {}}
CLOCK = SystemClock()


class House:
    """A station's authority and bridge, and nodes that come and go."""

    def __init__(self, settings: Settings, address: str, **chosen: Any) -> None:
        self.settings = settings
        self.authority = AuthorityPlane(settings, CLOCK, address)
        self.plane = BridgePlane(settings, BridgeSettings(**chosen), CLOCK, address, self.authority)
        self.address = address

    @property
    def running(self) -> RunningAuthority:
        assert self.authority.running is not None
        return self.authority.running

    def ways(self) -> dict[str, str]:
        return {part.name: part.state for part in self.plane.parts()}

    @asynccontextmanager
    async def node(self, name: str) -> AsyncIterator[Node]:
        folder = self.settings.home / name
        key = SigningKey.from_seed(b"node".ljust(32, b"."))
        async with open_node(key, home=folder, stores=folder / "stores", clock=CLOCK) as node:
            if not node.communities:
                await node.found("Our street", {})
            market.register(node, CLOCK)
            self.plane.offer(node, CLOCK)
            yield node

    async def posts(self, key: SigningKey) -> Any:
        """What a service hears of the market."""
        digest = self.running.authority.catalog.projection.effective["accord.community@v1"].digests[
            0
        ]
        contract = await self.running.authority.manifests.get(digest)
        assert contract is not None
        async with Service(asker(POSTS), key=key, authority=self.address).connect() as session:
            answer = await session.client(contract).call(POSTS, ANY_POSTS)
        return answer["output"]["posts"]

    async def asker(self) -> SigningKey:
        authority, key = self.running.operating, SigningKey.generate()
        asked = {"deployment": "askers", "manifest": asker(POSTS).manifest(), "accept": True}
        await authority.do("deploy", asked)
        named = {"deployment": "askers", "key": session_key(key), "name": "one"}
        await authority.do("instances/add", named)
        return key


@asynccontextmanager
async def house(home: Path, **chosen: Any) -> AsyncIterator[House]:
    settings = load(home)
    authority = settings.authority.model_copy(update={"enabled": True, "nats_port": 0})
    settings = settings.model_copy(update={"authority": authority})
    for folder in ("keys", "stores"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(bind("127.0.0.1", 0))
        built = House(settings, f"http://127.0.0.1:{listening.getsockname()[1]}", **chosen)
        server = Listener(Starlette(routes=list(built.authority.routes)))
        serving = asyncio.create_task(server.serve([listening]))
        stack.push_async_callback(asyncio.wait, [serving])
        stack.callback(setattr, server, "should_exit", True)
        await server.serving.wait()
        for plane in (built.authority, built.plane):
            await stack.enter_async_context(living(plane))
        yield built


@asynccontextmanager
async def living(plane: Plane) -> AsyncIterator[None]:
    ready, draining = asyncio.Event(), asyncio.Event()
    work = asyncio.create_task(plane.run(PlaneContext(ready.set, draining)))
    await ready.wait()
    try:
        yield
    finally:
        draining.set()
        await work


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


async def test_it_waits_for_a_node_and_goes_over_to_the_next_one(home: Path) -> None:
    async with house(home, accept=True) as built:
        assert isinstance(built.plane, HasParts)
        assert built.ways() == {}
        async with built.node("first") as node:
            await until(lambda: built.ways() == {"outward": "ready"})
            key = await built.asker()
            assert await built.posts(key) == []
            (community,) = node.communities
            post = {
                "client_id": "ladder",
                "category": "offer",
                "title": "Ladder",
                "body": "To lend.",
                "tags": [],
                "ttl_seconds": 86400,
            }
            await node.act(community, "market.post.created", post)
        async with built.node("first"):

            async def is_heard() -> bool:
                try:
                    return [post["title"] for post in await built.posts(key)] == ["Ladder"]
                except FabricError:  # it is still at the node that has gone
                    return False

            await until(is_heard)


async def test_what_an_operator_takes_back_is_not_accepted_again_by_itself(home: Path) -> None:
    async with house(home, accept=True) as built:
        async with built.node("first"):
            await until(lambda: built.ways() == {"outward": "ready"})
            authority = built.running.authority
            surfaces = (await authority.deployments.get("bridge")).desired.surfaces
            await authority.deployments.narrow("bridge", surfaces=surfaces)
        async with built.node("first"):
            await until(lambda: any("accept" in part.reason for part in built.plane.parts()))
            assert (await authority.deployments.get("bridge")).desired.surfaces == frozenset()


async def test_a_plan_that_waits_is_told_as_a_part_and_the_plane_is_well(home: Path) -> None:
    async with house(home) as built, built.node("first"):
        await until(lambda: any("accept" in part.reason for part in built.plane.parts()))
        (part,) = built.plane.parts()
        assert (part.name, part.state, part.is_well) == ("outward", "waiting", False)


async def test_its_keys_are_for_their_owner_only_and_stay_the_same(home: Path) -> None:
    folder = home / "services" / "bridge"
    async with house(home):
        pass
    kept = {file.name: file.read_bytes() for file in folder.glob("*.ed25519")}
    assert set(kept) == {"key.ed25519", "calls.ed25519"}
    assert {file.stat().st_mode & 0o777 for file in folder.glob("*.ed25519")} == {0o600}
    async with house(home):
        assert {file.name: file.read_bytes() for file in folder.glob("*.ed25519")} == kept
