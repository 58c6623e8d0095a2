"""Ask: conversations with the community's documents, answered by the concierge's rules."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from accord.community.errors import CommunityError
from accord.concierge.community import CommunityAccess
from accord.console.answers import Answers, RunningAnswer, exported
from accord.console.conversations import Conversation, Turn, UserConversations
from accord.console.markdown import markdown
from accord.console.messages import mark, tr
from accord.console.page import Page, Piece, Visit
from accord.console.sessions import ConsoleError, Role, not_up
from accord.kernel.errors import AccordError

_QUESTION: Final = 2000
_NAME: Final = 200
# What a browser is sent anew of an answer that grows.
_STEP_SECONDS: Final = 0.1
_WHOLE_SECONDS: Final = 120.0


async def show(visit: Visit) -> Response:
    """Show a conversation, or the form that begins one; the others are listed beside it."""
    answers = _answers(visit)
    chosen = visit.query("c") or visit.form.text("c")
    words = visit.query("words")
    conversation: Conversation | None = None
    turns: list[Turn] = []
    if chosen:
        conversation, turns = await _kept(visit).get(chosen)
    corpora: list[dict[str, Any]] = []
    models: list[str] = []
    missing: AccordError | None = None
    try:
        async with visit.community() as client:
            found = await CommunityAccess(client).corpora(personal=True)
            corpora = [{"name": name, "docs": docs} for name, docs in found.items()]
            told = await client.post("/node/v1/models", {"capability": "llm.chat"})
            models = list(dict.fromkeys(each["name"] for each in told["models"]))
    except CommunityError as error:
        missing = error
    return visit.show(
        "ask.html",
        conversation=conversation,
        turns=turns,
        running={
            each.number
            for each in turns
            if conversation and answers.running(conversation.id, each.number)
        },
        listed=await _kept(visit).latest(words[:_NAME]),
        words=words,
        question=visit.form.text("q") or visit.query("q")[:_QUESTION],
        chosen_corpus=_choice(visit, "corpus", conversation.corpus if conversation else ""),
        chosen_model=_choice(visit, "model", conversation.model if conversation else ""),
        corpora=corpora,
        models=models,
        missing=missing,
    )


async def ask(visit: Visit) -> Response:
    """Ask a question in a conversation, or in a new one."""
    answers, form = _answers(visit), visit.form
    question = form.needed("q", tr("The question")).replace("\0", "")
    if len(question) > _QUESTION:
        raise ConsoleError(
            tr("a question has at most {most} letters", most=_QUESTION),
            mend=tr("ask for less"),
        )
    corpus, model = form.text("corpus")[:_NAME], form.text("model")[:_NAME]
    kept = _kept(visit)
    if form.text("c"):
        conversation, _ = await kept.get(form.text("c"))
        if (conversation.corpus, conversation.model) != (corpus, model):
            await kept.choose(conversation.id, corpus, model)
            conversation, _ = await kept.get(conversation.id)
    else:
        conversation = await kept.begin(question, corpus, model)
    await answers.ask(conversation, question, visit.community)
    return RedirectResponse(_address(visit, conversation.id), 303)


async def answer(visit: Visit) -> Response:
    """Stream an answer while it is made."""
    chosen, number = visit.query("c"), visit.number("number")
    await _kept(visit).get(chosen)
    return visit.stream(_pieces(visit, chosen, number))


async def whole(visit: Visit) -> Response:
    """Wait for the answers of a conversation, for browsers without scripts."""
    answers, chosen = _answers(visit), visit.query("c")
    _, turns = await _kept(visit).get(chosen)
    async with asyncio.timeout(_WHOLE_SECONDS):
        for each in turns:
            running = answers.running(chosen, each.number)
            while running is not None and not running.has_ended:
                await running.changed.wait()
    return RedirectResponse(_address(visit, chosen), 303)


async def stop(visit: Visit) -> Response:
    """Stop the answer that is being made; what was said is kept."""
    chosen = visit.form.needed("c", tr("The conversation"))
    await _kept(visit).get(chosen)
    await _answers(visit).stop(chosen)
    return RedirectResponse(_address(visit, chosen), 303)


async def retry(visit: Visit) -> Response:
    """Ask the last question again, as a new one."""
    answers, chosen = _answers(visit), visit.form.needed("c", tr("The conversation"))
    conversation, turns = await _kept(visit).get(chosen)
    if not turns:
        raise ConsoleError(tr("nothing was asked here yet"), mend=tr("write a question"))
    await answers.stop(chosen)
    await answers.ask(conversation, turns[-1].question, visit.community)
    return RedirectResponse(_address(visit, chosen), 303)


async def rename(visit: Visit) -> Response:
    """Rename a conversation."""
    chosen = visit.form.needed("c", tr("The conversation"))
    title = visit.form.needed("title", tr("The name"))[:_NAME].replace("\0", "")
    await _kept(visit).rename(chosen, title)
    return visit.done(tr("It is renamed."), path=_address(visit, chosen))


async def delete(visit: Visit) -> Response:
    """Delete a conversation."""
    answers, chosen = _answers(visit), visit.form.needed("c", tr("The conversation"))
    await _kept(visit).get(chosen)
    await answers.stop(chosen)
    await _kept(visit).delete(chosen)
    return visit.done(tr("The conversation is deleted."))


async def export(visit: Visit) -> Response:
    """Send a conversation as a Markdown file."""
    conversation, turns = await _kept(visit).get(visit.query("c"))
    return Response(
        exported(conversation, turns),
        media_type="text/markdown; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{conversation.id}.md"'},
    )


async def _pieces(visit: Visit, chosen: str, number: int) -> AsyncGenerator[Piece, None]:
    answers = _answers(visit)
    running: RunningAnswer | None = answers.running(chosen, number)
    while running is not None and not running.has_ended:
        changed = running.changed
        yield Piece("answer", markdown(running.text))
        await changed.wait()
        await asyncio.sleep(_STEP_SECONDS)
    conversation, turns = await _kept(visit).get(chosen)
    for each in turns:
        if each.number == number:
            shown = _turn(visit, conversation, each, is_last=each is turns[-1])
            yield Piece("whole", visit.part("ask_turn.html", **shown))
    yield Piece("end")


def _turn(visit: Visit, conversation: Conversation, turn: Turn, *, is_last: bool) -> dict[str, Any]:
    return {
        "conversation": conversation,
        "turn": turn,
        "is_running": False,
        "is_last": is_last,
        "csrf": visit.csrf,
        "page": visit.page,
    }


def _answers(visit: Visit) -> Answers:
    if visit.parts.answers is None:
        raise not_up(tr("the store of conversations"))
    return visit.parts.answers


def _choice(visit: Visit, name: str, kept: str) -> str:
    """What was chosen in a form that was refused, else in the address, else before."""
    if name in visit.form.texts:
        return visit.form.text(name)[:_NAME]
    return visit.query(name)[:_NAME] or kept


def _kept(visit: Visit) -> UserConversations:
    """The conversations of whoever asks."""
    return _answers(visit).conversations.of(visit.session.user)


def _address(visit: Visit, chosen: str) -> str:
    return f"{visit.page.path}?c={quote(chosen, safe='')}"


PAGE: Final = Page(
    "ask",
    mark("Ask"),
    show,
    reads={"answer": answer, "whole": whole, "export": export},
    acts={"ask": ask, "stop": stop, "retry": retry, "rename": rename, "delete": delete},
    group=mark("People"),
    acted_by=Role.READER,
)
