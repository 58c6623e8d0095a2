"""The same over real WebSockets."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from accord.relay.connector import DeliveryLimits
from accord.relay.rules import UNAUTHORIZED
from accord.station import listener


@pytest.fixture
def where(sqlite_where: str) -> str:
    """None of this depends on the engine."""
    return sqlite_where


@asynccontextmanager
async def serving(world: Any) -> AsyncIterator[str]:
    server = listener.Listener(Starlette(routes=world.delivery.routes))
    with listener.bind("127.0.0.1", 0) as listening:
        task = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        try:
            yield f"ws://127.0.0.1:{listening.getsockname()[1]}/relay"
        finally:
            server.should_exit = True
            await task


def dial(url: str, token: str | None) -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return connect(url, additional_headers=headers, compression=None, max_size=2**20)


async def next_frames(client: ClientConnection, count: int) -> list[dict[str, Any]]:
    text = ""
    async with asyncio.timeout(20):
        while text.count("\n") < count:
            text += str(await client.recv())
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("token", [None, "", "wrong", "é", "x" * 5000])
async def test_a_bad_token_is_closed_after_accepting(world: Any, token: str | None) -> None:
    async with serving(world) as url:
        headers = b"" if token is None else token.encode("utf-8").decode("latin-1")
        async with dial(url, None if token is None else str(headers)) as client:
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert (client.close_code, client.close_reason) == (UNAUTHORIZED, "unauthorized")


async def test_an_event_goes_out_and_its_acknowledgement_comes_back(world: Any) -> None:
    async with serving(world) as url, dial(url, "token-alpha") as client:
        await client.send('{"type":"hello","platform":"memory","botId":"bot"}\n')
        (described,) = await next_frames(client, 1)
        assert described["type"] == "descriptor"
        world.chat.write("ann", "c1", "x" * 900_000)
        (frame,) = await next_frames(client, 1)
        assert frame["event"]["text"] == "x" * 900_000
        await client.send(json.dumps({"type": "inbound_ack", "bufferId": frame["bufferId"]}) + "\n")
        await world.empty("alpha")


async def test_binary_messages_and_garbage_do_no_harm(world: Any) -> None:
    async with serving(world) as url, dial(url, "token-alpha") as client:
        await client.send(b"\xff\xfe\n")
        await client.send(b'{"type":"hello","platform":"memory","botId":"bot"}\n')
        (described,) = await next_frames(client, 1)
        assert described["type"] == "descriptor"
        assert world.delivery.counts["bad lines"] == 1


async def test_a_socket_that_vanishes_is_forgotten(world: Any) -> None:
    async with serving(world) as url:
        async with dial(url, "token-alpha") as client:
            await client.send('{"type":"hello","platform":"memory","botId":"bot"}\n')
            await next_frames(client, 1)
            client.transport.abort()
        await world.until(lambda: world.delivery.hub.find("alpha") is None)


async def test_a_message_longer_than_a_mebibyte_ends_its_socket_and_no_other(world: Any) -> None:
    async with serving(world) as url, dial(url, "token-alpha") as client:
        await client.send('{"type":"hello","platform":"memory","botId":"bot"}\n')
        await next_frames(client, 1)
        world.link("bob", "beta")
        async with dial(url, "token-beta") as huge:
            await huge.send("x" * (2**20 + 1))
            with pytest.raises(ConnectionClosed):
                await huge.recv()
            assert huge.close_code == 1009
        world.chat.write("ann", "c1", "still here")
        (frame,) = await next_frames(client, 1)
        assert frame["event"]["text"] == "still here"


async def test_an_endless_line_is_dropped_counted_and_its_socket_serves_on(world: Any) -> None:
    async with serving(world) as url, dial(url, "token-alpha") as client:
        for _ in range(5):
            await client.send("x" * 500_000)
        await client.send('\n{"type":"hello","platform":"memory","botId":"bot"}\n')
        (described,) = await next_frames(client, 1)
        assert described["type"] == "descriptor"
        assert world.delivery.counts["lines too long"] == 1


GATEWAY = """
import json, sys
from websockets.sync.client import connect

url, token = sys.argv[1:]
with connect(url, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
    socket.send(json.dumps({"type": "hello", "platform": "memory", "botId": "bot"}) + "\\n")
    for message in socket:
        for line in message.splitlines():
            frame = json.loads(line)
            print(frame["type"], frame.get("event", {}).get("text", ""), flush=True)
            if "bufferId" in frame:
                ack = {"type": "inbound_ack", "bufferId": frame["bufferId"]}
                socket.send(json.dumps(ack) + "\\n")
"""


async def test_a_frozen_process_is_buffered_for_woken_and_drained_when_it_thaws(
    open_world: Any,
) -> None:
    limits = DeliveryLimits(sweep_seconds=0.05, silent_seconds=0.6)
    async with open_world(limits=limits) as world, serving(world) as url:
        world.link("ann", "alpha")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", GATEWAY, url, "token-alpha"), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        lines = process.stdout

        async def printed() -> str:
            async with asyncio.timeout(20):
                return (await lines.readline()).decode().strip()

        try:
            assert await printed() == "descriptor"
            world.chat.write("ann", "c1", "awake")
            assert await printed() == "inbound awake"
            await world.empty("alpha")
            process.send_signal(signal.SIGSTOP)
            world.chat.write("ann", "c1", "frozen")
            await world.until(lambda: world.directory.woken == ["alpha"])
            world.chat.write("ann", "c1", "still frozen", event_id="still")
            await world.received("still")
            await world.until(lambda: len(world.directory.woken) == 2)
            process.send_signal(signal.SIGCONT)
            assert [await printed(), await printed()] == ["inbound frozen", "inbound still frozen"]
            await world.empty("alpha")
            world.chat.write("ann", "c1", "thawed")
            assert await printed() == "inbound thawed"
        finally:
            process.kill()
            await process.wait()


async def test_a_client_that_answers_pings_and_acknowledges_late_stays_live(
    open_world: Any,
) -> None:
    limits = DeliveryLimits(sweep_seconds=0.02, silent_seconds=0.3)
    async with open_world(limits=limits) as world, serving(world) as url:
        world.link("ann", "alpha")
        async with dial(url, "token-alpha") as client:
            await client.send('{"type":"hello","platform":"memory","botId":"bot"}\n')
            await next_frames(client, 1)
            world.chat.write("ann", "c1", "one")
            [one] = await next_frames(client, 1)
            connection = world.delivery.hub.find("alpha")
            await world.until(lambda: connection.transport.pongs >= 4)  # well after the limit
            assert world.directory.woken == []
            await client.send(
                json.dumps({"type": "inbound_ack", "bufferId": one["bufferId"]}) + "\n"
            )
            await world.empty("alpha")
