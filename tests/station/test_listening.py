import asyncio

import uvloop
from starlette.applications import Starlette

from accord.station import listener


async def cancelled() -> int:
    """Serve, be cancelled, and tell the port."""
    with listener.bind("127.0.0.1", 0) as listening:
        port: int = listening.getsockname()[1]
        server = listener.Listener(Starlette())
        serving = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    # The loop closes its own copy of the socket in a turn of its own.
    await asyncio.sleep(0.01)
    with listener.bind("127.0.0.1", port):
        return port


def test_a_listener_that_is_cancelled_lets_go_of_its_port() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(cancelled())
