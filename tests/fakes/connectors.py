"""The connector of a home, served over HTTP by a thread of its own, as if on another machine."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.applications import Starlette

from accord.kernel.clock import Clock, SystemClock
from accord.relay.connector import RELAY, open_connector
from accord.station import listener, load
from accord.station.relay import control_settings, delivery_limits, keyring
from accord.station.store import store_location
from accord.storage import open_store


@contextmanager
def served_connector(home: Path, clock: Clock | None = None) -> Iterator[str]:
    """Serve a home's connector on loopback; its address."""
    socket = listener.bind("127.0.0.1", 0)
    up, loops, ends = threading.Event(), list[asyncio.AbstractEventLoop](), list[asyncio.Event]()

    async def serve() -> None:
        settings = load(home)
        async with (
            open_store(store_location(settings), RELAY) as store,
            open_connector(
                store,
                keyring(settings),
                clock or SystemClock(),
                name="served",
                settings=control_settings(settings),
                limits=delivery_limits(settings),
            ) as connector,
        ):
            server = listener.Listener(Starlette(routes=connector.routes))
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
        yield listener.address(socket)
    finally:
        loops[0].call_soon_threadsafe(ends[0].set)
        thread.join(30)
        socket.close()
