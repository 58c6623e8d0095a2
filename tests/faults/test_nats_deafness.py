"""A ping whose sender has given up does not make a connection deaf."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio import client

from accord.authority.nats import ListenAddress, connect, embedded_server
from accord.fabric.link import NatsClient
from accord.kernel.clock import SystemClock
from accord.testing.servers import Server, nats_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with nats_server() as server:
        yield server


async def is_heard(connection: client.Client) -> bool:
    """Whether what is said to oneself comes back."""
    heard = asyncio.Event()

    async def hear(_: object) -> None:
        heard.set()

    await connection.subscribe("said", cb=hear)
    await connection.publish("said", b"")
    try:
        await asyncio.wait_for(heard.wait(), 3)
    except TimeoutError:
        return False
    return True


async def give_up(connection: client.Client) -> None:
    flushing = asyncio.create_task(connection.flush())
    await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)


async def test_a_session_that_gave_up_on_a_flush_goes_on_hearing(server: Server) -> None:
    connection = NatsClient()
    await connection.connect(server.url)
    try:
        await give_up(connection)
        assert await is_heard(connection)
    finally:
        await connection.close()


async def test_the_authority_that_gave_up_on_a_flush_goes_on_hearing(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, ListenAddress(), SystemClock()) as embedded:
        connection = await connect("test", embedded.cluster, embedded.cluster.authority)
        try:
            await give_up(connection)
            assert await is_heard(connection)
        finally:
            await connection.close()
