"""Ingest: an event is decided by the gate, then stored with everything it becomes.

Returns when the event is on disk; a repeated event id changes nothing. Keeps the order of events of
a chat. The journal gets the gate's decision, never what people wrote; `explain_event` reads it.
What people who are not linked wrote to nobody is only counted; what is recorded of them bears
pseudonyms.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from cachetools import LRUCache
from sqlalchemy import Connection, Row, RowMapping, bindparam, select, tuple_

from accord.kernel.identifiers import Trace, is_ulid, milliseconds
from accord.relay.connector.connections import ConnectionHub
from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.links import LinkReply
from accord.relay.connector.parked import DECISIONS, ParkedEvents, record_id
from accord.relay.connector.platform import Fence
from accord.relay.connector.queue import (
    INBOUND,
    PASSTHROUGH,
    AdmissionResult,
    EventAdmission,
    NewRow,
    QueueWriter,
    SeenChat,
    seen_chat,
)
from accord.relay.connector.store import KeyedLock
from accord.relay.connector.strangers import Stranger
from accord.relay.connector.tables import METADATA, buffer, dead_letter_rows, parked, receipts
from accord.relay.connector.unlinked import UnlinkedCount
from accord.relay.connector.vault import Capability, Pseudonyms
from accord.relay.errors import Code, RelayError
from accord.relay.rules.decision_records import (
    Aliases,
    DecisionRecord,
    from_record,
    to_record,
    with_aliases,
)
from accord.relay.rules.frames import Send
from accord.relay.rules.gate import Decision, Facts, GateEvent, GateOutcome, PlatformAccount, decide
from accord.relay.rules.messages import (
    InboundEvent,
    InboundKind,
    LinkCommand,
    SessionRules,
    interaction_sources,
    lookup_keys,
    read_link_request,
)
from accord.relay.rules.verdicts import GATE_RULES, NO_CANDIDATE, GateVerdict, Layer
from accord.storage import JournalRecord, verify
from accord.telemetry import tracing
from accord.telemetry.tracing import Span, SpanKind

_MOST_DECISIONS = 4096
# Stands for the event's id in a record; a NUL occurs nowhere else in it.
_MARK = "\x00id\x00"
_WRITTEN = orjson.dumps(_MARK).decode()


@dataclass(slots=True)
class CachedDecision:
    """A decision, its record, which lacks only the event's id, and what follows from the facts.

    Whatever changes an instance or a link makes new facts, and so another decision.
    """

    facts: Facts
    decision: Decision
    before: str
    after: str
    refusal: GateVerdict | None
    # The first instance that receives it because it is open to everybody.
    opened: str | None
    # How the instances that receive it key their sessions, as far as they were asked.
    rules: dict[str, SessionRules] = field(default_factory=dict)
    # Which of their gateways' agents answered last, as far as they were asked.
    profiles: dict[str, Mapping[str, str]] = field(default_factory=dict)
    # Whether its author is linked to any agent; not known yet, or looked up each time.
    is_linked: bool | None = None
    # What is decided when its author, who is not linked, writes too much; once it was asked for.
    limited: "CachedDecision | None" = None

    def record(self, event_id: str) -> str:
        """The record of one event, as JSON."""
        return f"{self.before}{orjson.dumps(event_id).decode()}{self.after}"


@dataclass(eq=False, repr=False)
class DecisionCache:
    """The latest decisions of the gate, by event and facts."""

    _cached: LRUCache[GateEvent, CachedDecision] = field(
        default_factory=lambda: LRUCache(_MOST_DECISIONS)
    )

    def decide(self, event: GateEvent, facts: Facts) -> CachedDecision:
        """Decide, or return the cached decision on the same facts."""
        try:
            # Not `get`, which hashes the event twice.
            known = self._cached[event]
        except KeyError:
            pass
        else:
            # Compared by identity: changed facts are always a new object.
            if known.facts is facts:
                return known
        made = self._cached[event] = _decide(event, facts)
        return made

    def limit(self, event: GateEvent, decided: CachedDecision) -> CachedDecision:
        """The decision on the same facts when the event's author writes too much."""
        if decided.limited is None:
            account = PlatformAccount(event.platform, event.author or "")
            decided.limited = _decide(event, replace(decided.facts, limited=frozenset({account})))
        return decided.limited


