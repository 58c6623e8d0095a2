"""The open log of one community: receive, append, watch.

Puts the parts together and owns their order: proven, then stored, then folded, then told. What
each part does is its own; nothing here knows SQL, signatures or the rules of the fold.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection

from accord.community.envelope import Event, Position
from accord.community.errors import Code, CommunityError
from accord.community.fold import State
from accord.community.log import keeping, rows
from accord.community.log.authoring import Author, head_of
from accord.community.log.folding import Folding
from accord.community.log.intake import Intake, Receipt
from accord.community.log.marker import Marker, Note
from accord.community.log.provers import Provers
from accord.community.log.proving import Outcome, prove_each
from accord.community.log.rows import Proven
from accord.community.log.writing import Writing
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource
from accord.storage import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class News:
    """What a batch brought.

    Attributes:
        arrived: Every item that is new in the log, standing or not: what reconciliation counts.
        accepted: Events that stand now and did not before.
    """

    arrived: tuple[Position, ...]
    accepted: tuple[Event, ...]


class Log:
    """A community's log on this node; see `open_log`."""

    def __init__(
        self,
        store: Store,
        number: int,
        community_id: str,
        *,
        key: SigningKey,
        clock: Clock,
        folder: Path,
        ids: UlidSource,
        provers: Provers | None,
    ) -> None:
        self.store = store
        self.number = number
        self.community_id = community_id
        self.clock = clock
        self.key = key
        self._folder = folder
        self._ids = ids
        self._folding = Folding(store, number, community_id, clock)
        self._provers = provers
        self._intake = Intake(self._prove, self._settle)
        self._writing = Writing(self._folding.trial, self._store, self._seen)
        self._authors: dict[str, Author] = {}
        self._note = Note(folder)
        self._is_restored = False
        self._listeners: list[Callable[[News], None]] = []

    @property
    def state(self) -> State:
        """What all the events come to; for single lookups, since it goes on changing.

        Whoever looks at more of it than one key uses `view`.
        """
        return self._folding.state

    async def view(self, ask: Callable[[State], T]) -> T:
        """Ask something of the state while it stands still, as with `fold.views.members`."""
        return await self._folding.view(ask)

    @property
    def folded(self) -> tuple[int, float]:
        """How many events were folded since the log was opened, and how many seconds that took."""
        return self._folding.events, self._folding.seconds

    @property
    def head_lamport(self) -> int:
        """The greatest lamport that is not quarantined; -1 in an empty log."""
        return self._folding.state.lamport

    @property
    def is_recovering(self) -> bool:
        """Whether this node must hear from another before it signs; see `recovered`."""
        return any(author.is_recovering for author in self._authors.values())

    async def receive(self, raws: Sequence[bytes]) -> Receipt:
        """Take events from anywhere; returns when they are on disk and folded.

        Every event is proven on its own, so one that is bad hinders no other. What is there
        already is counted and changes nothing.

        Raises:
            StoreError: The store failed; repeat the call, which writes nothing twice.
        """
        return await self._intake.receive(raws)

    async def append(
        self, event_type: str, data: Mapping[str, Any], *, key: SigningKey | None = None
    ) -> Event:
        """Say something: sign the next event of this node's chain and store it.

        Args:
            event_type: Its type.
            data: What it says.
            key: Another key than the node's, such as the community's root key.

        Raises:
            CommunityError: The data does not fit, the fold would refuse it, or this node has to
                recover its own chain first; nothing was signed that anybody will see.
            StoreError: The store failed. The event may be stored later, before the next one.
        """
        author = await self._author(key or self.key)
        return await self._writing.append(author, event_type, data)

    def subscribe(self, listener: Callable[[News], None]) -> Callable[[], None]:
        """Call a function after every batch, on the event loop; returns what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def watch(self, *, behind: int = 1000) -> AsyncIterator[News]:
        """Follow the log.

        Args:
            behind: How many batches a slow reader may be behind before it is let go.

        Raises:
            CommunityError: The reader was too slow: `capacity_exceeded`.
        """
        queue: asyncio.Queue[News] = asyncio.Queue()
        end = self.subscribe(queue.put_nowait)
        try:
            while queue.qsize() <= behind:
                yield await queue.get()
        finally:
            end()
        raise CommunityError(
            Code.CAPACITY_EXCEEDED,
            f"a reader of the log is more than {behind} batches behind",
            mend="read the log from where you are, then watch again",
        )

    async def begin(self, *, recovering: bool) -> None:
        """Fold what is stored and take up this node's chain."""
        await self._folding.open()
        self._is_restored = recovering or await asyncio.to_thread(lambda: self._note.stands)
        await self._author(self.key)

    async def recovered(self) -> None:
        """A sync with another member is complete: what others have of our chain is here."""
        if self._folding.is_partial:
            await self.refold()
        if self._is_restored:
            await asyncio.to_thread(self._note.remove)
            self._is_restored = False
        for author in self._authors.values():
            author.is_recovering = False

    async def prune(self, work: Callable[[Connection], int]) -> int:
        """Run what drops bodies; see `upkeep`."""
        return await self._folding.prune(work)

    async def refold(self) -> None:
        """Fold all that is stored anew."""
        self.tell(News((), await self._folding.open()))

    async def close(self) -> None:
        """Finish what was accepted and refuse what comes."""
        await self._intake.close()
        await self._writing.close()

    async def _author(self, key: SigningKey) -> Author:
        author = self._authors.get(key.id)
        if author is None:
            marker = Marker(self._folder / f"signed.{key.id.removeprefix('ed25519:')}")
            author = Author(key, self.community_id, self.clock, self._ids, marker)
            head = await self.store.read(lambda c: head_of(c, self.number, key.id))
            unsettled = await asyncio.to_thread(author.begin, head)
            author.is_recovering |= self._is_restored
            # Another call may have been as quick; then its author is the one.
            if self._authors.setdefault(key.id, author) is author and unsettled:
                await self._store(unsettled)
        return self._authors[key.id]

    def _seen(self) -> int:
        return self.head_lamport

    async def _prove(self, raws: Sequence[bytes]) -> Sequence[Outcome]:
        if self._provers is not None:
            return await self._provers.prove(raws, self.community_id)
        return await asyncio.to_thread(prove_each, raws, self.community_id)

    async def _store(self, signed: Sequence[Event]) -> None:
        await self._settle([Proven(event, event.encode().decode()) for event in signed])

    async def _settle(self, proven: Sequence[Proven]) -> Sequence[bool]:
        if not proven:
            return ()
        now_ms = int(self.clock.now() * 1000)
        with self._folding.at_hand([each.event for each in proven]):
            is_fresh = await self.store.write(
                lambda c: keeping.add(c, self.number, proven, now_ms=now_ms, source=self.key.id)
            )
            fresh = [each.event for each, new in zip(proven, is_fresh, strict=True) if new]
            for event in fresh:
                if event.author in self._authors:
                    self._authors[event.author].saw(event)
            accepted = await self._folding.take(fresh=bool(fresh))
        self.tell(News(tuple(event.position for event in fresh), accepted))
        return is_fresh

    def tell(self, news: News) -> None:
        """Call every listener, where there is anything to tell."""
        if news.arrived or news.accepted:
            for listener in tuple(self._listeners):
                listener(news)


@asynccontextmanager
async def open_log(
    store: Store,
    community_id: str,
    *,
    key: SigningKey,
    clock: Clock,
    folder: Path,
    ids: UlidSource | None = None,
    provers: Provers | None = None,
    recovering: bool = False,
) -> AsyncIterator[Log]:
    """Open the log of a community; closing finishes what was accepted.

    Args:
        store: The node's community store, which serves the logs of all its communities.
        community_id: Which log.
        key: The node's own key.
        clock: Where time comes from.
        folder: The community's folder, which is no part of the store's backups: it holds what
            was signed last.
        ids: Where event ids come from.
        provers: Processes that check signatures, shared by the logs of a node.
        recovering: The operator knows that store and folder are older than what was signed.

    Raises:
        CommunityError: The record of what was signed last cannot be used.
        StoreError: The store failed.
    """
    number = await store.write(lambda c: rows.register(c, community_id))
    log = Log(
        store,
        number,
        community_id,
        key=key,
        clock=clock,
        folder=folder,
        ids=ids or UlidSource(clock),
        provers=provers,
    )
    try:
        await log.begin(recovering=recovering)
        yield log
    finally:
        await asyncio.shield(log.close())
