"""The outbox: actions of agents, stored before a platform is called, and tried until they end.

An action ends when it is sent, refused, expired, or when its outcome stays unknown; the latter
three are outbound dead letters. A chat of an instance is a lane: its actions are done in order, by
one process at a time. An action that was begun and not recorded, as after a crash, is repeated only
where the platform recognises its key. Whether the instance may perform it (`EgressGate`) is asked
anew for each attempt, so that a link or grant that was taken back counts at once.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog
from pydantic import SecretStr
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.exc import IntegrityError

from accord.kernel.errors import AccordError
from accord.relay.connector import outbox_store
from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.outbox_store import (
    Admission,
    AskedAction,
    Hold,
    Lane,
    OutboundNote,
    OutboundRequest,
    OutboxBacklog,
    OutboxChange,
    OutboxRow,
)
from accord.relay.connector.platform import Platform, PlatformWithWindow
from accord.relay.connector.socket import TokenBucket
from accord.relay.connector.store import KeyedLock, Principal, QueueLock, SharedWork, on_outbox
from accord.relay.connector.tables import chat_authors, chats, messages
from accord.relay.rules.egress import (
    DECLINED,
    Attempt,
    EgressCapability,
    EgressChat,
    EgressFacts,
    OutboxDecision,
    OutboxStep,
    RetryLimits,
    decide,
    may_send,
    neutralise_mentions,
)
from accord.relay.rules.frames import (
    Action,
    BadAction,
    Edit,
    FollowUp,
    GetChatInfo,
    Outbound,
    Outcome,
    Result,
    Send,
    Typing,
    unsupported,
)
from accord.relay.rules.gate import GateEvent
from accord.relay.rules.messages import GENERIC_PLATFORM, find_profile, lookup_keys
from accord.relay.rules.splitting import split_text
from accord.relay.rules.verdicts import GateVerdict
from accord.storage import StoreError
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

UNKNOWN: Final = Result(False, error="outcome unknown", outcome=Outcome.UNKNOWN)
QUEUED: Final = Result(True, queued=True)
_FULL_SECONDS: Final = 30.0
# By how much a clock may be corrected without being taken for set back.
_SET_BACK: Final = 1.0
_log = structlog.stdlib.get_logger(__name__)

RequestKey = tuple[str, str]
"""An instance and a request id."""


def refused(why: str) -> Result:
    """The result of an action that can never be done."""
    return Result(False, error=why, outcome=Outcome.PERMANENT)


def not_now(why: str, retry_after: float | None = None) -> Result:
    """The result of an action that was not taken and may be asked for again."""
    return Result(False, error=why, retry_after=retry_after, outcome=Outcome.RETRYABLE)


_CHAT = (
    select(chats)
    .where(chats.c.instance == bindparam("of"), chats.c.chat_id == bindparam("chat"))
    .order_by(chats.c.delivered_at.desc())
)
_AUTHORS = select(
    chat_authors.c.author,
    chat_authors.c.parent_id,
    chat_authors.c.delivered_at,
    chat_authors.c.stranger,
).where(
    chat_authors.c.instance == bindparam("of"),
    chat_authors.c.platform == bindparam("platform"),
    chat_authors.c.scope_id == bindparam("scope"),
    chat_authors.c.chat_id == bindparam("chat"),
)
_SENT_BY = select(messages.c.instance).where(
    messages.c.platform == bindparam("platform"),
    messages.c.chat_id == bindparam("chat"),
    messages.c.message_id == bindparam("message"),
)


@dataclass(frozen=True, slots=True)
class ChatQuery:
    """A chat, and maybe a message in it, as an action names them.

    `held` are the platforms and scopes in which the instance holds a channel of this id.
    """

    tenant: str
    instance: str
    platform: str | None
    chat_id: str
    scope_id: object
    message_id: str | None
    held: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class KnownChat:
    """The connector's own record of a chat and of a message in it; times in seconds."""

    platform: str | None = None
    bot_id: str | None = None
    chat: EgressChat | None = None
    sent_by: str | None = None
    # Whose messages were delivered from it, and when last.
    authors: Mapping[str, float] = field(default_factory=dict)
    # When a message was last delivered of somebody who was not linked.
    stranger_at: float | None = None
    # When a message was last delivered whose author an older version did not store.
    unnamed_at: float | None = None
    # The channel of which it is a thread; at most one on any platform.
    parents: frozenset[str] = frozenset()


