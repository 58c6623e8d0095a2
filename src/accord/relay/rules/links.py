"""What follows when people tell the bot to link an account, choose an agent or end a link.

`messages.read_link_request` recognises such a message.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from accord.relay.rules.messages import LinkCommand

MOST_LINKS: Final = 20
"""The most instances that one account may be linked to."""


class LinkEffect(Enum):
    """What a step does to the store."""

    NOTHING = "nothing"
    COUNT_TRY = "count a wrong code"
    SPEND = "spend the code"
    ASK = "spend the code and wait for the confirmation"
    BIND = "bind the account"
    DROP = "drop what waits for confirmation"
    UNBIND = "unbind the account everywhere"
    UNBIND_ONE = "unbind the account from one agent"
    SET_DEFAULT = "choose the agent that receives direct messages"
    BURN = "burn the code"


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What is known when a request arrives; instances are given by name."""

    # Whether the request contains a possible code.
    has_code: bool = False
    # The instance that the code is for; None when there is no such code.
    offered: str | None = None
    offered_is_bound: bool = False
    # The instance whose link waits for a confirmation.
    waiting: str | None = None
    # The instances that the account is linked to, in the order in which they are listed.
    bound: tuple[str, ...] = ()
    # How many wrong codes the account has sent recently.
    tries: int = 0
    # Which of `bound` receives direct messages.
    default: int | None = None
    # The name or number of an agent that the request contains.
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class LinkStep:
    """What is decided: the effect, the bot's reply, and the rule.

    `agent` is the place in `LinkFacts.bound` of the agent that the effect is about.
    """

    rule: str
    effect: LinkEffect
    text: str
    agent: int | None = None


_USAGE: Final = LinkStep(
    "link.usage",
    LinkEffect.NOTHING,
    "To link your account, ask your agent for a code and send me: /link CODE",
)
_TOO_MANY_TRIES: Final = LinkStep(
    "link.tries",
    LinkEffect.NOTHING,
    "That was too many wrong codes. Please wait an hour, then try again.",
)
_WRONG: Final = LinkStep(
    "link.unknown",
    LinkEffect.COUNT_TRY,
    "I do not know this code. It may have expired or been used; ask your agent for a new one.",
)
_TOO_MANY_LINKS: Final = LinkStep(
    "link.full",
    LinkEffect.NOTHING,
    "Your account is linked to as many agents as it can be. Send /unlink first.",
)
_NOT_WAITING: Final = LinkStep(
    "link.nothing",
    LinkEffect.NOTHING,
    "There is nothing to confirm any more. Send /link CODE again.",
)
_DECLINED: Final = LinkStep("link.declined", LinkEffect.DROP, "All right, nothing was linked.")
_NOT_LINKED: Final = LinkStep(
    "link.unlinked", LinkEffect.DROP, "Your account is not linked to any agent."
)
_NO_AGENTS: Final = LinkStep(
    "link.no-agents",
    LinkEffect.NOTHING,
    "Your account is not linked to any agent. Ask your agent for a code and send me: /link CODE",
)
_HELP: Final = LinkStep(
    "link.help",
    LinkEffect.NOTHING,
    "Send me here, in a direct message:\n"
    "/link CODE - link your account to an agent; the agent gives you the code\n"
    "/agents - list the agents that your account is linked to\n"
    "/default NAME - choose the agent that receives what you write\n"
    "/unlink NAME - end the link to an agent, which can no longer write to you; without a name, "
    "to all\n"
    "/help - show this\n"
    "Everything else goes to your default agent, also /help with more words behind it.",
)
BURNED: Final = LinkStep(
    "link.burned",
    LinkEffect.BURN,
    "Codes belong in a direct message. That one has been cancelled; ask your agent for a new one.",
)


