"""Serving a call that passed the door: the last five checks, the handler, the record.

Owns the order of what is written and what is answered. A request's id is on disk before a handler
that is not idempotent begins, so that not even a crash lets the request be done twice; the answer
of an idempotent one is on disk before it is sent, so that it can be sent again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import structlog
from starlette.responses import Response

from accord import tracing
from accord.community.bus import checks
from accord.community.bus.answering import Answer, Sent, Signer, Visit, failed, unkept
from accord.community.bus.door import Guest, rate_limited
from accord.community.bus.frames import Transcript
from accord.community.bus.ledger import MAX_ANSWER, Ledger
from accord.community.bus.rates import Rates
from accord.community.bus.registry import Call, Frame, Offer, Produced, Registry
from accord.community.bus.replay import Claim, Standing
from accord.community.bus.settings import BusSettings
from accord.community.bus.streams import Pace, Stream
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.storage import StoreError

_log = structlog.stdlib.get_logger(__name__)

_BUSY_MS = 1000


class Calling:
    """Serves calls."""

    def __init__(
        self,
        *,
        clock: Clock,
        ledger: Ledger,
        rates: Rates,
        registry: Registry,
        signer: Signer,
        settings: BusSettings,
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._rates = rates
        self._registry = registry
        self._signer = signer
        self._settings = settings
        # Callers of the same idempotent request wait for one answer.
        self._turns: dict[int, asyncio.Future[Answer | None]] = {}
        self._paces: dict[tuple[str, str], Pace] = {}

    async def serve(
        self, guest: Guest, visit: Visit, *, schema_hash: str | None, acks: bool
    ) -> Response:
        """Answer a call that passed the door.

        Args:
            guest: Who calls, and what.
            visit: What is known of the request.
            schema_hash: What the caller takes the schemas to be, where it says so.
            acks: Whether the caller will acknowledge frames.

        Raises:
            CommunityError: The request came before, or comes too often.
        """
        offer = self._registry.serving(guest.request.capability or "", guest.request.version)
        idempotent = offer is not None and offer.repeatable
        visit.check = checks.REPLAY
        claim, is_new = self._ledger.replay.claim(
            guest.request.caller,
            guest.request.request_id,
            visit.digest or "",
            self._clock.now(),
            idempotent=idempotent,
        )
        if not is_new:
            self._check_rate(guest, visit)
            kept = await self._again(claim)
            if kept is not None:
                return kept.response()
        turn = self._turns[claim.number] = asyncio.get_running_loop().create_future()
        answer: Answer | None = None
        try:
            offer = self._check(offer, guest, visit, schema_hash)
            produced = await self._handle(offer, guest, visit, claim, acks=acks)
            if isinstance(produced, Stream):
                return produced
            answer = self._signer.answer(visit, produced)
            told = self._told(guest, visit, answer)
            if idempotent:
                await self._durable(claim, answer, told)
            else:
                self._ledger.mention(told)
            return answer.response()
        except CommunityError as error:
            return self._refuse(guest, visit, claim, error).response()
        finally:
            kept_now = idempotent and answer is not None and len(answer.content) <= MAX_ANSWER
            claim.standing = Standing.ANSWERED if kept_now else Standing.OPEN
            del self._turns[claim.number]
            turn.set_result(answer)

    def ack(self, caller: str, request_id: str, upto: int) -> None:
        """A caller has read so many frames of its stream.

        Raises:
            CommunityError: There is no such stream (`not_found`), or it is not that long.
        """
        pace = self._paces.get((caller, request_id))
        if pace is None:
            raise CommunityError(Code.NOT_FOUND, "no such stream is under way")
        pace.ack(upto)

    async def _again(self, claim: Claim) -> Answer | None:
        """The answer that an idempotent request got before; None when it is to be done (again)."""
        while (turn := self._turns.get(claim.number)) is not None:
            answer = await asyncio.shield(turn)
            if answer is not None:
                return answer
        if claim.standing is Standing.ANSWERED:
            kept = await self._ledger.kept(claim)
            if kept is not None:
                return kept
        self._ledger.replay.renew(claim, self._clock.now())
        return None

    def _check(
        self, offer: Offer | None, guest: Guest, visit: Visit, schema_hash: str | None
    ) -> Offer:
        request = guest.request
        name = request.capability or ""
        offered = self._registry.descriptors(name)
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

    def _check_rate(self, guest: Guest, visit: Visit) -> None:
        visit.check = checks.CALLER_RATE
        request, now = guest.request, self._clock.monotonic()
        if not guest.own and (wait := self._rates.caller(request.caller, request.capability, now)):
            raise rate_limited("this caller", wait)

    async def _handle(
        self, offer: Offer, guest: Guest, visit: Visit, claim: Claim, *, acks: bool
    ) -> Mapping[str, Any] | Stream:
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
                self._clock.monotonic() + offer.seconds,
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
        guest: Guest,
        visit: Visit,
        *,
        acks: bool,
    ) -> Stream:
        key = (call.caller, call.request_id)
        pace = self._paces[key] = Pace(self._settings.ack_window if acks else None)

        def ended(code: Code | None, transcript: Transcript) -> None:
            offer.in_hand -= 1
            del self._paces[key]
            sent = Sent(200, transcript.size, "blake3:" + transcript.body()["blake3"])
            self._ledger.mention(self._told(guest, visit, sent, code))

        return Stream(
            offer,
            call,
            produced,
            visit=visit,
            signer=self._signer,
            pace=pace,
            settings=self._settings,
            ended=ended,
        )

    def _refuse(self, guest: Guest, visit: Visit, claim: Claim, error: CommunityError) -> Answer:
        tracing.tell(refused=error.code.value)
        answer = self._signer.refusal(visit, error)
        if error.code is not Code.RATE_LIMITED:  # a flood is counted, not written down
            self._ledger.mention(self._told(guest, visit, answer, error.code), claim)
        return answer

    async def _durable(
        self, claim: Claim, answer: Answer | None = None, told: dict[str, Any] | None = None
    ) -> None:
        try:
            await self._ledger.keep(claim, answer=answer, told=told)
        except AccordError:
            raise unkept() from None  # the ledger has logged it

    def _told(
        self, guest: Guest, visit: Visit, sent: "Answer | Sent", code: Code | None = None
    ) -> dict[str, Any]:
        """What the journal keeps of a call: who, what, how it went; nothing of what was said."""
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
            "ms": round((self._clock.monotonic() - visit.started) * 1000),
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
        # Something of it may be done, so it is not refused as if it could be asked again at once.
        _log.error("a capability cannot keep its work", capability=call.capability, why=str(error))
        raise failed() from None
    except Exception:  # noqa: BLE001 - whatever a handler does, its caller hears of an end
        _log.exception("a capability failed", capability=call.capability)
        raise failed() from None


def _kept_schema(offer: Offer, produced: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = offer.descriptor.response
    if schema is None or not schema.is_valid(produced):
        findings = schema.findings(produced)[:3] if schema else ["it answers by a stream"]
        _log.error(
            "a capability broke its own schema",
            capability=offer.descriptor.key,
            findings=[str(finding) for finding in findings],
        )
        raise failed()
    return produced
