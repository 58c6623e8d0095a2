"""The routes of an authority, served over HTTP by a thread of its own, as if on another machine."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.applications import Starlette

from accord.authority.admin import AdminCommands
from accord.authority.contracts import builtins
from accord.authority.http import NatsTransport, routes
from accord.authority.identities import Identities
from accord.authority.service import open_authority
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.station import listener


@contextmanager
def served_authority(place: Path, *, push: bool) -> Iterator[tuple[str, str]]:
    """Serve an authority on loopback; its address, and a registry token for it."""
    socket = listener.bind("127.0.0.1", 0)
    up, loops, ends = threading.Event(), list[asyncio.AbstractEventLoop](), list[asyncio.Event]()
    made: list[str] = []
    clock = SystemClock()

    async def serve() -> None:
        ids = UlidSource(clock)
        async with open_authority(place, clock, ids, builtins(), round_seconds=None) as authority:
            identities = Identities(authority, clock, ids)
            served = routes(
                authority,
                identities,
                AdminCommands(authority, identities),
                NatsTransport((), "jwt", "seed"),
                clock,
                token="operator",
            )
            tokens = authority.registry.tokens
            made.append((await tokens.mint("ci", "test", seconds=600, may_push=push))[1])
            server = listener.Listener(Starlette(routes=list(served)))
            serving = asyncio.create_task(server.serve([socket]))
            await server.serving.wait()
            loops.append(asyncio.get_running_loop())
            ends.append(asyncio.Event())
            up.set()
            await ends[0].wait()
            server.should_exit = True
            await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert up.wait(30)
    try:
        yield listener.address(socket), made[0]
    finally:
        loops[0].call_soon_threadsafe(ends[0].set)
        thread.join(30)
        socket.close()
