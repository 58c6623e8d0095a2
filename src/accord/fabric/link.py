"""A session's link: a NATS connection with the session's key, bindings and reply inbox.

One subscription receives the answers to all requests, matches them, enforces deadlines and bounds
the backlog. The link signs requests and raises the errors of answers. It never connects: it can
wrap any connection.

`NatsClient` is nats-py's client with fixes: a ping overtook queued writes, so flush and drain lost
messages; an abandoned flush blocked the next one for a minute; the client closed for good when the
server ended a session that a fresh token would renew, and never when the server hung. `subscribe`
is a faster path for small messages, without queue and task.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from nats import errors
from nats.aio import client
from nats.aio.client import PING_PROTO, Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from nats.js import JetStreamContext

from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import session_key
from accord.fabric.rules import idempotency, proofs
from accord.fabric.rules.errors import (
    DeadlineError,
    FabricError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
    read_error,
)
from accord.kernel import identifiers
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

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


MAX_BACKLOG: Final = 4096
MAX_BACKLOG_BYTES: Final = 64 << 20


class Backlog:
    """A bounded queue of unread messages; a reader that is too slow gets an error, not a gap."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._queue: asyncio.Queue[Msg | FabricError] = asyncio.Queue()
        self._bytes = 0
        self._over = False

    def put(self, msg: Msg) -> bool:
        """Queue a message; False once the queue has overflowed or ended."""
        if self._queue.qsize() >= MAX_BACKLOG or self._bytes + len(msg.data) > MAX_BACKLOG_BYTES:
            self.fail(UnavailableError("the reader fell too far behind", where=self._where))
        if self._over:
            return False
        self._bytes += len(msg.data)
        self._queue.put_nowait(msg)
        return True

    def fail(self, error: FabricError) -> None:
        """End the queue: readers get what is queued, then the first error."""
        if not self._over:
            self._over = True
            self._queue.put_nowait(error)

    async def get(self) -> Msg:
        """The next message; raises the error of `fail` at the end."""
        found = await self._queue.get()
        if isinstance(found, FabricError):
            self._queue.put_nowait(found)  # for the next call
            raise found
        self._bytes -= len(found.data)
        return found

    def raise_failure(self) -> None:
        """Raise the error now if the queue ended before any message came."""
        if self._over and self._queue.qsize() == 1:
            failure = self._queue.get_nowait()
            assert isinstance(failure, FabricError)
            raise failure


_NO_RESPONDERS: Final = "503"
Headers = dict[str, str]


class _Waiting(NamedTuple):
    subject: str
    heard: Callable[[Msg], None]
    failed: Callable[[FabricError], None]


class Inbox:
    """Sends requests over a connection; reply subjects begin with `prefix`."""

    def __init__(self, nats: Client, prefix: str) -> None:
        self._nats = nats
        self._stem = f"{prefix}.{secrets.token_hex(8)}."
        self._waiting: dict[str, _Waiting] = {}
        self._opening: asyncio.Task[None] | None = None
        self._open = False

    async def ask(self, subject: str, data: bytes, headers: Headers, within: float) -> Msg:
        """Send a request and return its answer.

        Raises DeadlineError, UnavailableError if nobody listens or the connection was lost,
        UnauthorizedError if the session may not publish there, ValidationError if it is too large.
        """
        if not self._open:
            await self._subscribe()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Msg] = loop.create_future()

        def heard(msg: Msg) -> None:
            if not future.done():
                future.set_result(msg)

        def failed(error: FabricError) -> None:
            if not future.done():
                future.set_exception(error)

        reply = self._new_reply()
        self._waiting[reply] = _Waiting(subject, heard, failed)
        timer = loop.call_later(within, lambda: failed(_late(subject, within)))
        try:
            await self._publish(subject, data, reply, headers)
            msg = await future
        finally:
            timer.cancel()
            del self._waiting[reply]
        _refuse_unheard(msg, subject)
        return msg

    @asynccontextmanager
    async def stream(
        self, subject: str, data: bytes, headers: Headers
    ) -> AsyncIterator[AsyncIterator[Msg]]:
        """Send a request and yield every answer until the block ends.

        Reading raises what `ask` raises, and UnavailableError when frames may be missing because
        the connection was lost or the reader was too slow.
        """
        if not self._open:
            await self._subscribe()
        backlog = Backlog(subject)

        def heard(msg: Msg) -> None:
            if not backlog.put(msg):
                self._waiting.pop(reply, None)

        def failed(error: FabricError) -> None:
            self._waiting.pop(reply, None)
            backlog.fail(error)

        async def frames() -> AsyncIterator[Msg]:
            while True:
                frame = await backlog.get()
                _refuse_unheard(frame, subject)
                yield frame

        reply = self._new_reply()
        self._waiting[reply] = _Waiting(subject, heard, failed)
        try:
            await self._publish(subject, data, reply, headers)
            yield frames()
        finally:
            self._waiting.pop(reply, None)

    def _new_reply(self) -> str:
        # Any service may publish to any inbox, so reply subjects must not be guessable.
        return f"{self._stem}{secrets.token_hex(8)}"

    def refuse(self, subject: str) -> None:
        """Fail requests to a subject (lower case) on which the session may not publish."""
        for waiting in list(self._waiting.values()):
            if waiting.subject.lower() == subject:
                waiting.failed(_forbidden(waiting.subject))

    def interrupt(self) -> None:
        """Fail all open requests: their answers were lost with the connection."""
        for waiting in list(self._waiting.values()):
            waiting.failed(
                UnavailableError(
                    "the connection was lost, so it is not known whether this was done",
                    where=waiting.subject,
                )
            )

    async def _subscribe(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._listen())
        await asyncio.shield(self._opening)

    async def _listen(self) -> None:
        def heard(msg: Msg) -> None:
            waiting = self._waiting.get(msg.subject)
            if waiting is not None:
                waiting.heard(msg)

        try:
            await subscribe(self._nats, f"{self._stem}*", heard)
        except NatsError as error:
            self._opening = None
            raise UnavailableError(f"the connection cannot be used: {error}") from None
        self._open = True

    async def _publish(self, subject: str, data: bytes, reply: str, headers: Headers) -> None:
        try:
            await self._nats.publish(subject, data, reply, headers)
        except MaxPayloadError:
            raise ValidationError(
                f"a payload of {len(data)} bytes is more than the server carries", where=subject
            ) from None
        except NatsError as error:
            raise UnavailableError(
                f"the connection cannot be used: {error}", where=subject
            ) from None


