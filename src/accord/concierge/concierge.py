"""The concierge: an agent that answers from what a community knows.

It is an ordinary agent on `RelayGateway`: it is given a turn, yields text, and keeps its state per
session key. Errors of the bus become replies.
"""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from hashlib import blake2b
from typing import Final

from accord.community.errors import CommunityError
from accord.concierge.community import CommunityAccess, FindModel, OpenBus
from accord.concierge.rules import replies
from accord.concierge.rules.answers import (
    MOST_PASSAGES,
    StreamedAnswer,
    cited_documents,
    foreign_embedder,
    near_posts,
    plain_line,
    prompt_messages,
    relevant_passages,
    sources,
    stop_sequences,
)
from accord.concierge.rules.conversation import (
    AnswerOutcome,
    AnswerPolicy,
    Ask,
    ConciergeConversation,
    Confirmation,
    ConversationCache,
    ExplainLink,
    FindFile,
    FindPosts,
    Forget,
    Help,
    Incomplete,
    Intent,
    ListFiles,
    NoQuestion,
    PostDraft,
    Unknown,
    read_intent,
)
from accord.relay.gateway import Turn

_POSTS: Final = 5
_CID: Final = "blake3:"
_CID_LEAST: Final = len(_CID) + 8


def _mark() -> str:
    return f"#{secrets.token_hex(4)}#"


