"""The open log of one community: receive, append, watch, export and import.

An event is proven before it is stored, stored before it is acknowledged, and folded before
listeners are called. Events of concurrent callers are proven and stored in shared batches.

This node's own events are written to the marker file before they are stored. A node whose store
knows less than its marker must sync with others before it signs again.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

from sqlalchemy import Connection, select

from accord.community import store
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.intake import (
    INTAKE_BATCH,
    Intake,
    IntakeReceipt,
    ProverPool,
    Quota,
    RefusedEvent,
)
from accord.community.log_state import LogState
from accord.community.rules.event import (
    MAX_EVENT_BYTES,
    Event,
    Position,
    compose_event,
    parse_event,
)
from accord.community.rules.fold import Trial
from accord.community.rules.formats import Level
from accord.community.rules.state import CommunityState
from accord.community.settings import LogLimits
from accord.community.store import ProvenEvent, events, register_community
from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time
from accord.kernel.files import replace_private, sync_folder, write_private
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.storage import Store

_LARGEST: Final = 64 * MAX_EVENT_BYTES


class RestoreNote:
    """A marker file: the community's folder was restored, and no other member was reached since."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "restored"

    @property
    def exists(self) -> bool:
        """Whether the marker exists."""
        return self._path.exists()

    def create(self) -> None:
        """Create the marker if it does not exist."""
        if not self.exists:
            write_private(self._path, b"")
            sync_folder(self._path.parent)

    def remove(self) -> None:
        """Remove the marker, once another member was reached."""
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SigningMarker:
    """The file with the events that one author signed last, in the order of its chain."""

    path: Path

    def write(self, events: Sequence[Event]) -> None:
        """Replace the content and fsync; if this raises, the events must not be stored."""
        try:
            replace_private(self.path, b"".join(event.encode() + b"\n" for event in events))
        except OSError as error:
            raise self._unusable("cannot be written", error) from error

    def read(self) -> list[Event]:
        """The events signed last, empty if there are none; raises if the file is damaged."""
        try:
            with self.path.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable("cannot be read", error) from error
        try:
            return [parse_event(line) for line in data.splitlines()]
        except CommunityError as error:
            raise CommunityError(
                Code.INTERNAL_ERROR,
                f"the record of what this node signed last is damaged ({error.what})",
                where=str(self.path),
                mend="remove it and open the log as recovering",
            ) from None

    def _unusable(self, what: str, error: OSError) -> CommunityError:
        return CommunityError(
            Code.INTERNAL_ERROR,
            f"the record of what this node signed last {what} ({os.strerror(error.errno or 0)})",
            where=str(self.path),
            mend="let this user write to the folder, and see that the disk has space",
        )


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last event of an author's chain; the defaults stand for an empty chain."""

    author_seq: int = 0
    hash: str | None = None
    lamport: int = -1


def chain_head(connection: Connection, number: int, author: str) -> ChainHead:
    """The last event of an author in the store."""
    query = (
        select(events.c.author_seq, events.c.digest, events.c.lamport)
        .where(
            events.c.community == number,
            events.c.author == author,
            events.c.author_seq.is_not(None),
        )
        # Of two events with the same number the one with the smaller digest counts.
        .order_by(events.c.author_seq.desc(), events.c.digest)
        .limit(1)
    )
    row = connection.execute(query).first()
    return ChainHead() if row is None else ChainHead(row[0], "blake3:" + row[1].hex(), row[2])


