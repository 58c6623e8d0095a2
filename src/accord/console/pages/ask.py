"""Ask: a question, what the community's documents say to it, and an answer that rests on them.

What bears on a question, what the model is told and what becomes of its words are the concierge's
rules; this page only shows what comes of them, while it comes.
"""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import escape
from starlette.responses import Response

from accord.community.errors import Code, CommunityError
from accord.concierge.answering import Spoken, documents
from accord.concierge.commons import Commons
from accord.concierge.models import first_model
from accord.concierge.passages import Passage, bearing_on
from accord.concierge.prompting import MOST_PASSAGES, messages, stops
from accord.console.errors import ConsoleError
from accord.console.page import Page, Visit
from accord.console.stream import Piece
from accord.kernel.errors import AccordError

_QUESTION: Final = 2000
_UNKNOWN: Final = "I do not know: nothing in the documents is about this."
_NO_MODEL: Final = (
    "There is no language model here to put it in words. This is what the documents say:"
)


async def show(visit: Visit, told: Sequence[Piece] | None = None) -> Response:
    """The question's form; below it the answer, as it comes or whole."""
    question, corpus = visit.query("q"), visit.query("corpus")
    corpora: list[dict[str, Any]] = []
    missing: AccordError | None = None
    async with visit.community() as client:
        try:
            answer = await client.call("rag.list_corpora", {}, {}, idempotent=True)
            corpora = answer["output"]["corpora"]
        except CommunityError as error:
            missing = error
    return visit.show(
        "ask.html",
        question=question[:_QUESTION],
        corpus=corpus,
        corpora=corpora,
        missing=missing,
        asked=urlencode({"q": question, "corpus": corpus}),
        told=told,
    )


async def answer(visit: Visit) -> Response:
    """The answer, piece by piece."""
    question, corpus = _asked(visit)
    return visit.stream(_pieces(visit, question, corpus))


async def whole(visit: Visit) -> Response:
    """The answer at once, for browsers without scripts."""
    question, corpus = _asked(visit)
    return await show(visit, [piece async for piece in _pieces(visit, question, corpus)])


def _asked(visit: Visit) -> tuple[str, str]:
    question = visit.query("q")
    if not question:
        raise ConsoleError("nothing was asked", mend="write a question")
    if len(question) > _QUESTION:
        raise ConsoleError(f"a question has at most {_QUESTION} letters", mend="ask for less")
    return question, visit.query("corpus")


async def _pieces(visit: Visit, question: str, corpus: str) -> AsyncGenerator[Piece, None]:
    try:
        async with visit.community() as client:
            commons = Commons(client, corpus)
            corpora = await commons.corpora()
            found = await commons.passages(question, list(corpora))
            passages = bearing_on(question, found, MOST_PASSAGES)
            if not passages:
                yield Piece("word", escape(_UNKNOWN))
            else:
                yield Piece("sources", visit.part("ask_sources.html", sources=_sources(passages)))
                async with aclosing(_words(visit, commons, question, passages)) as words:
                    async for word in words:
                        yield Piece("word", escape(word))
    except AccordError as error:
        yield Piece("trouble", visit.part("trouble_part.html", trouble=error))
    yield Piece("end")


async def _words(
    visit: Visit, commons: Commons, question: str, passages: Sequence[Passage]
) -> AsyncGenerator[str, None]:
    try:
        model = first_model(await visit.parts.node.manifest())
    except CommunityError as error:
        if error.code is not Code.NOT_IMPLEMENTED:
            raise
        yield _NO_MODEL
        return
    spoken = Spoken()
    mark = secrets.token_hex(8)
    asked = messages(question, passages, (), mark)
    async with aclosing(commons.speak(model, asked, stops(mark))) as pieces:
        async for piece in pieces:
            if shown := spoken.add(piece):
                yield shown
    yield spoken.end()


def _sources(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    """Each document once, with where in it and what it says there."""
    return [
        {
            "cid": first.cid,
            "title": first.title,
            "corpus": first.corpus,
            "pages": sorted(pages),
            "texts": [each.text for each in passages if each.cid == first.cid],
        }
        for first, pages in documents(passages)
    ]


PAGE: Final = Page("ask", "Ask", show, reads={"answer": answer, "whole": whole})
