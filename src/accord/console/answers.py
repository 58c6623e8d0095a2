"""Answers to questions: made in the background, so that a page may be closed or reloaded.

The rules are the concierge's. Any number of pages follow one answer; whoever asked can stop it, and
what was said until then is kept.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.concierge.community import CommunityAccess, offered_model
from accord.concierge.rules.answers import (
    MOST_PASSAGES,
    AnsweredQuestion,
    RetrievedPassage,
    StreamedAnswer,
    cited_documents,
    prompt_messages,
    relevant_passages,
    stop_sequences,
)
from accord.concierge.rules.replies import written_by
from accord.console.conversations import Conversation, Conversations, Turn, TurnState
from accord.console.messages import mark, tr
from accord.console.sessions import ConsoleError
from accord.kernel.errors import AccordError

UNKNOWN: Final = mark("I do not know: nothing in the documents is about this.")
NO_MODEL: Final = mark(
    "There is no language model here to put it in words. This is what the documents say:"
)
MOST_ANSWERS: Final = 8
_TEXT: Final = 64 * 1024
_STOP_SECONDS: Final = 10.0

OpenClient = Callable[[], AbstractAsyncContextManager[Client]]


@dataclass(slots=True, eq=False)
class RunningAnswer:
    """An answer that is being made; `changed` is replaced whenever there is more of it."""

    text: str = ""
    sources: list[dict[str, Any]] = field(default_factory=list)
    has_ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        """Wake everybody who follows it."""
        self.changed.set()
        self.changed = asyncio.Event()


class Answers:
    """The answers that are being made now, by conversation and number of the question."""

    def __init__(self, conversations: Conversations) -> None:
        self.conversations = conversations
        self._running: dict[tuple[str, int], tuple[RunningAnswer, asyncio.Task[None]]] = {}

    async def ask(self, conversation: Conversation, question: str, connect: OpenClient) -> int:
        """Store a question and begin to answer it; returns its number.

        Raises:
            ConsoleError: Too many are being answered, or the conversation is too long.
        """
        if len(self._running) >= MOST_ANSWERS:
            raise ConsoleError(
                tr("{count} questions are being answered already", count=MOST_ANSWERS),
                mend=tr("wait for one, or stop it"),
                status=429,
            )
        kept = self.conversations.of(conversation.user)
        number = await kept.ask(conversation.id, question)
        running = RunningAnswer()
        task = asyncio.create_task(
            self._answer(running, conversation, number, question, connect), name="answer"
        )
        self._running[conversation.id, number] = running, task
        await asyncio.sleep(0)  # so that it has begun before somebody stops it
        return number

    def running(self, conversation_id: str, number: int) -> RunningAnswer | None:
        """The answer to a question, if it is being made."""
        found = self._running.get((conversation_id, number))
        return None if found is None else found[0]

    async def stop(self, conversation_id: str) -> None:
        """Stop what is being answered in a conversation, and wait until it is stored."""
        tasks = [task for (each, _), (_, task) in self._running.items() if each == conversation_id]
        await _cancel(tasks)

    async def close(self) -> None:
        """Stop everything."""
        await _cancel([task for _, task in self._running.values()])

    async def _answer(
        self,
        running: RunningAnswer,
        conversation: Conversation,
        number: int,
        question: str,
        connect: OpenClient,
    ) -> None:
        state, problem = TurnState.STOPPED, ""
        kept = self.conversations.of(conversation.user)
        try:
            async with connect() as client:
                _, turns = await kept.get(conversation.id)
                history = [
                    AnsweredQuestion(each.question, each.answer)
                    for each in turns
                    if each.state is TurnState.ANSWERED
                ]
                async with aclosing(
                    _pieces(client, conversation, question, history, running.sources)
                ) as pieces:
                    async for piece in pieces:
                        running.text = (running.text + piece)[:_TEXT]
                        running.tell()
            state = TurnState.ANSWERED
        except AccordError as error:
            state, problem = TurnState.FAILED, str(error)
        finally:
            storing = kept.settle(
                conversation.id, number, state, running.text, running.sources, problem
            )
            try:
                await asyncio.shield(asyncio.ensure_future(storing))
            finally:
                self._running.pop((conversation.id, number), None)
                running.has_ended = True
                running.tell()


async def _pieces(
    client: Client,
    conversation: Conversation,
    question: str,
    history: Sequence[AnsweredQuestion],
    sources: list[dict[str, Any]],
) -> AsyncGenerator[str, None]:
    commons = CommunityAccess(client, conversation.corpus)
    found = await commons.passages(question)
    passages = relevant_passages(question, found, MOST_PASSAGES)
    if not passages:
        yield tr(UNKNOWN)
        return
    sources += _sources(passages)
    try:
        model = await offered_model(client, conversation.model)
    except CommunityError as error:
        if error.code is not Code.NOT_IMPLEMENTED:
            raise
        yield tr(NO_MODEL)
        return
    spoken, nonce = StreamedAnswer(), secrets.token_hex(8)
    asked = prompt_messages(question, passages, history, nonce)
    async with aclosing(commons.generate(model.name, asked, stop_sequences(nonce))) as pieces:
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


async def _cancel(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_STOP_SECONDS)


def exported(conversation: Conversation, turns: Sequence[Turn]) -> str:
    """A conversation as a Markdown document."""
    lines = [f"# {conversation.title}", ""]
    for each in turns:
        lines += [f"## {' '.join(each.question.split())}", "", each.answer or each.state.value, ""]
        if each.sources:
            lines += [tr("Sources:"), ""]
            lines += [f"- {source['title']} ({source['cid']})" for source in each.sources] + [""]
    return "\n".join(lines)
