"""What an agent may do in chats: section 1 of the notes on the specification.

Egress is gated like ingress. What the action says of scope and user are hints; scope and tenant of
a chat come from the connector's own record of it, and a mismatch declines.
"""

from dataclasses import dataclass
from typing import Final

from accord.relay.gate import verdicts
from accord.relay.gate.verdicts import Layer, Verdict, failed
from accord.relay.wire.actions import Action, Edit, FollowUp, Result, Send

RECENT_SECONDS: Final = 7 * 24 * 3600
"""How long a chat stays open to an instance after something was delivered from it."""


@dataclass(frozen=True, slots=True)
class Chat:
    """The connector's own record of a chat, as far as it concerns one instance.

    Attributes:
        tenant: Whose chat it is.
        user_id: With whom it is, where it is a direct one.
        holder: The instance that holds the channel, if one does.
        delivered_at: When something from it was last delivered to the instance.
    """

    tenant: str
    scope_id: str | None = None
    user_id: str | None = None
    holder: str | None = None
    delivered_at: float | None = None


@dataclass(frozen=True, slots=True)
class Capability:
    """What the vault has under a session's key, but for its value."""

    tenant: str
    instance: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class EgressFacts:
    """What is known about one action of one instance.

    Attributes:
        tenant: From the stored record of the instance.
        now: Seconds since the epoch.
        chat: The chat that the action names; None when there is no record of it.
        sent_by: The instance that sent the message to be edited; None when that is not known.
        capability: What a follow-up would use; None when there is none.
    """

    tenant: str
    instance: str
    now: float
    chat: Chat | None = None
    sent_by: str | None = None
    capability: Capability | None = None


def may_send(action: Action, facts: EgressFacts) -> Verdict:
    """Decide whether an instance may do this; it never raises."""
    try:
        if isinstance(action, FollowUp):
            return _capability(facts)
        return _chat(action, facts)
    except Exception as error:  # noqa: BLE001 (any failure is a "no")
        return failed(Layer.EGRESS, error)


def declined(verdict: Verdict) -> Result:
    """The answer to an action that was declined."""
    return Result(False, error=f"egress declined: {verdict.sentence}")


def _capability(facts: EgressFacts) -> Verdict:
    found = facts.capability
    if found is None or (found.tenant, found.instance) != (facts.tenant, facts.instance):
        return verdicts.NO_CAPABILITY
    return verdicts.CAPABLE if facts.now < found.expires_at else verdicts.NO_CAPABILITY


def _chat(action: Action, facts: EgressFacts) -> Verdict:
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
    is_recent = chat.delivered_at is not None and _is_recent(facts.now, chat.delivered_at)
    return verdicts.RECENT if is_recent else verdicts.STALE


def _is_recent(now: float, delivered_at: float) -> bool:
    return now - delivered_at <= RECENT_SECONDS
