"""Calls: what a node offers, and serving an admitted call or stream.

A stream ends by one `done` or `error`; a client that acknowledges frames is not outrun by more
than the window. The id of a request is on disk before a handler that is not idempotent starts, so
that not even a crash lets it run twice; the answer of an idempotent one is on disk before it is
sent.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from accord.community.bus.exchange import (
    AdmittedRequest,
    AnswerSigner,
    Rates,
    RequestContext,
    SentAnswer,
    SignedAnswer,
    error_body,
    internal_failure,
    rate_limited,
    storage_failure,
)
from accord.community.bus.ledger import MAX_KEPT_ANSWER, CallLedger
from accord.community.bus.topics import Topics
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import checks, wire
from accord.community.rules.capabilities import CapabilityDescriptor, Version, check_registrable
from accord.community.rules.checks import RequestClaim, RequestStatus
from accord.community.rules.formats import Level
from accord.community.rules.wire import Transcript
from accord.community.settings import BusSettings
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.storage import StoreError
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind
from accord.web import sse

if TYPE_CHECKING:
    from accord.community.router import Router

DEFAULT_CALL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stream: event name and data."""

    event: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that passed every check, as its handler sees it.

    Attributes:
        own: Whether it is from this node's own client on this machine.
        body: The request, valid by the capability's schema.
        deadline: When the caller gets `timeout`, by the node's monotonic clock.
        began: When the handler was called, by the same clock.
        gone: Set when nobody waits for the answer any more. The handler's task is cancelled too;
            this is for work in threads.
    """

    capability: str
    request_id: str
    caller: str
    level: Level
    own: bool
    community: str
    body: Mapping[str, Any]
    deadline: float
    trace_id: str
    clock: Clock
    began: float
    gone: threading.Event = field(default_factory=threading.Event)

    def check_own(self, what: str, mend: str | None = None) -> None:
        """Raise `unauthorized` unless the node's own client calls.

        `what` completes "only this node's own clients"; `mend` is what others can do instead.
        """
        if not self.own:
            raise CommunityError(
                Code.UNAUTHORIZED,
                f"only this node's own clients, on its machine, {what}",
                mend=mend,
            )

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the handler was called."""
        return int((self.clock.monotonic() - self.began) * 1000)

    def answer(self, output: Mapping[str, Any], **meta: Any) -> dict[str, Any]:
        """The usual form of an answer; members of `meta` that are None are left out."""
        told = {name: value for name, value in meta.items() if value is not None}
        return {"output": output, "meta": {"ms": self.elapsed_ms, **told}}


Produced: TypeAlias = Mapping[str, Any] | AsyncIterator[Frame]
Handler: TypeAlias = Callable[[Call], Awaitable[Produced] | AsyncIterator[Frame]]
"""An async function that returns the answer or a stream of frames, or an async generator of frames.

The last frame of a stream is `done`. A refusal is a `CommunityError`.
"""


@dataclass(slots=True, eq=False)
class Offer:
    """A registered capability.

    `seconds` is how long an answer, or the next frame of a stream, may take; `in_hand` counts the
    calls in progress.
    """

    descriptor: CapabilityDescriptor
    handler: Handler
    params: Mapping[str, Any]
    max_concurrent: int
    seconds: float
    in_hand: int = 0

    @property
    def repeatable(self) -> bool:
        """Whether a repeated request gets its answer again."""
        return self.descriptor.idempotent and not self.descriptor.streams

    def listing(self) -> dict[str, Any]:
        """The entry in the node's manifest."""
        return self.descriptor.offer(self.params, self.max_concurrent)