def _decide(event: GateEvent, facts: Facts) -> CachedDecision:
    decision = decide(event, facts)
    marked = to_record(replace(event, event_id=_MARK), facts, decision)
    before, _, after = orjson.dumps(marked).decode().partition(_WRITTEN)
    opened = (each.instance for each in decision.candidates if each.is_open and each.delivers)
    return CachedDecision(facts, decision, before, after, decision.refusal, next(opened, None))


INBOUND_STREAM = "relay.inbound"

# A chat that was seen within this time gets no new row; it may be answered for days anyway.
_CHAT_MS = 3_600_000
_MOST_CHATS = 50_000
_LONGEST_ID = 512


@dataclass(eq=False, repr=False)
class Ingest:
    """Takes events from platforms: link messages, the gate, then the queues."""

    context: DeliveryContext
    writer: QueueWriter
    hub: ConnectionHub
    parked: ParkedEvents
    _lanes: KeyedLock = field(default_factory=KeyedLock)
    _decisions: DecisionCache = field(default_factory=DecisionCache)
    _chats: LRUCache[tuple[str, str, str, str, str, int], int] = field(
        default_factory=lambda: LRUCache(_MOST_CHATS)
    )
    # Decides which messages of people who are not linked are recorded.
    chance: Callable[[], float] = random.random

    async def take(self, inbound: InboundEvent, fence: Fence | None) -> AdmissionResult:
        """Take an event; returns when it is on disk.

        Raises:
            RelayError: It is invalid, or the lease that `fence` names was lost.
            StoreError: The store failed; the event was not taken.
        """
        _check(inbound)
        # A platform's event carries no trace: it begins here.
        with tracing.incoming_span(
            "relay ingest", None, SpanKind.CONSUMER, platform=inbound.platform
        ) as span:
            admitted = await self._take(inbound, fence, tracing.current_trace(span))
            tracing.set_attributes(
                span,
                event=admitted.event,
                kind=inbound.kind.value,
                is_new=admitted.is_new,
                is_limited=admitted.is_limited,
            )
            return admitted

    async def _take(
        self, inbound: InboundEvent, fence: Fence | None, trace: Trace | None
    ) -> AdmissionResult:
        context = self.context
        began = context.clock.monotonic()
        lane = (inbound.platform, inbound.bot_id, inbound.event.source.chat_id)
        # The next event may be decided before this one is stored: the writer keeps the order.
        async with self._lanes.turn(lane):
            with tracing.span("relay gate") as step:
                reply = await context.directory.consume_link_dm(inbound)
                event = _gate_event(inbound, reply)
                facts = await context.directory.facts_of(event)
                decided = self._decisions.decide(event, facts)
                if step.is_recording():
                    _trace_decision(step, decided.decision)
            name = context.ids.new()
            admission = await self._admission(name, inbound, event, fence, decided, trace)
            if decided.opened is not None:
                limited = self._decisions.limit(event, decided)
                names = await context.directory.secret.load(context.store)
                admission = replace(
                    admission,
                    stranger=Stranger(
                        decided.opened, names.person(event.platform, event.author or "")
                    ),
                    limited=await self._admission(name, inbound, event, fence, limited, trace),
                )
            stored = self.writer.admit(admission)
        admitted = await stored
        if admitted.is_limited and decided.limited is not None and admission.limited is not None:
            decided, admission = decided.limited, admission.limited
        decision = decided.decision
        context.ingest_seconds.add(context.clock.monotonic() - began)
        if not admitted.is_new:
            context.counts["duplicates"] += 1
            return admitted
        context.counts["parked"] += len(admitted.parked)
        context.counts["dead letters"] += len(admitted.full)
        waits = bool(admitted.parked or admitted.full)
        refusal = None if waits else decided.refusal
        context.counts["taken for nobody" if refusal else "taken"] += 1
        if refusal is not None:
            context.counts[f"dropped {refusal.rule}"] += 1
        self._remember(admission, admitted)
        for session in admitted.parked:
            if session.instance in decision.deliveries:
                # What those before it wait for is known now.
                self.hub.start(self.parked.decide_session(session))
        if reply is not None and reply.text:
            self.hub.start(self._send_reply(inbound, reply, admitted.event))
        if inbound.kind is InboundKind.INTERRUPT:
            self.hub.start(self._interrupt(inbound, decision))
        return admitted

    async def _send_reply(self, inbound: InboundEvent, reply: LinkReply, event: str) -> None:
        platform = self.context.platforms.get((inbound.platform, inbound.bot_id))
        if platform is not None:
            await platform.perform(Send(inbound.event.source.chat_id, reply.text), event)

    async def _interrupt(self, inbound: InboundEvent, decision: Decision) -> None:
        directory = self.context.directory
        for instance in decision.deliveries:
            rules = await directory.session_rules(instance)
            own = _to_profile(inbound, rules, await directory.profiles(instance)).event
            self.hub.stop(decision.tenant or "", instance, own)
            for key in rules.keys(own.source):
                self.hub.interrupt(decision.tenant or "", instance, key, own.source.chat_id)

    async def _is_linked(self, event: GateEvent, decided: CachedDecision) -> bool:
        if decided.is_linked is not None:
            return decided.is_linked
        is_linked = await self.context.directory.is_linked(event.platform, event.author)
        # Without a candidate the author may not be among the facts.
        if decided.decision.candidates:
            decided.is_linked = is_linked
        return is_linked

    async def _records(
        self, inbound: InboundEvent, event: GateEvent, decided: CachedDecision, trace: Trace | None
    ) -> tuple[tuple[str, str] | None, UnlinkedCount | None]:
        """What the journal gets of an event and of the decision; else what is counted."""
        context, decision = self.context, decided.decision
        names = await context.directory.secret.load(context.store)
        if await self._is_linked(event, decided):
            written = _journal(inbound, trace, names)
            return (written, decided.record(inbound.event_id)), None
        is_lost = not decision.deliveries and not decision.unknown
        if is_lost and self.chance() >= context.limits.unlinked_sample:
            return None, UnlinkedCount.of(inbound.platform, inbound.bot_id, decision)
        # A channel in which an agent is open to everybody is no secret; a direct chat is a person.
        is_open = bool(decision.candidates) and not event.is_dm
        platform = inbound.platform
        chats = () if is_open else filter(None, (event.chat_id, event.parent_chat_id))
        # The bot itself is nobody.
        is_person = event.author is not None and event.author != event.bot_id
        aliases = Aliases(
            names.person(platform, event.author or "") if is_person else event.author,
            names.event(platform, inbound.event_id),
            {each: names.chat(platform, each) for each in chats},
        )
        renamed, facts = with_aliases(event, decided.facts, aliases)
        record = orjson.dumps(to_record(renamed, facts, decision)).decode()
        return (_journal(inbound, trace, names, aliases), record), None

    async def _admission(
        self,
        name: str,
        inbound: InboundEvent,
        event: GateEvent,
        fence: Fence | None,
        decided: CachedDecision,
        trace: Trace | None,
    ) -> EventAdmission:
        context, decision = self.context, decided.decision
        records, counted = await self._records(inbound, event, decided, trace)
        now = context.now()
        rows: list[NewRow] = []
        chats: list[SeenChat] = []
        capabilities: list[Capability] = []
        tenant = decision.tenant
        received = [each for each in decision.candidates if each.delivers or each.unknown]
        if received and tenant is not None:
            source = inbound.event.source
            scope = source.scope_id or ""
            kind, body = self._body(inbound)
            for each in received:
                instance = each.instance
                rules = decided.rules.get(instance)
                if rules is None:
                    rules = await context.directory.session_rules(instance)
                    decided.rules[instance] = rules
                    decided.profiles[instance] = await context.directory.profiles(instance)
                text = body
                if profiles := decided.profiles[instance]:
                    own = _to_profile(inbound, rules, profiles)
                    text = body if own is inbound else self._body(own)[1]
                # Without the profile, which may change: see `lookup_keys`.
                key = rules.key(source)
                # An interrupt is of no use later, so it is never parked.
                if inbound.kind is not InboundKind.INTERRUPT:
                    unknown = not each.delivers
                    rows.append(NewRow(instance, tenant, scope, key, kind, text, unknown))
                elif not each.delivers:
                    continue
                chat = seen_chat(event, tenant, instance, key, stranger=each.is_open)
                if each.delivers and self._is_new_chat(chat, now):
                    chats.append(chat)
                if not each.is_open:
                    capabilities += _capabilities(inbound, tenant, instance, rules)
        return EventAdmission(
            inbound.platform,
            inbound.bot_id,
            inbound.event_id,
            name,
            now,
            fence,
            tuple(rows),
            tuple(chats),
            tuple(capabilities),
            ()
            if records is None
            else (
                JournalRecord(INBOUND_STREAM, name, now, context.name, records[0]),
                JournalRecord(DECISIONS, name, now, context.name, records[1]),
            ),
            None if trace is None else str(trace),
            event,
            counted,
        )

    def _body(self, inbound: InboundEvent) -> tuple[str, str]:
        if inbound.kind is InboundKind.PASSTHROUGH and inbound.forward is not None:
            kind, value = PASSTHROUGH, inbound.forward.to_dict()
        else:
            kind, value = INBOUND, inbound.event.to_dict()
        try:
            body = orjson.dumps(value)
        except orjson.JSONEncodeError as error:
            raise _refused(f"the event cannot be written as JSON ({error})") from None
        if len(body) > self.context.limits.line_bytes:
            raise RelayError(Code.TOO_LARGE, "the event is too long for a gateway")
        return kind, body.decode()

    def _is_new_chat(self, chat: SeenChat, now: int) -> bool:
        try:
            return now - self._chats[_chat_key(chat)] >= _CHAT_MS
        except KeyError:
            return True

    def _remember(self, admission: EventAdmission, admitted: AdmissionResult) -> None:
        waits = {*admitted.full, *(session.instance for session in admitted.parked)}
        for chat in admission.chats:
            if chat.instance not in waits:
                self._chats[_chat_key(chat)] = admission.received_at


