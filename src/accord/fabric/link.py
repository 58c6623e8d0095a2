"""A session's link: a NATS connection with the session's key, bindings and reply inbox.

One subscription receives the answers to all requests, matches them, enforces deadlines and bounds
the backlog. The link signs requests and raises the errors of answers. It never connects: it can
wrap any connection.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from nats.js import JetStreamContext

from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import session_key
from accord.fabric.nats_client import subscribe
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
