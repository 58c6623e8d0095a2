"""The concierge's replies other than answers from documents.

Pure. Text of others is reduced to plain lines before it is shown.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from accord.community.errors import Code, CommunityError
from accord.concierge.rules.answers import (
    LanguageModel,
    PassageEmbedder,
    RetrievedPassage,
    plain_line,
    source,
    sources,
)
from accord.concierge.rules.conversation import Incomplete, PostDraft
from accord.concierge.rules.languages import NAMES

_SHOWN: Final = 5
_BODY_CHARS: Final = 400

HELP: Final = """\
Ask me what the community's documents may know. I name my sources, and say when I do not know.
- /market ladder: look something up on the market
- /post offer Ladder to lend: three metres: post an offer, a request or an info; I ask first
- /files: which documents there are
- /file tool shed: find a document by its name
- /link: how to link your account
- /forget: forget what we talked about"""

LINK: Final = """\
Linking tells an agent which account is yours; it then receives what you write where its bot reads.
1. Get a code from whoever runs the agent; for me, `accord relay link concierge` prints one.
2. Send it to the bot as a direct message, never in a channel: /link CODE
3. Answer the bot's question with yes.
/unlink, as a direct message too, undoes it."""

FORGOTTEN: Final = "I have forgotten what we talked about."
NOTHING_TO_CONFIRM: Final = "Nothing is waiting for your confirmation."
DROPPED: Final = "All right, nothing was posted."
EMPTY_MARKET: Final = "Nothing on the market matches that. Post a request: /post request …"
NO_DOCUMENTS: Final = (
    "I have no documents to answer from yet. Whoever runs this station can add some: "
    "`accord rag add manuals FOLDER`."
)


def unknown(command: str) -> str:
    """There is no such command."""
    return f"I do not know /{plain_line(command)}. /help shows what I know."


def incomplete(wanted: Incomplete) -> str:
    """A command is incomplete."""
    return f"Tell me {wanted.what}, such as: {wanted.example}"


def not_known(nearest: Sequence[RetrievedPassage], corpora: Sequence[str]) -> str:
    """Nothing relevant was found; names the corpora that were searched."""
    looked = ", ".join(plain_line(name) for name in corpora[:_SHOWN])
    told = [f"I do not know: nothing in the documents is relevant to that. I looked in {looked}."]
    titles = list(dict.fromkeys(plain_line(each.title) for each in nearest))[:3]
    if titles:
        told.append(f"The nearest documents are about something else: {', '.join(titles)}.")
    return " ".join(told)


def foreign_language(embedder: PassageEmbedder, language: str) -> str:
    """The embedding model is not made for the language of the question."""
    made = " and ".join(NAMES.get(each, each) for each in embedder.languages[:_SHOWN])
    return (
        f"The question seems to be in {NAMES[language]}, and the embedding model "
        f"{plain_line(embedder.model)} is made for {made}: I may have missed documents. Whoever "
        "runs this station can name a multilingual model in `[models] embedder`."
    )


def files(corpora: Mapping[str, int]) -> str:
    """List the corpora with their numbers of documents."""
    if not corpora:
        return NO_DOCUMENTS
    lines = [
        f"- {plain_line(name)}: {count} document{'' if count == 1 else 's'}"
        for name, count in list(corpora.items())[:_SHOWN]
    ]
    return "\n".join(["The community's documents:", *lines, "/file NAME finds one."])


def found_files(name: str, found: Sequence[RetrievedPassage]) -> str:
    """List the documents that a name may mean."""
    if not found:
        return f"No document is called {plain_line(name)}. /files shows where I look."
    lines = [f"{number}. {source(each)}" for number, each in enumerate(found, start=1)]
    return "\n".join([*lines, f"A member gets one by: accord file get {found[0].cid} FILE"])


def blobs(prefix: str, cids: Sequence[str]) -> str:
    """List the blobs with an id prefix."""
    if not cids:
        return f"No file here begins with {plain_line(prefix)}."
    return "\n".join(
        [
            *(f"- {cid}" for cid in cids[:_SHOWN]),
            f"A member gets it by: accord file get {cids[0]} FILE",
        ]
    )


def posts(found: Sequence[Mapping[str, Any]]) -> str:
    """List posts of the market."""
    if not found:
        return EMPTY_MARKET
    lines = []
    for number, each in enumerate(found[:_SHOWN], start=1):
        body = f": {plain_line(each['body'], _BODY_CHARS)}" if each.get("body") else ""
        lines.append(
            f"{number}. {each['category']}: {plain_line(each['title'])}{body} "
            f"(until {each['expires_at'][:10]}, {each['event_id']})"
        )
    return "\n".join(["On the market:", *lines])


def confirm(draft: PostDraft) -> str:
    """Ask before something is posted."""
    body = f"\n{plain_line(draft.body, _BODY_CHARS)}" if draft.body else ""
    return (
        f"I would post this {draft.category.value} for everybody in the community to read:\n"
        f"{plain_line(draft.title)}{body}\n"
        "Answer yes to post it; anything else leaves it."
    )


def posted(event_id: str) -> str:
    """It was posted."""
    return f"Posted. Its id is {event_id}."


def trouble(error: CommunityError) -> str:
    """Something does not work, and what to do about it."""
    if error.code in (Code.CAPACITY_EXCEEDED, Code.RATE_LIMITED):
        return "There are too many requests at the moment. Please try again in a minute."
    if error.code is Code.NOT_FOUND and "not offered" in error.what:
        return f"This station cannot do that: {plain_line(error.what)}."
    mend = f"; {plain_line(error.mend)}" if error.mend else ""
    return f"That does not work at the moment: {plain_line(error.what)}{mend}."


def unanswered(error: CommunityError, passages: Sequence[RetrievedPassage]) -> str:
    """The model failed; show what was found."""
    said = f"I cannot write an answer ({plain_line(error.what)}), but these documents are relevant."
    return f"{said}\n\n{sources(passages)}"


def written_by(model: LanguageModel) -> str:
    """Name the model if it is the built-in one; else empty."""
    if not model.built_in:
        return ""
    return f"\n\n(Written by {plain_line(model.name)}, the small built-in model.)"


def broken_off(error: CommunityError) -> str:
    """The model failed in the middle of its answer."""
    return f" … (the model stopped early: {plain_line(error.what)})"
