"""What agents send: gated, performed at most once, split to size and recorded.

A `requestId` is stored before the platform is called, and its result afterwards. A stored request
without a result has an unknown outcome and is repeated only where the platform is idempotent.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import orjson
import structlog
from blake3 import blake3
from pydantic import SecretStr
from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from accord.kernel.errors import AccordError
from accord.relay.connector.context import DeliveryContext
from accord.relay.connector.limits import KeyedLock
from accord.relay.connector.platform import Platform
from accord.relay.connector.store import Principal, chat_authors, chats, messages, requests
from accord.relay.rules.actions import (
    Action,
    BadAction,
    Edit,
    FollowUp,
    GetChatInfo,
    Result,
    Send,
    Typing,
    write_action,
)
from accord.relay.rules.egress import (
    EgressCapability,
    EgressChat,
    EgressFacts,
    declined_result,
    may_send,
    neutralise_mentions,
)
from accord.relay.rules.frames import Outbound
from accord.relay.rules.messages import GENERIC_PLATFORM
from accord.relay.rules.splitting import split_text
from accord.relay.rules.verdicts import GateVerdict
from accord.storage import JournalRecord, StoreError, journal
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

OUTBOUND_STREAM: Final = "relay.outbound"

_KNOWN = select(requests.c.digest, requests.c.result, requests.c.asked_at).where(
    requests.c.instance == bindparam("of"), requests.c.request_id == bindparam("id")
)
_THIS = (requests.c.instance == bindparam("of"), requests.c.request_id == bindparam("id"))
_FORGET = delete(requests).where(*_THIS)
_FINISH = update(requests).where(*_THIS).values(result=bindparam("written"))
_CHAT = (
    select(chats)
    .where(chats.c.instance == bindparam("of"), chats.c.chat_id == bindparam("chat"))
    .order_by(chats.c.delivered_at.desc())
)
_AUTHORS = select(
    chat_authors.c.author, chat_authors.c.parent_id, chat_authors.c.delivered_at
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
_OWN = {
    "postgresql": postgresql.insert(messages).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(messages).on_conflict_do_nothing(),
}


@dataclass(frozen=True, slots=True)
class OutboundRequest:
    """A request, with a digest of its action."""

    instance: str
    request_id: str
    digest: str
    at: int

    @property
    def key(self) -> str:
        """The idempotency key that a platform gets; unique among all instances."""
        return f"{self.instance}/{self.request_id}"


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """A stored request of the same id; no result while its outcome is unknown."""

    digest: str
    result: Result | None


@dataclass(frozen=True, slots=True)
class OutboundNote:
    """What the journal records of an action."""

    tenant: str
    platform: str
    action: Action
    rule: str
    source: str
    trace_id: str | None = None


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
    # When a message was last delivered whose author an older version did not store.
    unnamed_at: float | None = None
    # The channel of which it is a thread; at most one on any platform.
    parents: frozenset[str] = frozenset()


def action_digest(action: Action) -> str:
    """A digest by which a repeated action is recognised."""
    return blake3(orjson.dumps(write_action(action))).hexdigest()


def begin_request(
    connection: Connection, asked: OutboundRequest, oldest: int
) -> KnownRequest | None:
    """Store a request, or return the stored one of this id unless it is from before `oldest`."""
    this = {"of": asked.instance, "id": asked.request_id}
    row = connection.execute(_KNOWN, this).first()
    if row is not None and row.asked_at >= oldest:
        result = None if row.result is None else Result.from_dict(orjson.loads(row.result))
        return KnownRequest(row.digest, result)
    if row is not None:
        connection.execute(_FORGET, this)
    values = {"instance": asked.instance, "request_id": asked.request_id, "digest": asked.digest}
    connection.execute(insert(requests), values | {"result": None, "asked_at": asked.at})
    return None


def finish_request(
    connection: Connection,
    asked: OutboundRequest,
    result: Result,
    sent: list[str],
    note: OutboundNote,
) -> None:
    """Store the result, the instance's messages, and the journal's record."""
    written = orjson.dumps(result.to_dict()).decode()
    this = {"of": asked.instance, "id": asked.request_id}
    connection.execute(_FINISH, this | {"written": written})
    chat_id = None if isinstance(note.action, FollowUp) else note.action.chat_id
    if sent and chat_id is not None:
        chat = {"platform": note.platform, "chat_id": chat_id, "instance": asked.instance}
        own = [chat | {"message_id": each, "sent_at": asked.at} for each in sent]
        connection.execute(_OWN[connection.dialect.name], own)
    body = {
        "tenant": note.tenant,
        "instance": asked.instance,
        "platform": note.platform,
        "op": note.action.op,
        "chat_id": chat_id,
        "rule": note.rule,
        "success": result.success,
        "messages": len(sent),
        "action_digest": asked.digest,
    }
    if note.trace_id is not None:
        body["trace_id"] = note.trace_id
    name = f"{asked.key}/{asked.at}"
    text = orjson.dumps(body).decode()
    write_journal(connection, [JournalRecord(OUTBOUND_STREAM, name, asked.at, note.source, text)])


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
        unnamed_at,
        frozenset(row.parent_id for row in rows if row.parent_id),
    )


UNKNOWN: Final = Result(False, error="outcome unknown")
_FAILED: Final = "the connector failed; nothing is known to have happened"
_log = structlog.stdlib.get_logger(__name__)


@dataclass(eq=False, repr=False)
class ConnectorOutbox:
    """Performs the actions of agents, each at most once."""

    context: DeliveryContext
    _under_way: dict[tuple[str, str], asyncio.Task[Result]] = field(default_factory=dict)
    _lanes: KeyedLock = field(default_factory=KeyedLock)
    _closed: bool = False

    async def act(self, principal: Principal, outbound: Outbound) -> Result | None:
        """Perform an action, at most once; never raises. None when this process is stopping."""
        if isinstance(outbound.action, BadAction):
            return Result(False, error=outbound.action.why)
        key = (principal.instance, outbound.request_id)
        task = self._under_way.get(key)
        if task is None:
            if self._closed:
                return None
            task = asyncio.create_task(self._guarded(principal, outbound, outbound.action))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Start nothing more, and wait a while for actions under way to be recorded."""
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=self.context.limits.finish_seconds)

    async def _guarded(self, principal: Principal, outbound: Outbound, action: Action) -> Result:
        place = action.session_key if isinstance(action, FollowUp) else action.chat_id
        with tracing.incoming_span(
            "relay outbound", outbound.trace, op=action.op, instance=principal.instance
        ):
            try:
                async with self._lanes.turn((principal.instance, place)):
                    result = await self._act(principal, outbound, action)
            except (StoreError, IntegrityError) as error:
                _log.error("an action could not be recorded", reason=str(error))
                result = Result(False, error=_FAILED)
            tracing.set_attributes(success=result.success)
        self.context.counts["actions done" if result.success else "actions not done"] += 1
        return result

    async def _act(self, principal: Principal, outbound: Outbound, action: Action) -> Result:
        with tracing.span("relay egress gate"):
            platform, verdict, capability = await self._judge(principal, outbound, action)
            if platform is None:
                return Result(False, error="there is no such platform here")
            tracing.set_attributes(
                verdict="send" if verdict.passed else "decline", rule=verdict.rule
            )
        if not verdict.passed:
            self.context.counts[f"declined {verdict.rule}"] += 1
            return declined_result(verdict)
        asked = OutboundRequest(
            principal.instance,
            outbound.request_id,
            action_digest(action),
            self.context.now(),
        )
        if isinstance(action, Typing | GetChatInfo):
            # Repeating these does no harm.
            return await self._perform(platform, self._fit_draft(platform, action), asked.key, None)
        oldest = asked.at - int(self.context.limits.request_seconds * 1000)
        known = await self.context.store.write(
            SharedWork(lambda c: begin_request(c, asked, oldest), [principal.instance])
        )
        if known is not None:
            if known.digest != asked.digest:
                return Result(False, error="this requestId was used for another action")
            if known.result is not None:
                return known.result
            # Services take no idempotency key with a capability.
            if not platform.idempotent or isinstance(action, FollowUp):
                return UNKNOWN
        result, sent = await self._perform_pieces(
            platform, principal, outbound, action, asked, capability
        )
        if result is UNKNOWN:
            return result
        trace = tracing.current_trace()
        note = OutboundNote(
            principal.tenant,
            platform.name,
            action,
            verdict.rule,
            self.context.name,
            None if trace is None else trace.id,
        )
        await self.context.store.write(
            SharedWork(lambda c: finish_request(c, asked, result, sent, note), [principal.instance])
        )
        return result

    async def _judge(
        self, principal: Principal, outbound: Outbound, action: Action
    ) -> tuple[Platform | None, GateVerdict, SecretStr | None]:
        """The platform of an action, the gate's verdict, and the capability it would use."""
        platform, facts, capability = await self._look_up(principal, outbound, action)
        return platform, may_send(action, facts), capability

    async def _look_up(
        self, principal: Principal, outbound: Outbound, action: Action
    ) -> tuple[Platform | None, EgressFacts, SecretStr | None]:
        facts = EgressFacts(principal.tenant, principal.instance, self.context.clock.now())
        # Existing gateways name the generic platform for what came by a forwarded request.
        named = None if outbound.platform == GENERIC_PLATFORM else outbound.platform
        if isinstance(action, FollowUp):
            # A kind begins with the name of its platform: see `FoundCapability`.
            name = named or action.kind.partition(".")[0]
            selected = action.metadata.get("message_id")
            value = await self.context.directory.vault.resolve(
                principal,
                session_key=action.session_key,
                kind=action.kind,
                platform=name,
                message_id=selected if isinstance(selected, str) else None,
            )
            if value is not None:
                usable = EgressCapability(principal.tenant, principal.instance, float("inf"))
                facts = replace(facts, capability=usable)
            return self._find(name, outbound.bot_id), facts, value
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
        platform = self._find(found.platform or named, found.bot_id or outbound.bot_id)
        chat = await self._current_rights(principal, found)
        return platform, replace(facts, chat=chat, sent_by=found.sent_by), None

    async def _current_rights(self, principal: Principal, found: KnownChat) -> EgressChat | None:
        """The chat with the grants and links that are valid now."""
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
        return replace(chat, holder=holder, linked_at=max(moments, default=None))

    def _find(self, name: str | None, bot_id: str | None) -> Platform | None:
        """The platform of this name, by its bot where there are several."""
        if name is not None and bot_id and (name, bot_id) in self.context.platforms:
            return self.context.platforms[name, bot_id]
        named = [
            each for (known, _), each in self.context.platforms.items() if name in (None, known)
        ]
        return named[0] if len(named) == 1 else None

    async def _perform_pieces(
        self,
        platform: Platform,
        principal: Principal,
        outbound: Outbound,
        action: Action,
        asked: OutboundRequest,
        capability: SecretStr | None,
    ) -> tuple[Result, list[str]]:
        """Split a text and perform each piece; the result and the ids of sent messages.

        A piece may take long, so the gate decides again before each of the later ones.
        """
        pieces = self._pieces(platform, action)
        if not pieces:
            return Result(False, error="there is nothing to say"), []
        if isinstance(action, Edit) and len(pieces) > 1:
            return Result(False, error="the text does not fit into one message"), []
        sent: list[str] = []
        first: Result | None = None
        for number, piece in enumerate(pieces):
            key = asked.key if number == 0 else f"{asked.key}.{number}"
            if number:
                _, verdict, _ = await self._judge(principal, outbound, action)
                if first is not None and not verdict.passed:
                    self.context.counts[f"declined {verdict.rule}"] += 1
                    return replace(first, success=False, error=declined_result(verdict).error), sent
            result = await self._perform(platform, piece, key, capability)
            if result is UNKNOWN:
                return result, sent
            first = first or result
            if result.message_id is not None:
                sent.append(result.message_id)
            if not result.success:
                if number == 0:
                    return result, sent
                wait = result.retry_after
                return replace(first, success=False, error=result.error, retry_after=wait), sent
        assert first is not None
        return first, sent

    def _pieces(self, platform: Platform, action: Action) -> list[Action]:
        if not isinstance(action, Send | Edit | FollowUp):
            return [action]
        return [replace(action, content=each) for each in self._split(platform, action.content)]

    def _fit_draft(self, platform: Platform, action: Typing | GetChatInfo) -> Typing | GetChatInfo:
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
                    return await platform.perform(action, key, capability)
        except AccordError as error:
            return Result(False, error=str(error))
        except TimeoutError:
            self.context.counts["platform timeouts"] += 1
            return UNKNOWN
        except Exception as error:  # noqa: BLE001 - a platform's bug must not end the socket
            # Its text may hold secrets, such as a token in an address.
            _log.error("a platform failed", platform=platform.name, error=type(error).__name__)
            return UNKNOWN
