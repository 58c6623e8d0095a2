"""The gate: who receives an event, with the verdict of every layer.

Four layers are about the event as a whole; a refusal there leaves the later ones unreached. Three
are about each candidate and are always all evaluated. A layer that raises refuses. Every key has
the event's tenant, so facts of another tenant cannot be found.

A place that is routed and not shared belongs to its tenant. Anywhere else the author comes first:
tenant and instance are those of the author's own default, or of an agent that is open to everybody
there. A candidate whose visibility could not be asked is neither delivered to nor refused: the
event is parked, and `decide_parked` says what becomes of it. What is known then decides; what is
still not known is asked again until the event's time is over, and is never delivered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Self

from accord.relay.rules import members, verdicts
from accord.relay.rules.connection import backoff
from accord.relay.rules.messages import GENERIC_PLATFORM, LinkCommand, SessionSource
from accord.relay.rules.verdicts import NOT_REACHED, GateVerdict, Layer, failed

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_ADMITTING: Final = frozenset({"mentions", "all"})
MAX_SCOPES: Final = 10_000
"""The most channels that a policy may name."""


@dataclass(frozen=True, slots=True)
class RelevancePolicy:
    """Which of the messages that it may see are relevant to an agent."""

    # Messages of others than the owner must mention the bot or answer it.
    require_address: bool = False
    # The channels where that is not required.
    free_response_scopes: frozenset[str] = frozenset()
    allow_other_bots: bool = False

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the body of a declaration; missing members have their defaults."""
        payload = members.payload(value, "a policy")
        scopes = frozenset(members.texts(payload, "freeResponseScopes"))
        if len(scopes) > MAX_SCOPES:
            raise members.bad(
                f"at most {MAX_SCOPES} channels are allowed", where="/freeResponseScopes"
            )
        return cls(
            members.flag(payload, "requireAddress", False),
            scopes,
            members.flag(payload, "allowOtherBots", False),
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form, without the platform."""
        return {
            "requireAddress": self.require_address,
            "freeResponseScopes": sorted(self.free_response_scopes),
            "allowOtherBots": self.allow_other_bots,
        }


def project_policy(
    platform: str, settings: Mapping[str, Any], environment: Mapping[str, str]
) -> RelevancePolicy | None:
    """The policy of a gateway's own settings on a platform; None for the generic platform.

    A setting is read from the platform's own block, else from its block below `platforms`, else
    from the top level; null in a block ends the search. `{PLATFORM}_ALLOW_BOTS` is read from the
    environment.
    """
    if platform == GENERIC_PLATFORM:
        return None
    bots = environment.get(f"{platform.upper()}_ALLOW_BOTS", "")
    return RelevancePolicy(
        _is_true(_setting(platform, settings, "require_mention")),
        _channels(_setting(platform, settings, "free_response_channels")),
        bots.strip().lower() in _ADMITTING,
    )


def _setting(platform: str, settings: Mapping[str, Any], name: str) -> Any:
    platforms = settings.get("platforms")
    below = platforms.get(platform) if isinstance(platforms, Mapping) else None
    for block in (settings.get(platform), below, settings):
        if isinstance(block, Mapping) and name in block:
            return block[name]
    return None


def _is_true(value: Any) -> bool:
    return value.strip().lower() in _TRUE if isinstance(value, str) else value is True


def _channels(value: Any) -> frozenset[str]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)):
        return frozenset()
    named = (str(each).strip() for each in value if isinstance(each, (str, int)))
    return frozenset(name for name in named if name)


class PolicyKey(NamedTuple):
    """An instance on a platform: the key of its policies."""

    tenant: str
    instance: str
    platform: str


class PrincipalPolicy(Enum):
    """Whose messages an instance receives in the channels that it holds."""

    OWNER_ONLY = "owner-only"
    ALLOW_LIST = "allow-list"
    ANY = "any"


class PrincipalRule(NamedTuple):
    """An instance's principal policy, with the user ids of its allow list."""

    policy: PrincipalPolicy = PrincipalPolicy.OWNER_ONLY
    allow: frozenset[str] = frozenset()


class RouteKey(NamedTuple):
    """A discriminator on a platform: a scope, a chat that is in none, or a webhook."""

    platform: str
    key: str


@dataclass(frozen=True, slots=True)
class GateEvent:
    """The parts of an event that the gate decides by."""

    event_id: str
    platform: str
    # The platform's user id of the bot that saw it; it does not identify a tenant.
    bot_id: str
    chat_id: str
    is_dm: bool
    # The authenticated user id.
    author: str | None
    scope_id: str | None = None
    parent_chat_id: str | None = None
    # Whether the platform says that the author is a bot or a webhook.
    author_is_bot: bool = False
    # Whether it mentions the bot or answers one of its messages.
    addressed: bool = False
    # The path or subdomain of its webhook, where that identifies the tenant.
    hook: str | None = None
    # The command, if it is about linking an account.
    link: LinkCommand | None = None

    @property
    def discriminator(self) -> RouteKey:
        """The route key by which its tenant is found."""
        return RouteKey(self.platform, self.hook or self.scope_id or self.chat_id)

    @classmethod
    def of(
        cls,
        source: SessionSource,
        *,
        event_id: str,
        bot_id: str,
        author_is_bot: bool = False,
        addressed: bool = False,
        hook: str | None = None,
        link: LinkCommand | None = None,
    ) -> Self:
        """The event of a message from this source."""
        return cls(
            event_id,
            source.platform,
            bot_id,
            source.chat_id,
            source.is_dm,
            source.user_id,
            source.scope_id,
            source.parent_chat_id,
            author_is_bot,
            addressed,
            hook,
            link,
        )


class TenantAccount(NamedTuple):
    """An account on a platform, in one tenant."""

    tenant: str
    platform: str
    user_id: str


class PlatformAccount(NamedTuple):
    """An account on a platform."""

    platform: str
    user_id: str


class DmDefault(NamedTuple):
    """Where an account's direct messages go."""

    tenant: str
    instance: str


class TenantChannel(NamedTuple):
    """A channel on a platform, in one tenant."""

    tenant: str
    platform: str
    scope_id: str | None
    channel_id: str


class ChannelGrant(NamedTuple):
    """The holder of a channel, and the bound owner whose visibility of it counts."""

    instance: str
    owner: str | None


class VisibilityKey(NamedTuple):
    """A user and a chat, for the question whether the user can view it."""

    platform: str
    scope_id: str | None
    chat_id: str
    user_id: str


class OpenKey(NamedTuple):
    """A place in which an instance may be open to everybody.

    A channel, or a whole scope with the channel ''; both '' are the direct messages of a platform.
    """

    platform: str
    scope_id: str
    channel_id: str


class OpenPlace(NamedTuple):
    """The instance that is open to everybody in a place."""

    tenant: str
    instance: str


class Visibility(Enum):
    """Whether a user can view a chat on the platform."""

    VISIBLE = "visible"
    HIDDEN = "hidden"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that the gate decides by; whatever is missing counts against delivery."""

    # The tenant of each discriminator.
    routes: Mapping[RouteKey, str] = field(default_factory=dict)
    # The instances that an account is linked to.
    bindings: Mapping[TenantAccount, tuple[str, ...]] = field(default_factory=dict)
    dm_defaults: Mapping[PlatformAccount, DmDefault] = field(default_factory=dict)
    grants: Mapping[TenantChannel, ChannelGrant] = field(default_factory=dict)
    # Missing means owner only.
    principals: Mapping[PolicyKey, PrincipalRule] = field(default_factory=dict)
    # Missing means unknown.
    visibility: Mapping[VisibilityKey, Visibility] = field(default_factory=dict)
    # Missing means all defaults.
    relevance: Mapping[PolicyKey, RelevancePolicy] = field(default_factory=dict)
    # Our own bots, with the instances that speak through each.
    voices: Mapping[PlatformAccount, frozenset[str]] = field(default_factory=dict)
    # Places that several tenants share, as an operator has said, also where they are routed.
    shared: frozenset[RouteKey] = frozenset()
    open: Mapping[OpenKey, OpenPlace] = field(default_factory=dict)
    # Accounts that wrote too much lately to an instance that is open to everybody.
    limited: frozenset[PlatformAccount] = frozenset()


_OWNER_ONLY: Final = PrincipalRule()
_DEFAULTS: Final = RelevancePolicy()


class CandidateClaim(NamedTuple):
    """Why an instance is a candidate: its author owns it, it holds the channel, or it is open."""

    key: PolicyKey
    is_owned: bool
    # Whose visibility of the channel counts; None where nobody's does.
    owner: str | None
    # Whether the author is a bot through which the instance speaks.
    is_own_voice: bool
    # Whether the author is a bot, according to the platform or as one of ours.
    is_bot: bool
    # Whether it is open to everybody here, and the author is not linked.
    is_open: bool = False


def is_echo(event: GateEvent) -> bool:
    """Whether the bot sees its own message."""
    return event.author is not None and event.author == event.bot_id


def find_tenant(event: GateEvent, facts: Facts) -> tuple[str | None, GateVerdict]:
    """Layer 0: the tenant of an event, from the event itself and its author."""
    tenant = facts.routes.get(event.discriminator)
    if not event.is_dm and not is_author_first(event, facts):
        return tenant, verdicts.UNROUTED if tenant is None else verdicts.ROUTED
    home = facts.dm_defaults.get(PlatformAccount(event.platform, event.author or ""))
    if home is None:
        place = find_open(event, facts)
        if place is not None:
            return place.tenant, verdicts.BY_OPEN_PLACE
        if event.is_dm:
            return None, verdicts.NO_DM_HOME
        is_shared = event.discriminator in facts.shared
        return None, verdicts.SHARED_UNLINKED if is_shared else verdicts.UNROUTED
    if not event.is_dm:
        return home.tenant, verdicts.BY_AUTHOR
    if tenant is not None and tenant != home.tenant and event.discriminator not in facts.shared:
        return None, verdicts.AMBIGUOUS
    return home.tenant, verdicts.DM_HOME


def is_author_first(event: GateEvent, facts: Facts) -> bool:
    """Whether the author, not the place, decides the tenant; never for a webhook's own path."""
    if event.hook is not None:
        return False
    key = event.discriminator
    return key in facts.shared or facts.routes.get(key) is None


def find_open(event: GateEvent, facts: Facts) -> OpenPlace | None:
    """The instance that is open here: in the channel, its parent, the scope, or in direct messages.

    Where the place belongs to one tenant, only that tenant's instances can be open in it.
    """
    if event.hook is not None:
        return None
    tenant = None
    if event.discriminator not in facts.shared:
        tenant = facts.routes.get(event.discriminator)
    for key in open_keys(event):
        found = facts.open.get(key)
        if found is not None and tenant in (None, found.tenant):
            return found
    return None


def open_keys(event: GateEvent) -> tuple[OpenKey, ...]:
    """Under which keys an instance can be open to an event, the narrowest first."""
    if event.is_dm:
        return (OpenKey(event.platform, "", ""),)
    scope = event.scope_id or ""
    channels = [event.chat_id, event.parent_chat_id, "" if scope else None]
    return tuple([OpenKey(event.platform, scope, each) for each in channels if each is not None])


def find_candidates(
    event: GateEvent, facts: Facts, tenant: str
) -> tuple[tuple[CandidateClaim, ...], GateVerdict]:
    """Layer 1: the instances bound to the author, and the holder of the channel.

    For an author who is not linked, the instance that is open to everybody here.
    """
    author, platform = event.author, event.platform
    if not author:
        return (), verdicts.NO_AUTHOR
    account = PlatformAccount(platform, author)
    bound = facts.bindings.get(TenantAccount(tenant, platform, author), ())
    if event.is_dm or is_author_first(event, facts):
        home = facts.dm_defaults.get(account)
        bound = (home.instance,) if home is not None and home.instance in bound else ()
    voices = facts.voices.get(account)
    is_bot = event.author_is_bot or voices is not None
    own = voices or ()
    # Also for bots: later layers only narrow, and an operator can link a bot's account.
    if not bound:
        place = None if is_bot else find_open(event, facts)
        if place is None or place.tenant != tenant:
            return (), verdicts.UNLINKED
        key = PolicyKey(tenant, place.instance, platform)
        return (CandidateClaim(key, False, None, False, False, True),), verdicts.FOUND
    claims = [
        CandidateClaim(PolicyKey(tenant, instance, platform), True, author, instance in own, is_bot)
        for instance in bound
    ]
    grant = None if event.is_dm else find_grant(event, facts, tenant)
    if grant is not None and grant.instance not in bound:
        holder, owner = grant
        if owner is not None and holder not in facts.bindings.get(
            TenantAccount(tenant, platform, owner), ()
        ):
            owner = None
        key = PolicyKey(tenant, holder, platform)
        claims.append(CandidateClaim(key, False, owner, holder in own, is_bot))
    return tuple(claims), verdicts.FOUND


def find_grant(event: GateEvent, facts: Facts, tenant: str) -> ChannelGrant | None:
    """The grant of the event's channel; of a thread, its own or else its channel's."""
    scope = event.scope_id
    grant = facts.grants.get(TenantChannel(tenant, event.platform, scope, event.chat_id))
    if grant is None and event.parent_chat_id is not None:
        return facts.grants.get(TenantChannel(tenant, event.platform, scope, event.parent_chat_id))
    return grant


def check_authority(event: GateEvent, facts: Facts, claim: CandidateClaim) -> GateVerdict:
    """Layer 2: may this instance see this author here?"""
    if claim.is_own_voice:
        return verdicts.OWN_VOICE
    if claim.is_open:
        account = PlatformAccount(event.platform, event.author or "")
        return verdicts.OPEN_LIMITED if account in facts.limited else verdicts.OPEN_MODE
    if claim.is_owned:
        return verdicts.OWNER
    policy, allow = facts.principals.get(claim.key, _OWNER_ONLY)
    if policy is PrincipalPolicy.ANY:
        return verdicts.ANY_PRINCIPAL
    if policy is PrincipalPolicy.ALLOW_LIST:
        return verdicts.LISTED if event.author in allow else verdicts.NOT_LISTED
    return verdicts.OWNER_ONLY


def check_visibility(event: GateEvent, facts: Facts, claim: CandidateClaim) -> GateVerdict:
    """Layer 3: can the owner view the channel on the platform?

    Where the owner is the author, the message itself is evidence; a platform's no outweighs it. A
    webhook's sender chooses the author, so there it is none.
    """
    if claim.is_open:
        return verdicts.OPENED
    if event.is_dm:
        return verdicts.DIRECT
    if claim.owner is None:
        return verdicts.OWNER_GONE
    view = VisibilityKey(event.platform, event.scope_id, event.chat_id, claim.owner)
    visibility = facts.visibility.get(view)
    if visibility is Visibility.VISIBLE:
        return verdicts.VISIBLE
    if visibility is Visibility.HIDDEN:
        return verdicts.HIDDEN
    return verdicts.AUTHOR_PRESENT if is_seen_by_writing(event, claim.owner) else verdicts.UNSEEN


def is_seen_by_writing(event: GateEvent, user: str) -> bool:
    """Whether an event itself shows that a user sees its chat; no platform need be asked then."""
    return user == event.author and event.hook is None


def check_relevance(event: GateEvent, facts: Facts, claim: CandidateClaim) -> GateVerdict:
    """Layer 4: should the agent engage?

    Strangers must address an agent that is open to everybody, also where its policy does not demand
    that of others; gateways declare such a policy by default.
    """
    if claim.is_owned:
        return verdicts.OWNERS_WORD
    policy = facts.relevance.get(claim.key, _DEFAULTS)
    if claim.is_open and event.is_dm:
        return verdicts.ADDRESSED
    if claim.is_bot and not policy.allow_other_bots:
        return verdicts.OTHER_BOT
    if not policy.require_address and not claim.is_open:
        return verdicts.OPEN
    if event.addressed:
        return verdicts.ADDRESSED
    free = policy.free_response_scopes
    is_free = event.chat_id in free or event.parent_chat_id in free
    return verdicts.FREE if is_free else verdicts.UNADDRESSED


_EVENT_LAYERS: Final = (Layer.LINK, Layer.ORIGIN, Layer.TENANT, Layer.CANDIDATES)


class GateOutcome(Enum):
    """What follows for a candidate."""

    DELIVER = "deliver"
    REFUSE = "refuse"
    UNKNOWN = "unknown"
    """A fact could not be fetched: to be asked again."""


class Candidate(NamedTuple):
    """An instance that was considered, with the verdict of each layer."""

    instance: str
    authority: GateVerdict
    visibility: GateVerdict
    relevance: GateVerdict

    @property
    def verdicts(self) -> tuple[GateVerdict, GateVerdict, GateVerdict]:
        """The verdicts of the layers, in their order."""
        return self.authority, self.visibility, self.relevance

    @property
    def delivers(self) -> bool:
        """Whether it receives the event."""
        return self.authority.passed and self.visibility.passed and self.relevance.passed

    @property
    def unknown(self) -> GateVerdict | None:
        """The verdict that is not known, where nothing else refuses."""
        missing = [each for each in self.verdicts if not each.passed]
        is_open = missing and all(each.rule in verdicts.UNKNOWN_RULES for each in missing)
        return missing[0] if is_open else None

    @property
    def outcome(self) -> GateOutcome:
        """Whether it receives the event, is refused, or must be decided again."""
        if self.delivers:
            return GateOutcome.DELIVER
        return GateOutcome.REFUSE if self.unknown is None else GateOutcome.UNKNOWN

    @property
    def is_open(self) -> bool:
        """Whether the author is not linked and the instance is open to everybody here."""
        return self.authority is verdicts.OPEN_MODE


@dataclass(frozen=True, slots=True)
class Decision:
    """Who receives an event, and why.

    `verdicts` are those of link, origin, tenant and candidates, in this order.
    """

    tenant: str | None
    verdicts: tuple[GateVerdict, ...]
    candidates: tuple[Candidate, ...] = ()

    @property
    def deliveries(self) -> tuple[str, ...]:
        """The instances, all of `tenant`, that receive the event."""
        return tuple([each.instance for each in self.candidates if each.delivers])

    @property
    def refusal(self) -> GateVerdict | None:
        """The first verdict that did not pass; None if anybody receives the event."""
        if any(each.delivers for each in self.candidates):
            return None
        reached = [*self.verdicts, *(v for each in self.candidates for v in each.verdicts)]
        return next(verdict for verdict in reached if not verdict.passed)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The instances for which a fact could not be fetched."""
        return tuple([e.instance for e in self.candidates if e.outcome is GateOutcome.UNKNOWN])

    def candidate(self, instance: str) -> Candidate | None:
        """What was decided about one instance; None where it is no candidate."""
        return next((each for each in self.candidates if each.instance == instance), None)

    @property
    def wakes(self) -> tuple[str, ...]:
        """The instances that are woken if they are idle: those that receive the event."""
        return self.deliveries


def decide(event: GateEvent, facts: Facts) -> Decision:
    """Decide who receives an event; never raises."""
    if event.link is not None:
        return _nobody(None, verdicts.CONSUMED)
    if is_echo(event):
        return _nobody(None, verdicts.NOT_A_LINK, verdicts.OWN_ECHO)
    before = (verdicts.NOT_A_LINK, verdicts.ANOTHER_AUTHOR)
    try:
        tenant, routed = find_tenant(event, facts)
    except Exception as error:  # noqa: BLE001 (a layer that fails refuses)
        tenant, routed = None, failed(Layer.TENANT, error)
    if tenant is None:
        return _nobody(None, *before, routed)
    try:
        found, some = find_candidates(event, facts, tenant)
    except Exception as error:  # noqa: BLE001 (a layer that fails refuses)
        found, some = (), failed(Layer.CANDIDATES, error)
    if not some.passed:
        return _nobody(tenant, *before, routed, some)
    candidates = tuple([_judge(event, facts, claim) for claim in found])
    return Decision(tenant, (*before, routed, some), candidates)


def _judge(event: GateEvent, facts: Facts, claim: CandidateClaim) -> Candidate:
    try:
        authority = check_authority(event, facts, claim)
    except Exception as error:  # noqa: BLE001 (a layer that fails refuses)
        authority = failed(Layer.AUTHORITY, error)
    try:
        visibility = check_visibility(event, facts, claim)
    except Exception as error:  # noqa: BLE001 (a layer that fails refuses)
        visibility = failed(Layer.VISIBILITY, error)
    try:
        relevance = check_relevance(event, facts, claim)
    except Exception as error:  # noqa: BLE001 (a layer that fails refuses)
        relevance = failed(Layer.RELEVANCE, error)
    return Candidate(claim.key.instance, authority, visibility, relevance)


def _nobody(tenant: str | None, *reached: GateVerdict) -> Decision:
    unreached = [NOT_REACHED[layer] for layer in _EVENT_LAYERS[len(reached) :]]
    return Decision(tenant, (*reached, *unreached))


class ParkStep(Enum):
    """What becomes of a parked event."""

    DELIVER = "deliver"
    REFUSE = "refuse"
    WAIT = "wait"
    EXPIRE = "expire"
    """It is still not known, and its time is over: a dead letter."""


@dataclass(frozen=True, slots=True)
class ParkLimits:
    """How long an event is parked, and the pauses between two questions; in seconds."""

    expire_after: float = 3600.0
    # The pause after the first answer that was none; it doubles ...
    first_pause: float = 5.0
    # ... up to this.
    longest_pause: float = 30.0


@dataclass(frozen=True, slots=True)
class ParkDecision:
    """A step, and the verdict behind it; `pause` is set for WAIT alone, in seconds."""

    step: ParkStep
    verdict: GateVerdict
    pause: float = 0.0


def decide_parked(
    decision: Decision,
    tenant: str,
    instance: str,
    *,
    waited: float,
    attempts: int,
    limits: ParkLimits,
    chance: float,
) -> ParkDecision:
    """Decide by the gate's newest decision on the event.

    `waited` is for how many seconds it has been parked, `attempts` how often the question was asked
    again, this time included. An event expires only after a question, so a clock that jumps ahead
    costs none.
    """
    candidate = decision.candidate(instance) if decision.tenant == tenant else None
    if candidate is None:
        return ParkDecision(ParkStep.REFUSE, _why_no_candidate(decision))
    outcome = candidate.outcome
    if outcome is GateOutcome.DELIVER:
        return ParkDecision(ParkStep.DELIVER, candidate.relevance)
    if outcome is GateOutcome.REFUSE or candidate.unknown is None:
        return ParkDecision(ParkStep.REFUSE, _first_no(candidate))
    if waited >= limits.expire_after:
        return ParkDecision(ParkStep.EXPIRE, candidate.unknown)
    pause = backoff(attempts - 1, chance, first=limits.first_pause, longest=limits.longest_pause)
    # The last question is asked when the time is over, not one pause later.
    return ParkDecision(
        ParkStep.WAIT, candidate.unknown, min(pause, limits.expire_after - max(waited, 0.0))
    )


def _why_no_candidate(decision: Decision) -> GateVerdict:
    """What refused everybody; else the instance alone is no candidate any more."""
    refused = next((each for each in decision.verdicts if not each.passed), None)
    return refused or verdicts.NO_CANDIDATE


def _first_no(candidate: Candidate) -> GateVerdict:
    """The first refusal that is a real one."""
    return next(
        each
        for each in candidate.verdicts
        if not each.passed and each.rule not in verdicts.UNKNOWN_RULES
    )