def find_chat(connection: Connection, wanted: ChatQuery) -> KnownChat:
    """What is known of a chat.

    Where an id occurs on several platforms or in several scopes, the action must name one of them;
    otherwise its hints are only compared by the gate.
    """
    this = {"of": wanted.instance, "chat": wanted.chat_id}
    seen = connection.execute(_CHAT, this).all()
    places = {(row.platform, row.scope_id) for row in seen} | wanted.held
    if wanted.platform is not None:
        places = {place for place in places if place[0] == wanted.platform}
    if len(places) > 1:
        places = {place for place in places if place[1] == wanted.scope_id}
    if len(places) != 1:
        return KnownChat()
    place = places.pop()
    latest = next((row for row in seen if (row.platform, row.scope_id) == place), None)
    sent_by = None
    if wanted.message_id is not None:
        values = {"platform": place[0], "chat": wanted.chat_id, "message": wanted.message_id}
        sent_by = connection.execute(_SENT_BY, values).scalar()
    chat = EgressChat(
        tenant=latest.tenant if latest else wanted.tenant,
        scope_id=place[1] or None,
        user_id=(latest.user_id or None) if latest else None,
        holder=wanted.instance if place in wanted.held else None,
        delivered_at=latest.delivered_at / 1000 if latest else None,
    )
    where = this | {"platform": place[0], "scope": place[1]}
    rows = connection.execute(_AUTHORS, where).all()
    authors = {row.author: row.delivered_at / 1000 for row in rows}
    unnamed_at = None
    if latest is not None and latest.delivered_at > max((r.delivered_at for r in rows), default=0):
        # Written by an older version, which stored only the author of a direct chat.
        if latest.user_id:
            authors[latest.user_id] = latest.delivered_at / 1000
        else:
            unnamed_at = latest.delivered_at / 1000
    return KnownChat(
        place[0],
        latest.bot_id if latest else None,
        chat,
        sent_by,
        authors,
        max((row.delivered_at / 1000 for row in rows if row.stranger), default=None),
        unnamed_at,
        frozenset(row.parent_id for row in rows if row.parent_id),
    )


@dataclass(frozen=True, slots=True)
class EgressJudgement:
    """The platform of an action, the gate's verdict, and the capability that it would use."""

    platform: Platform | None
    verdict: GateVerdict
    capability: SecretStr | None = None


