"""A generated relay: tenants and chats, the gate's decisions, deliveries and replies.

The decisions are the gate's own. Agents sleep after a pause, so some messages wait; a few are never
acknowledged.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from blake3 import blake3

from accord.kernel import canonical
from accord.kernel.identifiers import UlidSource
from accord.pipeline.generate.records import HistoryClock, RecordDraft
from accord.pipeline.rules.streams import (
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_INBOUND,
    RELAY_OUTBOUND,
)
from accord.relay.rules.decision_records import to_record
from accord.relay.rules.egress import EgressCapability, EgressChat, EgressFacts, may_send
from accord.relay.rules.frames import Action, Edit, FollowUp, Send, write_action
from accord.relay.rules.gate import (
    ChannelGrant,
    DmDefault,
    Facts,
    GateEvent,
    OpenKey,
    OpenPlace,
    PlatformAccount,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
    RouteKey,
    TenantAccount,
    TenantChannel,
    Visibility,
    VisibilityKey,
    decide,
)
from accord.relay.rules.messages import LinkCommand

PLATFORMS: Final = ("discord", "telegram", "matrix")
"""Each has one tenant."""


@dataclass(frozen=True, slots=True)
class ChatRemark:
    """A message in a chat."""

    weight: int  # its relative frequency
    chat: str | None  # the channel; None for a direct message
    author: str | None
    is_bot: bool = False
    addressed: bool = False
    thread: str | None = None
    place: str | None = None  # the scope, if it is not the tenant's own
    hook: str | None = None
    link: LinkCommand | None = None


REMARKS: Final = (
    ChatRemark(30, None, "ada"),
    ChatRemark(20, "general", "bob"),
    ChatRemark(20, "general", "ada"),
    ChatRemark(20, "general", "ada", addressed=True),
    ChatRemark(8, "general", "ada", thread="plans", addressed=True),
    ChatRemark(10, "free", "dana"),
    ChatRemark(8, "quiet", "bob"),
    ChatRemark(6, "quiet", "dana"),
    ChatRemark(6, "porch", "ada"),
    ChatRemark(4, "hidden", "dana", addressed=True),
    ChatRemark(3, "dim", "dana", addressed=True),
    ChatRemark(3, "lost", "dana", addressed=True),
    ChatRemark(3, "general", "other-bot", is_bot=True, addressed=True),
    ChatRemark(2, "general", "voice", is_bot=True),
    ChatRemark(4, "general", "stranger"),
    ChatRemark(2, "general", None),
    ChatRemark(2, None, "stranger"),
    ChatRemark(1, None, "ada", hook="hook-of-another"),
    ChatRemark(1, None, "ada", link=LinkCommand.LINK),
    ChatRemark(2, "general", "the-bot"),
    ChatRemark(2, "general", "ada", place="elsewhere"),
    ChatRemark(1, "general", "stranger", place="elsewhere"),
    ChatRemark(1, "general", "stranger", place="shared"),
    ChatRemark(2, "hall", "stranger", addressed=True, place="open"),
    ChatRemark(1, "hall", "chatterbox", addressed=True, place="open"),
)
"""The messages of every tenant."""

WEIGHTS: Final = [remark.weight for remark in REMARKS]


def scope_of(tenant: int) -> str:
    """The scope (server, group or room) of a tenant."""
    return f"place-{tenant}"


def name_of(tenant: int) -> str:
    """The name of a tenant."""
    return f"tenant-{tenant}"


def direct_chat(tenant: int, author: str | None) -> str:
    """The direct chat of an author with the bot."""
    return f"dm-{tenant}-{author}"


def instance_of(tenant: int, role: str) -> str:
    """An agent of a tenant: `scribe`, `clerk` or `warden`."""
    return f"{role}-{tenant}"


def tenant_facts() -> Facts:
    """The facts about all tenants."""
    routes: dict[RouteKey, str] = {}
    bindings: dict[TenantAccount, tuple[str, ...]] = {}
    homes: dict[PlatformAccount, DmDefault] = {}
    grants: dict[TenantChannel, ChannelGrant] = {}
    principals: dict[PolicyKey, PrincipalRule] = {}
    sights: dict[VisibilityKey, Visibility] = {}
    relevance: dict[PolicyKey, RelevancePolicy] = {}
    voices: dict[PlatformAccount, frozenset[str]] = {}
    opened: dict[OpenKey, OpenPlace] = {}
    for number, platform in enumerate(PLATFORMS):
        tenant, scope = name_of(number), scope_of(number)
        scribe, clerk, warden = (
            instance_of(number, role) for role in ("scribe", "clerk", "warden")
        )
        routes[RouteKey(platform, scope)] = tenant
        routes[RouteKey(platform, "hook-of-another")] = name_of((number + 1) % len(PLATFORMS))
        bound = {
            "ada": (scribe,),
            "bob": (clerk, warden),
            "dana": (warden,),
            "other-bot": (warden,),
            "voice": (warden,),
        }
        bindings |= {TenantAccount(tenant, platform, who): agents for who, agents in bound.items()}
        homes[PlatformAccount(platform, "ada")] = DmDefault(tenant, scribe)
        held = {
            "general": (clerk, "bob", Visibility.VISIBLE),
            "free": (clerk, "bob", Visibility.VISIBLE),
            "quiet": (scribe, "ada", Visibility.VISIBLE),
            "porch": (clerk, "bob", Visibility.VISIBLE),
            "hidden": (clerk, "bob", Visibility.HIDDEN),
            "dim": (clerk, "bob", None),
            "lost": (clerk, "nobody", None),
        }
        for chat, (instance, owner, sight) in held.items():
            grants[TenantChannel(tenant, platform, scope, chat)] = ChannelGrant(instance, owner)
            if sight is not None:
                sights[VisibilityKey(platform, scope, chat, owner)] = sight
        for chat, who in (("general", "ada"), ("quiet", "bob"), ("free", "dana")):
            sights[VisibilityKey(platform, scope, chat, who)] = Visibility.VISIBLE
        sights[VisibilityKey(platform, scope, "plans", "bob")] = Visibility.VISIBLE
        sights[VisibilityKey(platform, scope, "plans", "ada")] = Visibility.VISIBLE
        allowed = PrincipalRule(PrincipalPolicy.ALLOW_LIST, frozenset({"bob"}))
        # One agent accepts everybody, one a list, one only its owner.
        principals[PolicyKey(tenant, clerk, platform)] = PrincipalRule(PrincipalPolicy.ANY)
        principals[PolicyKey(tenant, scribe, platform)] = allowed
        grants[TenantChannel(tenant, platform, scope, "porch")] = ChannelGrant(warden, "bob")
        relevance[PolicyKey(tenant, clerk, platform)] = RelevancePolicy(
            True, frozenset({"free"}), False
        )
        relevance[PolicyKey(tenant, scribe, platform)] = RelevancePolicy(False, frozenset(), True)
        voices[PlatformAccount(platform, "voice")] = frozenset({clerk})
        opened[OpenKey(platform, "open", "hall")] = OpenPlace(tenant, clerk)
    return Facts(
        routes,
        bindings,
        homes,
        grants,
        principals,
        sights,
        relevance,
        voices,
        frozenset(RouteKey(platform, "shared") for platform in PLATFORMS),
        opened,
        frozenset(PlatformAccount(platform, "chatterbox") for platform in PLATFORMS),
    )


def gate_event(tenant: int, remark: ChatRemark, event_id: str) -> GateEvent:
    """A message as the gate sees it."""
    is_dm = remark.chat is None
    chat = remark.thread or remark.chat or direct_chat(tenant, remark.author)
    return GateEvent(
        event_id,
        PLATFORMS[tenant],
        "the-bot",
        chat,
        is_dm,
        remark.author,
        None if is_dm else remark.place or scope_of(tenant),
        remark.chat if remark.thread else None,
        remark.is_bot,
        remark.addressed,
        remark.hook,
        remark.link,
    )


StreamDraft = tuple[str, RecordDraft]
"""A stream and a record."""

_ASLEEP_SECONDS: Final = 900.0
_GIVEN_UP_SECONDS: Final = 86_400.0
_BATCH_SECONDS: Final = 0.2


class RelayTraffic:
    """The traffic of one connector."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._clock = HistoryClock()
        self._ids = UlidSource(self._clock, lambda: chance.getrandbits(80))
        self._facts = tenant_facts()
        self._heads: dict[str, int] = {}
        self._awake: dict[str, float] = {}
        # Rows to acknowledge or to give up, by time.
        self._due: list[tuple[float, str, int, GateEvent, str, bool]] = []
        self._sent = 0

    def run(self, messages: int) -> Iterator[StreamDraft]:
        """So many messages, and all records that follow from them."""
        for number in range(messages):
            # Now and then there is a pause of an hour.
            pause = self._chance.expovariate(1 / 20)
            until = self._clock.time + (3600 if self._chance.random() < 0.01 else pause)
            yield from self._settled(until)
            self._clock.time = until
            tenant = self._chance.randrange(len(PLATFORMS))
            remark = self._chance.choices(REMARKS, WEIGHTS)[0]
            yield from self._came(tenant, remark, f"m{number}")
        yield from self._settled(self._clock.time + 2 * _GIVEN_UP_SECONDS)

    def _came(self, tenant: int, remark: ChatRemark, event_id: str) -> Iterator[StreamDraft]:
        event = gate_event(tenant, remark, event_id)
        decision = decide(event, self._facts)
        name, now = self._ids.new(), self._now()
        yield RELAY_INBOUND, RecordDraft(name, now, self._inbound(event, remark))
        record = to_record(event, self._facts, decision)
        yield RELAY_DECISIONS, RecordDraft(name, now, canonical.encode(record).decode())
        pending = [[each, self._queued(each, event, name), name] for each in decision.deliveries]
        if pending:
            yield self._delivery({"pending": pending})

    def _inbound(self, event: GateEvent, remark: ChatRemark) -> str:
        text = f"{remark.author} says {self._chance.getrandbits(32)}".encode()
        kind = "thread" if remark.thread else "channel"
        return canonical.encode(
            {
                "platform": event.platform,
                "bot_id": event.bot_id,
                "event_id": event.event_id,
                "kind": "passthrough" if self._chance.random() < 0.01 else "inbound",
                "scope_id": event.scope_id,
                "chat_id": event.chat_id,
                "chat_type": "dm" if event.is_dm else kind,
                "thread_id": remark.thread,
                "user_id": event.author,
                "message_type": self._chance.choice(("text", "text", "text", "photo", "voice")),
                "text_digest": blake3(text).hexdigest(),
                "text_bytes": len(text),
            }
        ).decode()

    def _queued(self, instance: str, event: GateEvent, name: str) -> int:
        """Number a row of an agent's queue, and schedule its end."""
        now = self._clock.time
        seq = self._heads[instance] = self._heads.get(instance, 0) + 1
        is_asleep = now - self._awake.get(instance, 0.0) > _ASLEEP_SECONDS
        self._awake[instance] = now
        is_lost = self._chance.random() < 0.005
        wait = self._chance.uniform(4, 40) if is_asleep else self._chance.expovariate(1 / 0.4)
        due = now + (_GIVEN_UP_SECONDS if is_lost else wait)
        heapq.heappush(self._due, (due, instance, seq, event, name, is_lost))
        return seq

    def _settled(self, until: float) -> Iterator[StreamDraft]:
        """Acknowledgements and dead letters until then, in batches as a connector writes them."""
        while self._due and self._due[0][0] <= until:
            self._clock.time = self._due[0][0]
            batch = []
            while self._due and self._due[0][0] <= self._clock.time + _BATCH_SECONDS:
                batch.append(heapq.heappop(self._due))
            acked = [[each[1], each[2], each[2]] for each in batch if not each[5]]
            if acked:
                yield self._delivery({"acked": sorted(acked)})
            for _, instance, seq, event, name, is_lost in batch:
                if is_lost:
                    yield from self._given_up(instance, seq, event, name)
                elif self._chance.random() < 0.7:
                    yield RELAY_OUTBOUND, self._answer(instance, event)

    def _given_up(
        self, instance: str, seq: int, event: GateEvent, name: str
    ) -> Iterator[StreamDraft]:
        yield self._delivery({"dead": [[instance, seq, seq]], "reason": "waited too long"})
        if self._chance.random() < 0.5:
            yield self._delivery({"dropped": [[instance, seq, seq]]})
        else:
            again = self._queued(instance, event, name)
            yield self._delivery({"pending": [[instance, again, name]]})

    def _answer(self, instance: str, event: GateEvent) -> RecordDraft:
        """An agent's reply, with the egress rule that allows it."""
        self._sent += 1
        tenant = name_of(PLATFORMS.index(event.platform))
        action = self._action(event)
        now = self._clock.time
        held = instance if event.chat_id == "general" else None
        facts = EgressFacts(
            tenant,
            instance,
            now,
            EgressChat(tenant, event.scope_id, None, held, now - 1, now - 1),
            instance,
            EgressCapability(tenant, instance, now + 900),
        )
        success = self._chance.random() < 0.97
        chat_id = None if isinstance(action, FollowUp) else action.chat_id
        body = {
            "tenant": tenant,
            "instance": instance,
            "platform": event.platform,
            "op": action.op,
            "chat_id": chat_id,
            "rule": may_send(action, facts).rule,
            "success": success,
            "messages": self._chance.choice((1, 1, 1, 2)) if success else 0,
            "action_digest": blake3(canonical.encode(write_action(action))).hexdigest(),
        }
        name = f"{instance}/r{self._sent}/{self._now()}"
        return RecordDraft(name, self._now(), canonical.encode(body).decode())

    def _action(self, event: GateEvent) -> Action:
        text, turn = f"Answer {self._sent}.", self._chance.random()
        if turn < 0.06:
            return Edit(event.chat_id, f"a{self._sent}", text)
        if turn < 0.1:
            return FollowUp(f"agent:main:{event.chat_id}", f"{event.platform}.reply_token", text)
        return Send(event.chat_id, text)

    def _delivery(self, changes: dict[str, Any]) -> StreamDraft:
        body = canonical.encode(changes).decode()
        return RELAY_DELIVERIES, RecordDraft(self._ids.new(), self._now(), body)

    def _now(self) -> int:
        return int(self._clock.time * 1000)


_UNLINKED_RULES: Final = ("candidates.unlinked", "tenant.no-dm-default", "tenant.unknown")


def unlinked_counts(count: int, chance: Random) -> Iterator[RecordDraft]:
    """So many records of what people who are not linked wrote to nobody, hour by hour."""
    clock = HistoryClock()
    ids = UlidSource(clock, lambda: chance.getrandbits(80))
    for number in range(count):
        if chance.random() < 0.3:
            clock.time += 3600
        platform, rule = chance.choice(PLATFORMS), chance.choice(_UNLINKED_RULES)
        now = int(clock.time * 1000)
        body = {
            "hour": now - now % 3_600_000 - 3_600_000,
            "platform": platform,
            "bot_id": "the-bot",
            "tenant": name_of(PLATFORMS.index(platform)) if rule.startswith("cand") else None,
            "instance": None,
            "rule": rule,
            "messages": chance.randrange(1, 500) + number % 2,
        }
        yield RecordDraft(ids.new(), now, canonical.encode(body).decode())