@dataclass(slots=True, eq=False)
class EventAuthor:
    """Signs the events of one chain, one after the other.

    `head` is the last known event. `is_recovering` is set while the store may lack signed events.
    """

    key: SigningKey
    community_id: str
    clock: Clock
    ids: UlidSource
    marker: SigningMarker
    head: ChainHead = ChainHead()
    is_recovering: bool = False

    @property
    def id(self) -> str:
        """The id of the key."""
        return self.key.id

    def begin(self, stored: ChainHead) -> list[Event]:
        """Continue the chain from the store; returns events that were signed but not stored yet."""
        self.head = stored
        signed = [
            event
            for event in self.marker.read()
            if event.author == self.id
            and event.community_id == self.community_id
            and event.author_seq is not None
            and event.author_seq > stored.author_seq
        ]
        if signed and signed[0].prev == stored.hash:
            return signed
        if signed:
            self.is_recovering = True
        return []

    def follow(self, event: Event) -> None:
        """Continue after an event of this author, which may come from another node's copy."""
        if event.author_seq is not None and event.author_seq > self.head.author_seq:
            self.head = ChainHead(event.author_seq, event.hash, event.lamport)

    def check(self) -> None:
        """Raise `partition` if the store was restored and no member was reached since."""
        if self.is_recovering:
            raise CommunityError(
                Code.PARTITION,
                "this node's log was restored and may lack events that it has signed",
                where=self.community_id,
                mend="let it sync with another member first; if there is none, settle it with "
                "`accord community recover --alone`",
            )

    def compose(
        self, event_type: str, data: Mapping[str, Any], head: ChainHead, seen: int
    ) -> Event:
        """Sign the event that follows `head`, with a lamport above `seen`."""
        return compose_event(
            self.key,
            event_type,
            data,
            event_id=self.ids.new(),
            lamport=max(seen, head.lamport) + 1,
            wall_clock=format_time(self.clock.now()),
            community_id=self.community_id,
            author_seq=head.author_seq + 1,
            prev=head.hash,
        )

    def write_marker(self, signed: list[Event]) -> None:
        """Write signed events to the marker; only then may anybody see them."""
        self.marker.write(signed)


_TOGETHER: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class _EventDraft:
    author: EventAuthor
    event_type: str
    data: Mapping[str, Any]
    done: asyncio.Future[Event]


class _SigningQueue:
    """Signs and stores drafts; used on one event loop.

    One task at a time tries, signs and stores all waiting drafts, so that callers share one marker
    write and one commit.
    """

    def __init__(self, log: "EventLog") -> None:
        self._log = log
        self._waiting: list[_EventDraft] = []
        self._unsettled: list[Event] = []
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    async def append(self, author: EventAuthor, event_type: str, data: Mapping[str, Any]) -> Event:
        if self._closed:
            raise CommunityError(Code.PARTITION, "the log is closed")
        loop = asyncio.get_running_loop()
        draft = _EventDraft(author, event_type, data, loop.create_future())
        self._waiting.append(draft)
        if self._runner is None:
            self._runner = loop.create_task(self._run())
        return await draft.done

    async def close(self) -> None:
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

    async def _serve(self, drafts: Sequence[_EventDraft]) -> None:
        try:
            if self._unsettled:
                await self._settle()
            signed = self._sign(drafts, await self._log.folding.trial())
            for author in {draft.author for draft, _ in signed}:
                chain = [event for draft, event in signed if draft.author is author]
                await asyncio.to_thread(author.write_marker, chain)
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
        await self._log.store_signed(self._unsettled)
        self._unsettled = []

    def _sign(self, drafts: Sequence[_EventDraft], trial: Trial) -> list[tuple[_EventDraft, Event]]:
        signed: list[tuple[_EventDraft, Event]] = []
        heads: dict[str, ChainHead] = {}
        seen = self._log.head_lamport
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
            heads[author.id] = ChainHead(head.author_seq + 1, event.hash, event.lamport)
            seen = event.lamport
        return signed


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogUpdate:
    """A change of the log, as listeners see it.

    Attributes:
        arrived: Every new item, whatever its verdict.
        accepted: Events that are accepted now and were not before.
    """

    arrived: tuple[Position, ...]
    accepted: tuple[Event, ...]


