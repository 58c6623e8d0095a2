"""Conversations of the concierge: a bounded number, each with its last exchanges.

Pure. A draft that waits for confirmation is dropped by the next message of its author.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from accord.concierge.rules.answers import AnsweredQuestion, LanguageModel
from accord.concierge.rules.intent import PostDraft

MOST_SESSIONS: Final = 500
MOST_EXCHANGES: Final = 3
MOST_DRAFTS: Final = 20
_CHARS: Final = 400


class AnswerOutcome(Enum):
    """The outcome of a question."""

    ANSWERED = "answered"
    NOT_KNOWN = "not_known"
    """No relevant passage was found."""
    NOT_UNDERSTOOD = "not_understood"
    """The command is unknown or incomplete."""
    FAILED = "failed"
    """Something that was needed did not work."""


@dataclass(slots=True)
class ConciergeConversation:
    """One conversation, with the outcome and the model of its last answer."""

    exchanges: deque[AnsweredQuestion] = field(default_factory=lambda: deque(maxlen=MOST_EXCHANGES))
    drafts: OrderedDict[str, PostDraft] = field(default_factory=OrderedDict)
    outcome: AnswerOutcome = AnswerOutcome.ANSWERED
    model: LanguageModel | None = None

    def remember(self, question: str, answer: str) -> None:
        """Add an exchange."""
        if answer:
            self.exchanges.append(AnsweredQuestion(question[:_CHARS], answer[:_CHARS]))

    def propose(self, author: str, draft: PostDraft) -> None:
        """Keep a draft until its author confirms it."""
        self.drafts[author] = draft
        if len(self.drafts) > MOST_DRAFTS:
            self.drafts.popitem(last=False)

    def take(self, author: str) -> PostDraft | None:
        """Remove and return the draft of an author who has sent a message."""
        return self.drafts.pop(author, None)

    def forget(self) -> None:
        """Start again."""
        self.exchanges.clear()
        self.drafts.clear()


class ConversationCache:
    """The most recently used conversations."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._sessions: OrderedDict[str, ConciergeConversation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def session(self, key: str) -> ConciergeConversation:
        """Return the conversation of a session key, a new one if there is none."""
        session = self._sessions.setdefault(key, ConciergeConversation())
        self._sessions.move_to_end(key)
        if len(self._sessions) > self._most:
            self._sessions.popitem(last=False)
        return session
