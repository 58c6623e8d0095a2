"""Linking an account by a code in a direct message: the pure steps (section 3).

Owns what follows from a request, given what is known: the effect, the bot's answer and the rule.
Nothing is read or written here, and no code is compared.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from accord.relay.gate.linking import LinkCommand

MOST_LINKS: Final = 20
"""To how many instances one account may be linked."""


class Effect(Enum):
    """What a step does to the store."""

    NOTHING = "nothing"
    COUNT_TRY = "count a wrong code"
    SPEND = "spend the code"
    ASK = "spend the code and wait for the confirmation"
    BIND = "bind the account"
    DROP = "drop what waits for confirmation"
    UNBIND = "unbind the account everywhere"
    BURN = "burn the code"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known when a request arrives.

    Attributes:
        has_code: Whether the request holds something that could be a code.
        offered: The name of the instance that the code leads to; None when the code is not out.
        offered_is_bound: Whether the account is linked to that instance already.
        waiting: The name of the instance whose link waits for a confirmation.
        bound: The names of the instances that the account is linked to.
        tries: How many wrong codes the account has sent lately.
    """

    has_code: bool = False
    offered: str | None = None
    offered_is_bound: bool = False
    waiting: str | None = None
    bound: tuple[str, ...] = ()
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What to do, what the bot says, and by which rule."""

    rule: str
    effect: Effect
    text: str


_USAGE: Final = Step(
    "link.usage",
    Effect.NOTHING,
    "To link your account, ask your agent for a code and send me: /link CODE",
)
_TOO_MANY_TRIES: Final = Step(
    "link.tries",
    Effect.NOTHING,
    "That was too many wrong codes. Please wait an hour, then try again.",
)
_WRONG: Final = Step(
    "link.unknown",
    Effect.COUNT_TRY,
    "I do not know this code. It may have expired or been used; ask your agent for a new one.",
)
_TOO_MANY_LINKS: Final = Step(
    "link.full",
    Effect.NOTHING,
    "Your account is linked to as many agents as it can be. Send /unlink first.",
)
_NOT_WAITING: Final = Step(
    "link.nothing", Effect.NOTHING, "There is nothing to confirm any more. Send /link CODE again."
)
_DECLINED: Final = Step("link.declined", Effect.DROP, "All right, nothing was linked.")
_NOT_LINKED: Final = Step("link.unlinked", Effect.DROP, "Your account is not linked to any agent.")
BURNED: Final = Step(
    "link.burned",
    Effect.BURN,
    "Codes belong in a direct message. That one has been cancelled; ask your agent for a new one.",
)


def step(command: LinkCommand, known: Known, tries: int) -> Step:
    """What follows from a request.

    Args:
        command: What the message asks for.
        known: What is known of its author and its code.
        tries: How many wrong codes one account may send.
    """
    match command:
        case LinkCommand.LINK:
            return _link(known, tries)
        case LinkCommand.CONFIRM if known.waiting is None:
            return _NOT_WAITING
        case LinkCommand.CONFIRM:
            return Step(
                "link.bound",
                Effect.BIND,
                f"Done: your account is linked to the agent “{known.waiting}”. "
                "Send /unlink to undo it.",
            )
        case LinkCommand.DECLINE:
            return _DECLINED
        case LinkCommand.UNLINK if not known.bound:
            return _NOT_LINKED
        case LinkCommand.UNLINK:
            names = ", ".join(f"“{name}”" for name in known.bound)
            return Step(
                "link.unbound", Effect.UNBIND, f"Your account is no longer linked to {names}."
            )
        case LinkCommand.BURN:
            return BURNED


def _link(known: Known, tries: int) -> Step:
    if not known.has_code:
        return _USAGE
    if known.tries >= tries:
        return _TOO_MANY_TRIES  # before the code is looked at, so that guessing on is no use
    if known.offered is None:
        return _WRONG
    if known.offered_is_bound:
        return Step(
            "link.already",
            Effect.SPEND,
            f"Your account is linked to the agent “{known.offered}” already.",
        )
    if len(known.bound) >= MOST_LINKS:
        return _TOO_MANY_LINKS
    return Step(
        "link.asked",
        Effect.ASK,
        f"This links your account to the agent “{known.offered}”: it will receive what you write "
        "where I can read it. Answer yes to confirm, or no to cancel.",
    )
