"""What the gate decides by: an event, and what is known about tenants, people and instances.

All of it is values that somebody else has looked up. Nothing here is loaded, cached or secret, and
the text of the message is not among it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Self

from accord.relay.gate.linking import LinkCommand
from accord.relay.wire.policy import RelevancePolicy
from accord.relay.wire.source import SessionSource


class Route(NamedTuple):
    """A discriminator on a platform: a scope, a chat that is in none, or a webhook."""

    platform: str
    key: str


@dataclass(frozen=True, slots=True)
class Event:
    """What the gate wants to know of an event.

    Attributes:
        event_id: The platform's id of it.
        bot_id: The user id, on the platform, of the bot that saw it. It is no discriminator.
        author: The authentic user id of whoever wrote it.
        author_is_bot: Whether the platform says that the author is a bot or a webhook.
        addressed: Whether it mentions the bot or answers one of its messages.
        hook: The path or subdomain of the webhook by which it came, where that tells tenants apart.
        link: What it says about linking an account, if it is about that.
    """

    event_id: str
    platform: str
    bot_id: str
    chat_id: str
    is_dm: bool
    author: str | None
    scope_id: str | None = None
    parent_chat_id: str | None = None
    author_is_bot: bool = False
    addressed: bool = False
    hook: str | None = None
    link: LinkCommand | None = None

    @property
    def discriminator(self) -> Route:
        """By which its tenant is found."""
        return Route(self.platform, self.hook or self.scope_id or self.chat_id)

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


class User(NamedTuple):
    """An account on a platform, in one tenant."""

    tenant: str
    platform: str
    user_id: str


class Account(NamedTuple):
    """An account on a platform."""

    platform: str
    user_id: str


class Home(NamedTuple):
    """Where somebody's direct messages go."""

    tenant: str
    instance: str


class Channel(NamedTuple):
    """A channel on a platform, in one tenant."""

    tenant: str
    platform: str
    scope_id: str | None
    channel_id: str


class Grant(NamedTuple):
    """Who holds a channel, and the bound owner whose sight of it counts."""

    instance: str
    owner: str | None


class Seat(NamedTuple):
    """An instance on a platform, which is what policies are about."""

    tenant: str
    instance: str
    platform: str


class View(NamedTuple):
    """Somebody before a chat."""

    platform: str
    scope_id: str | None
    chat_id: str
    user_id: str


class Sight(Enum):
    """Whether somebody can view a chat on the platform."""

    VISIBLE = "visible"
    HIDDEN = "hidden"
    UNKNOWN = "unknown"


class PrincipalPolicy(Enum):
    """Whom an instance listens to in the channels that it holds."""

    OWNER_ONLY = "owner-only"
    ALLOW_LIST = "allow-list"
    ANY = "any"


class Principal(NamedTuple):
    """An instance's principal policy, with the user ids of its list."""

    policy: PrincipalPolicy = PrincipalPolicy.OWNER_ONLY
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known; whatever is missing counts against delivery.

    Attributes:
        routes: Whose each discriminator is; a key belongs to one tenant.
        bindings: The instances that an account is linked to.
        dm_defaults: Where an account's direct messages go; the first link sets it.
        grants: Who holds each channel; at most one instance.
        principals: Missing means owner only.
        visibility: Answers of the platform; missing means unknown.
        relevance: Missing means all defaults.
        voices: Our own bots, with the instances that speak through each.
    """

    routes: Mapping[Route, str] = field(default_factory=dict)
    bindings: Mapping[User, tuple[str, ...]] = field(default_factory=dict)
    dm_defaults: Mapping[Account, Home] = field(default_factory=dict)
    grants: Mapping[Channel, Grant] = field(default_factory=dict)
    principals: Mapping[Seat, Principal] = field(default_factory=dict)
    visibility: Mapping[View, Sight] = field(default_factory=dict)
    relevance: Mapping[Seat, RelevancePolicy] = field(default_factory=dict)
    voices: Mapping[Account, frozenset[str]] = field(default_factory=dict)
