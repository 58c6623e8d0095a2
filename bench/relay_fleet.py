"""A connector behind real WebSockets with its real directory, and gateways in another process.

Owns who is who in the relay's benchmarks: one tenant, in which each instance has a gateway, an
owner and a channel in which that owner speaks. The gateways read lines, acknowledge them and tell
when each event came; they do no more, because they share the machine with what is measured.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import resource
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import uvloop
from sqlalchemy import select
from starlette.applications import Starlette
from starlette.types import ASGIApp
from tests.fakes.platform import MemoryChat, MemoryPlatform
from websockets.asyncio.client import ClientConnection, connect

from accord.kernel import tokens
from accord.kernel.clock import SystemClock
from accord.relay.connector import RELAY, Connector, InboundEvent, Keyring, RelayBus, open_connector
from accord.relay.connector.tables import buffer
from accord.relay.rules import MessageEvent, SessionRules, SessionSource
from accord.station import listener
from accord.storage import open_store

CLOCK = SystemClock()
TEXT = "x" * 200
HELLO = '{"type":"hello","platform":"memory","botId":"bot"}\n'
SCOPE = "g1"
_OWED = select(buffer.c.seq).limit(1)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where the store is, and the gateways that are enrolled in it, with their secrets."""

    where: str
    keys: Path
    gateways: tuple[tuple[str, str], ...]

    def keyring(self) -> Keyring:
        """The keys of the connector's own secrets."""
        return Keyring.load(self.keys)


async def enrolled(where: str, folder: Path, count: int) -> Fleet:
    """Make instances `i0`, `i1` and so on, each with a gateway and an owner."""
    keys = folder / "relay.key"
    async with (
        open_store(where, RELAY) as store,
        open_connector(store, Keyring.load(keys), CLOCK, name="operator", serve=False) as connector,
    ):
        control = connector.control

        async def enrol(number: int) -> tuple[str, str]:
            token = await control.mint_token("t1", f"i{number}")
            made = await control.enrol(token.token, f"gw{number}")
            await control.bind(f"i{number}", "memory", f"u{number}")
            # As if it had said hello before.
            caller = await control.principal(f"i{number}")
            await control.directory.choose_sessions(caller.instance, SessionRules(), lambda _: True)
            await control.directory.front(caller, "memory", "bot")
            return made.gateway_id, made.secret

        await control.route("t1", "memory", SCOPE)
        gateways = await asyncio.gather(*(enrol(number) for number in range(count)))
        return Fleet(where, keys, tuple(gateways))


@contextlib.asynccontextmanager
async def connector(
    fleet: Fleet, name: str = "bench", bus: RelayBus | None = None
) -> AsyncIterator[tuple[Connector, int]]:
    """A connector that has just started, and the port of its server."""
    chat = MemoryChat()
    for number in range(len(fleet.gateways)):
        chat.channel(f"c{number}", scope_id=SCOPE)
    async with (
        open_store(fleet.where, RELAY) as store,
        open_connector(
            store, fleet.keyring(), CLOCK, name=name, platforms=[MemoryPlatform(chat)], bus=bus
        ) as made,
        serving(Starlette(routes=made.routes)) as port,
    ):
        # As a station does.
        gc.collect()
        gc.freeze()
        yield made, port


@contextlib.asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """The station's own server on a free port."""
    server = listener.Listener(app)
    with listener.bind("127.0.0.1", 0) as listening:
        task = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await task


def event(name: str, number: int, places: int) -> InboundEvent:
    """A message of an owner in the owner's channel, with the time in it."""
    place = number % places
    source = SessionSource(
        "memory", f"c{place}", "group", "general", f"u{place}", "Somebody", scope_id=SCOPE
    )
    text = f"{time.perf_counter():.6f} {TEXT}"
    message = MessageEvent(text, source, message_id=f"{name}{number}", bot_id="bot")
    return InboundEvent("memory", "bot", f"{name}-{number}", message)


async def emptied(made: Connector) -> None:
    """Wait until nothing is owed to anybody."""
    while await made.store.read(lambda c: c.execute(_OWED).first()) is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@contextlib.contextmanager
def gateways(port: int, fleet: Fleet, *, at_once: int = 50, idle: bool = False) -> Iterator[Pipe]:
    """Gateways in a process of their own.

    Args:
        port: Where the connector is.
        fleet: Who they are.
        at_once: How many dial at the same time.
        idle: Whether they only say hello and then wait.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    given = (port, fleet.gateways, at_once, idle, theirs)
    child = context.Process(target=_gateways, args=given, daemon=True)
    child.start()
    try:
        yield ours
    finally:
        ours.send("end")
        child.join(20)
        if child.is_alive():
            child.kill()
            child.join()


async def dialled(pipe: Pipe) -> None:
    """Let the gateways dial, and wait until each has been greeted."""
    await answer(pipe)
    pipe.send("dial")
    await answer(pipe)


async def answer(pipe: Pipe) -> Any:
    """What the gateways say next."""
    return await asyncio.get_running_loop().run_in_executor(None, pipe.recv)


def many_files() -> None:
    """Let this process hold as many sockets as it may."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _gateways(
    port: int, known: tuple[tuple[str, str], ...], at_once: int, idle: bool, pipe: Pipe
) -> None:
    many_files()
    pipe.send("here")
    if pipe.recv() == "dial":
        uvloop.run(_Gateways(port, known, at_once, idle).run(pipe))


class _Gateways:
    def __init__(
        self, port: int, known: tuple[tuple[str, str], ...], at_once: int, idle: bool
    ) -> None:
        self._url = f"ws://127.0.0.1:{port}/relay"
        self._known = known
        self._turns = asyncio.Semaphore(at_once)
        self._idle = idle
        self._latencies: list[float] = []

    async def run(self, pipe: Pipe) -> None:
        """Dial, say so, and serve until told to end."""
        sockets = await asyncio.gather(*(self._dial(*each) for each in self._known))
        tasks = [] if self._idle else [asyncio.create_task(self._serve(*each)) for each in sockets]
        pipe.send("ready")
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv) != "end":
            pipe.send(list(self._latencies))
            self._latencies.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client, _ in sockets:
            client.transport.abort()

    async def _dial(self, gateway_id: str, secret: str) -> tuple[ClientConnection, str]:
        async with self._turns:
            bearer = tokens.make(gateway_id, secret, int(CLOCK.now()))
            client = await connect(
                self._url,
                additional_headers={"Authorization": f"Bearer {bearer}"},
                compression=None,
                ping_interval=None,
                max_size=None,
                open_timeout=60,
            )
            await client.send(HELLO)
            return client, str(await client.recv())

    async def _serve(self, client: ClientConnection, message: str) -> None:
        rest = ""
        while True:
            *lines, rest = (rest + message).split("\n")
            now = time.perf_counter()
            acks = []
            for line in lines:
                if line.startswith('{"type":"inbound"'):
                    _, _, name = line.rpartition('"bufferId":"')
                    acks.append(f'{{"type":"inbound_ack","bufferId":"{name[:-2]}"}}\n')
                    self._latencies.append(now - float(line[35:].partition(" ")[0]))
            if acks:
                await client.send("".join(acks))
            message = str(await client.recv())
