"""Neighbours with a market: alice is an anchor, bob is trusted, carol and dave are members."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.community.node.conftest import House, Street

from accord.capabilities import market
from accord.capabilities.models import Embedder
from accord.community.errors import CommunityError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SAME = {"aqua": "water", "wasser": "water", "kanister": "can", "bottle": "can"}


class WordEmbedder:
    """Gives each word a direction of its own, and means the same by some of them."""

    model = "words"
    dimensions = 4096

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        import numpy as np

        self.texts += texts
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                digest = hashlib.sha256(SAME.get(word, word).encode()).digest()
                vectors[row, int.from_bytes(digest[:4]) % self.dimensions] += 1
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        result: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-9)
        return result


@dataclass
class Market:
    """The neighbours, and their community."""

    street: Street
    alice: House
    bob: House
    carol: House
    dave: House
    community: str

    async def call(
        self, caller: House, served: House, capability: str, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        # A while later, so that nobody has called too often.
        self.street.clock.advance(2)
        async with caller.client(self.community, served) as client:
            return await client.call(capability, {}, given)

    async def output(self, caller: House, served: House, capability: str, **given: Any) -> Any:
        return (await self.call(caller, served, capability, given))["output"]

    async def refusal(
        self, caller: House, served: House, capability: str, **given: Any
    ) -> CommunityError:
        try:
            await self.call(caller, served, capability, given)
        except CommunityError as error:
            return error
        raise AssertionError("it was not refused")


async def open_market(street: Street, embedder: Embedder | None = None) -> Market:
    alice, bob, carol, dave = houses = [
        await street.house(name) for name in ("alice", "bob", "carol", "dave")
    ]
    community = await street.found(houses[0])
    for house, level in zip(houses[1:], ("trusted", "member", "member"), strict=True):
        await street.admit(houses[0], house, community, level)
    for house in houses:
        market.register(house.node, street.clock, embedder)
        await house.node.sync(community)
    return Market(street, alice, bob, carol, dave, community)
