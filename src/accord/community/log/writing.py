"""The way out of this node: events that it signs itself.

Owns the queue of what callers want to have said. One runner at a time judges, signs and stores all
that waits, so that callers share a marker and a commit. What was signed but could not be stored is
stored before anything else is signed, since nobody can know whether it was.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from accord.community.envelope import Event
from accord.community.errors import Code, CommunityError
from accord.community.log.authoring import Author, Head
from accord.community.log.trial import Trial

Store: TypeAlias = Callable[[Sequence[Event]], Awaitable[None]]

_TOGETHER: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    author: Author
    event_type: str
    data: Mapping[str, Any]
    done: asyncio.Future[Event]


class Writing:
    """Signs and stores for one log; made and used on one event loop.

    Args:
        trial: Gives somewhere to find out whether events would stand.
        store: Stores events that were signed, and returns when they are folded.
        seen: The greatest lamport of the log.
    """

    def __init__(
        self,
        trial: Callable[[], Awaitable[Trial]],
        store: Store,
        seen: Callable[[], int],
    ) -> None:
        self._trial = trial
        self._store = store
        self._seen = seen
        self._waiting: list[_Draft] = []
        self._unsettled: list[Event] = []
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    async def append(self, author: Author, event_type: str, data: Mapping[str, Any]) -> Event:
        """Sign and store an event, together with what others want signed."""
        if self._closed:
            raise CommunityError(Code.PARTITION, "the log is closed")
        loop = asyncio.get_running_loop()
        draft = _Draft(author, event_type, data, loop.create_future())
        self._waiting.append(draft)
        if self._runner is None:
            self._runner = loop.create_task(self._run())
        return await draft.done

    async def close(self) -> None:
        """Refuse new drafts and finish those that wait."""
        self._closed = True
        while self._runner is not None:
            await asyncio.wait({self._runner})

    async def _run(self) -> None:
        try:
            while self._waiting:
                drafts, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
                await self._serve(drafts)
        finally:
            self._runner = None

    async def _serve(self, drafts: Sequence[_Draft]) -> None:
        try:
            if self._unsettled:
                await self._settle()
            signed = self._sign(drafts, await self._trial())
            for author in {draft.author for draft, _ in signed}:
                chain = [event for draft, event in signed if draft.author is author]
                await asyncio.to_thread(author.promise, chain)
            self._unsettled = [event for _, event in signed]
            await self._settle()
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            for draft in drafts:
                if not draft.done.done():
                    draft.done.set_exception(error)
            return
        for draft, event in signed:
            if not draft.done.done():
                draft.done.set_result(event)

    async def _settle(self) -> None:
        await self._store(self._unsettled)
        self._unsettled = []

    def _sign(self, drafts: Sequence[_Draft], trial: Trial) -> list[tuple[_Draft, Event]]:
        signed: list[tuple[_Draft, Event]] = []
        heads: dict[str, Head] = {}
        seen = self._seen()
        for draft in drafts:
            if draft.done.done():
                continue  # cancelled before anything was signed
            author = draft.author
            try:
                author.check()
                head = heads.get(author.id, author.head)
                event = author.compose(draft.event_type, draft.data, head, seen)
                trial.add(event)
            except CommunityError as error:
                draft.done.set_exception(error)
                continue
            signed.append((draft, event))
            heads[author.id] = Head(head.author_seq + 1, event.hash, event.lamport)
            seen = event.lamport
        return signed
