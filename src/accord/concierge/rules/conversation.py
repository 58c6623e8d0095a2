"""A conversation with the concierge: what a message asks for, and what is remembered.

Pure. What is no command is a question. The concierge answers in direct messages, in its own
channels, and elsewhere when it is mentioned or given a command. Conversations are bounded; a draft
that waits for confirmation is dropped by the next message of its author.
"""

import re
from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from cachetools import FIFOCache, LRUCache

from accord.concierge.rules.answers import AnsweredQuestion, LanguageModel, RetrievedPassage
from accord.relay.rules.messages import MessageEvent


@dataclass(frozen=True, slots=True)
class AnswerPolicy:
    """Which messages are answered.

    Attributes:
        channels: Channels in which every message is answered; None for all channels.
        names: Its names, without the `@`.
    """

    channels: AbstractSet[str] | None = None
    names: tuple[str, ...] = field(default=("concierge",))

    def applies_to(self, event: MessageEvent) -> bool:
        """Whether to answer an event."""
        source = event.source
        if self.channels is None or source.chat_type == "dm":
            return True
        if source.chat_id in self.channels or source.parent_chat_id in self.channels:
            return True
        text = event.text.casefold()
        if event.bot_id and f"<@{event.bot_id}>".casefold() in text:
            return True
        return any(f"@{name}".casefold() in text for name in self.names)


MAX_QUESTION: Final = 2000
"""Longer questions are truncated."""
MAX_TITLE: Final = 200
MAX_BODY: Final = 4000
_SHOWN_COMMAND: Final = 40

_COMMAND: Final = re.compile(r"/([A-Za-z][\w-]{0,63})(?:@[\w.-]{1,64})?(?:\s+|$)", re.ASCII)
_MENTION: Final = re.compile(r"(?:<@!?[\w-]{1,64}>|@[\w.-]{1,64})[,:]?\s*")
_YES: Final = frozenset({"yes", "y", "/yes", "ja"})
_NO: Final = frozenset({"no", "n", "/no", "nein", "cancel"})


class Category(Enum):
    """The category of a post on the market."""

    OFFER = "offer"
    REQUEST = "request"
    INFO = "info"


def _offered(name: str, description: str, text: str = "") -> dict[str, Any]:
    said = {"name": "text", "description": text, "required": True}
    return {"name": name, "description": description, **({"options": [said]} if text else {})}


COMMANDS: Final = (
    _offered("ask", "Ask the community's documents", "Your question"),
    _offered("market", "Look something up on the market", "What you look for"),
    _offered("post", "Post on the market; it asks before it does", "offer Ladder: three metres"),
    _offered("files", "Which documents there are"),
    _offered("file", "Find a document", "Its name, or most of its id"),
    _offered("forget", "Forget what we talked about"),
    _offered("help", "What the concierge knows"),
)
"""The commands that a gateway's hello offers to platforms that show such a list."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the community's documents."""

    question: str


@dataclass(frozen=True, slots=True)
class FindPosts:
    """Search the market."""

    query: str


@dataclass(frozen=True, slots=True)
class PostDraft:
    """A post for the market that its author has to confirm."""

    category: Category
    title: str
    body: str = ""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A yes or a no."""

    yes: bool
    text: str


@dataclass(frozen=True, slots=True)
class ListFiles:
    """List the documents."""


@dataclass(frozen=True, slots=True)
class FindFile:
    """Find a document by its name, or a blob by its id."""

    name: str


@dataclass(frozen=True, slots=True)
class ExplainLink:
    """Explain how an account is linked."""


@dataclass(frozen=True, slots=True)
class Help:
    """Explain what can be asked."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget the conversation."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A command without its argument; `example` is a complete one."""

    what: str
    example: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """An unknown command."""

    command: str


@dataclass(frozen=True, slots=True)
class NoQuestion:
    """Nothing that could be answered."""


Intent: TypeAlias = (
    Ask
    | FindPosts
    | PostDraft
    | Confirmation
    | ListFiles
    | FindFile
    | ExplainLink
    | Help
    | Forget
    | Incomplete
    | Unknown
    | NoQuestion
)


def read_intent(text: str) -> Intent:
    """Return what a message asks for."""
    said = _MENTION.sub("", text, count=1) if _MENTION.match(text.lstrip()) else text
    said = said.strip()
    if not any(each.isalnum() for each in said):
        return NoQuestion()
    if said.lower() in _YES | _NO:
        return Confirmation(said.lower() in _YES, said)
    command = _COMMAND.match(said)
    if command is None:
        return Ask(said[:MAX_QUESTION])
    return _command(command[1].lower(), said[command.end() :].strip())


def _command(name: str, rest: str) -> Intent:
    query = rest[:MAX_QUESTION]
    match name:
        case "help" | "start":
            return ExplainLink() if query.lower() == "link" else Help()
        case "link" | "unlink":
            return ExplainLink()
        case "forget" | "new":
            return Forget()
        case "files":
            return ListFiles()
        case "ask":
            return Ask(query) if query else Incomplete("what to ask", "/ask When is it open?")
        case "file":
            return FindFile(query) if query else Incomplete("which document", "/file tool shed")
        case "market":
            return FindPosts(query) if query else Incomplete("what to look for", "/market ladder")
        case "post":
            return _draft(rest)
    return Unknown(name[:_SHOWN_COMMAND])


def _draft(rest: str) -> PostDraft | Incomplete:
    example = "/post offer Ladder to lend: three metres, for a week"
    kind, _, told = rest.partition(" ")
    found = next((each for each in Category if each.value == kind.lower()), None)
    if found is None:
        return Incomplete("whether it is an offer, a request or an info", example)
    title, _, body = told.strip().partition(":")
    title = " ".join(title.split())
    if not title:
        return Incomplete("a title", example)
    if len(title) > MAX_TITLE:
        return Incomplete(f"a title of at most {MAX_TITLE} characters, before the colon", example)
    if len(body) > MAX_BODY:
        return Incomplete(f"a text of at most {MAX_BODY} characters", example)
    return PostDraft(found, title, body.strip())


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
    """One conversation, with the outcome, the model and the passages of its last answer."""

    exchanges: deque[AnsweredQuestion] = field(default_factory=lambda: deque(maxlen=MOST_EXCHANGES))
    drafts: FIFOCache[str, PostDraft] = field(default_factory=lambda: FIFOCache(MOST_DRAFTS))
    outcome: AnswerOutcome = AnswerOutcome.ANSWERED
    model: LanguageModel | None = None
    passages: tuple[RetrievedPassage, ...] = ()

    def remember(self, question: str, answer: str) -> None:
        """Add an exchange."""
        if answer:
            self.exchanges.append(AnsweredQuestion(question[:_CHARS], answer[:_CHARS]))

    def propose(self, author: str, draft: PostDraft) -> None:
        """Keep a draft until its author confirms it."""
        self.drafts[author] = draft

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
        self._sessions: LRUCache[str, ConciergeConversation] = LRUCache(most)

    def __len__(self) -> int:
        return len(self._sessions)

    def session(self, key: str) -> ConciergeConversation:
        """Return the conversation of a session key, a new one if there is none."""
        return self._sessions.setdefault(key, ConciergeConversation())