def _chat_key(chat: SeenChat) -> tuple[str, str, str, str, str, int]:
    place = (chat.instance, chat.platform, chat.chat_id)
    return (*place, chat.session_key, chat.author, chat.stranger)


def _gate_event(inbound: InboundEvent, reply: LinkReply | None) -> GateEvent:
    """The event as the gate sees it, without its id, which decides nothing."""
    source = inbound.event.source
    link = None
    if reply is not None:
        asked = read_link_request(inbound.event.text, is_dm=source.is_dm, awaiting=True)
        link = asked.command if asked else LinkCommand.LINK if source.is_dm else LinkCommand.BURN
    return GateEvent.of(
        source,
        event_id="",
        bot_id=inbound.bot_id,
        author_is_bot=inbound.author_is_bot,
        addressed=inbound.addressed,
        hook=inbound.route_key,
        link=link,
    )


def _trace_decision(span: Span, decision: Decision) -> None:
    refusal = decision.refusal
    tracing.set_attributes(
        span,
        verdict="deliver" if decision.deliveries else "park" if decision.unknown else "drop",
        rule=None if refusal is None else refusal.rule,
        deliveries=len(decision.deliveries),
    )


def _journal(
    inbound: InboundEvent, trace: Trace | None, names: Pseudonyms, aliases: Aliases | None = None
) -> str:
    """The journal's record of an event, without its text; under other names if there are any."""
    source = inbound.event.source
    text = inbound.event.text.encode("utf-8", "surrogatepass")
    chat_id, thread_id = source.chat_id, source.thread_id
    if aliases is not None and chat_id in aliases.chats:
        chat_id = aliases.chats[chat_id]
        thread_id = None if thread_id is None else names.chat(inbound.platform, thread_id)
    record = {
        "platform": inbound.platform,
        "bot_id": inbound.bot_id,
        "event_id": inbound.event_id if aliases is None else aliases.event_id,
        "kind": inbound.kind.value,
        "scope_id": source.scope_id,
        "chat_id": chat_id,
        "chat_type": source.chat_type,
        "thread_id": thread_id,
        "user_id": source.user_id if aliases is None else aliases.author,
        "message_type": inbound.event.message_type.value,
        "text_digest": names.digest(text),
        "text_bytes": len(text),
    }
    if trace is not None:
        record["trace_id"] = trace.id
    return orjson.dumps(record).decode()


