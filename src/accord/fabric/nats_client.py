"""nats-py's client with fixes, and a faster path for small messages.

Fixed: a ping overtook queued writes, so flush and drain lost messages; an abandoned flush blocked
the next one for a minute; the client closed for good when the server ended a session that a fresh
token would renew, and never when the server hung. Direct subscriptions skip queue and task.
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
# Bytes in the socket's buffer above which it counts as busy.
_MOST_AHEAD: Final = 256 * 1024
_CLOSE_SECONDS: Final = 2.0
# Prefixes of JetStream's answers without headers.
_ANSWERS: Final = (b'{"type":"io.nats.jetstream.', b'{"stream":"', b'{"error":{"code":')


async def subscribe(nats: client.Client, subject: str, take: Take, queue: str = "") -> Subscription:
    """Subscribe with a plain function, which must not raise; direct if the client supports it."""
    if isinstance(nats, NatsClient):
        return await nats.subscribe_directly(subject, take, queue)

    async def heard(msg: Msg) -> None:
        take(msg)

    return await nats.subscribe(subject, queue, heard)


async def subscribe_published(
    nats: client.Client, subject: str, heard: Callable[[Msg], Awaitable[None]]
) -> Subscription:
    """Subscribe to what is published on a subject, ignoring JetStream's answers.

    Anyone who may ask JetStream can name any reply subject, without the right to publish there.
    """

    async def published(msg: Msg) -> None:
        if not is_jetstream_answer(msg):
            await heard(msg)

    return await nats.subscribe(subject, cb=published)


def is_jetstream_answer(msg: Msg) -> bool:
    """Whether a message is an answer of JetStream: a stored message, a receipt, information."""
    headers = msg.headers
    if headers:
        # A pulled message has an acknowledgement subject, a direct get names its stream.
        return msg.reply.startswith("$JS.") or "Nats-Stream" in headers or "Status" in headers
    return msg.reply.startswith("$JS.") or not msg.data or msg.data.startswith(_ANSWERS)


class NatsClient(client.Client):
    """A connection to NATS."""

    def __init__(self) -> None:
        super().__init__()
        self._direct: dict[int, Take] = {}
        self._leaving = False

    async def close(self) -> None:
        """Close the connection, also when the server takes no more data."""
        if self._flush_queue is None:
            return  # it was never connected
        late = asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._abort)
        try:
            await super().close()
        except OSError:  # the server closed before it read the rest
            self._pending, self._pending_data_size = [], 0
            self._status = self.DISCONNECTED  # so that super().close() does the rest
            await super().close()
        finally:
            late.cancel()

    def _abort(self) -> None:
        if (writer := self._writer) is not None:
            writer.transport.abort()

    async def subscribe_directly(self, subject: str, take: Take, queue: str = "") -> Subscription:
        """Subscribe with a plain function that is called by the parser."""
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
                # A line break in a value would inject another header or command.
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
        """Queue a command; the commands of one loop iteration are sent together."""
        if not self._is_free():
            # The flusher waits for the socket, and publishers wait for the flusher.
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
        """Whether the socket accepts more data now."""
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
        # The waiter may have been cancelled; nats-py would then stop reading.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected and self._reading_task is asyncio.current_task():
            # Reading ended with an error: reconnect instead of staying deaf.
            await self._process_op_err(errors.ProtocolError())

    async def _connect_to_server(self, s: client.Srv) -> None:
        if (writer := self._writer) is not None:
            writer.close()  # nats-py leaves the socket of a failed attempt open
        await super()._connect_to_server(s)

    async def _process_op_err(self, e: Exception) -> None:
        """Fail pending pings: the connection is lost."""
        former, waiting = self._reconnection_task, tuple(self._pongs)

        def fail(_: object = None) -> None:
            for pong in waiting:
                if not pong.done():
                    pong.set_exception(errors.Error("nats: the connection was lost"))
                    pong.exception()  # nobody awaits the pong of an interval ping

        await super()._process_op_err(e)
        # The former reconnect task is cancelled. If its pong failed before that, it would count the
        # attempt as failed, and two tasks would reconnect at the same time.
        if former is None or former.done():
            fail()
        else:
            former.add_done_callback(fail)

    async def _process_err(self, err_msg: str) -> None:
        # After a fatal error the server closes the connection, which triggers the reconnect.
        await self._error_cb(errors.Error(f"nats: {err_msg.strip().strip(chr(39))}"))
