"""Sync of many events between two nodes, each a process of its own.

Everything counts: reconciliation over HTTP, verification, storing with fsync, folding. The baseline
is libsodium alone verifying as many signatures in two processes, in the same run.
"""

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import uvloop
from nacl.bindings import crypto_sign_open

from accord.capabilities import membership
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint, announced
from accord.community.rules import compose_event
from accord.community.settings import LogLimits, NodeSettings
from accord.community.sync import sync_with
from accord.kernel.clock import SystemClock, format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.station.listener import Listener, bind
from bench.figure import Figure

EVENTS = 100_000 if os.environ.get("ACCORD_BENCH_FULL") else 20_000
SERVER, CALLER = (SigningKey.from_seed(bytes([number]) * 32) for number in (1, 2))
CLOCK = SystemClock()
GOAL = 0.35
EXPLAINED: Final = {
    "sync": "The baseline verifies ready messages in two processes and does nothing else; here "
    "four processes share the same two processors. 63 % of an event's processor time are spent by "
    "the caller's two provers (libsodium, and two thirds as much again for strict JSON, the "
    "schema, canonical bytes and hash), 26 % by the caller (storing, folding, the index of "
    "reconciliation, telling topics), 11 % by the node that gives (reading bodies, framing, HTTP). "
    "libsodium itself is about a fifth of it all, and that is the figure. We do not leave any of "
    "it out: what comes from a peer is read as strictly as what comes from a caller."
}


def run() -> Iterator[Figure]:
    """Measure both."""
    rate, received = uvloop.run(_sync())
    name = f"sync {received:,} events"
    yield Figure(name, "events/s", rate, _verified(), "libsodium, two processes", GOAL)


async def _sync() -> tuple[float, int]:
    async with AsyncExitStack() as opened:
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.community_sync"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        opened.push_async_callback(server.wait)
        opened.callback(server.terminate)
        assert server.stdout is not None
        assert server.stdin is not None
        told = json.loads(await server.stdout.readline())
        home = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        node = await _open(opened, CALLER, home)
        await node.join(told["invite"])
        server.stdin.write(f"{EVENTS}\n".encode())
        await server.stdin.drain()
        await server.stdout.readline()
        hosted = node.community(told["community_id"])
        client, _ = await node.dialler.dial(told["address"], hosted.community_id, opened)
        start = time.perf_counter()
        met = await sync_with(client, hosted.holdings)
        return met.received / (time.perf_counter() - start), met.received


async def _open(opened: AsyncExitStack, key: SigningKey, home: Path) -> Node:
    return await opened.enter_async_context(
        open_node(
            key, home=home, stores=home, clock=CLOCK, settings=NodeSettings(log=LogLimits(0, 0))
        )
    )


async def _serve() -> None:
    async with AsyncExitStack() as opened:
        home = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        node = await _open(opened, SERVER, home)
        membership.register(node, CLOCK)
        listening = opened.enter_context(bind("127.0.0.1", 0))
        opened.enter_context(announced(listening.getsockname()[1]))
        server = Listener(node.application())
        serving = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        port = listening.getsockname()[1]
        node.presence.endpoints = (Endpoint("http", "127.0.0.1", port),)
        community = (await node.found("Bench", {}))["community_id"]
        invite = await _invite(node, community)
        address = f"http://127.0.0.1:{port}"
        _say({"community_id": community, "invite": invite, "address": address})
        count = int(await asyncio.to_thread(sys.stdin.readline))
        await node.community(community).log.receive(_posts(node, community, count))
        _say({"filled": count})
        await serving


async def _invite(node: Node, community: str) -> str:
    from accord.community.client import Client, LocalTransport

    wanted = {
        "invitee_node_id": CALLER.id,
        "initial_level": "member",
        "expires_at": format_time(CLOCK.now() + 3600),
    }
    transport = LocalTransport(node.application())
    async with Client(
        "http://node", node.key, community, node.key.id, transport=transport
    ) as client:
        answer = await client.call("community.invite", {}, wanted)
    return str(answer["output"]["invite_blob"])


def _posts(node: Node, community: str, count: int) -> list[bytes]:
    """Posts that continue the node's own chain."""
    state = node.community(community).state
    chain = state.chains[node.key.id]
    seq, prev, lamport = chain.head_seq, chain.head_hash, state.lamport
    ids = UlidSource(CLOCK)
    raws = []
    for number in range(1, count + 1):
        post = {"client_id": str(number), "category": "offer", "title": "Salt", "body": "x" * 80}
        event = compose_event(
            node.key,
            "market.post.created",
            post,
            event_id=ids.new(),
            lamport=lamport + number,
            wall_clock="2026-05-26T08:14:22Z",
            community_id=community,
            author_seq=seq + number,
            prev=prev,
        )
        prev = event.hash
        raws.append(event.encode())
    return raws


def _verified() -> float:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(_verify, [100, 100])
        start = time.perf_counter()
        pool.map(_verify, [EVENTS // 2, EVENTS // 2])
        return EVENTS / (time.perf_counter() - start)


def _verify(count: int) -> None:
    message = b"x" * 600
    signed = SERVER.sign_bytes(message) + message
    for _ in range(count):
        crypto_sign_open(signed, SERVER.public)


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve())
