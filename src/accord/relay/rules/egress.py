"""Which actions an agent may perform in which chats, and what becomes of one after an attempt.

Scope and user of an action are hints; those of a chat come from the connector's own record, and a
mismatch declines. A right to write ends with the link, grant or open place that it came from.
The connector decides by `decide` about calls to a platform, and the gateway about requests to its
connector; time and chance are arguments.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from accord.relay.rules import verdicts
from accord.relay.rules.connection import backoff
from accord.relay.rules.frames import EGRESS_DECLINED, Action, Edit, FollowUp, Outcome, Result, Send
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


class OutboxStep(Enum):
    """What becomes of an action."""

    SENT = "sent"
    RETRY = "retry"
    REFUSED = "refused"
    """It can never be sent."""
    EXPIRED = "expired"
    """It could not be sent in time."""
    UNKNOWN = "unknown"
    """It may have been sent, and must not be repeated."""


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How long and how often an action is tried; times in seconds."""

    # How long an action is tried after it was taken.
    expire_after: float = 86_400.0
    # The pause after the first failed attempt; it doubles ...
    first_pause: float = 1.0
    # ... up to this.
    longest_pause: float = 300.0
    # The longest pause between two attempts, whatever a platform asks for.
    longest_asked: float = 3600.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt and its result; times are seconds since the epoch."""

    result: Result
    # How many attempts there were, this one included.
    count: int
    # When the action was taken, and now.
    taken_at: float
    now: float
    # Until when the platform recognises a repetition by its key; None where it does not.
    repeatable_until: float | None = None
    # Whether an earlier attempt may have sent it already.
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class OutboxDecision:
    """A step with its reason; `pause` is set for RETRY alone, in seconds."""

    step: OutboxStep
    rule: str
    sentence: str
    pause: float = 0.0


def decide(attempt: Attempt, limits: RetryLimits, chance: float) -> OutboxDecision:
    """Decide what becomes of an action after an attempt; `chance` from 0 to 1 is the jitter.

    An action expires only after an attempt, so a clock that jumps ahead costs no attempt. A refusal
    says nothing of an earlier attempt whose outcome is unknown.
    """
    result = attempt.result
    if result.success:
        return OutboxDecision(OutboxStep.SENT, "outbox.sent", "the platform took it")
    outcome = result.outcome
    if outcome is None and result.retry_after is not None:
        outcome = Outcome.RETRYABLE
    if outcome in (None, Outcome.PERMANENT):
        if attempt.in_doubt:
            sentence = f"an earlier attempt had no answer, and now: {_reason(result)}"
            return OutboxDecision(OutboxStep.UNKNOWN, "outbox.unknown", sentence)
        return OutboxDecision(OutboxStep.REFUSED, "outbox.refused", _reason(result))
    pause = _pause(attempt, limits, chance)
    is_unknown = outcome is Outcome.UNKNOWN or attempt.in_doubt
    if is_unknown:
        until = attempt.repeatable_until
        if until is None or attempt.now + pause > until:
            return OutboxDecision(
                OutboxStep.UNKNOWN,
                "outbox.unknown",
                "there was no answer, and a repetition could send it twice",
            )
    if attempt.now + pause - attempt.taken_at > limits.expire_after:
        if is_unknown:
            sentence = "there was no answer until its time was over"
            return OutboxDecision(OutboxStep.UNKNOWN, "outbox.unknown", sentence)
        sentence = f"it could not be sent in time: {_reason(result)}"
        return OutboxDecision(OutboxStep.EXPIRED, "outbox.expired", sentence)
    return OutboxDecision(OutboxStep.RETRY, "outbox.retry", _reason(result), pause)


def is_due(due_at: float, now: float, longest_asked: float) -> bool:
    """Whether the next attempt may be made; also when the clock was set back meanwhile.

    All three are of one unit; no pause is longer than `longest_asked`.
    """
    return due_at <= now or due_at - now > longest_asked


def _pause(attempt: Attempt, limits: RetryLimits, chance: float) -> float:
    pause = backoff(
        attempt.count - 1, chance, first=limits.first_pause, longest=limits.longest_pause
    )
    asked = attempt.result.retry_after or 0.0
    return min(max(pause, asked + asked * min(max(chance, 0.0), 1.0) / 10), limits.longest_asked)


def _reason(result: Result) -> str:
    return result.error or "the platform gave no reason"


_LONGEST_EDIT_PAUSE: Final = 60.0
_LIMITED: Final = re.compile(r"rate.?limit|too many requests|\b429\b|retry.?after", re.IGNORECASE)
_SECONDS: Final = re.compile(r"retry.?after\D{0,5}(\d{1,6}(?:\.\d{1,6})?)", re.IGNORECASE)


def is_rate_limited(result: Result) -> bool:
    """Whether a platform refused an action because of a rate limit, by number or by text."""
    if result.success:
        return False
    # Other connectors set no number and say it in the text alone.
    return result.retry_after is not None or _LIMITED.search(result.error or "") is not None


def wait_asked(result: Result) -> float:
    """Seconds that a rate limit asks to wait; 0 where it names none."""
    if result.retry_after is not None:
        return result.retry_after
    named = _SECONDS.search(result.error or "")
    return float(named[1]) if named else 0.0


class Pace:
    """When the next change is due; at least `pause` seconds lie between two changes."""

    def __init__(self, pause: float) -> None:
        self._least = pause
        self._pause = pause
        self._due = 0.0

    def wait(self, now: float) -> float:
        """Seconds to wait before the next change."""
        return max(0.0, self._due - now)

    def record(self, result: Result, now: float) -> None:
        """Adapt the pause to the result of a change."""
        if is_rate_limited(result):
            self._pause = min(max(2 * self._pause, 1.0), _LONGEST_EDIT_PAUSE)
            self._due = now + max(self._pause, min(wait_asked(result), _LONGEST_EDIT_PAUSE))
        else:
            self._pause = max(self._least, self._pause / 2)
            self._due = now + self._pause
