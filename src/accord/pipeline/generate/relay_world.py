"""The chats that a generated relay sees: tenants, agents, people, and who says what where.

Owns facts and the remarks that are made under them; the remarks together make every layer of the
gate say everything that it can say. It decides nothing.
"""

from dataclasses import dataclass
from typing import Final

from accord.relay.gate import (
    Account,
    Channel,
    Event,
    Facts,
    Grant,
    Home,
    LinkCommand,
    Principal,
    PrincipalPolicy,
    Route,
    Seat,
    Sight,
    User,
    View,
)
from accord.relay.wire.policy import RelevancePolicy

PLATFORMS: Final = ("discord", "telegram", "matrix")
"""One tenant has its place on each."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Somebody writes somewhere.

    Attributes:
        weight: How often it happens, against the others.
        chat: The channel, or None for a direct message.
        author: Who writes; None where a platform does not tell.
        place: The scope, where it is not the tenant's own.
    """

    weight: int
    chat: str | None
    author: str | None
    is_bot: bool = False
    addressed: bool = False
    thread: str | None = None
    place: str | None = None
    hook: str | None = None
    link: LinkCommand | None = None


REMARKS: Final = (
    Remark(30, None, "ada"),
    Remark(20, "general", "bob"),
    Remark(20, "general", "ada"),
    Remark(20, "general", "ada", addressed=True),
    Remark(8, "general", "ada", thread="plans", addressed=True),
    Remark(10, "free", "dana"),
    Remark(8, "quiet", "bob"),
    Remark(6, "quiet", "dana"),
    Remark(6, "porch", "ada"),
    Remark(4, "hidden", "dana", addressed=True),
    Remark(3, "dim", "dana", addressed=True),
    Remark(3, "lost", "dana", addressed=True),
    Remark(3, "general", "other-bot", is_bot=True, addressed=True),
    Remark(2, "general", "voice", is_bot=True),
    Remark(4, "general", "stranger"),
    Remark(2, "general", None),
    Remark(2, None, "stranger"),
    Remark(1, None, "ada", hook="hook-of-another"),
    Remark(1, None, "ada", link=LinkCommand.LINK),
    Remark(2, "general", "the-bot"),
    Remark(2, "general", "ada", place="elsewhere"),
)
"""What is said; each remark of every tenant."""

WEIGHTS: Final = [remark.weight for remark in REMARKS]


def scope_of(tenant: int) -> str:
    """The server, group or room that is a tenant's."""
    return f"place-{tenant}"


def name_of(tenant: int) -> str:
    """What a tenant is called."""
    return f"tenant-{tenant}"


def direct_chat(tenant: int, author: str | None) -> str:
    """The chat between somebody and the bot."""
    return f"dm-{tenant}-{author}"


def instance_of(tenant: int, role: str) -> str:
    """An agent of a tenant: `scribe`, `clerk` or `warden`."""
    return f"{role}-{tenant}"


def world() -> Facts:
    """What is known about all tenants."""
    routes: dict[Route, str] = {}
    bindings: dict[User, tuple[str, ...]] = {}
    homes: dict[Account, Home] = {}
    grants: dict[Channel, Grant] = {}
    principals: dict[Seat, Principal] = {}
    sights: dict[View, Sight] = {}
    relevance: dict[Seat, RelevancePolicy] = {}
    voices: dict[Account, frozenset[str]] = {}
    for number, platform in enumerate(PLATFORMS):
        tenant, scope = name_of(number), scope_of(number)
        scribe, clerk, warden = (
            instance_of(number, role) for role in ("scribe", "clerk", "warden")
        )
        routes[Route(platform, scope)] = tenant
        routes[Route(platform, "hook-of-another")] = name_of((number + 1) % len(PLATFORMS))
        bound = {
            "ada": (scribe,),
            "bob": (clerk, warden),
            "dana": (warden,),
            "other-bot": (warden,),
            "voice": (warden,),
        }
        bindings |= {User(tenant, platform, who): agents for who, agents in bound.items()}
        homes[Account(platform, "ada")] = Home(tenant, scribe)
        held = {
            "general": (clerk, "bob", Sight.VISIBLE),
            "free": (clerk, "bob", Sight.VISIBLE),
            "quiet": (scribe, "ada", Sight.VISIBLE),
            "porch": (clerk, "bob", Sight.VISIBLE),
            "hidden": (clerk, "bob", Sight.HIDDEN),
            "dim": (clerk, "bob", None),
            "lost": (clerk, "nobody", None),
        }
        for chat, (instance, owner, sight) in held.items():
            grants[Channel(tenant, platform, scope, chat)] = Grant(instance, owner)
            if sight is not None:
                sights[View(platform, scope, chat, owner)] = sight
        for chat, who in (("general", "ada"), ("quiet", "bob"), ("free", "dana")):
            sights[View(platform, scope, chat, who)] = Sight.VISIBLE
        sights[View(platform, scope, "plans", "bob")] = Sight.VISIBLE
        sights[View(platform, scope, "plans", "ada")] = Sight.VISIBLE
        allowed = Principal(PrincipalPolicy.ALLOW_LIST, frozenset({"bob"}))
        # Of the three agents one listens to everybody, one to a list, one to its owner alone.
        principals[Seat(tenant, clerk, platform)] = Principal(PrincipalPolicy.ANY)
        principals[Seat(tenant, scribe, platform)] = allowed
        grants[Channel(tenant, platform, scope, "porch")] = Grant(warden, "bob")
        relevance[Seat(tenant, clerk, platform)] = RelevancePolicy(True, frozenset({"free"}), False)
        relevance[Seat(tenant, scribe, platform)] = RelevancePolicy(False, frozenset(), True)
        voices[Account(platform, "voice")] = frozenset({clerk})
    return Facts(routes, bindings, homes, grants, principals, sights, relevance, voices)


def event_of(tenant: int, remark: Remark, event_id: str) -> Event:
    """A remark as the gate sees it."""
    is_dm = remark.chat is None
    chat = remark.thread or remark.chat or direct_chat(tenant, remark.author)
    return Event(
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