def _to_profile(
    inbound: InboundEvent, rules: SessionRules, profiles: Mapping[str, str]
) -> InboundEvent:
    """The event for that agent of a gateway which answered last in its chat or session."""
    source = inbound.event.source
    profile = profiles.get(source.chat_id)
    if profile is None and inbound.forward is not None:
        others = (source, *interaction_sources(inbound.forward, source))
        keys = (key for other in others for key in rules.keys(other))
        places = (lookup_keys(key)[-1] for key in keys)
        profile = next((profiles[place] for place in places if place in profiles), None)
    if profile is None:
        return inbound
    event = replace(inbound.event, source=replace(source, profile=profile))
    forward = inbound.forward and replace(inbound.forward, profile=profile)
    return replace(inbound, event=event, forward=forward)


def _capabilities(
    inbound: InboundEvent, tenant: str, instance: str, rules: SessionRules
) -> list[Capability]:
    if not inbound.found:
        return []
    source = inbound.event.source
    # An existing gateway keys an interaction by what it decodes itself.
    others = interaction_sources(inbound.forward, source) if inbound.forward else ()
    keys = list(dict.fromkeys(key for each in (source, *others) for key in rules.keys(each)))
    # An entry has room for one alias.
    pairs = [(keys[i], keys[i + 1] if i + 1 < len(keys) else None) for i in range(0, len(keys), 2)]
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
            alias=alias,
            author=source.user_id,
            chat_id=source.chat_id,
            parent_id=source.parent_chat_id,
        )
        for found in inbound.found
        for key, alias in pairs
    ]


