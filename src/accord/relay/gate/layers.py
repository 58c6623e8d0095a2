"""The layers of the gate, each a small function of an event and the facts.

They look facts up and say what follows. Every key carries the tenant that the event's own
discriminator names, so no fact of another tenant can be found. Composing them is for `decide`.
"""

from typing import Final, NamedTuple

from accord.relay.gate import verdicts
from accord.relay.gate.facts import (
    Account,
    Channel,
    Event,
    Facts,
    Grant,
    Principal,
    PrincipalPolicy,
    Seat,
    Sight,
    User,
    View,
)
from accord.relay.gate.verdicts import Verdict
from accord.relay.wire.policy import RelevancePolicy

_OWNER_ONLY: Final = Principal()
_DEFAULTS: Final = RelevancePolicy()


class Claim(NamedTuple):
    """Why an instance is a candidate: by its owner, who is the author, or by a grant.

    Attributes:
        owner: Whose sight of the channel counts; None where nobody's does.
        is_own_voice: Whether the author is a bot through which the instance speaks.
        is_bot: Whether a bot wrote it: by the platform's word, or because it is one of ours.
    """

    seat: Seat
    is_owned: bool
    owner: str | None
    is_own_voice: bool
    is_bot: bool


def is_echo(event: Event) -> bool:
    """Whether the bot sees its own message."""
    return event.author is not None and event.author == event.bot_id


def find_tenant(event: Event, facts: Facts) -> tuple[str | None, Verdict]:
    """Layer 0: whose event it is, from the event itself."""
    tenant = facts.routes.get(event.discriminator)
    if not event.is_dm:
        return tenant, verdicts.UNROUTED if tenant is None else verdicts.ROUTED
    home = facts.dm_defaults.get(Account(event.platform, event.author or ""))
    if home is None:
        return None, verdicts.NO_DM_HOME
    if tenant is not None and tenant != home.tenant:
        return None, verdicts.AMBIGUOUS
    return home.tenant, verdicts.DM_HOME


def find_candidates(event: Event, facts: Facts, tenant: str) -> tuple[tuple[Claim, ...], Verdict]:
    """Layer 1: the instances bound to the author, and the holder of the channel."""
    author, platform = event.author, event.platform
    if not author:
        return (), verdicts.NO_AUTHOR
    account = Account(platform, author)
    bound = facts.bindings.get(User(tenant, platform, author), ())
    if event.is_dm:
        home = facts.dm_defaults[account].instance
        bound = (home,) if home in bound else ()
    # A bot is no exception: what admits it later only narrows, and an operator can link it.
    if not bound:
        return (), verdicts.UNLINKED
    voices = facts.voices.get(account)
    is_bot = event.author_is_bot or voices is not None
    own = voices or ()
    claims = [
        Claim(Seat(tenant, instance, platform), True, author, instance in own, is_bot)
        for instance in bound
    ]
    grant = None if event.is_dm else find_grant(event, facts, tenant)
    if grant is not None and grant.instance not in bound:
        holder, owner = grant
        if owner is not None and holder not in facts.bindings.get(
            User(tenant, platform, owner), ()
        ):
            owner = None
        seat = Seat(tenant, holder, platform)
        claims.append(Claim(seat, False, owner, holder in own, is_bot))
    return tuple(claims), verdicts.FOUND


def find_grant(event: Event, facts: Facts, tenant: str) -> Grant | None:
    """Who holds the channel: of a thread, whoever holds the thread, else its channel."""
    scope = event.scope_id
    grant = facts.grants.get(Channel(tenant, event.platform, scope, event.chat_id))
    if grant is None and event.parent_chat_id is not None:
        return facts.grants.get(Channel(tenant, event.platform, scope, event.parent_chat_id))
    return grant


def authority(event: Event, facts: Facts, claim: Claim) -> Verdict:
    """Layer 2: may this instance see this author here?"""
    if claim.is_own_voice:
        return verdicts.OWN_VOICE
    if claim.is_owned:
        return verdicts.OWNER
    policy, allow = facts.principals.get(claim.seat, _OWNER_ONLY)
    if policy is PrincipalPolicy.ANY:
        return verdicts.ANY_PRINCIPAL
    if policy is PrincipalPolicy.ALLOW_LIST:
        return verdicts.LISTED if event.author in allow else verdicts.NOT_LISTED
    return verdicts.OWNER_ONLY


def visibility(event: Event, facts: Facts, claim: Claim) -> Verdict:
    """Layer 3: can the owner view the channel on the platform?"""
    if event.is_dm:
        return verdicts.DIRECT
    if claim.owner is None:
        return verdicts.OWNER_GONE
    view = View(event.platform, event.scope_id, event.chat_id, claim.owner)
    sight = facts.visibility.get(view)
    if sight is Sight.VISIBLE:
        return verdicts.VISIBLE
    return verdicts.HIDDEN if sight is Sight.HIDDEN else verdicts.UNSEEN


def relevance(event: Event, facts: Facts, claim: Claim) -> Verdict:
    """Layer 4: should the agent engage?"""
    if claim.is_owned:
        return verdicts.OWNERS_WORD
    policy = facts.relevance.get(claim.seat, _DEFAULTS)
    if claim.is_bot and not policy.allow_other_bots:
        return verdicts.OTHER_BOT
    if not policy.require_address:
        return verdicts.OPEN
    if event.addressed:
        return verdicts.ADDRESSED
    free = policy.free_response_scopes
    is_free = event.chat_id in free or event.parent_chat_id in free
    return verdicts.FREE if is_free else verdicts.UNADDRESSED