class Registry:
    """The offers of a node; changes are published to its own clients."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._offers: dict[str, dict[str, Offer]] = {}
        self._queues: list[Callable[[], int]] = []

    def add_queue(self, waiting: Callable[[], int]) -> None:
        """Count calls that wait in a queue of a capability."""
        self._queues.append(waiting)

    def register(
        self,
        descriptor: CapabilityDescriptor,
        handler: Handler,
        *,
        params: Mapping[str, Any] | None = None,
        max_concurrent: int = 16,
        seconds: float = DEFAULT_CALL_SECONDS,
    ) -> Offer:
        """Offer a capability; `bad_request` if it is offered already or its name is not allowed."""
        check_registrable(descriptor.name)
        versions = self._offers.setdefault(descriptor.name, {})
        if descriptor.key in versions:
            raise bad_request(f"{descriptor.key} is offered already")
        offer = Offer(descriptor, handler, params or {}, max_concurrent, seconds)
        versions[descriptor.key] = offer
        self._topics.publish("capability.registered", offer.listing())
        return offer

    def deregister(self, key: str) -> None:
        """Withdraw `name@version`, finishing running calls; `not_found` if it is not offered."""
        name, _, version = key.partition("@")
        versions = self._offers.get(name, {})
        if versions.pop(key, None) is None:
            raise CommunityError(Code.NOT_FOUND, f"{key[:120]} is not offered")
        if not versions:
            del self._offers[name]
        self._topics.publish("capability.deregistered", {"name": name, "version": version})

    def serving(self, name: str, least: Version | None) -> Offer | None:
        """The newest offer that satisfies `name@>=least`."""
        fitting = [
            offer
            for offer in self._offers.get(name, {}).values()
            if least is None or offer.descriptor.version.satisfies(least)
        ]
        return max(fitting, key=lambda offer: offer.descriptor.version, default=None)

    def descriptors(self, name: str) -> list[CapabilityDescriptor]:
        """Every offered version of a capability."""
        return [offer.descriptor for offer in self._offers.get(name, {}).values()]

    def listings(self) -> list[dict[str, Any]]:
        """All entries for the node's manifest."""
        return [
            self._offers[name][key].listing()
            for name in sorted(self._offers)
            for key in sorted(self._offers[name])
        ]

    @property
    def in_hand(self) -> int:
        """How many calls are in progress."""
        return sum(
            offer.in_hand for versions in self._offers.values() for offer in versions.values()
        )

    @property
    def waiting(self) -> int:
        """How many calls in progress wait for their turn."""
        return sum(each() for each in self._queues)


ROUTE: Final = "X-HearthNet-Route"
"""By this header a node's own client allows it to have another node serve a call."""

ROUTE_CALL: Final = "call"
ROUTE_STREAM: Final = "stream"
"""The values of `ROUTE`: whether the client expects one answer or a stream."""

ACK: Final = "X-HearthNet-Ack"
"""A caller that will acknowledge frames says so by this header, with the value `frames`."""

_log = structlog.stdlib.get_logger(__name__)


