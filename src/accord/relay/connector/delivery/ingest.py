"""Taking events: who receives one is decided, and then it is stored with everything it becomes.

Owns the order of events of a chat from the platform's call to the ledger. It returns when the event
is on disk; a second call with the same event id changes nothing. What the gate said goes into the
journal, what people wrote does not.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable

import orjson
from blake3 import blake3

from accord import tracing
from accord.kernel.clock import Clock
from accord.kernel.traceparent import Trace
from accord.kernel.ulid import UlidSource
from accord.metering import Durations
from accord.relay.connector.control.directory import Capability, Dialect, Directory, LinkReply
from accord.relay.connector.delivery.entries import (
    INBOUND,
    PASSTHROUGH,
    Admission,
    Admitted,
    Chat,
    Parcel,
)
from accord.relay.connector.delivery.judging import Judge
from accord.relay.connector.delivery.lanes import Lanes
from accord.relay.connector.delivery.ledger import Ledger
from accord.relay.connector.delivery.limits import Limits
from accord.relay.connector.platform import Fence, Inbound, InboundKind
from accord.relay.errors import Code, RelayError
from accord.relay.gate import Decision, Event, LinkCommand, recognise
from accord.relay.wire.passthrough import interaction_event
from accord.relay.wire.session import session_key
from accord.storage import Record
from accord.tracing import Span, SpanKind

INBOUND_STREAM = "relay.inbound"
DECISIONS = "relay.decisions"

# A chat that was seen within this time needs no new row; it may be answered for days.
_CHAT_MS = 3_600_000
_CHATS_KEPT = 50_000
_LONGEST_ID = 512

Taken = Callable[[Inbound, Decision, LinkReply | None, str], None]
"""Told of each event that was taken for the first time, with our id of it."""


class Ingest:
    """The way in.

    Args:
        directory: Who is who.
        ledger: Where it is stored.
        clock: Where the time comes from.
        source: The name of this process in the journal.
        limits: How long an event may be.
        taken: Told of each new event after its commit.
        counts: What happened how often.
        took: How long events took.
    """

    def __init__(
        self,
        directory: Directory,
        ledger: Ledger,
        clock: Clock,
        source: str,
        limits: Limits,
        taken: Taken,
        counts: Counter[str],
        took: Durations,
    ) -> None:
        self._directory = directory
        self._ledger = ledger
        self._clock = clock
        self._ids = UlidSource(clock)
        self._source = source
        self._limits = limits
        self._taken = taken
        self._counts = counts
        self._took = took
        self._lanes = Lanes()
        self._judge = Judge()
        self._chats: OrderedDict[tuple[str, str, str, str], int] = OrderedDict()

    async def take(self, inbound: Inbound, fence: Fence | None) -> Admitted:
        """Take an event; returns when it is on disk.

        Raises:
            RelayError: It cannot be kept, or came over a socket that is no longer ours.
            StoreError: The store failed; it was not taken.
        """
        _check(inbound)
        # Whoever writes in a chat names no trace: it begins here.
        with tracing.entry(
            "relay ingest", None, SpanKind.CONSUMER, platform=inbound.platform
        ) as span:
            admitted = await self._take(inbound, fence, tracing.current(span))
            tracing.tell(
                span, event=admitted.event, kind=inbound.kind.value, is_new=admitted.is_new
            )
            return admitted

    async def _take(self, inbound: Inbound, fence: Fence | None, trace: Trace | None) -> Admitted:
        began = self._clock.monotonic()
        lane = (inbound.platform, inbound.bot_id, inbound.event.source.chat_id)
        # Whoever comes next may be decided upon before this is stored: the ledger keeps the order.
        async with self._lanes.turn(lane):
            with tracing.step("relay gate") as step:
                reply = await self._directory.consume_link_dm(inbound)
                event = _gate_event(inbound, reply)
                facts = await self._directory.facts(inbound)
                judgement = self._judge.judge(event, facts)
                if step.is_recording():
                    _tell(step, judgement.decision)
            decision, decided = judgement.decision, judgement.record(inbound.event_id)
            admission = await self._admission(inbound, fence, decision, decided, trace)
            stored = self._ledger.admit(admission)
        admitted = await stored
        self._took.add(self._clock.monotonic() - began)
        if admitted.is_new:
            refusal = decision.refusal
            self._counts["taken for nobody" if refusal else "taken"] += 1
            if refusal is not None:
                self._counts[f"dropped {refusal.rule}"] += 1
            self._remember(admission)
            self._taken(inbound, decision, reply, admitted.event)
        else:
            self._counts["duplicates"] += 1
        return admitted

    async def _admission(
        self,
        inbound: Inbound,
        fence: Fence | None,
        decision: Decision,
        decided: str,
        trace: Trace | None,
    ) -> Admission:
        name = self._ids.new()
        now = int(self._clock.now() * 1000)
        parcels: list[Parcel] = []
        chats: list[Chat] = []
        capabilities: list[Capability] = []
        tenant, deliveries = decision.tenant, decision.deliveries
        if deliveries and tenant is not None:
            source = inbound.event.source
            scope = source.scope_id or ""
            kind, body = self._body(inbound)
            for instance in deliveries:
                dialect = await self._directory.session_dialect(instance)
                key = session_key(source, dialect=dialect)
                if inbound.kind is not InboundKind.INTERRUPT:
                    parcels.append(Parcel(instance, tenant, scope, key, kind, body))
                if self._is_news(instance, inbound, key, now):
                    user = (source.user_id or "") if source.is_dm else ""
                    seat = (instance, inbound.platform, source.chat_id, key)
                    chats.append(Chat(*seat, inbound.bot_id, tenant, scope, user))
                capabilities += _capabilities(inbound, tenant, instance, key, dialect)
        return Admission(
            inbound.platform,
            inbound.bot_id,
            inbound.event_id,
            name,
            now,
            fence,
            tuple(parcels),
            tuple(chats),
            tuple(capabilities),
            (
                Record(INBOUND_STREAM, name, now, self._source, _told(inbound, trace)),
                Record(DECISIONS, name, now, self._source, decided),
            ),
            None if trace is None else str(trace),
        )

    def _body(self, inbound: Inbound) -> tuple[str, str]:
        if inbound.kind is InboundKind.PASSTHROUGH and inbound.forward is not None:
            kind, value = PASSTHROUGH, inbound.forward.to_dict()
        else:
            kind, value = INBOUND, inbound.event.to_dict()
        try:
            body = orjson.dumps(value)
        except orjson.JSONEncodeError as error:
            raise _refused(f"the event cannot be written as JSON ({error})") from None
        if len(body) > self._limits.line_bytes:
            raise RelayError(Code.TOO_LARGE, "the event is longer than a gateway may be sent")
        return kind, body.decode()

    def _is_news(self, instance: str, inbound: Inbound, key: str, now: int) -> bool:
        chat_id = inbound.event.source.chat_id
        seen = self._chats.get((instance, inbound.platform, chat_id, key))
        return seen is None or now - seen >= _CHAT_MS

    def _remember(self, admission: Admission) -> None:
        for chat in admission.chats:
            key = (chat.instance, chat.platform, chat.chat_id, chat.session_key)
            self._chats[key] = admission.received_at
            self._chats.move_to_end(key)
        while len(self._chats) > _CHATS_KEPT:
            self._chats.popitem(last=False)


def _gate_event(inbound: Inbound, reply: LinkReply | None) -> Event:
    """The event as the gate sees it, but for its id, which decides nothing."""
    source = inbound.event.source
    link = None
    if reply is not None:
        asked = recognise(inbound.event.text, is_dm=source.is_dm, awaiting=True)
        link = asked.command if asked else LinkCommand.LINK if source.is_dm else LinkCommand.BURN
    return Event.of(
        source,
        event_id="",
        bot_id=inbound.bot_id,
        author_is_bot=inbound.author_is_bot,
        addressed=inbound.addressed,
        hook=inbound.route_key,
        link=link,
    )


def _tell(span: Span, decision: Decision) -> None:
    """What the gate said, for a span."""
    refusal = decision.refusal
    tracing.tell(
        span,
        verdict="deliver" if decision.deliveries else "drop",
        rule=None if refusal is None else refusal.rule,
        deliveries=len(decision.deliveries),
    )


def _told(inbound: Inbound, trace: Trace | None) -> str:
    """What the journal says of an event: nothing that anybody wrote."""
    source = inbound.event.source
    text = inbound.event.text.encode("utf-8", "surrogatepass")
    told = {
        "platform": inbound.platform,
        "bot_id": inbound.bot_id,
        "event_id": inbound.event_id,
        "kind": inbound.kind.value,
        "scope_id": source.scope_id,
        "chat_id": source.chat_id,
        "chat_type": source.chat_type,
        "thread_id": source.thread_id,
        "user_id": source.user_id,
        "message_type": inbound.event.message_type.value,
        "text_digest": blake3(text).hexdigest(),
        "text_bytes": len(text),
    }
    if trace is not None:
        told["trace_id"] = trace.id
    return orjson.dumps(told).decode()


def _capabilities(
    inbound: Inbound, tenant: str, instance: str, key: str, dialect: Dialect
) -> list[Capability]:
    if not inbound.found:
        return []
    source = inbound.event.source
    # An existing gateway keys an interaction by what it decodes itself.
    decoded = interaction_event(inbound.forward) if inbound.forward else None
    alias = session_key(decoded.source, dialect=dialect) if decoded else None
    return [
        Capability(
            tenant=tenant,
            instance=instance,
            platform=inbound.platform,
            scope_id=source.scope_id or "",
            session_key=key,
            kind=found.kind,
            value=found.value,
            expires_at=found.expires_at,
            message_id=inbound.event.message_id or source.message_id,
            alias=alias if alias != key else None,
        )
        for found in inbound.found
    ]


def _check(inbound: Inbound) -> None:
    """Refuse what no store could keep or no gate could judge."""
    source = inbound.event.source
    if source.platform != inbound.platform:
        raise _refused("the event names another platform than the one that received it")
    names = (inbound.bot_id, inbound.event_id, source.chat_id, source.scope_id, source.user_id)
    for name in (*names, source.thread_id, source.user_id_alt, source.parent_chat_id):
        if name is None:
            continue
        if len(name) > _LONGEST_ID or "\0" in name or not _is_text(name):
            raise _refused("an id is too long, or not text")
    if not inbound.event_id or not source.chat_id:
        raise _refused("an event has an id and a chat")
    if (inbound.kind is InboundKind.PASSTHROUGH) != (inbound.forward is not None):
        raise _refused("a passthrough, and nothing else, has a forward")
    if not all(found.kind.startswith(f"{inbound.platform}.") for found in inbound.found):
        raise _refused("a capability's kind begins with the name of its platform")


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def _refused(what: str) -> RelayError:
    return RelayError(Code.BAD_REQUEST, what)