def _check(inbound: InboundEvent) -> None:
    """Refuse events that cannot be stored or decided."""
    source = inbound.event.source
    if source.platform != inbound.platform:
        raise _refused("the event names another platform than the one that received it")
    names = (inbound.bot_id, inbound.event_id, source.chat_id, source.scope_id, source.user_id)
    others = (source.thread_id, source.user_id_alt, source.parent_chat_id)
    given = [name for name in (*names, *others) if name]
    written = "".join(given)
    if "\0" in written or not _is_text(written):
        raise _refused("an id is not text")
    # Together they are hardly ever longer than one of them may be.
    if len(written) > _LONGEST_ID and max(map(len, given)) > _LONGEST_ID:
        raise _refused("an id is too long")
    if not inbound.event_id or not source.chat_id:
        raise _refused("an event needs an id and a chat")
    if (inbound.kind is InboundKind.PASSTHROUGH) != (inbound.forward is not None):
        raise _refused("a passthrough needs a forward, and nothing else may have one")
    if not all(found.kind.startswith(f"{inbound.platform}.") for found in inbound.found):
        raise _refused("a capability's kind begins with the name of its platform")


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def _refused(what: str) -> RelayError:
    return RelayError(Code.BAD_REQUEST, what)


_JOURNAL = METADATA.tables["journal"]
_BOT = (receipts.c.platform, receipts.c.bot_id)
_NEXT_BOT = (
    select(*_BOT)
    .where(tuple_(*_BOT) > tuple_(bindparam("platform"), bindparam("bot_id")))
    .order_by(*_BOT)
    .limit(1)
)
_RECEIPT = select(receipts).where(
    receipts.c.platform == bindparam("platform"),
    receipts.c.bot_id == bindparam("bot_id"),
    receipts.c.event_id == bindparam("event_id"),
)
# How long an event can wait for its batch.
_BATCH_MS = 60_000
_RECEIPT_NEAR = select(receipts).where(
    receipts.c.received_at.between(bindparam("since"), bindparam("until")),
    receipts.c.event == bindparam("event"),
)


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """The state of one instance's row: `pending`, `sent`, `dead` (with a reason) or `acked`.

    Of an event that had to wait for a fact, also `parked` or `refused`, both with a reason.
    """

    instance: str
    state: str
    deliveries: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LaterDecision:
    """What was decided about an event after it was parked for an instance."""

    instance: str
    decided_at: int
    decision: Decision

    @property
    def verdicts(self) -> tuple[GateVerdict, ...]:
        """Those about the instance; where it is no candidate any more, those about the event."""
        candidate = self.decision.candidate(self.instance)
        return self.decision.verdicts if candidate is None else candidate.verdicts

    @property
    def outcome(self) -> GateOutcome:
        """What followed for the instance."""
        candidate = self.decision.candidate(self.instance)
        return GateOutcome.REFUSE if candidate is None else candidate.outcome


@dataclass(frozen=True, slots=True)
class Explanation:
    """An event and what was decided about it; no trace id where an older version took it.

    Of a message that was only counted, no more than its bot, its id and the deciding rule is known.
    """

    event: str
    received_at: int
    recorded: DecisionRecord
    statuses: tuple[DeliveryStatus, ...]
    trace_id: str | None = None
    later: tuple[LaterDecision, ...] = ()
    is_counted: bool = False


