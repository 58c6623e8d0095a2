"""What a session that is let in can have others publish for it on NATS."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.fabric.fabric_network import Sessions, connected, graph, linked

from accord.fabric import Link, Request, Server, Terms
from accord.kernel.signing import SigningKey
from accord.testing.servers import Server as Process

TERMS = Terms(graph())
FIND = TERMS.rpc["User.Find"]


@pytest.fixture
async def calls(nats: Process) -> AsyncIterator[tuple[Link, list[Any]]]:
    """A caller of a service, and what its handler saw."""
    key, sessions, seen = SigningKey.generate(), Sessions(), []
    sessions.admit(key)
    async with connected(nats.url) as connection, linked(nats.url, key) as link:
        server = Server(connection, TERMS, sessions.resolve, deadline=5)

        @server.rpc("User.Find")
        async def find(_request: Request, payload: Any) -> Any:
            seen.append(payload)
            return {"id": "1"}

        async with server:
            yield link, seen


@pytest.mark.parametrize(
    "header",
    [{"Nats-Stream": "KV_acc_kv_carts"}, {"Status": "404"}],
    ids=["a stored message", "a status"],
)
async def test_a_signed_request_that_jetstream_sends_is_no_request(
    calls: tuple[Link, list[Any]], header: dict[str, str]
) -> None:
    """The proof and the inbox are the session's own: what is wrong is only who publishes it."""
    link, seen = calls
    body = b'{"id":"7"}'
    headers = link.signed(FIND.subject, body) | header
    msg = await link.inbox.ask(FIND.subject, body, headers, 5)
    assert b"JetStream" in msg.data
    assert seen == []
    await link.request(FIND.subject, body)
    assert seen == [{"id": "7"}]


async def test_a_stored_request_that_is_got_reaches_no_handler(
    calls: tuple[Link, list[Any]],
) -> None:
    """A value with the headers of a request is stored, and got to the subject of an RPC."""
    link, seen = calls
    stream = link.nats.jetstream()
    await stream.add_stream(name="carts", subjects=["carts.>"], allow_direct=True)
    body = b'{"id":"7"}'
    headers = link.signed(FIND.subject, body)
    await stream.publish("carts.evil", body, headers=headers)
    await link.nats.publish("$JS.API.DIRECT.GET.carts.carts.evil", b"", reply=FIND.subject)
    await link.nats.flush()
    # Whatever came before this one on the same subject was looked at.
    await asyncio.wait_for(link.request(FIND.subject, b'{"id":"8"}'), 10)
    assert seen == [{"id": "8"}]
