"""Requests: the caller is verified and resolved before any payload is read.

A service asks the authority who a session is (`Auth.Sessions.Resolve`) and drops a cached session
when it is revoked (`Auth.Sessions.Revoked`). A session that cannot be resolved has no rights.

The dispatcher runs handlers in tasks, answers their errors and drains. Capabilities and payloads
are checked by RPCs, feeds and operations. Answers go only to the inbox of the session that asked;
otherwise a caller could make the service publish anywhere.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from cachetools import FIFOCache
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError

from accord.fabric.link import (
    ERROR,
    STATUS,
    Link,
    is_jetstream_answer,
    subscribe,
    subscribe_published,
)
from accord.fabric.rules import proofs
from accord.fabric.rules.errors import (
    FabricError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
    write_error,
)
from accord.fabric.rules.idempotency import key_of
from accord.fabric.rules.terms import Terms, read_payload
from accord.kernel import canonical, identifiers
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.kernel.schema import compile_schema
from accord.telemetry import tracing

_log = structlog.stdlib.get_logger(__name__)

AUTH: Final = "trellis.auth@v1"
RESOLVE: Final = "Auth.Sessions.Resolve"
RESOLVE_SUBJECT: Final = f"rpc.v1.{RESOLVE}"
REVOKED_SUBJECT: Final = "events.v1.Auth.Sessions.Revoked"

REMEMBER_SECONDS: Final = 30.0
"""How long a resolved session is cached; bounds the delay if a revocation message is lost."""

# A caller that is refused repeatedly must not cause as many questions.
_JUST_ASKED: Final = 1.0

# A caller that signs with ever new keys must not flood the authority.
_MOST_ASKING: Final = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """A session as the authority describes it."""

    session: str  # the session key
    holder: str  # `service`, `device` or `person`
    subject: str  # the deployment or the person
    contract_id: str | None = None
    digest: str | None = None
    capabilities: frozenset[str] = frozenset()  # global capability keys
    expires_at: float | None = None  # seconds since the epoch; None if it does not expire

    @property
    def identity(self) -> str:
        """Who holds the session, whichever session it is."""
        return f"{self.holder} {self.subject}"

    def require(self, gate: frozenset[str] | None, what: str) -> None:
        """Raise UnauthorizedError unless every capability of `gate` is held; None admits nobody."""
        if gate is None:
            raise UnauthorizedError(f"nobody may {what}")
        if not gate <= self.capabilities:
            missing = sorted(gate - self.capabilities)
            raise UnauthorizedError(
                f"to {what} needs {', '.join(missing)}", context={"missing": missing}
            )


def own_caller(link: Link, terms: Terms) -> Caller:
    """The session of a link itself, as a service of its contract."""
    service = link.bound.deployment or terms.id
    return Caller(link.session, "service", service, terms.id, terms.digest)


Resolve = Callable[[str], Awaitable[Caller]]
"""Resolves a session key; raises UnauthorizedError if there is no such session."""


def read_caller(session: str, answer: Mapping[str, Any]) -> Caller:
    """The caller in an answer of the authority that was already validated."""
    return Caller(
        session,
        answer["holder"],
        answer["subject"],
        answer.get("contractId"),
        answer.get("digest"),
        frozenset(answer["capabilities"]),
        answer.get("expiresAt"),
    )


class Callers:
    """A cache of resolved sessions: at most `most`, each for `seconds`."""

    def __init__(
        self,
        resolve: Resolve,
        clock: Clock,
        *,
        seconds: float = REMEMBER_SECONDS,
        most: int = 100_000,
    ) -> None:
        self._resolve = resolve
        self._clock = clock
        self._seconds = seconds
        self._known: FIFOCache[str, tuple[Caller, float]] = FIFOCache(most)
        self._asking: dict[str, asyncio.Task[Caller]] = {}

    def known(self, session: str) -> Caller | None:
        """The caller, if it is cached and its session has not expired."""
        entry = self._known.get(session)
        if entry is None:
            return None
        caller, until = entry
        if self._clock.monotonic() >= until or self._has_ended(caller):
            del self._known[session]
            return None
        return caller

    async def resolve(self, session: str) -> Caller:
        """The caller, from the cache or the authority; concurrent questions are joined.

        Raises UnauthorizedError if there is no such session, FabricError if the authority cannot be
        asked.
        """
        known = self.known(session)
        if known is not None:
            return known
        task = self._asking.get(session)
        if task is None:
            if len(self._asking) >= _MOST_ASKING:
                raise UnavailableError("too many unknown callers at once")
            task = asyncio.get_running_loop().create_task(self._ask(session))
            self._asking[session] = task
            task.add_done_callback(lambda done: self._asked(session, done))
        return await asyncio.shield(task)

    def forget(self, session: str) -> None:
        """Drop a session; an answer that is on its way is not cached."""
        self._known.pop(session, None)
        self._asking.pop(session, None)

    def recheck(self, session: str) -> None:
        """Drop a refused session unless it was resolved just now: it may hold more by now."""
        entry = self._known.get(session)
        if entry and entry[1] - self._clock.monotonic() < self._seconds - _JUST_ASKED:
            self.forget(session)

    def clear(self) -> None:
        """Drop everything, for example when revocations may have been missed."""
        self._known.clear()
        self._asking.clear()

    async def _ask(self, session: str) -> Caller:
        caller = await self._resolve(session)
        if self._has_ended(caller):
            raise UnauthorizedError("the session has ended")
        return caller

    def _asked(self, session: str, task: asyncio.Task[Caller]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if self._asking.get(session) is not task:
            return  # dropped in the meantime
        del self._asking[session]
        if not failed:
            self._known[session] = (task.result(), self._clock.monotonic() + self._seconds)

    def _has_ended(self, caller: Caller) -> bool:
        return caller.expires_at is not None and self._clock.now() >= caller.expires_at


_RESOLVE_SECONDS: Final = 5.0
_TEXT: Final = {"type": "string"}
_MAYBE: Final = {"type": ["string", "null"]}
_FACTS: Final = compile_schema(
    {
        "type": "object",
        "properties": {
            "holder": _TEXT,
            "subject": _TEXT,
            "contractId": _MAYBE,
            "digest": _MAYBE,
            "capabilities": {"type": "array", "items": _TEXT},
            "expiresAt": {"type": ["number", "null"]},
        },
        "required": ["holder", "subject", "capabilities"],
    }
)
_REVOKED: Final = compile_schema(
    {"type": "object", "properties": {"sessionKey": _TEXT}, "required": ["sessionKey"]}
)


def caller_resolver(link: Link) -> Resolve:
    """A resolver that asks the authority over a link."""

    async def resolve(session: str) -> Caller:
        data = canonical.encode({"sessionKey": session})
        try:
            msg = await link.request(RESOLVE_SUBJECT, data, _RESOLVE_SECONDS)
            answer = read_payload(_FACTS, msg.data, "the authority's answer")
        except NotFoundError:
            raise UnauthorizedError("the session does not exist or was revoked") from None
        except FabricError as error:
            _log.error("a caller cannot be resolved", why=str(error))
            raise FabricError("the service cannot resolve the caller at the moment") from error
        return read_caller(session, answer)

    return resolve


@asynccontextmanager
async def watch_revocations(link: Link, callers: Callers) -> AsyncIterator[None]:
    """Drop revoked sessions from the cache until the block ends; all of them after a reconnect."""

    async def heard(msg: Msg) -> None:
        try:
            revoked = read_payload(_REVOKED, msg.data, "the revocation")
        except ValidationError:
            callers.clear()
        else:
            callers.forget(revoked["sessionKey"])

    def denied(_: FabricError) -> None:
        _log.warning("revocations cannot be received; sessions are resolved again every 30 seconds")

    with link.watching(REVOKED_SUBJECT, denied):
        subscription = await subscribe_published(link.nats, REVOKED_SUBJECT, heard)
        link.on_return.append(callers.clear)
        try:
            yield
        finally:
            link.on_return.remove(callers.clear)
            with suppress(NatsError):
                await subscription.unsubscribe()


_MOST_WAITING_BYTES: Final = 64 << 20
_OVERHEAD: Final = 2000  # estimated bytes of a message without its payload

DRAIN_SECONDS: Final = 10.0
"""Seconds that running requests get to finish when a service ends."""

_UNSUBSCRIBE_SECONDS: Final = 2.0


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