class StreamPace:
    """How many frames were sent, and how many the client has read."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._sent = 0
        self._read = 0
        self._moved = asyncio.Event()

    def ack(self, upto: int) -> None:
        """Record that the client has read `upto` frames; `bad_request` if fewer were sent."""
        if upto > self._sent:
            raise bad_request(f"{self._sent} frames were sent so far", where="/upto")
        self._read = max(self._read, upto)
        self._moved.set()

    async def next(self, seconds: float) -> int:
        """The number of the next frame, once it may be sent; `timeout` if the client is stalled."""
        while self._window is not None and self._sent - self._read >= self._window:
            self._moved.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._moved.wait()
            except TimeoutError:
                raise CommunityError(
                    Code.TIMEOUT, f"no frame was acknowledged for {seconds:g} seconds"
                ) from None
        return self.last()

    def last(self) -> int:
        """The number of the last frame, which does not wait."""
        self._sent += 1
        return self._sent


class CallStream(Response):
    """A running stream as a Starlette response.

    Args:
        produced: The handler's iterator.
        ended: Called once, after the last frame or a disconnect, with the error code (None if
            all went well) and what was sent.
    """

    def __init__(
        self,
        offer: Offer,
        call: Call,
        produced: AsyncIterator[Frame],
        *,
        visit: RequestContext,
        signer: AnswerSigner,
        pace: StreamPace,
        settings: BusSettings,
        ended: Callable[[Code | None, Transcript], None],
    ) -> None:
        self.background = None
        self.status_code = 200
        self._offer = offer
        self._call = call
        self._produced = produced
        self._visit = visit
        self._signer = signer
        self._pace = pace
        self._settings = settings
        self._ended = ended
        self._transcript = Transcript()
        self._code: Code | None = Code.PARTITION  # until the last frame was sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, and end the handler when the client disconnects."""
        name, place = self._offer.descriptor.name, self._visit.trace
        with tracing.incoming_span("bus stream", place, SpanKind.INTERNAL, capability=name):
            try:
                await sse.while_connected(receive, self._pump(send))
            except sse.ClientGoneError:
                pass  # nobody is left to read the rest
            finally:
                self._call.gone.set()
                await self._close()
                tracing.set_attributes(refused=self._code.value if self._code else None)
                self._ended(self._code, self._transcript)

    async def _pump(self, send: Send) -> None:
        await send(self._head())
        self._code, text = await self._say(send)
        await self._send(send, text, is_last=True)

    async def _say(self, send: Send) -> tuple[Code | None, bytes]:
        """Send every frame but the last, which is returned with its error code."""
        try:
            return None, await self._forward(send)
        except sse.ClientGoneError:
            raise
        except CommunityError as error:
            refusal = error
        except TimeoutError:
            refusal = CommunityError(Code.TIMEOUT, "the next frame took too long")
        except Exception:  # noqa: BLE001 - whatever a handler does, its caller hears of an end
            _log.exception("a stream failed", capability=self._offer.descriptor.key)
            refusal = internal_failure()
        return refusal.code, wire.write_frame(wire.ERROR, self._pace.last(), error_body(refusal))

    async def _forward(self, send: Send) -> bytes:
        while (frame := await self._next()).event != wire.DONE:
            number = await self._pace.next(self._settings.stall_seconds)
            await self._send(send, wire.write_frame(frame.event, number, frame.data))
        return wire.write_frame(frame.event, self._pace.last(), frame.data)

    async def _next(self) -> Frame:
        async with asyncio.timeout(self._offer.seconds):
            frame = await anext(self._produced, None)
        key = self._offer.descriptor.key
        if frame is None:
            raise RuntimeError(f"{key} ended its stream without `done`")
        if not wire.is_allowed(self._offer.descriptor.frame, frame.event, frame.data):
            raise RuntimeError(f"{key} broke its own schema in the frame {frame.event!r}")
        return frame

    async def _send(self, send: Send, text: bytes, *, is_last: bool = False) -> None:
        self._transcript.add(text)
        if is_last:
            signed = self._signer.sign(self._visit, 200, self._transcript.body())
            text += wire.write_signature_lines(signed[wire.TIMESTAMP], signed[wire.SIGNATURE])
        message = {"type": "http.response.body", "body": text + b"\n", "more_body": not is_last}
        try:
            async with asyncio.timeout(self._settings.stall_seconds):
                await send(message)
        except TimeoutError:
            raise sse.ClientGoneError from None  # it does not read any more

    def _head(self) -> Message:
        named = {
            "content-type": "text/event-stream",
            wire.REQUEST_ID: self._call.request_id,
            wire.FROM: self._signer.node_id,
        }
        raw = [(name.lower().encode(), value.encode()) for name, value in named.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}

    async def _close(self) -> None:
        close = getattr(self._produced, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except Exception:  # noqa: BLE001 - its caller has its answer; nobody else can hear of this
            _log.exception("a stream failed at its end", capability=self._offer.descriptor.key)


_BUSY_MS = 1000


@dataclass(kw_only=True, slots=True, eq=False)
class CallServer:
    """Serves calls."""

    clock: Clock
    ledger: CallLedger
    rates: Rates
    registry: Registry
    signer: AnswerSigner
    settings: BusSettings
    router: "Router | None" = None
    # Callers of the same idempotent request wait for one answer.
    _turns: "dict[int, asyncio.Future[SignedAnswer | None]]" = field(default_factory=dict)
    _paces: dict[tuple[str, str], StreamPace] = field(default_factory=dict)

    async def serve(
        self,
        guest: AdmittedRequest,
        visit: RequestContext,
        *,
        schema_hash: str | None,
        acks: bool,
        route: str | None = None,
    ) -> Response:
        """Answer an admitted call; raises if it is a replay or above the caller's rate.

        `schema_hash` is the caller's, if sent; `acks` says whether it will acknowledge frames.
        `route` lets another node serve a call of this node's own client.
        """
        offer = self.registry.serving(guest.request.capability or "", guest.request.version)
        if route is not None and guest.own and self.router is not None:
            offer = self.router.offer(guest.request, guest.body, route) or offer
        idempotent = offer is not None and offer.repeatable
        visit.check = checks.REPLAY
        claim, is_new = self.ledger.replay.claim(
            guest.request.caller,
            guest.request.request_id,
            visit.digest or "",
            self.clock.now(),
            idempotent=idempotent,
        )
        if not is_new:
            self._check_rate(guest, visit)
            kept = await self._again(claim)
            if kept is not None:
                return kept.response()
        turn = self._turns[claim.number] = asyncio.get_running_loop().create_future()
        answer: SignedAnswer | None = None
        try:
            offer = self._check(offer, guest, visit, schema_hash)
            produced = await self._handle(offer, guest, visit, claim, acks=acks)
            if isinstance(produced, CallStream):
                return produced
            answer = self.signer.answer(visit, produced)
            record = self._record(guest, visit, answer)
            if idempotent:
                await self._durable(claim, answer, record)
            else:
                self.ledger.store_soon(record)
            return answer.response()
        except CommunityError as error:
            return self._refuse(guest, visit, claim, error).response()
        finally:
            kept_now = idempotent and answer is not None and len(answer.content) <= MAX_KEPT_ANSWER
            claim.status = RequestStatus.ANSWERED if kept_now else RequestStatus.OPEN
            del self._turns[claim.number]
            turn.set_result(answer)

    def ack(self, caller: str, request_id: str, upto: int) -> None:
        """Record that a caller has read `upto` frames; raises if there is no such stream."""
        pace = self._paces.get((caller, request_id))
        if pace is None:
            raise CommunityError(Code.NOT_FOUND, "no such stream is under way")
        pace.ack(upto)

    async def _again(self, claim: RequestClaim) -> SignedAnswer | None:
        """The stored answer of an idempotent request; None if it must be run."""
        while (turn := self._turns.get(claim.number)) is not None:
            answer = await asyncio.shield(turn)
            if answer is not None:
                return answer
        if claim.status is RequestStatus.ANSWERED:
            kept = await self.ledger.stored_answer(claim)
            if kept is not None:
                return kept
        self.ledger.replay.renew(claim, self.clock.now())
        return None

    def _check(
        self,
        offer: Offer | None,
        guest: AdmittedRequest,
        visit: RequestContext,
        schema_hash: str | None,
    ) -> Offer:
        request = guest.request
        name = request.capability or ""
        offered = self.registry.descriptors(name)
        visit.check = checks.TRUST
        if offered:
            judged = offer.descriptor if offer else max(offered, key=lambda each: each.version)
            checks.check_trust(guest.level, judged)
        visit.check = checks.SCHEMA
        if offer is None:
            checks.check_offered(request, offered)
        else:
            checks.check_schema(offer.descriptor, guest.body, schema_hash)
        self._check_rate(guest, visit)
        visit.check = checks.CAPABILITY
        if offer is None:
            raise CommunityError(
                Code.NOT_FOUND,
                f"{name} is not offered here",
                mend="`accord doctor` on that node says what it lacks",
                details=self._others(guest),
            )
        if offer.in_hand >= offer.max_concurrent:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                f"{offer.max_concurrent} calls of {name} are being served",
                details={"retry_after_ms": _BUSY_MS, **self._others(guest)},
            )
        visit.check = None
        return offer

    def _others(self, guest: AdmittedRequest) -> dict[str, Any]:
        """The member `alt_nodes` of an error, if other nodes may serve the call."""
        found = [] if self.router is None else self.router.others(guest.request, guest.body)
        return {"alt_nodes": found} if found else {}

    def _check_rate(self, guest: AdmittedRequest, visit: RequestContext) -> None:
        visit.check = checks.CALLER_RATE
        request, now = guest.request, self.clock.monotonic()
        if not guest.own and (wait := self.rates.caller(request.caller, request.capability, now)):
            raise rate_limited("this caller", wait)

    async def _handle(
        self,
        offer: Offer,
        guest: AdmittedRequest,
        visit: RequestContext,
        claim: RequestClaim,
        *,
        acks: bool,
    ) -> Mapping[str, Any] | CallStream:
        offer.in_hand += 1
        streaming = False
        try:
            if not offer.repeatable:
                await self._durable(claim)
            request = guest.request
            now = self.clock.monotonic()
            call = Call(
                offer.descriptor.key,
                request.request_id,
                request.caller,
                guest.level,
                guest.own,
                request.community,
                guest.body,
                now + offer.seconds,
                visit.trace.id if visit.trace else "",
                self.clock,
                now,
            )
            produced = await _produce(offer, call)
            if not isinstance(produced, AsyncIterator):
                return _kept_schema(offer, produced)
            streaming = True
            return self._stream(offer, call, produced, guest, visit, acks=acks)
        finally:
            if not streaming:
                offer.in_hand -= 1

    def _stream(
        self,
        offer: Offer,
        call: Call,
        produced: AsyncIterator[Frame],
        guest: AdmittedRequest,
        visit: RequestContext,
        *,
        acks: bool,
    ) -> CallStream:
        key = (call.caller, call.request_id)
        pace = self._paces[key] = StreamPace(self.settings.ack_window if acks else None)

        def ended(code: Code | None, transcript: Transcript) -> None:
            offer.in_hand -= 1
            del self._paces[key]
            sent = SentAnswer(200, transcript.size, "blake3:" + transcript.body()["blake3"])
            self.ledger.store_soon(self._record(guest, visit, sent, code))

        return CallStream(
            offer,
            call,
            produced,
            visit=visit,
            signer=self.signer,
            pace=pace,
            settings=self.settings,
            ended=ended,
        )

    def _refuse(
        self,
        guest: AdmittedRequest,
        visit: RequestContext,
        claim: RequestClaim,
        error: CommunityError,
    ) -> SignedAnswer:
        tracing.set_attributes(refused=error.code.value)
        answer = self.signer.refusal(visit, error)
        if error.code is not Code.RATE_LIMITED:  # a flood is counted, not recorded
            self.ledger.store_soon(self._record(guest, visit, answer, error.code), claim)
        return answer

    async def _durable(
        self,
        claim: RequestClaim,
        answer: SignedAnswer | None = None,
        record: dict[str, Any] | None = None,
    ) -> None:
        try:
            await self.ledger.store(claim, answer=answer, record=record)
        except AccordError:
            raise storage_failure() from None  # the ledger has logged it

    def _record(
        self,
        guest: AdmittedRequest,
        visit: RequestContext,
        sent: "SignedAnswer | SentAnswer",
        code: Code | None = None,
    ) -> dict[str, Any]:
        """The journal record of a call: who, what and the outcome, no content."""
        request = guest.request
        traced = {"trace_id": visit.trace.id} if visit.trace else {}
        return traced | {
            "request_id": request.request_id,
            "community": request.community,
            "caller": request.caller,
            "capability": request.capability,
            "version": str(request.version),
            "status": sent.status,
            "code": code.value if code else None,
            "check": visit.check.name if visit.check else None,
            "ms": round((self.clock.monotonic() - visit.started) * 1000),
            "request_bytes": visit.size,
            "response_bytes": sent.size,
            "request_digest": visit.digest,
            "response_digest": sent.digest,
        }


async def _produce(offer: Offer, call: Call) -> Produced:
    try:
        async with asyncio.timeout(offer.seconds):
            made = offer.handler(call)
            return made if isinstance(made, AsyncIterator) else await made
    except CommunityError:
        raise
    except TimeoutError:
        call.gone.set()
        raise CommunityError(
            Code.TIMEOUT, f"{call.capability} took longer than {offer.seconds:g} seconds"
        ) from None
    except StoreError as error:
        # Part of it may be done, so the caller is not told to repeat it.
        _log.error("a capability cannot store its work", capability=call.capability, why=str(error))
        raise internal_failure() from None
    except Exception:  # noqa: BLE001 - whatever a handler does, its caller hears of an end
        _log.exception("a capability failed", capability=call.capability)
        raise internal_failure() from None


def _kept_schema(offer: Offer, produced: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = offer.descriptor.response
    if schema is None or not schema.is_valid(produced):
        findings = schema.findings(produced)[:3] if schema else ["it answers by a stream"]
        _log.error(
            "a capability broke its own schema",
            capability=offer.descriptor.key,
            findings=[str(finding) for finding in findings],
        )
        raise internal_failure()
    return produced
