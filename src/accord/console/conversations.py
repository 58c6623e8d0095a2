"""Conversations of people with the community's documents: kept in the console's store.

A conversation has turns, each a question with its answer. The oldest conversations make room for
new ones. Each belongs to a user of the console: no other user sees it, whatever the role, and it
does not land in the pipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from accord.console.messages import tr
from accord.console.sessions import ConsoleError
from accord.console.tables import conversations, turns
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.storage import Store

MOST_CONVERSATIONS: Final = 500
MOST_TURNS: Final = 100
_TITLE: Final = 80


class TurnState(Enum):
    """What became of a question."""

    ASKED = "asked"
    ANSWERED = "answered"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its turns.

    Attributes:
        user: Whose it is; empty for whoever logs in without a user.
    """

    id: str
    title: str
    corpus: str
    model: str
    changed_at: int
    user: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A question with its answer, which is Markdown.

    Attributes:
        sources: What the answer rests on; each has `cid`, `title`, `corpus`, `node`, `pages` and
            `texts`.
        problem: Why it failed.
    """

    number: int
    question: str
    answer: str
    sources: Sequence[dict[str, Any]]
    state: TurnState
    problem: str
    asked_at: int


@dataclass(frozen=True, slots=True)
class Conversations:
    """The conversations in a store. Every method may raise `StoreError`."""

    store: Store
    clock: Clock

    def of(self, user: str) -> "UserConversations":
        """Return those of one user; empty for whoever logs in without a user."""
        return UserConversations(self.store, self.clock, user)

    async def stop_all(self) -> None:
        """Mark questions that a process left without an answer as stopped."""
        left = turns.c.state == TurnState.ASKED.value
        stopped = update(turns).where(left).values(state=TurnState.STOPPED.value)
        await self.store.write(lambda connection: connection.execute(stopped).rowcount)


@dataclass(frozen=True, slots=True)
class UserConversations:
    """The conversations of one user: those of others are not there. May raise `StoreError`."""

    store: Store
    clock: Clock
    user: str

    async def begin(self, question: str, corpus: str, model: str) -> Conversation:
        """Begin a conversation that is called by its first question; the oldest makes room."""
        made = Conversation(
            UlidSource(self.clock).new(), _title(question), corpus, model, self._now(), self.user
        )

        def work(connection: Connection) -> None:
            old = (
                select(conversations.c.id)
                .where(conversations.c.user_name == self.user)
                .order_by(conversations.c.changed_at.desc(), conversations.c.id)
                .offset(MOST_CONVERSATIONS - 1)
            )
            gone = [row.id for row in connection.execute(old)]
            for each in gone:
                _delete(connection, each)
            connection.execute(
                insert(conversations).values(
                    id=made.id,
                    title=made.title,
                    corpus=corpus,
                    model=model,
                    changed_at=made.changed_at,
                    user_name=self.user,
                )
            )

        await self.store.write(work)
        return made

    async def latest(self, words: str = "", most: int = 100) -> list[Conversation]:
        """The latest conversations, those with all words in title or questions if any are given."""
        wanted = (
            select(conversations)
            .where(conversations.c.user_name == self.user)
            .order_by(conversations.c.changed_at.desc(), conversations.c.id)
        )
        for word in words.casefold().split()[:8]:
            asked = (
                select(turns.c.conversation)
                .where(func.lower(turns.c.question).contains(word, autoescape=True))
                .where(turns.c.conversation == conversations.c.id)
            )
            wanted = wanted.where(
                func.lower(conversations.c.title).contains(word, autoescape=True) | asked.exists()
            )

        def work(connection: Connection) -> list[Conversation]:
            return [Conversation(*row) for row in connection.execute(wanted.limit(most))]

        return await self.store.read(work)

    async def get(self, conversation_id: str) -> tuple[Conversation, list[Turn]]:
        """A conversation with its turns; `ConsoleError` if there is none."""

        def work(connection: Connection) -> tuple[Conversation, list[Turn]] | None:
            row = connection.execute(select(conversations).where(self._is(conversation_id))).first()
            if row is None:
                return None
            own = turns.c.conversation == conversation_id
            found = connection.execute(select(turns).where(own).order_by(turns.c.number))
            return Conversation(*row), [_turn(each) for each in found]

        found = await self.store.read(work)
        if found is None:
            raise _missing(conversation_id)
        return found

    async def ask(self, conversation_id: str, question: str) -> int:
        """Add a question and return its number; `ConsoleError` if there is no room for it."""
        now = self._now()

        def work(connection: Connection) -> int | None:
            is_there = select(conversations.c.id).where(self._is(conversation_id))
            if connection.execute(is_there).first() is None:
                return 0
            own = turns.c.conversation == conversation_id
            last = connection.execute(select(func.max(turns.c.number)).where(own)).scalar()
            number = 1 if last is None else int(last) + 1
            if number > MOST_TURNS:
                return None
            changed = update(conversations).where(self._is(conversation_id)).values(changed_at=now)
            connection.execute(changed)
            connection.execute(
                insert(turns).values(
                    conversation=conversation_id,
                    number=number,
                    question=question,
                    answer="",
                    sources="[]",
                    state=TurnState.ASKED.value,
                    problem="",
                    asked_at=now,
                )
            )
            return number

        number = await self.store.write(work)
        if number is None:
            raise ConsoleError(
                tr("a conversation has at most {most} questions", most=MOST_TURNS),
                mend=tr("begin a new one"),
            )
        if not number:
            raise _missing(conversation_id)
        return number

    async def settle(
        self,
        conversation_id: str,
        number: int,
        state: TurnState,
        answer: str = "",
        sources: Sequence[dict[str, Any]] = (),
        problem: str = "",
    ) -> None:
        """Store what became of a question."""

        def work(connection: Connection) -> None:
            own = select(conversations.c.id).where(self._is(conversation_id))
            connection.execute(
                update(turns)
                .where(turns.c.conversation.in_(own), turns.c.number == number)
                .values(
                    answer=answer,
                    sources=orjson.dumps(list(sources)).decode(),
                    state=state.value,
                    problem=problem,
                )
            )

        await self.store.write(work)

    async def choose(self, conversation_id: str, corpus: str, model: str) -> None:
        """Set where a conversation looks from now on, and which model answers."""
        changed = (
            update(conversations)
            .where(self._is(conversation_id))
            .values(corpus=corpus, model=model)
        )
        await self.store.write(lambda connection: connection.execute(changed).rowcount)

    async def rename(self, conversation_id: str, title: str) -> None:
        """Rename a conversation; `ConsoleError` if there is none."""
        changed = update(conversations).where(self._is(conversation_id)).values(title=_title(title))
        if not await self.store.write(lambda connection: connection.execute(changed).rowcount):
            raise _missing(conversation_id)

    async def delete(self, conversation_id: str) -> None:
        """Delete a conversation; `ConsoleError` if there is none."""

        def work(connection: Connection) -> bool:
            wanted = select(conversations.c.id).where(self._is(conversation_id))
            is_there = connection.execute(wanted).first() is not None
            if is_there:
                _delete(connection, conversation_id)
            return is_there

        if not await self.store.write(work):
            raise _missing(conversation_id)

    async def has_answers(self) -> bool:
        """Whether any question of this user was answered."""
        wanted = (
            select(turns.c.number)
            .join(conversations, conversations.c.id == turns.c.conversation)
            .where(conversations.c.user_name == self.user)
            .where(turns.c.state == TurnState.ANSWERED.value)
            .limit(1)
        )
        return await self.store.read(lambda c: c.execute(wanted).first() is not None)

    def _is(self, conversation_id: str) -> ColumnElement[bool]:
        return (conversations.c.id == conversation_id) & (conversations.c.user_name == self.user)

    def _now(self) -> int:
        return int(self.clock.now() * 1000)


def _turn(row: Any) -> Turn:
    return Turn(
        row.number,
        row.question,
        row.answer,
        orjson.loads(row.sources),
        TurnState(row.state),
        row.problem,
        row.asked_at,
    )


def delete_all(connection: Connection, user: str) -> None:
    """Delete what a user asked, so that the next user of this name does not find it."""
    found = select(conversations.c.id).where(conversations.c.user_name == user)
    for each in connection.execute(found).scalars().all():
        _delete(connection, each)


def _delete(connection: Connection, conversation_id: str) -> None:
    connection.execute(delete(turns).where(turns.c.conversation == conversation_id))
    connection.execute(delete(conversations).where(conversations.c.id == conversation_id))


def _title(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE else f"{line[: _TITLE - 1]}…"


def _missing(conversation_id: str) -> ConsoleError:
    return ConsoleError(
        tr("there is no such conversation"),
        where=conversation_id[:40],
        mend=tr("choose one of the list"),
        status=404,
    )
