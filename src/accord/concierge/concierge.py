"""The concierge: an agent that answers from what a community knows.

Owns the way from a message to an answer. It is an ordinary agent on `RelayGateway`, so it is an
example, too: it is given a turn, yields text, and keeps what belongs to a conversation under the
session key. All that it knows comes from the bus; whatever fails there is said, not raised.
"""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from hashlib import blake2b
from typing import Final

from accord.community.errors import CommunityError
from accord.concierge import intent, saying
from accord.concierge.answering import Spoken, documents, plain, sources
from accord.concierge.commons import Commons, FindModel, Reach
from accord.concierge.hearing import Manners
from accord.concierge.memory import Memory, Session
from accord.concierge.passages import bearing_on, near_posts
from accord.concierge.prompting import MOST_PASSAGES, messages, stops
from accord.relay.gateway import Turn

_POSTS: Final = 5
_CID: Final = "blake3:"
_CID_LEAST: Final = len(_CID) + 8


def _mark() -> str:
    return f"#{secrets.token_hex(4)}#"


class Concierge:
    """Answers in chats.

    Args:
        reach: Opens the community's bus for a turn.
        find_model: The language model to ask for.
        corpus: The only corpus to answer from; empty for all of the community's.
        manners: Where to answer what.
        new_mark: Draws the mark that fences documents in a prompt.
    """

    def __init__(
        self,
        reach: Reach,
        find_model: FindModel,
        *,
        corpus: str = "",
        manners: Manners | None = None,
        new_mark: Callable[[], str] = _mark,
    ) -> None:
        self._reach = reach
        self._find_model = find_model
        self._corpus = corpus
        self._manners = manners or Manners()
        self._new_mark = new_mark
        self._memory = Memory()

    async def __call__(self, turn: Turn) -> AsyncGenerator[str]:
        """Answer a turn."""
        if not self._manners.concern(turn.event):
            return
        session = self._memory.session(turn.session_key)
        asked = intent.read(turn.event.text)
        waiting = session.take(_author(turn))
        if isinstance(asked, intent.Answer) and waiting is not None:
            if asked.yes:
                yield await self._post(turn, waiting)
            else:
                yield saying.DROPPED
        elif isinstance(asked, intent.Draft):
            session.propose(_author(turn), asked)
            yield saying.confirm(asked)
        else:
            async with aclosing(self.answer(asked, session)) as answer:
                async for text in answer:
                    yield text

    async def answer(self, asked: intent.Intent, session: Session) -> AsyncGenerator[str]:
        """Answer whatever needs no author, piece by piece."""
        match asked:
            case intent.Ask(question):
                async with aclosing(self._ask(question, session)) as answer:
                    async for text in answer:
                        yield text
            case intent.FindPosts(query):
                yield await self._find_posts(query)
            case intent.ListFiles():
                yield await self._list_files()
            case intent.FindFile(name):
                yield await self._find_file(name)
            case intent.Link():
                yield saying.LINK
            case intent.Help():
                yield saying.HELP
            case intent.Forget():
                session.forget()
                yield saying.FORGOTTEN
            case intent.Incomplete():
                yield saying.incomplete(asked)
            case intent.Unknown(command):
                yield saying.unknown(command)
            case intent.Answer():
                yield saying.NOTHING_TO_CONFIRM
            case intent.Draft() | intent.Nothing():
                return

    async def _ask(self, question: str, session: Session) -> AsyncGenerator[str]:
        try:
            async with self._reach() as bus:
                commons = Commons(bus, self._corpus)
                corpora = list(await commons.corpora())
                if not corpora:
                    yield saying.NO_DOCUMENTS
                    return
                found = await commons.passages(question, corpora)
                passages = bearing_on(question, found, MOST_PASSAGES)
                if not passages:
                    yield saying.not_known(found, corpora)
                    return
                spoken = Spoken()
                mark = self._new_mark()
                told = messages(question, passages, tuple(session.exchanges), mark)
                try:
                    model = await self._find_model()
                    async with aclosing(commons.speak(model, told, stops(mark))) as pieces:
                        async for piece in pieces:
                            yield spoken.add(piece)
                    yield spoken.end()
                except CommunityError as error:
                    if not spoken.text:
                        yield saying.unanswered(error, passages)
                        return
                    yield saying.broken_off(error)
                yield f"\n\n{sources(passages)}"
                session.remember(question, spoken.text)
        except CommunityError as error:
            yield saying.trouble(error)

    async def _find_posts(self, query: str) -> str:
        try:
            async with self._reach() as bus:
                found, by_meaning = await Commons(bus).posts(query, _POSTS)
        except CommunityError as error:
            return saying.trouble(error)
        return saying.posts(near_posts(found, by_meaning=by_meaning))

    async def _post(self, turn: Turn, draft: intent.Draft) -> str:
        name = turn.source.user_name
        shown = f"from {turn.descriptor.label}"
        if name and not turn.descriptor.pii_safe:
            shown = f"{plain(name)} {shown}"
        # The same message, delivered again after a crash, posts nothing twice.
        said = f"{turn.session_key}\n{turn.event.message_id}".encode()
        client_id = f"concierge-{blake2b(said, digest_size=16).hexdigest()}"
        try:
            async with self._reach() as bus:
                return saying.posted(await Commons(bus).post(draft, client_id, shown))
        except CommunityError as error:
            return saying.trouble(error)

    async def _list_files(self) -> str:
        try:
            async with self._reach() as bus:
                return saying.files(await Commons(bus, self._corpus).corpora())
        except CommunityError as error:
            return saying.trouble(error)

    async def _find_file(self, name: str) -> str:
        try:
            async with self._reach() as bus:
                commons = Commons(bus, self._corpus)
                if name.startswith(_CID):
                    return await self._find_blob(commons, name)
                found = await commons.passages(name, list(await commons.corpora()))
        except CommunityError as error:
            return saying.trouble(error)
        bearing = bearing_on(name, found, len(found))
        return saying.found_files(name, [passage for passage, _ in documents(bearing)])

    async def _find_blob(self, commons: Commons, prefix: str) -> str:
        # Whoever does not know most of an id yet must not learn from us which there are.
        if len(prefix) < _CID_LEAST or any(each not in "0123456789abcdef" for each in prefix[7:71]):
            return saying.blobs(prefix, ())
        return saying.blobs(prefix, await commons.blobs(prefix[:71]))


def _author(turn: Turn) -> str:
    return turn.source.user_id or ""
