"""Every verdict of the gate and of egress, one for each rule.

Records store only the id of a rule, so an id is never reused or removed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Layer(Enum):
    """The questions of the gate, in their order."""

    LINK = "link"
    """Is it about linking an account, which is between its author and the bot?"""
    ORIGIN = "origin"
    """Did somebody else than the bot itself write it?"""
    TENANT = "tenant"
    """To which one tenant does it belong, by its own discriminator?"""
    CANDIDATES = "candidates"
    """Which instances may be meant?"""
    AUTHORITY = "authority"
    """May this instance see this author here?"""
    VISIBILITY = "visibility"
    """Can the instance's owner view the channel on the platform?"""
    RELEVANCE = "relevance"
    """Should the agent engage?"""
    EGRESS = "egress"
    """The other direction: may this instance do this in that chat?"""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The verdict of one layer, with the stable id of its rule and the reason as a sentence."""

    layer: Layer
    rule: str
    passed: bool
    sentence: str


ERROR_RULE: Final = "gate.error"

_rules: dict[str, GateVerdict] = {}


def _rule(layer: Layer, name: str, passed: bool, sentence: str) -> GateVerdict:
    verdict = GateVerdict(layer, f"{layer.value}.{name}", passed, sentence)
    _rules[verdict.rule] = verdict
    return verdict


def failed(layer: Layer, error: Exception) -> GateVerdict:
    """The verdict of a layer that raised an error: a refusal."""
    return GateVerdict(
        layer, ERROR_RULE, False, f"This layer failed ({type(error).__name__}), so it says no."
    )


NOT_REACHED: Final[Mapping[Layer, GateVerdict]] = {
    layer: _rule(layer, "not-reached", False, "An earlier layer said no for everybody.")
    for layer in (Layer.ORIGIN, Layer.TENANT, Layer.CANDIDATES)
}

NOT_A_LINK: Final = _rule(Layer.LINK, "none", True, "It is not about linking an account.")
CONSUMED: Final = _rule(
    Layer.LINK,
    "consumed",
    False,
    "It is about linking an account, which is between author and bot.",
)

ANOTHER_AUTHOR: Final = _rule(
    Layer.ORIGIN, "other", True, "It was not written by the bot that saw it."
)
OWN_ECHO: Final = _rule(Layer.ORIGIN, "self", False, "A bot never triggers itself.")

ROUTED: Final = _rule(
    Layer.TENANT, "routed", True, "The place it was written in belongs to one tenant."
)
DM_HOME: Final = _rule(
    Layer.TENANT, "dm-default", True, "It is a direct message, and its author chose where they go."
)
UNROUTED: Final = _rule(
    Layer.TENANT, "unknown", False, "The place it was written in belongs to no tenant."
)
BY_AUTHOR: Final = _rule(
    Layer.TENANT,
    "author",
    True,
    "The place belongs to no single tenant, so its author's own agent decides.",
)
BY_OPEN_PLACE: Final = _rule(
    Layer.TENANT,
    "open",
    True,
    "Its author is linked to no agent, and an operator has opened an agent to everybody here.",
)
SHARED_UNLINKED: Final = _rule(
    Layer.TENANT,
    "shared-unlinked",
    False,
    "Several tenants share the place, and its author is linked to no agent.",
)
NO_DM_HOME: Final = _rule(
    Layer.TENANT, "no-dm-default", False, "It is a direct message of somebody who is not linked."
)
AMBIGUOUS: Final = _rule(
    Layer.TENANT, "ambiguous", False, "What the event says of its place names two tenants."
)

FOUND: Final = _rule(Layer.CANDIDATES, "found", True, "There are instances that may be meant.")
NO_AUTHOR: Final = _rule(Layer.CANDIDATES, "no-author", False, "It has no author.")
UNLINKED: Final = _rule(
    Layer.CANDIDATES, "unlinked", False, "Its author has linked no account in this tenant."
)

NO_CANDIDATE: Final = _rule(
    Layer.CANDIDATES, "gone", False, "The instance is not meant any more: a link or grant ended."
)

OWNER: Final = _rule(Layer.AUTHORITY, "owner", True, "Its author owns the instance.")
OWN_VOICE: Final = _rule(
    Layer.AUTHORITY, "own-voice", False, "Its author is a bot through which the instance speaks."
)
ANY_PRINCIPAL: Final = _rule(
    Layer.AUTHORITY, "any", True, "The instance holds the channel and listens to everybody in it."
)
LISTED: Final = _rule(
    Layer.AUTHORITY, "listed", True, "The instance holds the channel and has listed the author."
)
NOT_LISTED: Final = _rule(
    Layer.AUTHORITY, "not-listed", False, "The instance has not listed the author."
)
OWNER_ONLY: Final = _rule(
    Layer.AUTHORITY, "owner-only", False, "The instance listens only to its owner."
)

OPEN_MODE: Final = _rule(
    Layer.AUTHORITY, "open", True, "An operator has opened the instance to everybody here."
)
OPEN_LIMITED: Final = _rule(
    Layer.AUTHORITY,
    "open-limited",
    False,
    "The instance is open to everybody here, but its author has written too much lately.",
)

DIRECT: Final = _rule(Layer.VISIBILITY, "direct", True, "The owner wrote it to the bot directly.")
VISIBLE: Final = _rule(Layer.VISIBILITY, "visible", True, "The owner can view the channel.")
HIDDEN: Final = _rule(Layer.VISIBILITY, "hidden", False, "The owner cannot view the channel.")
UNSEEN: Final = _rule(
    Layer.VISIBILITY, "unknown", False, "Whether the owner can view the channel is not known."
)
AUTHOR_PRESENT: Final = _rule(
    Layer.VISIBILITY,
    "author",
    True,
    "The owner wrote it, and whoever writes in a channel sees it.",
)
OPENED: Final = _rule(
    Layer.VISIBILITY, "open", True, "No owner's view counts where an operator opened the instance."
)
OWNER_GONE: Final = _rule(
    Layer.VISIBILITY, "owner-gone", False, "Who claimed the channel is not bound to the instance."
)

OWNERS_WORD: Final = _rule(
    Layer.RELEVANCE, "owner", True, "An owner's own message is always relevant."
)
OPEN: Final = _rule(Layer.RELEVANCE, "open", True, "The instance engages without being addressed.")
ADDRESSED: Final = _rule(Layer.RELEVANCE, "addressed", True, "It addresses the bot.")
FREE: Final = _rule(
    Layer.RELEVANCE, "free-response", True, "In this channel the bot need not be addressed."
)
UNADDRESSED: Final = _rule(
    Layer.RELEVANCE, "unaddressed", False, "It does not address the bot, as the instance demands."
)
OTHER_BOT: Final = _rule(
    Layer.RELEVANCE, "bot", False, "It was written by a bot, and the instance ignores bots."
)

GRANTED: Final = _rule(Layer.EGRESS, "granted", True, "The instance holds this channel.")
RECENT: Final = _rule(
    Layer.EGRESS, "recent", True, "Something from this chat was delivered within the last days."
)
CAPABLE: Final = _rule(Layer.EGRESS, "capability", True, "The instance may use this capability.")
UNKNOWN_CHAT: Final = _rule(
    Layer.EGRESS, "unknown-chat", False, "this instance has nothing to do with this chat"
)
SCOPE_MISMATCH: Final = _rule(
    Layer.EGRESS, "scope-mismatch", False, "the chat is not in the scope that the action names"
)
USER_MISMATCH: Final = _rule(
    Layer.EGRESS, "user-mismatch", False, "the chat is not with the user that the action names"
)
STALE: Final = _rule(
    Layer.EGRESS, "stale", False, "nothing was delivered from this chat for 7 days"
)
UNLINKED_CHAT: Final = _rule(
    Layer.EGRESS,
    "unlinked-chat",
    False,
    "nobody whose messages came from this chat is linked to this instance any more",
)
NOT_OWN_MESSAGE: Final = _rule(
    Layer.EGRESS, "not-own-message", False, "this instance did not send that message"
)
NO_CAPABILITY: Final = _rule(
    Layer.EGRESS, "no-capability", False, "this session has no such capability, or it has expired"
)

OPEN_CHAT: Final = _rule(
    Layer.EGRESS,
    "open",
    True,
    "Somebody wrote to this instance here, and it is open to everybody here.",
)

UNKNOWN_RULES: Final = frozenset({UNSEEN.rule})
"""The rules that do not refuse: they say that a fact could not be fetched."""

GATE_RULES: Final[Mapping[str, GateVerdict]] = _rules
"""Every rule by its id, except `gate.error`, which any layer may give."""
