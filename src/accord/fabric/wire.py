"""nats-py's client, with some habits mended, and a shorter way in and out for small messages.

Its ping overtakes what was written before it, so that a flush proves nothing and a drained
subscription loses messages; it is deaf for a minute after a flush that was given up; it closes for
ever when the server ends a session that a fresh token would renew, and not at all when the server
hangs. Headers are read and written in fewer steps here, and a subscription may take
its messages as they are parsed, without a queue and a task between. Owns nothing else of the
protocol.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from nats import errors
from nats.aio import client
from nats.aio.client import PING_PROTO
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

Take = Callable[[Msg], None]

_VERSION: Final = "NATS/1.0\r\n"
# How many bytes may wait for the socket before it counts as busy.
_MOST_AHEAD: Final = 256 * 1024
_CLOSE_SECONDS: Final = 2.0
# How what JetStream answers begins, where it has no headers.
_ANSWERS: Final = (b'{"type":"io.nats.jetstream.', b'{"stream":"', b'{"error":{"code":')


async def subscribe(nats: client.Client, subject: str, take: Take, queue: str = "") -> Subscription:
    """Subscribe with a plain function, which must not raise; by the shorter way, where there is."""
    if isinstance(nats, Client):
        return await nats.subscribe_directly(subject, take, queue)

    async def heard(msg: Msg) -> None:
        take(msg)

    return await nats.subscribe(subject, queue, heard)


async def hear(
    nats: client.Client, subject: str, heard: Callable[[Msg], Awaitable[None]]
) -> Subscription:
    """Subscribe to what is published on a subject, and only that.

    Whoever may ask JetStream for something may name any subject for the answer, but has no right
    to publish there: an answer is no message of this subject.
    """

    async def published(msg: Msg) -> None:
        if not is_answer(msg):
            await heard(msg)

    return await nats.subscribe(subject, cb=published)


def is_answer(msg: Msg) -> bool:
    """Whether JetStream answers somebody with this: a stored message, a receipt, information."""
    headers = msg.headers
    if headers:
        # A message that was pulled names where to acknowledge it, one that was got its stream.
        return msg.reply.startswith("$JS.") or "Nats-Stream" in headers or "Status" in headers
    return msg.reply.startswith("$JS.") or not msg.data or msg.data.startswith(_ANSWERS)


class Client(client.Client):
    """A connection to NATS."""

    def __init__(self) -> None:
        super().__init__()
        self._direct: dict[int, Take] = {}
        self._leaving = False

    async def close(self) -> None:
        """Close the connection, whether or not anybody is there to take what is left to say."""
        if self._flush_queue is None:
            return  # it never was
        late = asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._abort)
        try:
            await super().close()
        except OSError:  # the server went before it took the last words
            self._pending, self._pending_data_size = [], 0
            self._status = self.DISCONNECTED  # so that the rest of it is closed
            await super().close()
        finally:
            late.cancel()

    def _abort(self) -> None:
        if (writer := self._writer) is not None:
            writer.transport.abort()

    async def subscribe_directly(self, subject: str, take: Take, queue: str = "") -> Subscription:
        """Subscribe with a plain function that is called while messages are parsed."""
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        number = self._sid + 1  # the message may come before `subscribe` returns
        self._direct[number] = take
        return await self.subscribe(subject, queue, future=future)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._direct.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        take = self._direct.get(sid)
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        found = await self._process_headers(headers) if headers else None
        take(Msg(self, subject.decode(), reply.decode(), data, found, _sid=sid))

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Headers as they stand; a line that is none is left out."""
        found = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                found[name.strip()] = value.strip()
        return found

    async def _send_publish(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        payload_size: int,
        headers: "dict[str, str] | None",
    ) -> None:
        parts: tuple[bytes, ...]
        if headers:
            lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
            if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
                # A value with a line break would be a header, or a command, of its own.
                await super()._send_publish(subject, reply, payload, payload_size, headers)
                return
            block = f"{_VERSION}{lines}\r\n".encode()
            sizes = f"{len(block)} {len(block) + payload_size}"
            parts = (f"HPUB {subject} {reply} {sizes}\r\n".encode(), block, payload, b"\r\n")
        else:
            parts = (f"PUB {subject} {reply} {payload_size}\r\n".encode(), payload, b"\r\n")
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        await self._write(b"".join(parts))

    async def _write(self, command: bytes) -> None:
        """Queue a command; what one turn of the loop has to say goes out together."""
        if not self._is_free():
            # The flusher waits for the socket, and whoever publishes waits for the flusher.
            await self._send_command(command)
            await self._flush_pending()
            return
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._leaving:
            self._leaving = True
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        self._leaving = False
        if self._pending and self._status == self.CONNECTED and self._transport is not None:
            pending, self._pending = self._pending, []
            self._pending_data_size = 0
            self._transport.write(b"".join(pending))

    def _is_free(self) -> bool:
        """Whether the socket takes more at once."""
        if self._status != self.CONNECTED or self._pending_data_size > _MOST_AHEAD:
            return False
        writer = self._writer
        return writer is not None and writer.transport.get_write_buffer_size() < _MOST_AHEAD

    @property
    def _writer(self) -> asyncio.StreamWriter | None:
        writer = getattr(self._transport, "_io_writer", None)
        return writer if isinstance(writer, asyncio.StreamWriter) else None

    async def _send_ping(self, future: "asyncio.Future[bool] | None" = None) -> None:
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    async def _process_pong(self) -> None:
        # Whoever waited for it may have given up, and nats-py would stop reading for that.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected and self._reading_task is asyncio.current_task():
            # A fault has ended it: rather a new connection than a deaf one.
            await self._process_op_err(errors.ProtocolError())

    async def _connect_to_server(self, s: client.Srv) -> None:
        if (writer := self._writer) is not None:
            writer.close()  # an attempt that failed is otherwise left open
        await super()._connect_to_server(s)

    async def _process_op_err(self, e: Exception) -> None:
        """The connection is lost: no pong will come."""
        former, waiting = self._reconnection_task, tuple(self._pongs)

        def fail(_: object = None) -> None:
            for pong in waiting:
                if not pong.done():
                    pong.set_exception(errors.Error("nats: the connection was lost"))
                    pong.exception()  # of a ping at intervals nobody asks

        await super()._process_op_err(e)
        # Who was reconnecting is called off. Were its pong to fail before it knows, it would take
        # that for an attempt that failed, and two would go on reconnecting against each other.
        if former is None or former.done():
            fail()
        else:
            former.add_done_callback(fail)

    async def _process_err(self, err_msg: str) -> None:
        # Where an error is fatal the server also hangs up, and that is what leads to reconnecting.
        await self._error_cb(errors.Error(f"nats: {err_msg.strip().strip(chr(39))}"))