def explain_event(connection: Connection, event: str) -> Explanation | None:
    """What was decided about an event, named by our id or by the platform's; None when unknown."""
    name, row = event, _record(connection, DECISIONS, event)
    if row is None:
        receipt = _receipt(connection, event)
        if receipt is None:
            return None
        if receipt.counted is not None:
            return _explain_counted(receipt)
        name = receipt.event
        if (row := _record(connection, DECISIONS, name)) is None:
            return None
    recorded = from_record(orjson.loads(row["body"]))
    inbound = _record(connection, INBOUND_STREAM, name)
    found = _rows(connection, name)
    received = [each for each in recorded.decision.candidates if each.delivers or each.unknown]
    later = tuple(d for e in received for d in _later_decisions(connection, name, e.instance))
    last = {each.instance: each for each in later}
    statuses = []
    for each in received:
        status = found.get(each.instance)
        again = last.get(each.instance)
        if status is None and again is not None and again.outcome is not GateOutcome.DELIVER:
            refusal = next((v for v in again.verdicts if not v.passed), NO_CANDIDATE)
            status = DeliveryStatus(each.instance, "refused", reason=refusal.sentence)
        if status is None and (each.delivers or again is not None):
            status = DeliveryStatus(each.instance, "acked")
        if status is not None:  # else an older version decided, which did not park
            statuses.append(status)
    trace_id = None if inbound is None else orjson.loads(inbound["body"]).get("trace_id")
    return Explanation(name, row["recorded_at"], recorded, tuple(statuses), trace_id, later)


def _later_decisions(connection: Connection, event: str, instance: str) -> Iterator[LaterDecision]:
    for rounds in itertools.count():
        row = _record(connection, DECISIONS, record_id(event, instance, rounds))
        if row is None:
            return
        decision = from_record(orjson.loads(row["body"])).decision
        yield LaterDecision(instance, row["recorded_at"], decision)


def _explain_counted(receipt: Row[Any]) -> Explanation:
    event = GateEvent(receipt.event_id, receipt.platform, receipt.bot_id, "", False, None)
    unknown = GateVerdict(Layer.TENANT, receipt.counted, False, "This rule is not known here.")
    verdict = GATE_RULES.get(receipt.counted, unknown)
    recorded = DecisionRecord(event, Facts(), Decision(None, (verdict,)))
    return Explanation(receipt.event, receipt.received_at, recorded, (), is_counted=True)


def _receipt(connection: Connection, event: str) -> Row[Any] | None:
    """The receipt of the latest event with this id of the platform's, or of the one with ours.

    Receipts are indexed by platform, bot and id, so it goes through the few platforms and bots. Our
    id says about when it was made.
    """
    found: list[Row[Any]] = []
    bot = {"platform": "", "bot_id": ""}
    while (place := connection.execute(_NEXT_BOT, bot).first()) is not None:
        bot = {"platform": place.platform, "bot_id": place.bot_id}
        row = connection.execute(_RECEIPT, {**bot, "event_id": event}).first()
        if row is not None:
            found.append(row)
    if not found and is_ulid(event):
        made = milliseconds(event)
        near = {"since": made - 1000, "until": made + _BATCH_MS, "event": event}
        found += connection.execute(_RECEIPT_NEAR, near)
    return max(found, key=lambda row: (row.received_at, row.event)) if found else None


def _record(connection: Connection, stream: str, name: str) -> RowMapping | None:
    """The record of an event in a stream, with its checksum verified."""
    this = select(_JOURNAL).where(_JOURNAL.c.stream == stream, _JOURNAL.c.id == name)
    row = connection.execute(this).mappings().first()
    if row is not None:
        verify(_JOURNAL, row)
    return row


def _rows(connection: Connection, event: str) -> dict[str, DeliveryStatus]:
    found: dict[str, DeliveryStatus] = {}
    dead: Any = dead_letter_rows.c
    for row in connection.execute(
        select(dead.instance, dead.deliveries, dead.reason).where(dead.event == event)
    ):
        found[row.instance] = DeliveryStatus(row.instance, "dead", row.deliveries, row.reason)
    live: Any = buffer.c
    for row in connection.execute(
        select(live.instance, live.state, live.deliveries).where(live.event == event)
    ):
        found[row.instance] = DeliveryStatus(row.instance, row.state, row.deliveries)
    waiting: Any = parked.c
    for row in connection.execute(
        select(waiting.instance, waiting.attempts).where(waiting.event == event)
    ):
        times = "once" if row.attempts == 0 else f"{row.attempts + 1} times"
        asked = f"the platform was asked {times}, and is asked again"
        found[row.instance] = DeliveryStatus(row.instance, "parked", reason=asked)
    return found


def latest_events(connection: Connection, limit: int) -> list[Explanation]:
    """What was decided about the events that were taken last, the newest first."""
    query = select(receipts).order_by(receipts.c.received_at.desc()).limit(limit)
    found = [
        explain_event(connection, row.event) if row.counted is None else _explain_counted(row)
        for row in connection.execute(query).all()
    ]
    return [each for each in found if each is not None]