@dataclass(frozen=True, slots=True)
class EgressGate:
    """Judges actions by what is known now."""

    context: DeliveryContext

    async def judge(self, asked: AskedAction) -> EgressJudgement:
        """Whether an action may be performed, and where."""
        platform, facts, capability = await self._look_up(asked)
        return EgressJudgement(platform, may_send(asked.action, facts), capability)

    async def _look_up(
        self, asked: AskedAction
    ) -> tuple[Platform | None, EgressFacts, SecretStr | None]:
        principal, action = asked.principal, asked.action
        facts = EgressFacts(
            principal.tenant,
            principal.instance,
            self.context.clock.now(),
            recent_seconds=self.context.limits.chat_seconds,
        )
        # Existing gateways name the generic platform for what came by a forwarded request.
        named = None if asked.platform == GENERIC_PLATFORM else asked.platform
        if isinstance(action, FollowUp):
            # A kind begins with the name of its platform: see `FoundCapability`.
            name = named or action.kind.partition(".")[0]
            value = await self.context.directory.vault.resolve(
                principal,
                session_key=action.session_key,
                kind=action.kind,
                platform=name,
                message_id=_selected_message(action),
            )
            if value is not None:
                usable = EgressCapability(principal.tenant, principal.instance, float("inf"))
                facts = replace(facts, capability=usable)
            return self._find(name, asked.bot_id), facts, value
        held = {
            (name, scope)
            for name in {name for name, _ in self.context.platforms}
            for scope in await self.context.directory.held_scopes(
                principal.instance, name, action.chat_id
            )
        }
        wanted = ChatQuery(
            principal.tenant,
            principal.instance,
            named,
            action.chat_id,
            action.metadata.get("scope_id") if isinstance(action, Send | Edit) else None,
            action.message_id if isinstance(action, Edit) else None,
            frozenset(held),
        )
        found = await self.context.store.read(lambda c: find_chat(c, wanted))
        platform = self._find(found.platform or named, found.bot_id or asked.bot_id)
        chat = await self._current_rights(principal, action.chat_id, found)
        return platform, replace(facts, chat=chat, sent_by=found.sent_by), None

    async def _current_rights(
        self, principal: Principal, chat_id: str, found: KnownChat
    ) -> EgressChat | None:
        """The chat with the grants, links and open places that are valid now."""
        chat, platform = found.chat, found.platform
        if chat is None or platform is None:
            return None
        instance, holder = principal.instance, chat.holder
        for parent in found.parents:
            scopes = await self.context.directory.held_scopes(instance, platform, parent)
            holder = instance if (chat.scope_id or "") in scopes else holder
        linked = await self.context.directory.linked(principal, platform, found.authors)
        moments = [found.authors[author] for author in linked]
        if found.unnamed_at is not None and await self.context.directory.linked(
            principal, platform
        ):
            moments.append(found.unnamed_at)
        linked_at, open_at = max(moments, default=None), found.stranger_at
        if open_at is not None:
            place = GateEvent(
                "",
                platform,
                found.bot_id or "",
                chat_id,
                chat.user_id is not None,
                None,
                chat.scope_id,
                next(iter(found.parents), None),
            )
            open_at = open_at if await self.context.directory.is_open(principal, place) else None
        return replace(chat, holder=holder, linked_at=linked_at, open_at=open_at)

    def _find(self, name: str | None, bot_id: str | None) -> Platform | None:
        """The platform of this name, by its bot where there are several."""
        if name is not None and bot_id and (name, bot_id) in self.context.platforms:
            return self.context.platforms[name, bot_id]
        named = [
            each for (known, _), each in self.context.platforms.items() if name in (None, known)
        ]
        return named[0] if len(named) == 1 else None


