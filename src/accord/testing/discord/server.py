"""One port for both: requests of the API, and upgrades to the gateway.

Owns connections. It reads HTTP with h11 and nothing larger than it should.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import h11
from websockets.exceptions import WebSocketException

from accord.testing.discord.rest.api import Answer, Request
from accord.testing.discord.websocket import GatewaySocket

_HEAD_BYTES = 64 * 1024
_BODY_BYTES = 8 * 1024 * 1024

Answering = Callable[[Request], Awaitable[Answer | None]]
"""Answers a request; None cuts the connection instead."""
Upgrading = Callable[[GatewaySocket, bytes], Awaitable[None]]
"""Takes over a connection that asks to be a WebSocket, with the head of its request."""


@asynccontextmanager
async def listening(answer: Answering, upgrade: Upgrading) -> AsyncIterator[int]:
    """Listen on a free port of this machine, and end everything that is open in the end."""
    open_tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_tasks.add(task)
        try:
            while await _serve_one(reader, writer, answer, upgrade):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever dialled has gone, or sent no HTTP
        except (WebSocketException, h11.RemoteProtocolError):
            pass
        except asyncio.CancelledError:
            pass  # by the end of listening; asyncio would report it as a failure of the server
        finally:
            open_tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_HEAD_BYTES)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(open_tasks):
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        await server.wait_closed()


async def _serve_one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Answering,
    upgrade: Upgrading,
) -> bool:
    """Serve one request; whether another may follow on the connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head)
    event = connection.next_event()
    if not isinstance(event, h11.Request):
        return False
    headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
    if headers.get("upgrade", "").lower() == "websocket":
        await upgrade(GatewaySocket(reader, writer), head)
        return False
    # h11 has checked that it is a number.
    length = int(headers.get("content-length", "0"))
    if length > _BODY_BYTES or "transfer-encoding" in headers:
        return False
    body = await reader.readexactly(length)
    connection.receive_data(body)
    while not isinstance(connection.next_event(), h11.EndOfMessage):
        pass  # the body is there in full
    target = event.target.decode("latin-1")
    said = await answer(Request(event.method.decode(), target, headers, body))
    if said is None:
        writer.transport.abort()
        return False
    writer.write(_written(connection, said, has_body=event.method != b"HEAD"))
    await writer.drain()
    return connection.our_state is h11.DONE


def _written(connection: h11.Connection, answer: Answer, *, has_body: bool) -> bytes:
    headers = [*answer.headers.items(), ("Content-Length", str(len(answer.body)))]
    if answer.status == 204:
        headers = list(answer.headers.items())
    parts = [
        connection.send(h11.Response(status_code=answer.status, headers=headers)),
        connection.send(h11.Data(data=answer.body)) if answer.body and has_body else b"",
        connection.send(h11.EndOfMessage()),
    ]
    return b"".join(part or b"" for part in parts)
