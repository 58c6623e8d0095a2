"""What the concierge remembers of its conversations: little, and not for ever.

Pure. Owns the bounds: so many sessions, so many exchanges in each, so many characters of each. What
waits for a yes belongs to one author, and to the very next message of that author.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from accord.concierge.intent import Draft
from accord.concierge.prompting import Exchange

MOST_SESSIONS: Final = 500
MOST_EXCHANGES: Final = 3
MOST_DRAFTS: Final = 20
_CHARS: Final = 400


@dataclass(slots=True)
class Session:
    """One conversation."""

    exchanges: deque[Exchange] = field(default_factory=lambda: deque(maxlen=MOST_EXCHANGES))
    drafts: OrderedDict[str, Draft] = field(default_factory=OrderedDict)

    def remember(self, question: str, answer: str) -> None:
        """An exchange happened."""
        if answer:
            self.exchanges.append(Exchange(question[:_CHARS], answer[:_CHARS]))

    def propose(self, author: str, draft: Draft) -> None:
        """Let a draft wait for its author's yes."""
        self.drafts[author] = draft
        if len(self.drafts) > MOST_DRAFTS:
            self.drafts.popitem(last=False)

    def take(self, author: str) -> Draft | None:
        """What waited for this author, who has just said something; it waits no longer."""
        return self.drafts.pop(author, None)

    def forget(self) -> None:
        """Begin anew."""
        self.exchanges.clear()
        self.drafts.clear()


class Memory:
    """The sessions that were used last."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def session(self, key: str) -> Session:
        """The conversation of a session key, new if it is not remembered."""
        session = self._sessions.setdefault(key, Session())
        self._sessions.move_to_end(key)
        if len(self._sessions) > self._most:
            self._sessions.popitem(last=False)
        return session