@dataclass(eq=False, repr=False)
class ConnectorOutbox:
    """Performs the actions of agents; `chance` is the jitter of its pauses."""

    context: DeliveryContext
    chance: Callable[[], float] = random.random
    # As of the last time that somebody looked.
    backlog: OutboxBacklog = field(default_factory=OutboxBacklog)
    _gate: EgressGate = field(init=False)
    _declines: TokenBucket = field(init=False)
    _under_way: dict[RequestKey, tuple[Action, asyncio.Task[Result]]] = field(default_factory=dict)
    # Who waits for the end of an action.
    _answers: dict[RequestKey, asyncio.Future[Result]] = field(default_factory=dict)
    _arrivals: KeyedLock = field(default_factory=KeyedLock)
    _admissions: KeyedLock = field(default_factory=KeyedLock)
    # The lanes in work here, each with actions that were taken and are held already.
    _lanes: dict[Lane, list[OutboxRow]] = field(default_factory=dict)
    _workers: set[asyncio.Task[None]] = field(default_factory=set)
    # What this process holds, and since when it certainly does.
    _held: dict[Hold, float] = field(default_factory=dict)
    _closed: bool = False

    def __post_init__(self) -> None:
        self._gate = EgressGate(self.context)
        self._declines = TokenBucket(self.context.clock, self.context.limits.declines_per_second)

    @property
    def _retry_limits(self) -> RetryLimits:
        limits = self.context.limits
        return RetryLimits(
            limits.outbox_seconds,
            limits.outbox_pause_seconds,
            limits.outbox_longest_pause_seconds,
            limits.asked_pause_seconds,
        )

    async def act(self, principal: Principal, outbound: Outbound) -> Result | None:
        """Take an action and wait for its end, or until it is told to be queued; never raises.

        None when this process is stopping and has not taken it.
        """
        if isinstance(outbound.action, BadAction):
            return refused(outbound.action.why)
        key = (principal.instance, outbound.request_id)
        known = self._under_way.get(key)
        if known is not None:
            action, task = known
            if action != outbound.action:
                return refused(outbox_store.USED)
        else:
            if self._closed:
                return None
            task = asyncio.create_task(self._guarded(principal, outbound, outbound.action))
            self._under_way[key] = (outbound.action, task)
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def answer_lost(self, principal: Principal, outbound: Outbound) -> None:
        """Note that the answer to an action could not be written to its socket."""
        if isinstance(outbound.action, Send | Edit | FollowUp):
            of, name, now = principal.instance, outbound.request_id, self.context.now()
            work = partial(outbox_store.mark_unwritten, instance=of, request_id=name, now=now)
            await self.context.store.write(on_outbox(of, work))

    async def sweep(self) -> None:
        """Keep what is held, take up what is due, and look for what other processes ended."""
        context = self.context
        since = context.clock.monotonic() - context.limits.renew_seconds
        if held := [hold for hold, at in self._held.items() if at <= since]:
            await self._renew(held)
        if self._closed:
            return
        now = context.now()
        longest = int(context.limits.asked_pause_seconds * 1000)
        lanes = await context.store.read(lambda c: outbox_store.due_lanes(c, now, longest))
        # Not all at once, so that a restart does not call a platform thousandfold.
        for lane in lanes[: max(0, context.limits.outbox_lanes - len(self._lanes))]:
            self._work_on(lane)
        waiting = [key for key, answer in self._answers.items() if not answer.done()]
        if waiting:
            for key, result in await context.store.read(
                lambda c: outbox_store.read_results(c, waiting)
            ):
                self._tell(key, result)

    async def measure(self) -> None:
        """Count what waits."""
        now = self.context.now()
        self.backlog = await self.context.store.read(lambda c: outbox_store.backlog(c, now))

    async def give_up(self, instance: str, reason: str) -> None:
        """Refuse everything that waits of an instance."""
        change = OutboxChange.of(self.context, reason)
        ended = await self.context.store.write(
            on_outbox(
                instance, lambda c: outbox_store.refuse_all(c, instance, refused(reason), change)
            )
        )
        told = {(instance, request_id) for request_id, _ in ended}
        # Whatever is not on its way to the platform yet is not sent any more.
        self._held = {
            hold: at
            for hold, at in self._held.items()
            if (hold.instance, hold.request_id) not in told
        }
        for request_id, result in ended:
            self._tell((instance, request_id), result)

    async def close(self) -> None:
        """Start nothing more, and wait a while for actions under way to be recorded."""
        self._closed = True
        if self._workers:
            await asyncio.wait(self._workers, timeout=self.context.limits.finish_seconds)
        for key in list(self._answers):
            self._tell(key, QUEUED)
        if self._under_way:
            tasks = [task for _, task in self._under_way.values()]
            await asyncio.wait(tasks, timeout=self.context.limits.finish_seconds)

    # Taking an action.

    async def _guarded(self, principal: Principal, outbound: Outbound, action: Action) -> Result:
        asked = AskedAction(principal, action, outbound.platform, outbound.bot_id)
        with tracing.incoming_span(
            "relay outbound", outbound.trace, op=action.op, instance=principal.instance
        ):
            try:
                if isinstance(action, Typing | GetChatInfo):
                    result = await self._perform_fleeting(asked, outbound.request_id)
                else:
                    result = await self._take(asked, outbound)
            except (StoreError, IntegrityError) as error:
                _log.error("an action could not be stored", reason=str(error))
                result = not_now("the connector's store failed")
            tracing.set_attributes(success=result.success)
        self.context.counts["actions done" if result.success else "actions not done"] += 1
        if result.queued:
            self.context.counts["actions queued"] += 1
        return result

    async def _perform_fleeting(self, asked: AskedAction, request_id: str) -> Result:
        """Perform what does no harm when it is repeated, and is of no use when it is late."""
        judged = await self._gate.judge(asked)
        problem = _problem(asked, judged)
        if problem is DECLINED:
            self.context.counts[f"declined {judged.verdict.rule}"] += 1
        if problem is not None or judged.platform is None:
            return problem or DECLINED
        key = f"{asked.principal.instance}/{request_id}"
        action = self._fit_draft(judged.platform, asked.action)
        return await self._perform(judged.platform, action, key, None)

    async def _take(self, asked: AskedAction, outbound: Outbound) -> Result:
        key = (asked.principal.instance, outbound.request_id)
        # Where a follow-up shows has to be looked up, and nothing that came later may overtake it.
        async with self._arrivals.turn(asked.principal.instance):
            lane = await self._lane_of(asked)
            turn = self._admissions.turn(lane)
        async with turn:  # so that actions are stored in their order
            with tracing.span("relay egress gate"):
                judged = await self._gate.judge(asked)
                verdict = judged.verdict
                told = "send" if verdict.passed else "decline"
                tracing.set_attributes(verdict=told, rule=verdict.rule)
            names = await self.context.directory.secret.load(self.context.store)
            digest = names.digest(outbox_store.action_bytes(asked.action))
            request = OutboundRequest(asked, outbound.request_id, self.context.now(), digest)
            problem = _problem(asked, judged)
            if problem is not None and (known := await self._known(request)) is not None:
                return known  # of what was allowed when it was asked for first
            if problem is DECLINED:
                return await self._decline(request, judged)
            if problem is not None:
                return problem
            if isinstance(asked.action, Send | Edit | FollowUp):
                place, profile = _place_of(asked.action), find_profile(asked.action.metadata)
                instance = asked.principal.instance
                await self.context.directory.choose_profile(instance, place, profile)
            admitted = await self._admit(request, lane)
            if admitted.refused is not None:
                return admitted.refused
            if admitted.same_as is not None:
                key = (key[0], admitted.same_as)
            if admitted.replaced is not None:
                done = Result(True, admitted.replaced[1])
                self._tell((key[0], admitted.replaced[0]), done)
            if admitted.result is not None:
                return admitted.result
            answer = self._answers.get(key)
            if answer is None or answer.done():
                answer = self._answers[key] = asyncio.get_running_loop().create_future()
            self._work_on(lane, admitted.row)
        try:
            async with asyncio.timeout(self.context.limits.answer_seconds):
                return await asyncio.shield(answer)
        except TimeoutError:
            return QUEUED
        finally:
            if self._answers.get(key) is answer:
                del self._answers[key]

    async def _lane_of(self, asked: AskedAction) -> Lane:
        """The lane of an action: the chat in which it shows, also for a follow-up."""
        action, chat_id = asked.action, None
        if isinstance(action, FollowUp):
            chat_id = await self.context.directory.vault.find_chat(
                asked.principal,
                session_key=action.session_key,
                kind=action.kind,
                message_id=_selected_message(action),
            )
        return outbox_store.lane_of(asked, chat_id)

    async def _admit(self, request: OutboundRequest, lane: Lane) -> Admission:
        context, limits = self.context, self.context.limits
        terms = outbox_store.AdmissionTerms(
            holder=context.name,
            held_ms=int(limits.lease_seconds * 1000),
            oldest=request.at - int(limits.request_seconds * 1000),
            repeats_since=request.at - int(limits.repeat_seconds * 1000),
            most_rows=limits.outbox_rows,
        )
        trace = tracing.current_trace()
        began = context.clock.monotonic()
        text = None if trace is None else str(trace)
        work = partial(outbox_store.admit, request=request, terms=terms, trace=text, lane=lane)
        admitted = await context.store.write(on_outbox(request.asked.principal.instance, work))
        if admitted.is_full:
            context.counts["actions refused"] += 1
            return Admission(refused=not_now("too many actions wait", _FULL_SECONDS))
        if admitted.row is not None:
            if not self._is_fresh(began):
                await self._put_back(admitted.row)
                return replace(admitted, row=None)
            self._held[admitted.row.hold] = began
        return admitted

    async def _known(self, request: OutboundRequest) -> Result | None:
        """How a request ended that was asked for before; queued if it has not ended."""
        return await self.context.store.read(lambda c: outbox_store.known_result(c, request))

    async def _decline(self, request: OutboundRequest, judged: EgressJudgement) -> Result:
        self.context.counts[f"declined {judged.verdict.rule}"] += 1
        if self._declines.spend(1):
            note = self._note(request, judged.platform or "", judged.verdict.rule)
            await self.context.store.write(
                SharedWork(lambda c: outbox_store.journal_action(c, request, DECLINED, [], note))
            )
        return DECLINED

    # Working through a lane.

    def _work_on(self, lane: Lane, row: OutboxRow | None = None) -> None:
        """Work on a lane; `row` is its first action, and held by this process already."""
        handed = self._lanes.get(lane)
        if handed is None:
            handed = self._lanes[lane] = []
            worker = asyncio.create_task(self._work(lane, handed))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        if row is not None:
            handed.append(row)

    async def _work(self, lane: Lane, handed: list[OutboxRow]) -> None:
        try:
            while handed or not self._closed:
                row = handed.pop(0) if handed else await self._claim(lane)
                if row is not None:
                    if not await self._attempt(row):
                        return
                elif not handed:
                    return
        except (StoreError, IntegrityError) as error:
            # What was begun stays stored, and is looked at again when it is held no longer.
            _log.error("an action could not be recorded", reason=str(error))
        finally:
            del self._lanes[lane]
            await self._put_back_handed(handed)

    async def _put_back_handed(self, handed: list[OutboxRow]) -> None:
        """Hold no longer what was not begun, so that nobody takes it for begun."""
        try:
            for row in handed:
                await self._put_back(row)
        except StoreError as error:
            _log.error("an action could not be put back", reason=str(error))
        finally:
            for row in handed:
                self._held.pop(row.hold, None)

    async def _claim(self, lane: Lane) -> OutboxRow | None:
        context = self.context
        began, now = context.clock.monotonic(), context.now()
        limits = context.limits
        work = partial(
            outbox_store.claim,
            lane=lane,
            holder=context.name,
            now=now,
            held_ms=int(limits.lease_seconds * 1000),
            longest_ms=int(limits.asked_pause_seconds * 1000),
        )
        row = await context.store.write(on_outbox(lane[0], work))
        if row is not None:
            if not self._is_fresh(began):
                await self._put_back(row)
                return None
            self._held[row.hold] = began
        return row

    async def _renew(self, held: list[Hold]) -> set[Hold]:
        context, began = self.context, self.context.clock.monotonic()
        lease = int(context.limits.lease_seconds * 1000)
        work = partial(outbox_store.renew, holder=context.name, held=held, held_ms=lease)
        locks = {instance: QueueLock.ADD for instance, _ in self._lanes}
        renewed = await context.store.write(SharedWork(work, locks))
        self._held |= dict.fromkeys(renewed & self._held.keys(), began)
        return renewed if self._is_fresh(began) else set()

    async def _holds(self, row: OutboxRow) -> bool:
        """Whether this process still holds an action that it is about to perform."""
        since = self._held.get(row.hold, float("-inf"))
        return self._is_fresh(since) or row.hold in await self._renew([row.hold])

    def _is_fresh(self, began: float) -> bool:
        """Whether what was held since then is certainly not another's already."""
        held = self.context.clock.monotonic() - began
        return held < self.context.limits.lease_seconds / 2

    async def _put_back(self, row: OutboxRow) -> None:
        work = partial(outbox_store.put_back, row=row)
        await self.context.store.write(on_outbox(row.lane[0], work))

    async def _attempt(self, row: OutboxRow) -> bool:
        """Perform an action and record the result; whether the next of its lane may follow."""
        try:
            with tracing.incoming_span(
                "relay outbox", row.trace, op=row.asked.action.op, attempt=row.attempts
            ):
                return await self._try(row)
        finally:
            self._held.pop(row.hold, None)

    async def _try(self, row: OutboxRow) -> bool:
        judged = await self._gate.judge(row.asked)
        if judged.platform is None:
            # Maybe not yet: this process may be starting.
            result = not_now("there is no such platform here")
        elif not judged.verdict.passed:
            self.context.counts[f"declined {judged.verdict.rule}"] += 1
            result = DECLINED
        else:
            found = await self._perform_pieces(row, judged.platform, judged.capability)
            if found is None:
                return False  # somebody else holds it now
            row, result = found
        decision = self._decide(row, result, judged.platform)
        if decision.step is not OutboxStep.RETRY:
            return await self._end(row, result, judged, decision)
        self.context.counts["outbox retries"] += 1
        due_at = self.context.now() + int(decision.pause * 1000)
        kept = await self.context.store.write(
            on_outbox(row.lane[0], lambda c: outbox_store.put_off(c, row, due_at, result))
        )
        if kept and decision.pause > self.context.limits.answer_seconds / 2:
            wait = result.retry_after
            self._tell(row.key, QUEUED if wait is None else replace(QUEUED, retry_after=wait))
        return False

    def _decide(self, row: OutboxRow, result: Result, platform: Platform | None) -> OutboxDecision:
        attempt = Attempt(
            result,
            row.attempts,
            row.created_at / 1000,
            self.context.clock.now(),
            _repeatable_until(platform, row, self.context.clock.now()),
            row.in_doubt,
        )
        return decide(attempt, self._retry_limits, self.chance())

    async def _end(
        self, row: OutboxRow, result: Result, judged: EgressJudgement, decision: OutboxDecision
    ) -> bool:
        """Record the end of an action."""
        if not result.success:
            result = _final(result, decision)
        self.context.counts[f"outbox {decision.step.value}"] += 1
        platform = judged.platform.name if judged.platform else row.asked.platform or ""
        rule = _rule(judged.verdict, decision)
        note = self._note(row.request, platform, rule)
        change = OutboxChange.of(self.context, decision.sentence)
        work = partial(
            outbox_store.finish,
            row=row,
            step=decision.step,
            result=result,
            note=note,
            change=change,
        )
        recorded = await self.context.store.write(on_outbox(row.lane[0], work))
        if recorded:
            self._tell(row.key, result)
        return recorded

    def _note(self, request: OutboundRequest, platform: Platform | str, rule: str) -> OutboundNote:
        trace = tracing.current_trace()
        name = platform if isinstance(platform, str) else platform.name
        secret, trace_id = self.context.directory.secret, None if trace is None else trace.id
        return OutboundNote(name, rule, self.context.name, secret, trace_id)

    def _tell(self, key: RequestKey, result: Result) -> None:
        answer = self._answers.get(key)
        if answer is not None and not answer.done():
            answer.set_result(result)

    # Calling the platform.

    async def _perform_pieces(
        self, row: OutboxRow, platform: Platform, capability: SecretStr | None
    ) -> tuple[OutboxRow, Result] | None:
        """Perform each piece of a text that is not sent yet; the last result.

        A piece may take long, so the gate decides again before each of the later ones. None when
        this process no longer holds the action.
        """
        pieces = self._pieces(platform, row.asked.action)
        if not pieces:
            return row, refused("there is nothing to say")
        if isinstance(row.asked.action, Edit) and len(pieces) > 1:
            return row, refused("the text does not fit into one message")
        for number in range(len(row.sent), len(pieces)):
            if row.sent:
                judged = await self._gate.judge(row.asked)
                if not judged.verdict.passed:
                    self.context.counts[f"declined {judged.verdict.rule}"] += 1
                    return row, DECLINED
            if not await self._holds(row):
                return None
            if row.in_doubt and self._decide(row, UNKNOWN, platform).step is not OutboxStep.RETRY:
                # There was no answer, or another process, or this one before a restart, did not
                # record what came of it; and the platform may have forgotten its key meanwhile.
                return row, UNKNOWN
            key = row.idempotency_key if number == 0 else f"{row.idempotency_key}.{number}"
            result = await self._perform(platform, pieces[number], key, capability)
            if not result.success:
                return row, result
            row = replace(row, sent=(*row.sent, result.message_id))
            if number + 1 < len(pieces):
                now = self.context.now()
                if not await self._record_progress(row, now):
                    return None
                row = replace(row, tried_at=now, in_doubt=False)
        return row, Result(True, row.sent[0])

    async def _record_progress(self, row: OutboxRow, now: int) -> bool:
        lease = int(self.context.limits.lease_seconds * 1000)
        return await self.context.store.write(
            on_outbox(row.lane[0], lambda c: outbox_store.record_progress(c, row, now, lease))
        )

    def _pieces(self, platform: Platform, action: Action) -> list[Action]:
        if not isinstance(action, Send | Edit | FollowUp):
            return [action]
        return [replace(action, content=each) for each in self._split(platform, action.content)]

    def _fit_draft(self, platform: Platform, action: Action) -> Action:
        if not isinstance(action, Typing) or not action.draft:
            return action
        texts = self._split(platform, action.draft)
        return replace(action, draft=texts[0] if texts else "")

    def _split(self, platform: Platform, text: str) -> list[str]:
        """The text as messages that fit the platform, with mass mentions neutralised."""
        if platform.name not in self.context.mass_mentions:
            text = neutralise_mentions(text, platform.name)
        descriptor = platform.descriptor()
        return split_text(text, descriptor.max_message_length, descriptor.len_unit)

    async def _perform(
        self, platform: Platform, action: Action, key: str, capability: SecretStr | None
    ) -> Result:
        try:
            with tracing.span("platform send", SpanKind.CLIENT, platform=platform.name):
                async with asyncio.timeout(self.context.limits.outbound_seconds):
                    result = await platform.perform(action, key, capability)
        except AccordError as error:
            # A platform reports refusals as results: this one broke while it worked.
            return replace(UNKNOWN, error=str(error))
        except TimeoutError:
            self.context.counts["platform timeouts"] += 1
            return UNKNOWN
        except Exception as error:  # noqa: BLE001 - a platform's bug must not end the socket
            # Its text may hold secrets, such as a token in an address.
            _log.error("a platform failed", platform=platform.name, error=type(error).__name__)
            return UNKNOWN
        if result.success or result.outcome is not None:
            return result
        is_passing = result.retry_after is not None
        return replace(result, outcome=Outcome.RETRYABLE if is_passing else Outcome.PERMANENT)