def _late(subject: str, within: float) -> DeadlineError:
    return DeadlineError(f"no answer came within {within:g} seconds", where=subject)


def _forbidden(subject: str) -> UnauthorizedError:
    return UnauthorizedError(
        "this session may not publish here",
        where=subject,
        mend="declare the use in the contract, and have the change accepted",
    )


def _refuse_unheard(msg: Msg, subject: str) -> None:
    if not msg.data and msg.headers and msg.headers.get("Status") == _NO_RESPONDERS:
        raise UnavailableError("nobody answers here at the moment", where=subject)


STATUS: Final = "status"
ERROR: Final = "error"

TIMEOUT: Final = 10.0
"""Default number of seconds to wait for an answer."""

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class SessionBindings:
    """What the authority bound to a session."""

    # By kind (`kv`, `store`, `consumers`, `jobs`, `operations`) and alias.
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deployment: str | None = None  # the id of a service's or device's deployment
    instance: str | None = None


class Link:
    """A connection with an identity: `session` is the public key in base64url.

    `bound` is replaced when the authority changes the bindings; `on_return` is called after a
    reconnect.
    """

    def __init__(
        self,
        nats: Client,
        key: SigningKey,
        *,
        bound: SessionBindings | None = None,
        clock: Clock | None = None,
        ids: UlidSource | None = None,
    ) -> None:
        self.nats = nats
        self.key = key
        self.session = session_key(key)
        self.prefix = inbox_prefix(self.session)
        self.bound = bound or SessionBindings()
        self.clock = clock or SystemClock()
        self.ids = ids or UlidSource(self.clock)
        self.js: JetStreamContext = nats.jetstream()
        self.inbox = Inbox(nats, self.prefix)
        self.on_return: list[Callable[[], None]] = []
        self._watching: list[tuple[str, Callable[[FabricError], None]]] = []

    @contextmanager
    def watching(self, subject: str, denied: Callable[[FabricError], None]) -> Iterator[None]:
        """Call `denied` if the server refuses a subscription to the subject during the block."""
        entry = (subject, denied)
        self._watching.append(entry)
        try:
            yield
        finally:
            self._watching.remove(entry)

    def deny(self, action: str, subject: str) -> None:
        """Handle a permission error; `action` is `publish` or `subscription`."""
        if action == "publish":
            self.inbox.refuse(subject.lower())
        for watched, denied in list(self._watching):
            if action == "subscription" and watched.lower() == subject.lower():
                denied(
                    UnauthorizedError(
                        "this session may not subscribe here",
                        where=watched,
                        mend="declare the use in the contract, and have the change accepted",
                    )
                )

    def signed(self, subject: str, data: bytes, key: str | None = None) -> dict[str, str]:
        """The signature headers of a request, with its idempotency key if it has one."""
        now = int(self.clock.now())
        identity = idempotency.request_id(self.ids.new(), key)
        headers = proofs.sign(self.key, self.session, subject, data, now, identity)
        headers[identifiers.TRACEPARENT] = tracing.traceparent()
        return headers

    async def request(
        self, subject: str, data: bytes, within: float = TIMEOUT, key: str | None = None
    ) -> Msg:
        """Send a signed request and return its answer; raises the error that came instead.

        With an idempotency key it is repeated while the service is unavailable.
        """
        with tracing.span("fabric request", SpanKind.CLIENT, subject=subject):
            if key is not None:
                return await self._repeated(subject, data, within, key)
            msg = await self.inbox.ask(subject, data, self.signed(subject, data), within)
            raise_error(msg)
            return msg

    async def _repeated(self, subject: str, data: bytes, within: float, key: str) -> Msg:
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + within, _FIRST_PAUSE
        while True:
            left = max(until - loop.time(), _FIRST_PAUSE)
            try:
                msg = await self.inbox.ask(subject, data, self.signed(subject, data, key), left)
                raise_error(msg)
            except UnavailableError:
                if loop.time() + pause >= until:
                    raise
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
            else:
                return msg

    @asynccontextmanager
    async def stream(self, subject: str, data: bytes) -> AsyncIterator[AsyncIterator[Msg]]:
        """Send a signed request and yield every frame of the answer until the block ends."""

        async def frames(heard: AsyncIterator[Msg]) -> AsyncIterator[Msg]:
            async for msg in heard:
                raise_error(msg)
                yield msg

        async with self.inbox.stream(subject, data, self.signed(subject, data)) as heard:
            yield frames(heard)


def raise_error(msg: Msg) -> None:
    """Raise the error that an answer carries, RemoteError if its type is unknown; else return."""
    if msg.headers is not None and msg.headers.get(STATUS) == ERROR:
        raise read_error(msg.data)
