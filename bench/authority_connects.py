"""Connections per second through the callout, beside connections that need nobody's answer.

Both dial the same server with nats-py, as many at once. Through the callout every session shows a
signed token, the server seals its question, and an authority on a store proves the token, derives
the grants from the contracts and signs a user; dialled raw, the server checks a JWT that was signed
before. The authority shares one process with all that dial.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from nats.aio.client import Client, RawCredentials

from accord.authority.nats import Cluster, Credentials, ListenAddress, control_nats, embedded_server
from accord.authority.rules import SessionHolder, SessionRecord
from accord.authority.service import Authority, open_authority
from accord.contracts import digest
from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import connect_token, session_key
from accord.kernel import canonical
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from bench.figure import Figure

SESSIONS = 100
AT_ONCE = 10
ROUNDS = 4
CLOCK = SystemClock()

Dial = Callable[[int], Awaitable[Client]]


def run() -> Iterator[Figure]:
    """Measure both in turns; the best round of each counts."""
    ours, theirs = uvloop.run(_measure())
    yield Figure("connections through the callout", "connects/s", ours, theirs, "nats-py by JWT")


async def _measure() -> tuple[float, float]:
    keys = [SigningKey.generate() for _ in range(SESSIONS)]
    async with _governed(keys) as cluster:
        begun = int(CLOCK.now())
        best = [0.0, 0.0]
        for number in range(ROUNDS):
            # Each token lets in once: those of later rounds are signed for a later second.
            dials = (_session(cluster, keys, begun + number), _raw(cluster))
            for index, dial in enumerate(dials):
                best[index] = max(best[index], await _rate(dial))
    return best[0], best[1]


async def _rate(dial: Dial) -> float:
    room = asyncio.Semaphore(AT_ONCE)
    clients: list[Client] = []

    async def come(number: int) -> None:
        async with room:
            clients.append(await dial(number))

    start = time.perf_counter()
    await asyncio.gather(*(come(number) for number in range(SESSIONS)))
    elapsed = time.perf_counter() - start
    for client in clients:
        await client.close()
    return SESSIONS / elapsed


def _session(cluster: Cluster, keys: list[SigningKey], iat: int) -> Dial:
    async def dial(number: int) -> Client:
        key = keys[number]
        return await _connected(
            cluster,
            cluster.sentinel,
            token=connect_token(key, _DIGEST, iat),
            inbox_prefix=inbox_prefix(session_key(key)),
        )

    return dial


def _raw(cluster: Cluster) -> Dial:
    return lambda _: _connected(cluster, cluster.authority)


async def _connected(cluster: Cluster, user: Credentials, **options: Any) -> Client:
    client = Client()
    credentials = RawCredentials(user.text)
    await client.connect(
        list(cluster.urls), user_credentials=credentials, connect_timeout=10, **options
    )
    return client


@asynccontextmanager
async def _governed(keys: list[SigningKey]) -> AsyncIterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as temporary:
        folder = Path(temporary)
        async with (
            open_authority(
                folder / "store", CLOCK, UlidSource(CLOCK), {_SHOP["id"]: _SHOP}
            ) as authority,
            embedded_server(folder / "nats", ListenAddress(), CLOCK) as server,
            control_nats(authority, server.cluster, CLOCK, heartbeats="heartbeats"),
        ):
            await _enrol(authority, keys)
            yield server.cluster


async def _enrol(authority: Authority, keys: list[SigningKey]) -> None:
    await authority.manifests.present(canonical.encode(_CLERK), _DIGEST)
    for key in keys:
        name = session_key(key)
        await authority.sessions.put(
            SessionRecord(name, SessionHolder.PERSON, f"person {name}", _CLERK["id"], _DIGEST)
        )


def _contract(name: str, kind: str, **sections: Any) -> dict[str, Any]:
    return {
        "format": "trellis.contract.v1",
        "id": f"{name}@v1",
        "displayName": name,
        "description": name,
        "kind": kind,
        "schemas": {"Any": {"type": "object"}},
        **sections,
    }


_CALLS = [f"Shop.Call{number}" for number in range(20)]
_SHOP = _contract(
    "trellis.shop",
    "service",
    rpc={
        call: {
            "version": "v1",
            "subject": f"rpc.v1.{call}",
            "input": {"schema": "Any"},
            "output": {"schema": "Any"},
        }
        for call in _CALLS
    },
)
_CLERK = _contract(
    "clerk",
    "app",
    uses={"required": {"shop": {"contract": _SHOP["id"], "rpc": {"call": _CALLS}}}},
)
_DIGEST = digest(_CLERK)