class EventLog:
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
        provers: ProverPool | None,
        limits: LogLimits,
    ) -> None:
        self.store = store
        self.number = number
        self.community_id = community_id
        self.clock = clock
        self.key = key
        self.folder = folder
        self._ids = ids
        self.folding = LogState(store, number, community_id, clock, key.id)
        self.limits = limits
        self.quota = Quota(limits, clock, folder, self.folding)
        self._intake = Intake(self, provers)
        self._signing = _SigningQueue(self)
        self._authors: dict[str, EventAuthor] = {}
        self._note = RestoreNote(folder)
        self._is_restored = False
        self._listeners: list[Callable[[LogUpdate], None]] = []

    @property
    def state(self) -> CommunityState:
        """The folded state, which changes in place; to read more than one key use `view`."""
        return self.folding.state

    async def view(self, ask: Callable[[CommunityState], T]) -> T:
        """Call a function with the state while it does not change."""
        return await self.folding.view(ask)

    @property
    def folded(self) -> tuple[int, float]:
        """How many events were folded since the log was opened, and in how many seconds."""
        return self.folding.events, self.folding.seconds

    @property
    def head_lamport(self) -> int:
        """The greatest lamport that is not quarantined; -1 in an empty log."""
        return self.folding.state.lamport

    @property
    def is_recovering(self) -> bool:
        """Whether this node must sync with another before it signs; see `recovered`."""
        return any(author.is_recovering for author in self._authors.values())

    async def receive(self, raws: Sequence[bytes]) -> IntakeReceipt:
        """Store events from anywhere; returns when they are on disk and folded.

        A bad event does not affect the others. Duplicates are counted and change nothing. After a
        `StoreError` the call can be repeated.
        """
        return await self._intake.receive(raws)

    async def append(
        self, event_type: str, data: Mapping[str, Any], *, key: SigningKey | None = None
    ) -> Event:
        """Sign the next event of this node's chain and store it.

        Args:
            key: A key other than the node's, such as the community's root key.

        Raises:
            CommunityError: The data is invalid, the fold would refuse the event, the node must
                recover its chain first, or it has written too much today
                (`capacity_exceeded`). Nothing was published.
            StoreError: The store failed. The event may be stored later, before the next one.
        """
        author = await self._author(key or self.key)
        if not self.is_catching_up:
            self.quota.check(author.id, event_type)
        return await self._signing.append(author, event_type, data)

    def subscribe(self, listener: Callable[[LogUpdate], None]) -> Callable[[], None]:
        """Call a function on the event loop after every batch; returns what unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def watch(self, *, behind: int = 1000) -> AsyncIterator[LogUpdate]:
        """Follow the log; raises `capacity_exceeded` if the reader is `behind` batches late."""
        queue: asyncio.Queue[LogUpdate] = asyncio.Queue()
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
        """Fold what is stored and load this node's chain."""
        await self.folding.open()
        since_ms = int(self.quota.begin_of_day * 1000)
        self.quota.load(
            await self.store.read(lambda c: store.taken_since(c, self.number, since_ms))
        )
        self._is_restored = recovering or await asyncio.to_thread(lambda: self._note.exists)
        await self._author(self.key)

    async def recovered(self) -> None:
        """Called after a complete sync with another member: our chain is complete again."""
        if self.folding.is_partial:
            await self.refold()
        if self._is_restored:
            await asyncio.to_thread(self._note.remove)
            self._is_restored = False
        for author in self._authors.values():
            author.is_recovering = False

    async def prune(self, work: Callable[[Connection], int]) -> int:
        """Run a function that drops bodies; see `retention`."""
        return await self.folding.prune(work)

    async def refold(self) -> None:
        """Fold everything that is stored again."""
        self.notify(LogUpdate((), await self.folding.open()))

    async def close(self) -> None:
        """Refuse new events and finish those that were accepted."""
        await self._intake.close()
        await self._signing.close()

    async def _author(self, key: SigningKey) -> EventAuthor:
        author = self._authors.get(key.id)
        if author is None:
            marker = SigningMarker(self.folder / f"signed.{key.id.removeprefix('ed25519:')}")
            author = EventAuthor(key, self.community_id, self.clock, self._ids, marker)
            head = await self.store.read(lambda c: chain_head(c, self.number, key.id))
            unsettled = await asyncio.to_thread(author.begin, head)
            author.is_recovering |= self._is_restored
            # If a concurrent call was faster, its author is used.
            if self._authors.setdefault(key.id, author) is author and unsettled:
                await self.store_signed(unsettled)
        return self._authors[key.id]

    @property
    def is_catching_up(self) -> bool:
        """Whether this node still has to fetch the log of the others, whatever its size."""
        return self.is_recovering or self.state.roster.level(self.key.id) < Level.MEMBER

    async def store_signed(self, signed: Sequence[Event]) -> None:
        """Store this node's own events; see `store_proven`."""
        proven = [ProvenEvent(event, event.encode().decode()) for event in signed]
        await self.store_proven(proven)
        self.quota.take(proven)

    async def store_proven(self, proven: Sequence[ProvenEvent]) -> Sequence[bool]:
        """Store events, fold them and call the listeners; returns which of them were new."""
        if not proven:
            return ()
        now_ms = int(self.clock.now() * 1000)
        with self.folding.at_hand([each.event for each in proven]):
            is_fresh = await self.store.write(
                lambda c: store.add_events(
                    c, self.number, proven, now_ms=now_ms, source=self.key.id
                )
            )
            fresh = [each.event for each, new in zip(proven, is_fresh, strict=True) if new]
            for event in fresh:
                if event.author in self._authors:
                    self._authors[event.author].follow(event)
            accepted = await self.folding.take(fresh=bool(fresh))
        self.notify(LogUpdate(tuple(event.position for event in fresh), accepted))
        return is_fresh

    def notify(self, news: LogUpdate) -> None:
        """Call every listener, unless nothing changed."""
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
    provers: ProverPool | None = None,
    limits: LogLimits | None = None,
    recovering: bool = False,
) -> AsyncIterator[EventLog]:
    """Open the log of a community; closing finishes what was accepted.

    Args:
        store: The node's community store, shared by the logs of all its communities.
        folder: The community's folder with the signing marker; not part of the store's backups.
        provers: Processes that check signatures; None to check in this process.
        recovering: The operator knows that store and folder are older than what was signed.

    Raises:
        CommunityError: The signing marker cannot be used.
        StoreError: The store failed.
    """
    number = await store.write(lambda c: register_community(c, community_id))
    log = EventLog(
        store,
        number,
        community_id,
        key=key,
        clock=clock,
        folder=folder,
        ids=ids or UlidSource(clock),
        provers=provers,
        limits=limits or LogLimits(),
    )
    try:
        await log.begin(recovering=recovering)
        yield log
    finally:
        await asyncio.shield(log.close())


