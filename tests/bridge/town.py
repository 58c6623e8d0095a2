"""A town: a real node with a neighbour, a real authority on its own NATS server, and a bridge."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.authority.end_to_end.whole_system import bootstrap, signed
from tests.fabric.fabric_station import Station, station

from accord.authority.admin import AdminCommands
from accord.bridge.bridge import Bridge, FabricAccess, deploy
from accord.bridge.calls import Active, offered_forms
from accord.bridge.rules import make_offering
from accord.bridge.settings import BridgeSettings
from accord.capabilities import market, membership
from accord.community.bus import BUS_STORE, Call
from accord.community.client import Client, LocalTransport
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint, announced
from accord.community.rules import CapabilityDescriptor, Invite, RetryPolicy, load_descriptors
from accord.contracts import digest
from accord.contracts.authoring import Contract
from accord.fabric import Authority, Request, Service, Session
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station import listener
from accord.station.store import SERVICE
from accord.storage import Store, journal, open_store

THING = {
    "type": "object",
    "properties": {"id": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}
SHOP = "experimental.service.shop.v1.shop_find"
LLM: Mapping[str, CapabilityDescriptor] = load_descriptors("accord.capabilities.llm")
SECONDS = 30.0


def shop(*asks: str) -> Contract:
    """A service that members may be let call; it may ask the community itself."""
    contract = Contract("shop@v1", display_name="Shop", description="Sells things.")
    contract.serves_callers()
    contract.capability("buy", "Buy", "Buy things.")
    if asks:
        contract.uses("community", "accord.community@v1", rpc=asks)
    contract.schema("Thing", dict(THING))
    contract.schema("Sold", {"type": "object", "properties": {"reason": {"type": "string"}}})
    contract.error("SoldOut", "Sold")
    contract.rpc("Shop.Find", "Thing", "Thing", call=["buy"], errors=["SoldOut"])
    return contract


def asker(*rpcs: str) -> Contract:
    """A service that asks the community."""
    contract = Contract("asker@v1", display_name="Asker", description="Asks the community.")
    if rpcs:
        contract.uses("community", "accord.community@v1", rpc=rpcs)
    return contract


@dataclass
class Town:
    """What tests do in it."""

    folder: Path
    house: Station
    node: Node
    community: str
    neighbour: SigningKey
    stack: AsyncExitStack
    clock: SystemClock
    bridge: Bridge | None = None
    shop: Service | None = None
    asked: list[Call] = field(default_factory=list)
    _journals: dict[str, Store] = field(default_factory=dict)

    async def open_bridge(self, *, accept: bool = True, **chosen: Any) -> Bridge:
        """Let the bridge run until the test ends."""
        settings = BridgeSettings(accept=accept, **chosen)
        operating = AdminCommands(self.house.authority, self.house.identities)
        store = await self.journal_of("bridge")

        async def deployed(manifest: Mapping[str, Any], key: SigningKey, name: str) -> str | None:
            return await deploy(operating, manifest, key=key, instance=name, accept=accept)

        fabric = FabricAccess(
            Authority(self.house.url), deployed, self.active, _key(b"offers"), _key(b"calls")
        )
        self.bridge = Bridge(self.node, fabric, store, settings, self.clock)
        running = asyncio.create_task(self.bridge.run())

        async def end() -> None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        self.stack.push_async_callback(end)
        return self.bridge

    async def asked_for_admission(self) -> None:
        """Have the outward session ask once more, now."""
        names = self.node.bus.registry
        offered = make_offering(offered_forms(names, BridgeSettings().capabilities)).manifest
        body = signed(_key(b"offers"), digest(offered), int(self.clock.now()), manifest=offered)
        status, answer = await bootstrap(self.house.url, body)
        assert (status, answer["code"]) == (409, "authority_update_required")

    async def crossing(self, *names: str) -> None:
        """Wait until ways are open."""
        bridge = self.bridge
        assert bridge is not None
        wanted = set(names or ("outward",))
        await until(lambda: wanted <= {way.name for way in bridge.directions if way.is_open})

    async def active(self, contract: str) -> Active | None:
        found = self.house.authority.catalog.projection.effective.get(contract)
        name = found.digests[0] if found is not None and found.digests else None
        manifest = None if name is None else await self.house.authority.manifests.get(name)
        return None if name is None or manifest is None else (name, manifest)

    async def find(self, contract: str) -> Mapping[str, Any] | None:
        found = await self.active(contract)
        return None if found is None else found[1]

    async def journal_of(self, name: str) -> Store:
        if name not in self._journals:
            self._journals[name] = await self.stack.enter_async_context(
                open_store(self.folder / "services" / name, SERVICE)
            )
        return self._journals[name]

    async def session(self, contract: Contract, name: str, **more: Any) -> Session:
        """A service that only calls, let in under a contract."""
        key = await self.house.deploy(name, contract)
        service = Service(contract, key=key, authority=self.house.url, **more)
        return await self.stack.enter_async_context(service.connect())

    async def sell(
        self, answer: Callable[[Request, Any], Awaitable[Any]], *asks: str
    ) -> AsyncExitStack:
        """A shop that answers and keeps a journal; what is returned closes it."""
        contract = shop(*asks)
        key = await self.house.deploy("shops", contract)
        service = Service(
            contract, key=key, authority=self.house.url, store=await self.journal_of("shops")
        )
        service.rpc("Shop.Find")(answer)
        self.shop = service
        opened = await self.stack.enter_async_context(AsyncExitStack())
        await opened.enter_async_context(service.connect())
        return opened

    @asynccontextmanager
    async def member(self, key: SigningKey | None = None) -> AsyncIterator[Client]:
        """The neighbour's client of the bus, from elsewhere."""
        transport = LocalTransport(self.node.application(), address="192.0.2.7")
        async with Client(
            "http://node",
            key or self.neighbour,
            self.community,
            self.node.key.id,
            transport=transport,
            retry=RetryPolicy(attempts=1),
        ) as client:
            yield client

    async def told(self, name: str, stream: str, count: int = 1) -> list[dict[str, Any]]:
        """What a service's journal says, once it says that much."""
        store = await self.journal_of(name)
        return await _told(store, stream, count)

    async def told_by_bus(self, capability: str, count: int = 1) -> list[dict[str, Any]]:
        """What the bus's journal says of a capability, once it says that much."""
        async with open_store(self.folder / "node" / "stores", BUS_STORE) as store:
            found: list[dict[str, Any]] = []

            async def is_told() -> bool:
                found[:] = [
                    each
                    for each in await _told(store, "bus.calls", 0)
                    if each["capability"] == capability
                ]
                return len(found) >= count

            await until(is_told)
            return found

    async def chat(self, call: Call) -> Mapping[str, Any]:
        """A language model that repeats what it hears."""
        self.asked.append(call)
        assert call.body["input"]["stream"] is False
        said = call.body["input"]["messages"][-1]["content"]
        output = {"message": {"role": "assistant", "content": said}}
        return {"output": output, "meta": _META}