def _selected_message(action: FollowUp) -> str | None:
    """The message whose capability a follow-up names, where it names one."""
    selected = action.metadata.get("message_id")
    return selected if isinstance(selected, str) else None


def _place_of(action: Send | Edit | FollowUp) -> str:
    """Where an agent answers: the chat, or the session as that of the default agent."""
    if isinstance(action, FollowUp):
        return lookup_keys(action.session_key)[-1]
    return action.chat_id


def _repeatable_until(platform: Platform | None, row: OutboxRow, now: float) -> float | None:
    """Until when a repetition does no harm, in seconds; None where it may send a message twice."""
    # An edit that is repeated changes nothing. Whether a platform that is not here, or not yet,
    # knows repetitions is decided when it is here.
    if platform is None or isinstance(row.asked.action, Edit):
        return float("inf")
    # Services take no idempotency key with a capability.
    if not platform.idempotent or isinstance(row.asked.action, FollowUp):
        return None
    window = platform.idempotent_seconds if isinstance(platform, PlatformWithWindow) else None
    if window is None:
        return float("inf")
    tried_at = (row.created_at if row.tried_at is None else row.tried_at) / 1000
    # A clock that was set back does not tell how long ago that was.
    return None if tried_at - now > _SET_BACK else tried_at + window


def _final(result: Result, decision: OutboxDecision) -> Result:
    """What a gateway is told of an action that was given up."""
    if decision.step is OutboxStep.UNKNOWN:
        return replace(result, outcome=Outcome.UNKNOWN, retry_after=None, code=None)
    error = decision.sentence if decision.step is OutboxStep.EXPIRED else result.error
    return replace(result, error=error, outcome=Outcome.PERMANENT, retry_after=None)


def _rule(verdict: GateVerdict, decision: OutboxDecision) -> str:
    """The rule that the journal names: the gate's, unless the outbox gave it up."""
    is_gates = decision.step is OutboxStep.SENT or not verdict.passed
    return verdict.rule if is_gates else decision.rule


def _problem(asked: AskedAction, judged: EgressJudgement) -> Result | None:
    """Why an action is not taken, if it is not."""
    if judged.platform is None and (
        judged.verdict.passed or asked.platform not in (None, GENERIC_PLATFORM)
    ):
        return refused("there is no such platform here")
    if not judged.verdict.passed or judged.platform is None:
        return DECLINED
    if asked.action.op not in judged.platform.descriptor().ops:
        return refused(unsupported(asked.action.op))
    return None
