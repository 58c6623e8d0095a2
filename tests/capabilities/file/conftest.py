"""Three neighbours with blob stores: alice is an anchor, bob is trusted, carol a member."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.community.node.conftest import House, Street

from accord.capabilities import file
from accord.capabilities.file import CHUNK, Blobs, Files, FileSettings
from accord.community.bus import Frame
from accord.community.client import Client
from accord.kernel.identifiers import UlidSource
from accord.testing import VirtualClock

# As many as are asked for in a test, whatever the real disk has.
ROOM = 0


@dataclass
class Neighbours:
    """The three, and their community."""

    street: Street
    alice: House
    bob: House
    carol: House
    community: str
    blobs: dict[str, Blobs] = field(default_factory=dict)
    serving: dict[str, Files] = field(default_factory=dict)

    @property
    def clock(self) -> VirtualClock:
        return self.street.clock

    def ask(self, caller: House, served: House) -> Client:
        """A client of a neighbour's node, over a real socket."""
        # A while later, so that nobody has called too often.
        self.clock.advance(10)
        return caller.client(self.community, served)

    async def share(self, house: House, data: bytes) -> str:
        """Put a blob into a store and say in the log that it is held."""
        cid = await self.blobs[house.id].put(data)
        await house.node.act(
            self.community, "file.cid.advertised", {"cid": cid, "sizes_bytes": len(data)}
        )
        return cid

    async def call(
        self, caller: House, served: House, capability: str, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        async with self.ask(caller, served) as client:
            return await client.call(capability, {}, given)

    async def stream(
        self, caller: House, served: House, capability: str, given: Mapping[str, Any]
    ) -> list[Frame]:
        async with (
            self.ask(caller, served) as client,
            aclosing(client.stream(capability, {}, given)) as frames,  # type: ignore[type-var]
        ):
            return [frame async for frame in frames]


async def move_in(street: Street, settings: FileSettings | None = None) -> Neighbours:
    alice, bob, carol = [await street.house(name) for name in ("alice", "bob", "carol")]
    community = await street.found(alice)
    await street.admit(alice, bob, community, "trusted")
    await street.admit(alice, carol, community)
    neighbours = Neighbours(street, alice, bob, carol, community)
    for house, name in ((alice, "alice"), (bob, "bob"), (carol, "carol")):
        blobs = Blobs(street.path / name / "blobs", street.clock, min_free_bytes=ROOM)
        neighbours.serving[house.id] = file.register(house.node, street.clock, blobs, settings)
        neighbours.blobs[house.id] = blobs
    await alice.node.sync(community)
    return neighbours


@pytest.fixture
async def neighbours(tmp_path: Path) -> AsyncIterator[Neighbours]:
    async with AsyncExitStack() as opened:
        yield await move_in(Street(tmp_path, VirtualClock(), opened))


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs", VirtualClock(), min_free_bytes=ROOM)


def some_bytes(size: int, seed: int = 1) -> bytes:
    """Bytes that are the same whenever they are asked for, and have no equal chunks."""
    from random import Random

    return Random(seed).randbytes(size)


def ids() -> UlidSource:
    return UlidSource(VirtualClock())


LONG = some_bytes(3 * CHUNK + 1000)
