"""Messages a second: through the bus, sealed, written and brought to their recipient.

Held against the bare work on the same texts: seal them and append them to a log, with as many
callers at once. A note to oneself needs no other node; the other figure has its recipient on a
node of its own, reached over loopback, which shares this process.
"""

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from accord.capabilities import chat, membership
from accord.capabilities.chat import NONCE_BYTES, MessageContent, MessageEnvelope, encryption
from accord.capabilities.file import Blobs
from accord.community.client import Client, LocalTransport
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint, announced
from accord.community.rules import Invite
from accord.community.settings import NodeSettings
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station.listener import Listener, bind
from bench.figure import Figure
from bench.measure import rates

CALLERS = 64
EACH = 6
ROUNDS = 3
BODY = "Hi, hast du heute Strom? " * 8
CLOCK = SystemClock()
SENDER, RECIPIENT = (SigningKey.from_seed(bytes([number]) * 32) for number in (1, 2))
NUMBERS = itertools.count()


def run() -> Iterator[Figure]:
    """Measure sealing, then messages."""
    envelope = MessageEnvelope(SENDER.id, SENDER.id, RECIPIENT.id, "bench")
    data = encryption.seal(envelope, MessageContent(BODY, (), bytes(NONCE_BYTES)))
    seals, opens = rates(
        lambda: encryption.seal(envelope, MessageContent(BODY, (), bytes(NONCE_BYTES))),
        lambda: encryption.open_sealed(RECIPIENT, SENDER.id, SENDER.id, data),
    )
    yield Figure("seal to both ends", "messages/s", seals, opens, "open one of them")
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        bare, notes, messages = asyncio.run(measure(Path(folder)))
    name = "seal and append"
    yield Figure("chat.send, note to oneself", "messages/s", notes, bare, name)
    yield Figure("chat.send, direct", "messages/s", messages, bare, name)


async def measure(folder: Path) -> tuple[float, float, float]:
    """Bare work, notes, and messages to another node, in turns; the best round of each."""
    async with AsyncExitStack() as opened:
        sender = await opened.enter_async_context(node_at(folder / "sender", SENDER))
        recipient = await opened.enter_async_context(node_at(folder / "recipient", RECIPIENT))
        community = str((await sender.found("Bench", {}))["community_id"])
        own = LocalTransport(sender.application())
        client = await opened.enter_async_context(
            Client("http://node", SENDER, community, SENDER.id, transport=own)
        )
        invited = await client.call(
            "community.invite", {}, {"invitee_node_id": RECIPIENT.id, "initial_level": "member"}
        )
        await recipient.join(Invite.parse(invited["output"]["invite_blob"]).link)
        await sender.sync(community)
        log = sender.community(community).log

        async def bare() -> None:
            envelope = MessageEnvelope(community, SENDER.id, RECIPIENT.id, f"bare {next(NUMBERS)}")
            letter = MessageContent(BODY, (), os.urandom(NONCE_BYTES))
            await log.append("chat.message.sent", encryption.seal(envelope, letter))

        async def send(to: str, way: str) -> None:
            given = {"client_id": f"sent {next(NUMBERS)}", "recipient": to, "body": BODY}
            answer: dict[str, Any] = await client.call("chat.send", {}, given)
            assert answer["output"]["delivered"] == way, answer

        works: tuple[Callable[[], Awaitable[None]], ...] = (
            bare,
            lambda: send(SENDER.id, "direct"),
            lambda: send(RECIPIENT.id, "direct"),
        )
        best = [0.0, 0.0, 0.0]
        for _ in range(ROUNDS):
            for index, work in enumerate(works):
                # What was written before is not to be brought on this one's time.
                await sender.sync(community)
                best[index] = max(best[index], await rate(work))
        return best[0], best[1], best[2]


async def rate(work: Callable[[], Awaitable[None]]) -> float:
    """Pieces of work a second, by several callers at once."""

    async def caller() -> None:
        for _ in range(EACH):
            await work()

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return CALLERS * EACH / (time.perf_counter() - start)


@asynccontextmanager
async def node_at(home: Path, key: SigningKey) -> AsyncIterator[Node]:
    """A node that chats and listens on loopback."""
    os.mkdir(home)  # noqa: PTH102 - nothing else runs meanwhile
    async with AsyncExitStack() as opened:
        node = await opened.enter_async_context(
            open_node(key, home=home, stores=home / "stores", clock=CLOCK, settings=NodeSettings())
        )
        membership.register(node, CLOCK)
        chat.register(node, CLOCK, Blobs(home / "blobs", min_free_bytes=0))
        listening = opened.enter_context(bind("127.0.0.1", 0))
        opened.enter_context(announced(listening.getsockname()[1]))
        server = Listener(node.application())
        serving = asyncio.create_task(server.serve([listening]))
        opened.push_async_callback(asyncio.wait, [serving])
        opened.callback(setattr, server, "should_exit", True)
        await server.serving.wait()
        node.presence.endpoints = (Endpoint("http", "127.0.0.1", listening.getsockname()[1]),)
        yield node
