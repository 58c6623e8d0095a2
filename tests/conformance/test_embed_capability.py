"""Section 4.3 of the specification, line by line, from a second node over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from accord.capabilities import embed, membership, models
from accord.capabilities.embed import MiniLM
from accord.community.bus import BusSettings, RateLimits
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint, announced
from accord.community.rules import Invite, RetryPolicy
from accord.community.settings import NodeSettings
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station import listener

ALICE, BOB, EVE = (SigningKey.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
CLOCK = SystemClock()
UNHURRIED = NodeSettings(bus=BusSettings(limits=RateLimits(per_capability=1e4, per_caller=1e4)))
MODEL = "all-MiniLM-L6-v2"
TEXTS = ["How do I clean rain water?", "Filtering water from the roof", "A recipe for bread"]


class Counting(MiniLM):
    """The model, which remembers what it computed."""

    def __init__(self) -> None:
        super().__init__(models.embedding_model(), threads=1)
        self.computed: list[str] = []

    def vectors(self, texts: Any) -> Any:
        self.computed += texts
        return super().vectors(texts)


class Street:
    """A node that embeds, and those who call it from elsewhere."""

    def __init__(self, url: str, community: str, model: Counting) -> None:
        self.url = url
        self.community = community
        self.model = model

    def client(self, key: SigningKey = BOB) -> Client:
        return Client(
            self.url, key, self.community, ALICE.id, clock=CLOCK, retry=RetryPolicy(attempts=1)
        )

    async def embed(self, given: Any, params: Any = None, key: SigningKey = BOB) -> dict[str, Any]:
        chosen = {"model": MODEL} if params is None else params
        async with self.client(key) as client:
            return await client.call("embed.text", chosen, given)


@pytest.fixture
async def street(tmp_path: Path) -> AsyncIterator[Street]:
    async with AsyncExitStack() as opened:

        async def node_of(name: str, key: SigningKey) -> tuple[Node, str]:
            home = tmp_path / name
            (home / "keys").mkdir(parents=True)
            node = await opened.enter_async_context(
                open_node(key, home=home, stores=home / "stores", clock=CLOCK, settings=UNHURRIED)
            )
            membership.register(node, CLOCK)
            listening = opened.enter_context(listener.bind("127.0.0.1", 0))
            opened.enter_context(announced(listening.getsockname()[1]))
            server = listener.Listener(node.application())
            serving = asyncio.create_task(server.serve([listening]))
            opened.push_async_callback(asyncio.wait, [serving])
            opened.callback(setattr, server, "should_exit", True)
            await server.serving.wait()
            endpoint = Endpoint("http", "127.0.0.1", listening.getsockname()[1], None)
            node.presence.endpoints = (endpoint,)
            return node, endpoint.url

        alice, url = await node_of("alice", ALICE)
        bob, _ = await node_of("bob", BOB)
        model = Counting()
        batcher = await opened.enter_async_context(embed.open_batcher(model, remembered=1000))
        embed.register(alice, CLOCK, batcher)
        community = str((await alice.found("Our street", {}))["community_id"])
        transport = LocalTransport(alice.application())
        async with Client("http://node", ALICE, community, ALICE.id, transport=transport) as own:
            told = await own.call("community.invite", {}, {"invitee_node_id": BOB.id})
        await bob.join(Invite.parse(told["output"]["invite_blob"]).link)
        yield Street(url, community, model)


async def test_it_is_listed_with_its_model(street: Street) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        manifest = (await http.get(f"{street.url}/manifest")).json()
    (listed,) = [each for each in manifest["capabilities"] if each["name"] == "embed.text"]
    assert (listed["version"], listed["stability"]) == ("1.0", "stable")
    assert listed["params"]["model"] == MODEL


async def test_texts_become_vectors_of_length_one(street: Street) -> None:
    answer = await street.embed({"texts": TEXTS})
    assert answer.keys() == {"output", "meta"}
    output = answer["output"]
    assert output["dim"] == 384
    rows = np.array(output["embeddings"])
    assert rows.shape == (3, 384)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2
    assert answer["meta"]["model"] == MODEL
    assert answer["meta"]["ms"] >= 0


async def test_normalising_may_be_left_out(street: Street) -> None:
    plain = await street.embed({"texts": TEXTS[:1], "normalize": False})
    normal = await street.embed({"texts": TEXTS[:1], "normalize": True})
    raw, row = (np.array(each["output"]["embeddings"][0]) for each in (plain, normal))
    assert np.linalg.norm(raw) > 1.5
    assert np.allclose(raw / np.linalg.norm(raw), row, atol=1e-6)


async def test_the_same_texts_have_the_same_vectors_and_are_computed_once(street: Street) -> None:
    first = await street.embed({"texts": TEXTS})
    again = await street.embed({"texts": TEXTS})
    assert again["output"] == first["output"]
    assert sorted(street.model.computed) == sorted(TEXTS)


async def test_256_texts_and_8192_characters_are_taken(street: Street) -> None:
    answer = await street.embed({"texts": [f"text {number}" for number in range(256)]})
    assert len(answer["output"]["embeddings"]) == 256
    assert (await street.embed({"texts": ["ü" * 8192]}))["output"]["dim"] == 384


async def test_more_is_a_bad_request_and_computes_nothing(street: Street) -> None:
    bad: list[Any] = [
        {"texts": ["x"] * 257},
        {"texts": ["x" * 8193]},
        {"texts": ["fine", ""]},
        {"texts": []},
        {"texts": "x"},
        {"texts": [1]},
        {},
        {"texts": ["x"], "normalize": "yes"},
        {"texts": ["x"], "surprise": 1},
    ]
    for given in bad:
        with pytest.raises(CommunityError) as refused:
            await street.embed(given)
        assert refused.value.code is Code.BAD_REQUEST, given
    for params in ({}, {"model": "bge-small-en-v1.5"}):
        with pytest.raises(CommunityError) as refused:
            await street.embed({"texts": ["x"]}, params)
        assert refused.value.code is Code.BAD_REQUEST, params
    assert street.model.computed == []


async def test_only_members_are_served(street: Street) -> None:
    with pytest.raises(CommunityError) as refused:
        await street.embed({"texts": ["x"]}, key=EVE)
    assert refused.value.code is Code.UNAUTHORIZED


async def test_many_callers_at_once_each_get_their_own(street: Street) -> None:
    async def one(number: int) -> None:
        texts = [f"caller {number}", "shared by all"]
        answer = await street.embed({"texts": texts})
        alone = street.model.vectors([texts[0]])[0]
        alone /= np.linalg.norm(alone)
        assert np.allclose(answer["output"]["embeddings"][0], alone, atol=1e-5)

    await asyncio.gather(*map(one, range(12)))
    assert street.model.computed.count("shared by all") == 1
