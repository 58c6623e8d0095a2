"""Ask: a question to the community's documents, answered by the concierge's rules."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import escape
from starlette.responses import Response

from accord.community.errors import Code, CommunityError
from accord.concierge.community import CommunityAccess, offered_model
from accord.concierge.rules.answers import (
    MOST_PASSAGES,
    RetrievedPassage,
    StreamedAnswer,
    cited_documents,
    prompt_messages,
    relevant_passages,
    stop_sequences,
)
from accord.concierge.rules.replies import written_by
from accord.console.page import Page, Piece, Visit
from accord.console.sessions import ConsoleError
from accord.kernel.errors import AccordError

_QUESTION: Final = 2000
_UNKNOWN: Final = "I do not know: nothing in the documents is about this."
_NO_MODEL: Final = (
    "There is no language model here to put it in words. This is what the documents say:"
)


async def show(visit: Visit, told: Sequence[Piece] | None = None) -> Response:
    """Show the form, and below it the answer, streamed or whole."""
    question, corpus = visit.query("q"), visit.query("corpus")
    corpora: list[dict[str, Any]] = []
    missing: AccordError | None = None
    async with visit.community() as client:
        try:
            corpora = [
                {"name": name, "docs": docs}
                for name, docs in (await CommunityAccess(client).corpora(personal=True)).items()
            ]
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
    """Stream the answer."""
    question, corpus = _asked(visit)
    return visit.stream(_pieces(visit, question, corpus))


async def whole(visit: Visit) -> Response:
    """Show the whole answer, for browsers without scripts."""
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
            commons = CommunityAccess(client, corpus)
            found = await commons.passages(question)
            passages = relevant_passages(question, found, MOST_PASSAGES)
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
    visit: Visit, commons: CommunityAccess, question: str, passages: Sequence[RetrievedPassage]
) -> AsyncGenerator[str, None]:
    try:
        model = await offered_model(commons.bus)
    except CommunityError as error:
        if error.code is not Code.NOT_IMPLEMENTED:
            raise
        yield _NO_MODEL
        return
    spoken = StreamedAnswer()
    mark = secrets.token_hex(8)
    asked = prompt_messages(question, passages, (), mark)
    async with aclosing(commons.generate(model.name, asked, stop_sequences(mark))) as pieces:
        async for piece in pieces:
            if shown := spoken.add(piece):
                yield shown
    yield spoken.end() + written_by(model)


def _sources(passages: Sequence[RetrievedPassage]) -> list[dict[str, Any]]:
    """Each document once, with the passages used."""
    return [
        {
            "cid": first.cid,
            "title": first.title,
            "corpus": first.corpus,
            "node": first.node,
            "pages": sorted(pages),
            "texts": [each.text for each in passages if each.cid == first.cid],
        }
        for first, pages in cited_documents(passages)
    ]


PAGE: Final = Page("ask", "Ask", show, reads={"answer": answer, "whole": whole}, group="People")
