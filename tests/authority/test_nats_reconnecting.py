"""A connection that is lost while it is made again is made once, and not by two at a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.authority.nats_cases import until

from accord.fabric.link import NatsClient

_INFO = b'INFO {"server_id":"x","version":"2.15.0","proto":1,"max_payload":1000,"headers":true}\r\n'


@dataclass
class Hanging:
    """A server that hangs up on its second client when that one flushes."""

    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for writer in self.writers:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        is_second, pings = len(self.writers) == 2, 0
        writer.write(_INFO)
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                pings += line.startswith(b"PING")
                if is_second and pings == 2:
                    break
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()


async def test_a_connection_lost_while_reconnecting_is_made_once() -> None:
    problems: list[Exception] = []
    back = asyncio.Event()

    async def tell(problem: Exception) -> None:
        problems.append(problem)

    async def returned() -> None:
        back.set()

    hanging, client = Hanging(), NatsClient()
    async with hanging.listening() as url:
        await client.connect(
            [url],
            error_cb=tell,
            reconnected_cb=returned,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.01,  # type: ignore[arg-type]
        )
        try:
            hanging.writers[0].close()
            await asyncio.wait_for(back.wait(), 10)
            for _ in range(20):
                await client.flush()
                await asyncio.sleep(0)
            assert client.is_connected
            assert len(hanging.writers) == 3
            await until(lambda: _reconnecting() == 0)
        finally:
            await client.close()


def _reconnecting() -> int:
    return sum("_attempt_reconnect" in repr(task) for task in asyncio.all_tasks())