class Concierge:
    """Answers in chats.

    Args:
        corpus: The only corpus to answer from; empty for all of the community's.
        new_mark: Returns a new mark to fence documents in a prompt.
    """

    def __init__(
        self,
        open_bus: OpenBus,
        find_model: FindModel,
        *,
        corpus: str = "",
        policy: AnswerPolicy | None = None,
        new_mark: Callable[[], str] = _mark,
    ) -> None:
        self._open_bus = open_bus
        self._find_model = find_model
        self._corpus = corpus
        self._policy = policy or AnswerPolicy()
        self._new_mark = new_mark
        self._memory = ConversationCache()

    async def __call__(self, turn: Turn) -> AsyncGenerator[str]:
        """Answer a turn."""
        if not self._policy.applies_to(turn.event):
            return
        session = self._memory.session(turn.session_key)
        asked = read_intent(turn.event.text)
        waiting = session.take(_author(turn))
        if isinstance(asked, Confirmation) and waiting is not None:
            if asked.yes:
                yield await self._post(turn, waiting)
            else:
                yield replies.DROPPED
        elif isinstance(asked, PostDraft):
            session.propose(_author(turn), asked)
            yield replies.confirm(asked)
        else:
            async with aclosing(self.answer(asked, session)) as answer:
                async for text in answer:
                    yield text

    async def answer(self, asked: Intent, session: ConciergeConversation) -> AsyncGenerator[str]:
        """Answer anything that needs no author; the outcome is set on the session."""
        session.outcome, session.model, session.passages = AnswerOutcome.ANSWERED, None, ()
        match asked:
            case Ask(question):
                async with aclosing(self._ask(question, session)) as answer:
                    async for text in answer:
                        yield text
            case FindPosts(query):
                yield await self._find_posts(query, session)
            case ListFiles():
                yield await self._list_files(session)
            case FindFile(name):
                yield await self._find_file(name, session)
            case ExplainLink():
                yield replies.LINK
            case Help():
                yield replies.HELP
            case Forget():
                session.forget()
                yield replies.FORGOTTEN
            case Incomplete():
                session.outcome = AnswerOutcome.NOT_UNDERSTOOD
                yield replies.incomplete(asked)
            case Unknown(command):
                session.outcome = AnswerOutcome.NOT_UNDERSTOOD
                yield replies.unknown(command)
            case Confirmation():
                yield replies.NOTHING_TO_CONFIRM
            case PostDraft() | NoQuestion():
                return

    async def _ask(self, question: str, session: ConciergeConversation) -> AsyncGenerator[str]:
        try:
            async with self._open_bus() as bus:
                community = CommunityAccess(bus, self._corpus)
                corpora = list(await community.corpora())
                if not corpora:
                    session.outcome = AnswerOutcome.NOT_KNOWN
                    yield replies.NO_DOCUMENTS
                    return
                found = await community.passages(question)
                passages = relevant_passages(question, found, MOST_PASSAGES)
                foreign = foreign_embedder(question, found)
                note = replies.foreign_language(*foreign) if foreign else ""
                if not passages:
                    session.outcome = AnswerOutcome.NOT_KNOWN
                    yield f"{replies.not_known(found, corpora)} {note}".rstrip()
                    return
                session.passages = tuple(passages)
                answer = StreamedAnswer()
                mark = self._new_mark()
                told = prompt_messages(question, passages, tuple(session.exchanges), mark)
                try:
                    session.model = model = await self._find_model()
                    async with aclosing(
                        community.generate(model.name, told, stop_sequences(mark))
                    ) as pieces:
                        async for piece in pieces:
                            yield answer.add(piece)
                    yield answer.end()
                except CommunityError as error:
                    session.outcome = AnswerOutcome.FAILED
                    if not answer.text:
                        yield replies.unanswered(error, passages)
                        return
                    yield replies.broken_off(error)
                author = replies.written_by(session.model) if session.model else ""
                yield f"{author}\n\n{sources(passages)}" + (f"\n\n({note})" if note else "")
                session.remember(question, answer.text)
        except CommunityError as error:
            session.outcome = AnswerOutcome.FAILED
            yield replies.trouble(error)

    async def _find_posts(self, query: str, session: ConciergeConversation) -> str:
        try:
            async with self._open_bus() as bus:
                found, by_meaning = await CommunityAccess(bus).posts(query, _POSTS)
        except CommunityError as error:
            session.outcome = AnswerOutcome.FAILED
            return replies.trouble(error)
        return replies.posts(near_posts(found, by_meaning=by_meaning))

    async def _post(self, turn: Turn, draft: PostDraft) -> str:
        name = turn.source.user_name
        shown = f"from {turn.descriptor.label}"
        if name and not turn.descriptor.pii_safe:
            shown = f"{plain_line(name)} {shown}"
        # A message that is delivered again after a crash is posted once.
        said = f"{turn.session_key}\n{turn.event.message_id}".encode()
        client_id = f"concierge-{blake2b(said, digest_size=16).hexdigest()}"
        try:
            async with self._open_bus() as bus:
                return replies.posted(await CommunityAccess(bus).post(draft, client_id, shown))
        except CommunityError as error:
            return replies.trouble(error)

    async def _list_files(self, session: ConciergeConversation) -> str:
        try:
            async with self._open_bus() as bus:
                return replies.files(await CommunityAccess(bus, self._corpus).corpora())
        except CommunityError as error:
            session.outcome = AnswerOutcome.FAILED
            return replies.trouble(error)

    async def _find_file(self, name: str, session: ConciergeConversation) -> str:
        try:
            async with self._open_bus() as bus:
                community = CommunityAccess(bus, self._corpus)
                if name.startswith(_CID):
                    return await self._find_blob(community, name)
                found = await community.passages(name)
        except CommunityError as error:
            session.outcome = AnswerOutcome.FAILED
            return replies.trouble(error)
        relevant = relevant_passages(name, found, len(found))
        return replies.found_files(name, [passage for passage, _ in cited_documents(relevant)])

    async def _find_blob(self, community: CommunityAccess, prefix: str) -> str:
        # Ids must not be enumerable, so most of one has to be known.
        if len(prefix) < _CID_LEAST or any(each not in "0123456789abcdef" for each in prefix[7:71]):
            return replies.blobs(prefix, ())
        return replies.blobs(prefix, await community.shared(prefix[:71]))


def _author(turn: Turn) -> str:
    return turn.source.user_id or ""