EXPORT_FORMAT: Final = "accord.community.log.v1"

# Called with the number of events done so far.
Progress: TypeAlias = Callable[[int], None]

_AT_ONCE: Final = 4 * INTAKE_BATCH
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
# Longer than any event, so that the error can name the line that is too long.
_LINE: Final = 2 * MAX_EVENT_BYTES


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A rejected line of an imported file; the header is line 1."""

    number: int
    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Counts of an import, and the first thousand rejected lines."""

    accepted: int
    duplicates: int
    rejected: int
    lines: tuple[RefusedLine, ...]


_MAX_LISTED: Final = 1000


def no_progress(_done: int) -> None:
    """Report nothing."""


async def export_log(log: EventLog, file: BinaryIO, *, progress: Progress = no_progress) -> int:
    """Write every event that has a body to a file, and return their number."""

    def write(connection: Connection) -> int:
        file.write(
            canonical.encode({"community_id": log.community_id, "format": EXPORT_FORMAT}) + b"\n"
        )
        done = 0
        for *_, body in store.read_rows(connection, store.select_bodies(log.number)):
            file.write(body.encode() + b"\n")
            done += 1
            if not done % store.PAGE:
                progress(done)
        progress(done)
        return done

    return await log.store.read(write)


async def import_log(
    log: EventLog, file: BinaryIO, *, progress: Progress = no_progress
) -> ImportResult:
    """Receive every event of a file; importing it again is harmless.

    Raises `bad_request`, receiving nothing, if the header is missing or names another community.
    """
    _check_header(file.readline(_LINE), log.community_id)
    accepted = duplicates = rejected = 0
    listed: list[RefusedLine] = []
    start = 2
    while part := await asyncio.to_thread(_part, file):
        with log.quota.lifted():
            receipt = await log.receive(part)
        accepted += receipt.accepted
        duplicates += receipt.duplicates
        rejected += len(receipt.rejected)
        listed += _lines(receipt.rejected[: _MAX_LISTED - len(listed)], start)
        start += len(part)
        progress(start - 2)
    return ImportResult(accepted, duplicates, rejected, tuple(listed))


def _lines(refused: Sequence[RefusedEvent], start: int) -> list[RefusedLine]:
    return [RefusedLine(start + each.index, each.code, each.reason) for each in refused]


def _check_header(line: bytes, community_id: str) -> None:
    try:
        header: Any = canonical.decode(line)
    except canonical.CanonicalError:
        header = None
    if not isinstance(header, dict) or header.get("format") != EXPORT_FORMAT:
        raise bad_request("this is not an exported log", mend="export it with this version")
    if header.get("community_id") != community_id:
        raise bad_request("the file holds the log of another community")


def _part(file: BinaryIO) -> list[bytes]:
    """The next lines, as many as are received at once."""
    part: list[bytes] = []
    size = 0
    while len(part) < _AT_ONCE and size < _BYTES_AT_ONCE and (line := file.readline(_LINE)):
        part.append(line.rstrip(b"\n"))
        size += len(line)
        # The rest of a line that is too long is skipped.
        while line and not line.endswith(b"\n"):
            line = file.readline(_LINE)
    return part