_META = {"model": "echo", "tokens_in": 1, "tokens_out": 1, "ms": 1, "stop_reason": "end"}


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    """One, until the block ends."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        house = await stack.enter_async_context(station(folder / "authority"))
        node = await _node(folder / "node", b"node", stack, clock)
        neighbour = await _node(folder / "neighbour", b"neighbour", stack, clock)
        made = await node.found("Our street", {})
        community = str(made["community_id"])
        built = Town(folder, house, node, community, neighbour.key, stack, clock)
        node.bus.registry.register(LLM["llm.chat@1.1"], built.chat)
        market.register(node, clock)
        membership.register(node, clock)
        await _admit(node, neighbour, community)
        yield built


async def _node(folder: Path, seed: bytes, stack: AsyncExitStack, clock: SystemClock) -> Node:
    node = await stack.enter_async_context(
        open_node(_key(seed), home=folder, stores=folder / "stores", clock=clock)
    )
    listening = stack.enter_context(listener.bind("127.0.0.1", 0))
    stack.enter_context(announced(listening.getsockname()[1]))
    server = listener.Listener(node.application())
    serving = asyncio.create_task(server.serve([listening]))
    stack.push_async_callback(asyncio.wait, [serving])
    stack.callback(setattr, server, "should_exit", True)
    await server.serving.wait()
    node.presence.endpoints = (Endpoint("http", "127.0.0.1", listening.getsockname()[1], None),)
    return node


async def _admit(node: Node, guest: Node, community: str) -> None:
    transport = LocalTransport(node.application())
    async with Client("http://node", node.key, community, node.key.id, transport=transport) as own:
        asked = {"invitee_node_id": guest.key.id, "initial_level": "member"}
        answer = await own.call("community.invite", {}, asked)
    await guest.join(Invite.parse(answer["output"]["invite_blob"]).link)


async def _told(store: Store, stream: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    async def is_told() -> bool:
        entries = await store.read(lambda connection: journal.read(connection, stream))
        found[:] = [json.loads(entry.body) for entry in entries]
        return len(found) >= count

    await until(is_told)
    return found


def _key(seed: bytes) -> SigningKey:
    return SigningKey.from_seed(seed.ljust(32, b"."))


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = SECONDS) -> None:
    """Wait for what happens in other tasks and processes."""
    async with asyncio.timeout(seconds):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.02)
