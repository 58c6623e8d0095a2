"""Delivery of an event to a member, while twelve other members are silent.

A silent member accepts connections and says nothing, as a machine does that is being put to sleep.
The baseline is the same pair of nodes without silent members, in the same run.
"""

import asyncio
import itertools
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop

from accord.capabilities import membership
from accord.community.client import Client, LocalTransport
from accord.community.log import LogUpdate
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint, announced
from accord.community.settings import LogLimits, NodeSettings
from accord.kernel.clock import SystemClock, format_time
from accord.kernel.signing import SigningKey
from accord.station.listener import Listener, bind
from bench.figure import Figure

SILENT: Final = 12
EVENTS: Final = 10
CLOCK = SystemClock()
GOAL = 0.5
EXPLAINED: Final = {
    "12 silent members": "Nodes collect further events for 50 ms before they sync, so a delivery "
    "takes about 0.06 s; the difference to the baseline is noise of that size."
}


def run() -> Iterator[Figure]:
    """Measure both."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    alone, beside = uvloop.run(_deliver(0)), uvloop.run(_deliver(SILENT))
    yield Figure(
        f"events delivered beside {SILENT} silent members, the slowest of {EVENTS}",
        "per second",
        1 / max(beside),
        1 / max(alone),
        "without silent members",
        GOAL,
    )
    yield Figure(
        f"events delivered beside {SILENT} silent members, the median",
        "per second",
        1 / statistics.median(beside),
        1 / statistics.median(alone),
        "without silent members",
        GOAL,
    )


async def _deliver(silent: int) -> list[float]:
    """Seconds from an append on one node until another one has it, for each event."""
    async with AsyncExitStack() as opened:
        first, address = await _open(opened, 1)
        community = str((await first.found("Bench", {}))["community_id"])
        second, there = await _open(opened, 2)
        await second.join(await _invite(first, community, second.key.id))
        for number in range(silent):
            await _add_silent(opened, first, community, 10 + number)
        arrived: asyncio.Queue[str] = asyncio.Queue()

        def take(news: LogUpdate) -> None:
            for event in news.accepted:
                arrived.put_nowait(event.event_id)

        opened.callback(second.community(community).log.subscribe(take))
        tasks = [
            asyncio.create_task(node.run([place]))
            for node, place in ((first, address), (second, there))
        ]
        opened.push_async_callback(asyncio.wait, tasks)
        for task in tasks:
            opened.callback(task.cancel)
        return [await _one(first, community, arrived, number) for number in range(EVENTS)]


async def _one(first: Node, community: str, arrived: "asyncio.Queue[str]", number: int) -> float:
    # At several moments of the silent members' pauses.
    await asyncio.sleep(1.7)
    post = {"client_id": f"p{number}", "category": "offer", "title": "Salt", "body": "A bag."}
    start = time.perf_counter()
    made = await first.act(community, "market.post.created", post)
    while await arrived.get() != made["event_id"]:
        pass
    return time.perf_counter() - start


_PORTS = itertools.count()


async def _open(opened: AsyncExitStack, number: int) -> tuple[Node, Endpoint]:
    home = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    node: Node = await opened.enter_async_context(
        open_node(
            SigningKey.from_seed(bytes([number]) * 32),
            home=home,
            stores=home,
            clock=CLOCK,
            settings=NodeSettings(log=LogLimits(0, 0)),
        )
    )
    membership.register(node, CLOCK)
    listening = opened.enter_context(bind("127.0.0.1", 0))
    port = listening.getsockname()[1]
    opened.enter_context(announced(port))
    server = Listener(node.application())
    serving = asyncio.create_task(server.serve([listening]))
    opened.push_async_callback(asyncio.wait, [serving])
    opened.callback(setattr, server, "should_exit", True)
    await server.serving.wait()
    node.presence.endpoints = (Endpoint("http", "127.0.0.1", port),)
    return node, node.presence.endpoints[0]


async def _add_silent(opened: AsyncExitStack, first: Node, community: str, number: int) -> None:
    """Let a member join, and leave a socket in its place that never answers."""
    silent = opened.enter_context(socket.socket())
    silent.bind(("127.0.0.1", 0))
    silent.listen(64)
    port = silent.getsockname()[1]
    opened.enter_context(announced(port))
    home = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    async with open_node(
        SigningKey.from_seed(bytes([number]) * 32), home=home, stores=home, clock=CLOCK
    ) as node:
        node.presence.endpoints = (Endpoint("http", "127.0.0.1", port),)
        await node.join(await _invite(first, community, node.key.id))


async def _invite(node: Node, community: str, invitee: str) -> str:
    wanted = {
        "invitee_node_id": invitee,
        "initial_level": "member",
        "expires_at": format_time(CLOCK.now() + 3600),
    }
    transport = LocalTransport(node.application())
    async with Client(
        "http://node", node.key, community, node.key.id, transport=transport
    ) as client:
        answer: Any = await client.call("community.invite", {}, wanted)
    return str(answer["output"]["invite_blob"])


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    for amount in (0, SILENT):
        print(amount, [round(each, 3) for each in uvloop.run(_deliver(amount))], file=sys.stdout)