def decide_link(command: LinkCommand, known: LinkFacts, tries: int) -> LinkStep:
    """Decide what follows from a request; an account may send `tries` wrong codes."""
    match command:
        case LinkCommand.LINK:
            return _link(known, tries)
        case LinkCommand.CONFIRM if known.waiting is None:
            return _NOT_WAITING
        case LinkCommand.CONFIRM:
            return LinkStep(
                "link.bound",
                LinkEffect.BIND,
                f"Done: your account is linked to the agent “{known.waiting}”. "
                "Send /help for what else I know, or /unlink to undo it.",
            )
        case LinkCommand.DECLINE:
            return _DECLINED
        case LinkCommand.UNLINK if not known.bound:
            return _NOT_LINKED
        case LinkCommand.UNLINK if known.agent is None:
            names = ", ".join(f"“{name}”" for name in known.bound)
            return LinkStep(
                "link.unbound", LinkEffect.UNBIND, f"Your account is no longer linked to {names}."
            )
        case LinkCommand.UNLINK:
            return _unlink_one(known)
        case LinkCommand.AGENTS:
            return _list_agents(known)
        case LinkCommand.DEFAULT:
            return _choose_default(known)
        case LinkCommand.HELP:
            return _HELP
        case LinkCommand.BURN:
            return BURNED


def _list_agents(known: LinkFacts) -> LinkStep:
    if not known.bound:
        return _NO_AGENTS
    return LinkStep(
        "link.agents", LinkEffect.NOTHING, f"Your account is linked to:\n{_listed(known)}"
    )


def _choose_default(known: LinkFacts) -> LinkStep:
    if not known.bound:
        return _NO_AGENTS
    if known.agent is None:
        return LinkStep(
            "link.default-usage",
            LinkEffect.NOTHING,
            f"Which one? Send /default with a name or a number:\n{_listed(known)}",
        )
    found = _find_agent(known)
    if isinstance(found, LinkStep):
        return found
    return LinkStep(
        "link.default",
        LinkEffect.SET_DEFAULT,
        f"Done: what you write goes to the agent “{known.bound[found]}”.",
        found,
    )


def _unlink_one(known: LinkFacts) -> LinkStep:
    found = _find_agent(known)
    if isinstance(found, LinkStep):
        return found
    return LinkStep(
        "link.unbound-one",
        LinkEffect.UNBIND_ONE,
        f"Your account is no longer linked to “{known.bound[found]}”, which cannot write to you "
        "any more.",
        found,
    )


def _find_agent(known: LinkFacts) -> int | LinkStep:
    """The one agent that a person means by a name or a number, or the reply that asks again."""
    wanted = known.agent or ""
    exact = [place for place, name in enumerate(known.bound) if name == wanted]
    alike = [n for n, name in enumerate(known.bound) if name.casefold() == wanted.casefold()]
    found = exact or alike
    if not found and wanted.isascii() and wanted.isdigit() and len(wanted) < 10:
        found = [int(wanted) - 1] if 1 <= int(wanted) <= len(known.bound) else []
    if len(found) == 1:
        return found[0]
    what = (
        "Several of your agents have this name; please send its number instead"
        if found
        else "Your account is not linked to an agent of this name"
    )
    return LinkStep(
        "link.which-agent" if found else "link.no-such-agent",
        LinkEffect.NOTHING,
        f"{what}:\n{_listed(known)}",
    )


def _listed(known: LinkFacts) -> str:
    return "\n".join(
        f"{place + 1}. “{name}”{' (default)' if place == known.default else ''}"
        for place, name in enumerate(known.bound)
    )


def _link(known: LinkFacts, tries: int) -> LinkStep:
    if not known.has_code:
        return _USAGE
    if known.tries >= tries:
        return _TOO_MANY_TRIES  # before the code is checked, so that guessing on is useless
    if known.offered is None:
        return _WRONG
    if known.offered_is_bound:
        return LinkStep(
            "link.already",
            LinkEffect.SPEND,
            f"Your account is linked to the agent “{known.offered}” already.",
        )
    if len(known.bound) >= MOST_LINKS:
        return _TOO_MANY_LINKS
    return LinkStep(
        "link.asked",
        LinkEffect.ASK,
        f"This links your account to the agent “{known.offered}”: it will receive what you write "
        "where I can read it. Answer yes to confirm, or no to cancel.",
    )
