"""The authority's catalog of 1,000 contracts, beside reading and digesting their texts alone.

Also grants and bootstraps a second, beside reads and writes of the same store that do nothing else.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from sqlalchemy import Connection, select

from accord.authority import store as deployments
from accord.authority import store as manifests
from accord.authority import store as offers
from accord.authority.rules import (
    Deployment,
    DeploymentKind,
    Desired,
    Instance,
    Materialized,
    MaterialState,
    Offer,
)
from accord.authority.service import Authority, open_authority
from accord.authority.tables import AUTHORITY, revision
from accord.contracts import digest
from accord.contracts.session_proof import session_key
from accord.kernel import canonical
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.storage import Store, open_store
from bench.figure import Figure

CONTRACTS = 1000
GOAL_SECONDS = 2.0
_ROUNDS = 3
_CALLS = 300


def run() -> Iterator[Figure]:
    """Measure every part."""
    with tempfile.TemporaryDirectory() as folder:
        yield from asyncio.run(_measure(folder))


def contract(number: int) -> dict[str, Any]:
    """A contract of some RPCs and events."""
    name = f"Service{number}"
    thing = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    refers = {"schema": "Thing"}
    rpc = {"version": "v1", "input": refers, "output": refers}
    event = {"version": "v1", "params": ["/id"], "event": refers}
    return {
        "format": "trellis.contract.v1",
        "id": f"service{number}@v1",
        "displayName": name,
        "description": f"What {name} offers.",
        "kind": "service",
        "schemas": {"Thing": thing},
        "rpc": {
            f"{name}.R{each}": {**rpc, "subject": f"rpc.v1.{name}.R{each}"} for each in range(5)
        },
        "events": {
            f"{name}.E{each}": {**event, "subject": f"events.v1.{name}.E{each}.{{/id}}"}
            for each in range(2)
        },
    }


async def _measure(folder: str) -> list[Figure]:
    clock = SystemClock()
    contracts = [contract(number) for number in range(CONTRACTS)]
    texts = [canonical.encode(each).decode() for each in contracts]
    keys = [session_key(SigningKey.from_seed(n.to_bytes(32, "big"))) for n in range(CONTRACTS)]
    async with open_store(folder, AUTHORITY) as store:
        await _fill(store, contracts, texts, keys, clock.now())
    reading = min(
        _seconds(lambda: [digest(canonical.decode(text.encode())) for text in texts])
        for _ in range(_ROUNDS)
    )
    goal = round(reading / GOAL_SECONDS, 4)
    figures = []
    cold, warm, changed = [], [], []
    for _ in range(_ROUNDS):
        async with _opened(folder) as authority:
            # What was remembered is forgotten with the authority that was open before.
            authority.manifests._recent._entries.clear()  # noqa: SLF001
            authority.manifests._unions._entries.clear()  # noqa: SLF001
            authority.catalog._made_of = None  # noqa: SLF001
            cold.append(await _awaited(authority.catalog.refresh))
            warm.append(await _awaited(authority.catalog.refresh))
            assert len(authority.catalog.projection.catalog["contracts"]) == CONTRACTS
            await authority.deployments.set_disabled("service0", True)
            changed.append(await _awaited(authority.catalog.refresh))
            assert len(authority.catalog.projection.catalog["contracts"]) == CONTRACTS - 1
            await authority.deployments.set_disabled("service0", False)
    told = f"decoding and digesting {CONTRACTS} texts"
    for label, times in (
        ("nothing remembered", cold),
        ("one changed", changed),
        ("nothing changed", warm),
    ):
        best = min(times)
        figures.append(
            Figure(
                f"catalog of {CONTRACTS}, {label}", "refreshes/s", 1 / best, 1 / reading, told, goal
            )
        )
    async with _opened(folder) as authority:
        figures += await _calls(authority, contracts, keys)
    return figures


async def _calls(
    authority: Authority, contracts: list[dict[str, Any]], keys: list[str]
) -> list[Figure]:
    names = [digest(each) for each in contracts[:_CALLS]]

    async def read() -> None:
        await authority.store.read(lambda c: c.execute(select(revision)).all())

    async def write() -> None:
        await authority.store.write(lambda c: c.execute(select(revision)).all())

    async def each(call: Callable[[int], Awaitable[object]]) -> float:
        started = time.perf_counter()
        for number in range(_CALLS):
            await call(number)
        return _CALLS / (time.perf_counter() - started)

    granting = await each(lambda n: authority.sessions.grants(keys[n], names[n]))
    reading = await each(lambda _: read())
    starting = await each(lambda n: authority.bootstrap.run(keys[n], names[n], None, "bench"))
    writing = await each(lambda _: write())
    return [
        Figure("grants, one after the other", "calls/s", granting, reading, "an empty read"),
        Figure("bootstraps, one after the other", "calls/s", starting, writing, "an empty write"),
    ]


async def _fill(
    store: Store, contracts: list[dict[str, Any]], texts: list[str], keys: list[str], now: float
) -> None:
    def fill(connection: Connection) -> None:
        for number, (manifest, text, key) in enumerate(zip(contracts, texts, keys, strict=True)):
            name, identity = digest(manifest), manifest["id"]
            here = f"service{number}"
            desired = Desired(contracts={identity: name})
            manifests.insert_manifest(connection, name, identity, text)
            deployments.insert_deployment(
                connection, Deployment(here, DeploymentKind.SERVICE, desired=desired)
            )
            deployments.write_deployment(
                connection, Deployment(here, DeploymentKind.SERVICE, desired=desired)
            )
            deployments.write_instance(connection, Instance(key, here, "one"))
            made = Materialized(here, 1, MaterialState.CURRENT)
            deployments.write_materialized(connection, made)
            offer = Offer(here, key, identity, name, True, now, None, now + 3600)
            offers.write_offer(connection, offer)

    await store.write(fill)


def _opened(folder: str) -> Any:
    clock = SystemClock()
    return open_authority(folder, clock, UlidSource(clock), round_seconds=None)


async def _awaited(call: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await call()
    return time.perf_counter() - started


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
