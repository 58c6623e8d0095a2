"""Serving an admitted call: the last five checks, the handler, the record.

The id of a request is on disk before a handler that is not idempotent starts, so that not even a
crash lets it run twice; the answer of an idempotent one is on disk before it is sent.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.responses import Response

from accord.community.bus.admission import AdmittedRequest, Rates, rate_limited
from accord.community.bus.answers import (
    AnswerSigner,
    RequestContext,
    SentAnswer,
    SignedAnswer,
    internal_failure,
    storage_failure,
)
from accord.community.bus.ledger import MAX_KEPT_ANSWER, CallLedger
from accord.community.bus.registry import Call, Frame, Offer, Produced, Registry
from accord.community.bus.settings import BusSettings
from accord.community.bus.streams import CallStream, StreamPace
from accord.community.errors import Code, CommunityError
from accord.community.rules import checks
from accord.community.rules.checks import RequestClaim, RequestStatus
from accord.community.rules.wire import Transcript
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.storage import StoreError
from accord.telemetry import tracing

_log = structlog.stdlib.get_logger(__name__)

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
    # Callers of the same idempotent request wait for one answer.
    _turns: "dict[int, asyncio.Future[SignedAnswer | None]]" = field(default_factory=dict)
    _paces: dict[tuple[str, str], StreamPace] = field(default_factory=dict)

    async def serve(
        self, guest: AdmittedRequest, visit: RequestContext, *, schema_hash: str | None, acks: bool
    ) -> Response:
        """Answer an admitted call; raises if it is a replay or above the caller's rate.

        `schema_hash` is the caller's, if sent; `acks` says whether it will acknowledge frames.
        """
        offer = self.registry.serving(guest.request.capability or "", guest.request.version)
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
            )
        if offer.in_hand >= offer.max_concurrent:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                f"{offer.max_concurrent} calls of {name} are being served",
                details={"retry_after_ms": _BUSY_MS},
            )
        visit.check = None
        return offer

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
            call = Call(
                offer.descriptor.key,
                request.request_id,
                request.caller,
                guest.level,
                guest.own,
                request.community,
                guest.body,
                self.clock.monotonic() + offer.seconds,
                visit.trace.id if visit.trace else "",
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
