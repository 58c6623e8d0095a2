"""Request dispatch: the caller is verified and resolved before any payload is read.

Runs handlers in tasks, answers their errors and drains. Capabilities and payloads are checked by
RPCs, feeds and operations. Answers go only to the inbox of the session that asked; otherwise a
caller could make the service publish anywhere.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError

from accord.fabric.callers import Caller, Callers
from accord.fabric.link import ERROR, STATUS
from accord.fabric.nats_client import is_jetstream_answer, subscribe
from accord.fabric.rules import proofs
from accord.fabric.rules.errors import FabricError, UnauthorizedError, UnavailableError, write_error
from accord.fabric.rules.idempotency import key_of
from accord.kernel import identifiers
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.telemetry import tracing

_MOST_WAITING_BYTES: Final = 64 << 20
_OVERHEAD: Final = 2000  # estimated bytes of a message without its payload

DRAIN_SECONDS: Final = 10.0
"""Seconds that running requests get to finish when a service ends."""

_UNSUBSCRIBE_SECONDS: Final = 2.0

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """An admitted request."""

    id: str  # chosen by the caller
    caller: str  # the caller's session key
    who: Caller  # the caller, as the authority describes it
    subject: str
    trace: identifiers.Trace
    at: float  # when it arrived, in seconds since the epoch

    @property
    def key(self) -> str | None:
        """The idempotency key, if the caller gave one."""
        return key_of(self.id)


HandleRequest = Callable[[Request, Msg], Awaitable[None]]


class RequestDispatcher:
    """Dispatches the requests of one service, `most` at once; instances share the `queue`."""

    def __init__(
        self,
        nats: Client,
        callers: Callers,
        *,
        queue: str,
        clock: Clock,
        ids: UlidSource,
        most: int = 1000,
    ) -> None:
        self.nats = nats
        self.clock = clock
        self.callers = callers
        self._ids = ids
        self._queue = queue
        self._most = most
        self._replay = proofs.ReplayWindow()
        self._subscriptions: list[Subscription] = []
        self._running: dict[asyncio.Task[None], Msg] = {}
        self._endless: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[Callable[[Msg], None], Msg]] = deque()
        self._waiting_bytes = 0

    async def serve(self, subject: str, handle: HandleRequest, *, endless: bool = False) -> None:
        """Handle the requests on a subject, each in its own task; errors are answered.

        What is `endless` does not end by itself, so `drain` does not wait for it.
        """
        loop = asyncio.get_running_loop()

        def start(msg: Msg) -> None:
            task = loop.create_task(self._receive(msg, handle, subject))
            self._running[task] = msg
            if endless:
                self._endless.add(task)
            task.add_done_callback(self._done)

        def take(msg: Msg) -> None:
            if len(self._running) < self._most:
                start(msg)
            elif self._waiting_bytes + len(msg.data) <= _MOST_WAITING_BYTES:
                self._waiting_bytes += len(msg.data) + _OVERHEAD
                self._waiting.append((start, msg))
            else:
                _log.error("too many requests", subject=subject)

        self._subscriptions.append(await subscribe(self.nats, subject, take, self._queue))

    async def answer(self, msg: Msg, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Send an answer, or one of several; raises FabricError if it is too large."""
        try:
            await self.nats.publish(msg.reply, data, headers=headers)
        except MaxPayloadError:
            raise FabricError(
                f"the answer has {len(data)} bytes, more than the server carries"
            ) from None
        except NatsError as error:
            _log.warning("an answer could not be sent", subject=msg.subject, error=str(error))

    async def refuse(self, msg: Msg, error: FabricError) -> None:
        """Answer with an error."""
        trace = tracing.current_trace()
        body = write_error(error, self._ids.new(), trace.id if trace else None)
        await self.answer(msg, body, {STATUS: ERROR})

    async def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Stop receiving, finish running requests, and cancel what takes longer than `seconds`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        subscriptions, self._subscriptions = self._subscriptions, []
        if not (self.nats.is_closed or self.nats.is_reconnecting):
            # A server that does not answer must not use up the time of running requests.
            drains = (
                asyncio.wait_for(each.drain(), _UNSUBSCRIBE_SECONDS)  # type: ignore[no-untyped-call]
                for each in subscriptions
            )
            for result in await asyncio.gather(*drains, return_exceptions=True):
                if isinstance(result, Exception):
                    _log.warning("a subscription could not be drained", error=repr(result))
        for task in self._endless:
            task.cancel()
        while self._running and loop.time() < end:
            await asyncio.wait(self._running, timeout=end - loop.time())
        # Endless requests answer their end themselves.
        cut = [msg for task, msg in self._running.items() if task not in self._endless]
        cut += [msg for _, msg in self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for msg in cut:
            await self._fail(msg, UnavailableError("the service ended before it was done"))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._endless.discard(task)
        if self._waiting:
            start, msg = self._waiting.popleft()
            self._waiting_bytes -= len(msg.data) + _OVERHEAD
            start(msg)

    async def _receive(self, msg: Msg, handle: HandleRequest, served: str) -> None:
        place = identifiers.parse_traceparent((msg.headers or {}).get(identifiers.TRACEPARENT))
        with tracing.incoming_span("fabric serve", place, subject=served):
            await self._answer(msg, handle)

    async def _answer(self, msg: Msg, handle: HandleRequest) -> None:
        """Handle one request; raises nothing."""
        request: Request | None = None
        try:
            request = await self._admit(msg)
            await handle(request, msg)
        except FabricError as error:
            if request is not None and isinstance(error, UnauthorizedError):
                self.callers.recheck(request.caller)
            await self._fail(msg, error)
        except Exception as error:  # noqa: BLE001 - a handler's fault ends its request, not the service
            _log.exception("a handler failed", subject=msg.subject, exc_info=error)
            await self._fail(msg, FabricError("the service failed to answer"))

    async def _admit(self, msg: Msg) -> Request:
        """Check origin, form, inbox, freshness, proof, replay and session, in this order."""
        if is_jetstream_answer(msg):
            # Whoever may read a stream can make JetStream send stored messages to any subject.
            raise UnauthorizedError("this is an answer of JetStream, and no request of a session")
        signed = proofs.read(msg.headers)
        if not proofs.is_own_inbox(signed.session, msg.reply):
            raise UnauthorizedError("the reply subject lies outside the inbox of the session")
        now = self.clock.now()
        proofs.verify(signed, msg.subject, msg.data, now)
        self._replay.claim(signed, now)
        caller = self.callers.known(signed.session)
        if caller is None:
            caller = await self.callers.resolve(signed.session)
        trace = tracing.current_trace()
        assert trace is not None
        return Request(signed.request_id, signed.session, caller, msg.subject, trace, now)

    async def _fail(self, msg: Msg, error: FabricError) -> None:
        tracing.set_attributes(error=error.type)
        session = (msg.headers or {}).get(proofs.SESSION, "")
        if isinstance(error, UnauthorizedError):
            _log.warning(
                "a request was refused", subject=msg.subject, session=session[:16], why=error.what
            )
        if proofs.is_own_inbox(session, msg.reply):
            try:
                await self.refuse(msg, error)
            except FabricError as failure:
                _log.warning("an error could not be sent", subject=msg.subject, error=str(failure))
