"""A service that leaves before it is done tells so to whoever waits."""

import asyncio
from typing import Any

import pytest
from nats.aio.subscription import Subscription
from tests.fabric.fabric_network import Sessions, connected, graph, linked

from accord.fabric import Request, Server, Terms, UnavailableError
from accord.fabric.server import call
from accord.kernel.signing import SigningKey
from accord.testing.servers import Server as Process

TERMS = Terms(graph())


async def test_calls_that_are_cut_off_or_were_not_begun_are_told_so(nats: Process) -> None:
    key, sessions = SigningKey.generate(), Sessions()
    sessions.admit(key)
    begun = asyncio.Event()
    async with connected(nats.url) as connection, linked(nats.url, key) as link:
        server = Server(connection, TERMS, sessions.resolve, most=1)

        @server.rpc("User.Open")
        async def wait(_request: Request, _payload: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

        async with server:
            rpc = TERMS.rpc["User.Open"]
            calls = [asyncio.create_task(call(link, rpc, {"id": "7"}, within=60)) for _ in range(3)]
            await begun.wait()
            await connection.flush()
            await server.dispatcher.drain(0.01)
            for each in calls:
                with pytest.raises(UnavailableError, match="ended before it was done"):
                    await each


async def test_a_server_that_confirms_nothing_does_not_hold_up_the_end(
    nats: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_self: Subscription) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Subscription, "drain", never)
    async with connected(nats.url) as connection:
        server = Server(connection, TERMS, Sessions().resolve)

        @server.rpc("User.Open")
        async def answer(_request: Request, payload: Any) -> Any:
            return payload

        async with asyncio.timeout(60), server:
            pass
    assert connection.is_closed
