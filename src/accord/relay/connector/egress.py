"""The facts of the egress gate: what is known of the chat and the rights of an action.

They are looked up anew for each attempt, so that a link or grant that was taken back counts at
once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import SecretStr
from sqlalchemy import Connection, bindparam, select

from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.platform import Platform
from accord.relay.connector.store import Principal
from accord.relay.connector.tables import chat_authors, chats, messages
from accord.relay.rules.egress import EgressCapability, EgressChat, EgressFacts, may_send
from accord.relay.rules.frames import Action, Edit, FollowUp, Send
from accord.relay.rules.gate import GateEvent
from accord.relay.rules.messages import GENERIC_PLATFORM
from accord.relay.rules.verdicts import GateVerdict

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
class AskedAction:
    """An action with who asks for it, and the platform and bot that they name."""

    principal: Principal
    action: Action
    platform: str | None = None
    bot_id: str | None = None


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
