"""Linking an account by a code in a direct message: commands, codes and replies.

`read_link_request` recognises a message, `decide_link` decides what follows. Codes are compared by
the connector, in constant time.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

LINK_CODE_BITS: Final = 50
"""The random bits of a code; the specification demands at least 40."""

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_READABLE: Final = str.maketrans("OIL", "011", "-")
_CODE: Final = r"[0-9A-Za-z]{5}-?[0-9A-Za-z]{5}"
_WHOLE_CODE: Final = re.compile(_CODE, re.ASCII)
_ANY_CODE: Final = re.compile(rf"(?<![0-9A-Za-z-]){_CODE}(?![0-9A-Za-z-])", re.ASCII)
_COMMAND: Final = re.compile(r"\s*/(link|unlink)(?:@\w{1,64})?(?!\S)", re.ASCII | re.IGNORECASE)
_YES: Final = frozenset({"yes", "y", "/yes", "confirm", "/confirm"})
_NO: Final = frozenset({"no", "n", "/no", "cancel", "/cancel"})
_MAX_CODES: Final = 8
_LONGEST_ANSWER: Final = 40


class LinkCommand(Enum):
    """The commands about linking."""

    LINK = "link"
    UNLINK = "unlink"
    CONFIRM = "confirm"
    DECLINE = "decline"
    BURN = "burn"
    """A code was shown in a group and is cancelled."""


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """A message about linking; `code` in its canonical spelling, None without a valid one."""

    command: LinkCommand
    code: str | None = None

    def __repr__(self) -> str:
        return f"LinkRequest({self.command.value})"  # a code is a secret


def read_link_request(text: str, *, is_dm: bool, awaiting: bool) -> LinkRequest | None:
    """Read a message about linking; `awaiting` when its author was asked to confirm a link."""
    if is_dm and awaiting and len(text) <= _LONGEST_ANSWER:
        answer = text.strip().lower()
        if answer in _YES:
            return LinkRequest(LinkCommand.CONFIRM)
        if answer in _NO:
            return LinkRequest(LinkCommand.DECLINE)
    command = _COMMAND.match(text)
    if command is None:
        return None
    code = _spelled(text[command.end() : command.end() + _LONGEST_ANSWER])
    if not is_dm:
        return LinkRequest(LinkCommand.BURN, code) if code else None
    if command[1].lower() == "link":
        return LinkRequest(LinkCommand.LINK, code)
    return LinkRequest(LinkCommand.UNLINK)


def find_link_codes(text: str) -> tuple[str, ...]:
    """The possible codes in a group's message, at most eight."""
    found: list[str] = []
    for match in _ANY_CODE.finditer(text):
        found.append(match[0].upper().translate(_READABLE))
        if len(found) == _MAX_CODES:
            break
    return tuple(found)


def write_link_code(chance: int) -> str:
    """A code for people to type, from `LINK_CODE_BITS` random bits."""
    digits = "".join(_ALPHABET[chance >> shift & 31] for shift in range(LINK_CODE_BITS - 5, -1, -5))
    return f"{digits[:5]}-{digits[5:]}"


def _spelled(rest: str) -> str | None:
    words = rest.split(None, 1)
    if not words or not _WHOLE_CODE.fullmatch(words[0]):
        return None
    return words[0].upper().translate(_READABLE)


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
    # The instances that the account is linked to.
    bound: tuple[str, ...] = ()
    # How many wrong codes the account has sent recently.
    tries: int = 0


@dataclass(frozen=True, slots=True)
class LinkStep:
    """What is decided: the effect, the bot's reply, and the rule."""

    rule: str
    effect: LinkEffect
    text: str


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
                "Send /unlink to undo it.",
            )
        case LinkCommand.DECLINE:
            return _DECLINED
        case LinkCommand.UNLINK if not known.bound:
            return _NOT_LINKED
        case LinkCommand.UNLINK:
            names = ", ".join(f"“{name}”" for name in known.bound)
            return LinkStep(
                "link.unbound", LinkEffect.UNBIND, f"Your account is no longer linked to {names}."
            )
        case LinkCommand.BURN:
            return BURNED


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
