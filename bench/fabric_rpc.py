"""RPC round trips and durable events per second, by 1 and by 32 callers, beside raw nats-py.

The service is a process of its own, and so is the NATS server. Raw is nats-py's request and reply
of the same bytes, unsigned and unread; a call of ours is signed, verified, kept from replay,
resolved, and validated on both ends, twice. The signature and its verification alone take more than
twice the time of the raw round trip when many callers share a connection, so a second baseline has
them, too, and nothing else. Raw events are nats-py's JetStream publishes to the
same stream, which is synced to disk for every message; ours are validated and carry id and time.
Where the time goes is told in processor time of both processes for each call of 32 callers, which
other work on the machine hardly changes.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import nats
import uvloop
from nats.aio.client import Client as RawClient
from nats.aio.msg import Msg

from accord.contracts.authoring import Contract
from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import is_proved, prove, rpc_message, session_key
from accord.fabric import Caller, Client, Link, Request, Server, Terms
from accord.fabric.link import NatsClient as Wire
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.testing.servers import nats_server
from bench.figure import Figure

SECONDS = 0.7
EXPLAINED: Final = {
    "RPC": "A raw request is neither signed nor checked. Ours carries a signature by Ed25519 over "
    "its subject, bytes, time and id, which the service verifies, and both ends validate both "
    "payloads. Of the caller's 35 us of processor time, libsodium takes 15 to sign and nats-py's "
    "own call 12; of the service's 62, libsodium takes 40 to verify (OpenSSL 60) and the raw "
    "answer 6. What is left, 8 and 16 us, is header, ULID, trace, replay window, grants, four "
    "validations, deadline and task. The server's own time comes on top, for a message that is "
    "several times as large. So the second baseline, which signs and verifies and does nothing "
    "else, stays below 0.35 of raw as well. With 32 callers, requests and answers come in "
    "batches, so one end waits while the other works. We do not give up the proof: without it any "
    "session that can publish to a service could speak for another ([decision "
    "0098](decisions/0098-speed-of-calls-and-jobs.md))."
}
ROUNDS = 4
CALLS = 1500
"""Calls of a round in which processor time is measured."""
KEY = SigningKey.from_seed(b"b" * 32)
SESSION = session_key(KEY)
ASKED = {"id": "01J8", "fields": ["name", "mail"], "limit": 20}
ANSWERED = {"id": "01J8", "name": "Ada Lovelace", "mail": "ada@example.org", "tags": ["a", "b"]}


Call = Callable[[], Awaitable[object]]


def contract() -> Terms:
    """A contract with one RPC and one event, of usual size."""
    written = Contract("bench@v1", display_name="Bench", description="Is measured.")
    text = {"type": "string", "maxLength": 200}
    texts = {"type": "array", "items": text}
    written.schema(
        "Asked",
        {
            "type": "object",
            "properties": {"id": text, "fields": texts, "limit": {"type": "integer"}},
            "required": ["id"],
        },
    )
    written.schema(
        "Answered",
        {
            "type": "object",
            "properties": {"id": text, "name": text, "mail": text, "tags": texts},
            "required": ["id", "name"],
        },
    )
    written.capability("read", "Read", "Read.")
    written.rpc("Find", "Asked", "Answered", call=["read"])
    written.event("Changed", "Answered", params=["/id"])
    return Terms(written)


async def serve(url: str) -> None:
    """Answer both ways until the input ends."""

    async def resolve(session: str) -> Caller:
        return Caller(session, "service", "bench", capabilities=frozenset({"bench::read"}))

    async def answer(_request: Request, _payload: Any) -> Any:
        return ANSWERED

    raw, wire = await nats.connect(url), Wire()
    await wire.connect(url)
    body = canonical.encode(ANSWERED)

    async def echo(msg: Msg) -> None:
        await raw.publish(msg.reply, body)

    async def verify(msg: Msg) -> None:
        proof = (msg.headers or {})["proof"]
        assert is_proved(SESSION, rpc_message(SESSION, msg.subject, msg.data, 1, "1"), proof)
        await raw.publish(msg.reply, body)

    async def spent(msg: Msg) -> None:
        await raw.publish(msg.reply, str(time.process_time()).encode())

    await raw.subscribe("raw.spent", "bench", cb=spent)
    await raw.subscribe("raw.find", "bench", cb=echo)
    await raw.subscribe("raw.proved", "bench", cb=verify)
    server = Server(wire, contract(), resolve)
    server.rpc("Find")(answer)
    async with server:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await raw.close()
    await wire.close()


async def rate(callers: int, call: Callable[[], Awaitable[object]]) -> float:
    """Calls per second of so many callers together."""
    end = time.perf_counter() + SECONDS
    done = 0

    async def go() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call()
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(go() for _ in range(callers)))
    return done / (time.perf_counter() - start)


async def cost(call: Call, spent: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """Microseconds of processor time of a call, with 32 callers: the caller's, the service's."""
    before, theirs = time.process_time(), await spent()
    left = iter(range(CALLS))

    async def go() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(go() for _ in range(32)))
    ours, whole = time.process_time() - before, await spent() - theirs
    return ours / CALLS * 1e6, whole / CALLS * 1e6


async def measure(url: str) -> list[Figure]:
    """Measure both ways in turns; the best round of each counts."""
    raw, wire = await nats.connect(url), Wire()
    await wire.connect(url, inbox_prefix=inbox_prefix(SESSION))
    js = raw.jetstream()
    await js.add_stream(name="trellis", subjects=["events.>"])
    client = Client(Link(wire, KEY), contract())
    body, event = canonical.encode(ASKED), canonical.encode(ANSWERED)

    async def proved() -> object:
        message = rpc_message(SESSION, "raw.proved", body, 1, "1")
        headers = {"proof": prove(KEY, message)}
        return await raw.request("raw.proved", body, timeout=10, headers=headers)

    kinds: dict[str, tuple[Call, dict[str, tuple[Call, float | None]]]] = {
        "RPC": (
            lambda: client.call("Find", ASKED),
            {
                "nats-py request and reply": (
                    lambda: raw.request("raw.find", body, timeout=10),
                    0.35,
                ),
                "the same, signed and verified": (proved, 0.5),
            },
        ),
        "durable event": (
            lambda: client.publish("Changed", ANSWERED),
            {
                "nats-py JetStream publish": (
                    lambda: js.publish("events.v1.Changed.01J8", event),
                    0.5,
                )
            },
        ),
    }
    figures = []
    for kind, (ours, baselines) in kinds.items():
        for callers in (1, 32):
            best = dict.fromkeys(("ours", *baselines), 0.0)
            for _ in range(ROUNDS):
                best["ours"] = max(best["ours"], await rate(callers, ours))
                for name, (call, _) in baselines.items():
                    best[name] = max(best[name], await rate(callers, call))
            label = f"{kind}, {callers} caller{'s' if callers > 1 else ''}"
            figures += [
                Figure(label, "calls/s", best["ours"], best[name], name, goal)
                for name, (_, goal) in baselines.items()
            ]

    async def spent() -> float:
        return float((await raw.request("raw.spent", timeout=10)).data)

    ours, baselines = kinds["RPC"]
    calls = {"ours": ours} | {name: call for name, (call, _) in baselines.items()}
    least = dict.fromkeys(calls, (float("inf"), float("inf")))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            now = await cost(call, spent)
            least[name] = (min(least[name][0], now[0]), min(least[name][1], now[1]))
    for at, whose in enumerate(("caller", "service")):
        figures += [
            Figure(f"processor, the {whose}", "us", least["ours"][at], least[name][at], name)
            for name in baselines
        ]
    await _close(raw, wire)
    return figures


async def _close(*clients: RawClient) -> None:
    for client in clients:
        await client.close()


async def _run(url: str) -> list[Figure]:
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.fabric_rpc", url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        await server.stdout.readline()
        return await measure(url)
    finally:
        server.stdin.close()
        await server.wait()


def run() -> Iterator[Figure]:
    """Start the servers and measure."""
    settings = Path(__file__).with_name("fabric_rpc.conf")
    with nats_server(jetstream=True, options=["-c", str(settings)]) as server:
        yield from uvloop.run(_run(server.url))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The service that is measured.")
    parser.add_argument("url")
    uvloop.run(serve(parser.parse_args().url))
