"""Which actions an agent may perform in which chats, and mass mentions neutralised.

Scope and user of an action are hints; those of a chat come from the connector's own record, and a
mismatch declines. A right to write ends with the link, grant or open place that it came from.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from accord.relay.rules import verdicts
from accord.relay.rules.actions import (
    EGRESS_DECLINED,
    Action,
    Edit,
    FollowUp,
    Outcome,
    Result,
    Send,
)
from accord.relay.rules.verdicts import GateVerdict, Layer, failed

RECENT_SECONDS: Final = 7 * 24 * 3600
"""How long a chat stays open to an instance after something was delivered from it."""


@dataclass(frozen=True, slots=True)
class EgressChat:
    """The connector's own record of a chat, for one instance; times are seconds."""

    tenant: str
    scope_id: str | None = None
    # The other person of a direct chat.
    user_id: str | None = None
    # The instance that holds the channel, or the channel of a thread.
    holder: str | None = None
    # When something from it was last delivered to the instance ...
    delivered_at: float | None = None
    # ... and the same for authors who are linked to the instance now.
    linked_at: float | None = None
    # The same for authors who were not linked, where the instance is open to everybody now.
    open_at: float | None = None


@dataclass(frozen=True, slots=True)
class EgressCapability:
    """A capability in the vault, without its value."""

    tenant: str
    instance: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class EgressFacts:
    """What is known about one action of one instance; None where there is no record.

    `sent_by` is the instance that sent the message to be edited. Times are seconds.
    """

    tenant: str
    instance: str
    now: float
    chat: EgressChat | None = None
    sent_by: str | None = None
    capability: EgressCapability | None = None
    # How long a chat may be answered after something was delivered from it.
    recent_seconds: float = RECENT_SECONDS


def may_send(action: Action, facts: EgressFacts) -> GateVerdict:
    """Decide whether an instance may perform an action; never raises."""
    try:
        if isinstance(action, FollowUp):
            return _capability(facts)
        return _chat(action, facts)
    except Exception as error:  # noqa: BLE001 (a failure declines)
        return failed(Layer.EGRESS, error)


DECLINED: Final = Result(
    False,
    error="egress declined: this instance may not do this there",
    outcome=Outcome.PERMANENT,
    code=EGRESS_DECLINED,
)
"""The answer to every action that was declined.

It is the same whether the chat belongs to others or to nobody; the journal has the reason.
"""


def _capability(facts: EgressFacts) -> GateVerdict:
    found = facts.capability
    if found is None or (found.tenant, found.instance) != (facts.tenant, facts.instance):
        return verdicts.NO_CAPABILITY
    return verdicts.CAPABLE if facts.now < found.expires_at else verdicts.NO_CAPABILITY


def _chat(action: Action, facts: EgressFacts) -> GateVerdict:
    chat = facts.chat
    # Another tenant's chat is answered like one that does not exist.
    if chat is None or chat.tenant != facts.tenant:
        return verdicts.UNKNOWN_CHAT
    is_held = chat.holder is not None and chat.holder == facts.instance
    if not is_held and chat.delivered_at is None:
        return verdicts.UNKNOWN_CHAT
    if isinstance(action, Send | Edit):
        scope, user = action.metadata.get("scope_id"), action.metadata.get("user_id")
        if scope is not None and scope != chat.scope_id:
            return verdicts.SCOPE_MISMATCH
        if user is not None and chat.user_id is not None and user != chat.user_id:
            return verdicts.USER_MISMATCH
    if isinstance(action, Edit) and facts.sent_by != facts.instance:
        return verdicts.NOT_OWN_MESSAGE
    if is_held:
        return verdicts.GRANTED
    if chat.linked_at is not None and _is_recent(facts, chat.linked_at):
        return verdicts.RECENT
    if chat.open_at is not None and _is_recent(facts, chat.open_at):
        return verdicts.OPEN_CHAT
    has_ended = chat.linked_at is None and chat.open_at is None
    return verdicts.UNLINKED_CHAT if has_ended else verdicts.STALE


def _is_recent(facts: EgressFacts, delivered_at: float) -> bool:
    return facts.now - delivered_at <= facts.recent_seconds


_BREAK: Final = "\u200b"
_BANG: Final = r"<(?=!(?:channel|here|everyone|subteam\b))"
_ROLE: Final = r"<@(?=&)"
_ANY_WORD: Final = "all|channel|everyone|here|room"


def _mention_rule(words: str, *forms: str, end: str = r"\b") -> re.Pattern[str]:
    """Matches the characters after which a break is inserted."""
    named = rf"@(?=(?:{words}){end})"
    return re.compile("|".join([*forms, named]), re.IGNORECASE | re.ASCII)


_MENTION_RULES: Final[Mapping[str, re.Pattern[str]]] = {
    # People are mentioned by number there, so no name begins with one of these words.
    "discord": _mention_rule("everyone|here", _ROLE, end=""),
    "matrix": _mention_rule("room"),
    "mattermost": _mention_rule("all|channel|here"),
    "slack": _mention_rule("channel|everyone|here", _BANG),
    "telegram": _mention_rule("all|everyone"),
    "webchat": _mention_rule("all|everyone|here"),
}
_EVERY_MENTION_RULE: Final = _mention_rule(_ANY_WORD, _ROLE, _BANG)


def neutralise_mentions(text: str, platform: str) -> str:
    """The text without mass mentions; a text that has none is returned unchanged."""
    if "@" not in text and "<!" not in text:
        return text
    return _MENTION_RULES.get(platform, _EVERY_MENTION_RULE).sub(
        lambda match: match[0] + _BREAK, text
    )
