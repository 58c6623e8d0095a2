"""A service that leaves before it is done tells so to whoever waits."""

import asyncio
from typing import Any

import pytest
from tests.fabric.fabric_network import Sessions, connected, graph, linked

from accord.fabric.errors import UnavailableError
from accord.fabric.reception import Request
from accord.fabric.rpc import call
from accord.fabric.server import Server
from accord.fabric.terms import Terms
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
            await server.reception.drain(0.01)
            for each in calls:
                with pytest.raises(UnavailableError, match="ended before it was done"):
                    await each
