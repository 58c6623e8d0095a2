"""What the concierge says when it is not answering from documents.

Pure. Owns the sentences: help, what was found on the market and among documents, what it does not
know, and what does not work with how to mend it. Words of others are made plain before they are
repeated.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from accord.community.errors import Code, CommunityError
from accord.concierge.answering import plain, source, sources
from accord.concierge.intent import Draft, Incomplete
from accord.concierge.passages import Passage

_SHOWN: Final = 5
_BODY_CHARS: Final = 400

HELP: Final = """\
Ask me what the community's documents may know. I say where it stands, and when I do not know.
- /market ladder: look something up on the market
- /post offer Ladder to lend: three metres: post an offer, a request or an info; I ask first
- /files: which documents there are
- /file tool shed: find a document by its name
- /link: how to link your account
- /forget: forget what we talked about"""

LINK: Final = """\
Linking tells an agent which account is yours; it then hears what you write where its bot reads.
1. Get a code from whoever runs the agent; for me, `accord relay link concierge` prints one.
2. Send it to the bot as a direct message, never in a channel: /link CODE
3. Answer the bot's question with yes.
/unlink, as a direct message too, undoes it."""

FORGOTTEN: Final = "I have forgotten what we talked about."
NOTHING_TO_CONFIRM: Final = "There is nothing that waits for your answer."
DROPPED: Final = "All right, nothing was posted."
EMPTY_MARKET: Final = "Nothing on the market comes near that. Post a request: /post request …"
NO_DOCUMENTS: Final = (
    "I have no documents to answer from yet. Whoever runs this station can add some: "
    "`accord rag add manuals FOLDER`."
)


def unknown(command: str) -> str:
    """There is no such command."""
    return f"I do not know /{plain(command)}. /help shows what I know."


def incomplete(wanted: Incomplete) -> str:
    """Something is missing from a command."""
    return f"Tell me {wanted.what}, such as: {wanted.example}"


def not_known(nearest: Sequence[Passage], corpora: Sequence[str]) -> str:
    """Nothing that was found bears on the question; what was looked at."""
    looked = ", ".join(plain(name) for name in corpora[:_SHOWN])
    told = [f"I do not know: nothing in the documents bears on that. I looked in {looked}."]
    titles = list(dict.fromkeys(plain(each.title) for each in nearest))[:3]
    if titles:
        told.append(f"Nearest, but about something else, was {', '.join(titles)}.")
    return " ".join(told)


def files(corpora: Mapping[str, int]) -> str:
    """Which corpora there are, and how many documents each has."""
    if not corpora:
        return NO_DOCUMENTS
    lines = [
        f"- {plain(name)}: {count} document{'' if count == 1 else 's'}"
        for name, count in list(corpora.items())[:_SHOWN]
    ]
    return "\n".join(["The community's documents:", *lines, "/file NAME finds one."])


def found_files(name: str, found: Sequence[Passage]) -> str:
    """The documents that a name may mean."""
    if not found:
        return f"No document is called {plain(name)}. /files shows where I look."
    lines = [f"{number}. {source(each)}" for number, each in enumerate(found, start=1)]
    return "\n".join([*lines, f"A member gets one by: accord file get {found[0].cid} FILE"])


def blobs(prefix: str, cids: Sequence[str]) -> str:
    """The blobs that a beginning of an id means."""
    if not cids:
        return f"No file here begins with {plain(prefix)}."
    return "\n".join(
        [
            *(f"- {cid}" for cid in cids[:_SHOWN]),
            f"A member gets it by: accord file get {cids[0]} FILE",
        ]
    )


def posts(found: Sequence[Mapping[str, Any]]) -> str:
    """What was found on the market."""
    if not found:
        return EMPTY_MARKET
    lines = []
    for number, each in enumerate(found[:_SHOWN], start=1):
        body = f": {plain(each['body'], _BODY_CHARS)}" if each.get("body") else ""
        lines.append(
            f"{number}. {each['category']}: {plain(each['title'])}{body} "
            f"(until {each['expires_at'][:10]}, {each['event_id']})"
        )
    return "\n".join(["On the market:", *lines])


def confirm(draft: Draft) -> str:
    """Ask before something is posted."""
    body = f"\n{plain(draft.body, _BODY_CHARS)}" if draft.body else ""
    return (
        f"I would post this {draft.category.value} for everybody in the community to read:\n"
        f"{plain(draft.title)}{body}\n"
        "Answer yes to post it; anything else leaves it."
    )


def posted(event_id: str) -> str:
    """It is on the market."""
    return f"Posted. Its id is {event_id}."


def trouble(error: CommunityError) -> str:
    """Something does not work, and what to do about it."""
    if error.code in (Code.CAPACITY_EXCEEDED, Code.RATE_LIMITED):
        return "Too many ask at the moment. Please try again in a minute."
    if error.code is Code.NOT_FOUND and "not offered" in error.what:
        return f"This station cannot do that: {plain(error.what)}."
    mend = f"; {plain(error.mend)}" if error.mend else ""
    return f"That does not work at the moment: {plain(error.what)}{mend}."


def unanswered(error: CommunityError, passages: Sequence[Passage]) -> str:
    """The model failed; what was found stands all the same."""
    said = f"I cannot put it into words ({plain(error.what)}), but this bears on it."
    return f"{said}\n\n{sources(passages)}"


def broken_off(error: CommunityError) -> str:
    """The model failed on its way."""
    return f" … (the model broke off: {plain(error.what)})"
