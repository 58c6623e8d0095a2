"""The audit trail: every plane's journal, read as one list of who did what and when.

The journals stay in the stores of their planes; nothing is copied. They contain no messages and no
secrets.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import orjson
from sqlalchemy import Connection, Select, literal, select

from accord.authority import revisions
from accord.authority.tables import AUTHORITY
from accord.authority.tables import history as steps
from accord.community.store import COMMUNITY_STORE as COMMUNITY
from accord.community.store import communities, events
from accord.kernel.clock import format_time, parse_time
from accord.relay.connector import RELAY
from accord.relay.connector.store import CONTROL_STREAM as CONTROL
from accord.relay.platforms.webchat.feed import STREAM as WEBCHAT_CONTROL
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.station import store
from accord.station.settings import Settings
from accord.station.store import STATION, store_location
from accord.storage import JournalEntry, Schema, Store, exists, journal, open_store

PLANES: Final = ("station", "community", "relay", "webchat", "authority")
DONE: Final = "done"

_PAGE: Final = 1000
# The members of an event's data that say whom and what it is about; texts are left out.
_MEMBERSHIP: Final = (
    "target_node_id",
    "invitee_node_id",
    "founder_node_id",
    "initial_level",
    "new_level",
    "reason",
    "invite_event_id",
    "lamport",
)

# How far a journal was read.
Position: TypeAlias = tuple[int, int]
_BEGINNING: Final[Position] = (0, -1)
# Stubs that a peer sent have no arrival of their own.
_HAS_PLACE: Final = (events.c.stage == "membership") & events.c.arrival.is_not(None)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that somebody did.

    Attributes:
        at: Seconds since the epoch, as in its journal.
        what: The act, in the plane's own word.
        result: `done`, or why it is not valid.
    """

    at: float
    plane: str
    who: str
    what: str
    about: str = ""
    result: str = DONE
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "at": format_time(self.at, millis=True),
            "plane": self.plane,
            "who": self.who,
            "what": self.what,
            "about": self.about,
            "result": self.result,
            "why": self.why,
        }


# Reads a page after a position and returns the new position, the same one at the end.
Read: TypeAlias = Callable[[Connection, Position], tuple[list[AuditEntry], Position]]


@dataclass(slots=True)
class _Journal:
    """A journal and the position up to which it was read."""

    store: Store
    read: Read
    at: Position

    async def page(self) -> list[AuditEntry] | None:
        """Return the next page; None at the end."""
        here = self.at
        deeds, self.at = await self.store.read(lambda c: self.read(c, here))
        return None if self.at == here else deeds


class AuditTrail:
    """The journals of a station, each with a read position; see `open_trail`."""

    def __init__(self, journals: Sequence[_Journal]) -> None:
        self._journals = journals

    async def news(self) -> list[AuditEntry]:
        """Return what was done since the last call, in order of time; `StoreError` on failure."""
        found: list[AuditEntry] = []
        for each in self._journals:
            while (deeds := await each.page()) is not None:
                found += deeds
        return sorted(found, key=lambda deed: deed.at)


@asynccontextmanager
async def open_trail(
    settings: Settings, planes: Iterable[str] = PLANES, *, latest: int | None = None
) -> AsyncIterator[AuditTrail]:
    """Open the trail of a station, running or not; planes that never ran are left out.

    Args:
        latest: Start with so many entries of each; None for all.

    Raises:
        StoreError: A store cannot be opened.
    """
    where, wanted = store_location(settings), frozenset(planes)
    journals: list[_Journal] = []
    async with AsyncExitStack() as opened:
        for plane, source in _SOURCES.items():
            if plane in wanted and exists(where, source.schema):
                store = await opened.enter_async_context(open_store(where, source.schema))
                at = _BEGINNING
                if latest is not None:
                    at = await store.read(partial(source.begin, latest))
                journals.append(_Journal(store, source.read, at))
        yield AuditTrail(journals)


async def recent(settings: Settings, limit: int) -> list[AuditEntry]:
    """Return the latest entries of all planes, the newest last; `StoreError` on failure."""
    async with open_trail(settings, latest=limit) as trail:
        return (await trail.news())[-limit:]


@dataclass(frozen=True, slots=True)
class _Source:
    """A plane's journal: its store, how it is read, and where its latest entries begin."""

    schema: Schema
    read: Read
    begin: Callable[[int, Connection], Position]


def _of_stream(stream: str, tell: Callable[[JournalEntry], Iterable[AuditEntry]]) -> Read:
    def read(connection: Connection, after: Position) -> tuple[list[AuditEntry], Position]:
        page = journal.read(connection, stream, after=after[0], limit=_PAGE)
        deeds = [deed for entry in page for deed in tell(entry)]
        return deeds, (page[-1].seq, 0) if page else after

    return read


def _station(entry: JournalEntry) -> Iterable[AuditEntry]:
    told = orjson.loads(entry.body)
    yield AuditEntry(
        entry.recorded_at / 1000, "station", told["by"], told["what"], _format_facts(told["about"])
    )


def _controlled(plane: str) -> Callable[[JournalEntry], Iterable[AuditEntry]]:
    def tell(entry: JournalEntry) -> Iterable[AuditEntry]:
        told = orjson.loads(entry.body)
        for each in told.get("actions", [told]):
            facts = {name: each[name] for name in each if name not in ("action", "by")}
            # Older entries do not say who it was.
            who = str(each.get("by", "unknown"))
            yield AuditEntry(
                entry.recorded_at / 1000, plane, who, each["action"], _format_facts(facts)
            )

    return tell


def _authority(connection: Connection, after: Position) -> tuple[list[AuditEntry], Position]:
    page = revisions.read_after(connection, *after, limit=_PAGE)
    deeds = [
        AuditEntry(
            step.at,
            "authority",
            step.act.by,
            step.act.act,
            " ".join(filter(None, (step.act.deployment, step.act.contract_id, step.act.digest))),
            "refused" if step.act.act == "refused" else DONE,
            step.act.why or "",
        )
        for step in page
    ]
    return deeds, (page[-1].revision, page[-1].place) if page else after


def _community(connection: Connection, after: Position) -> tuple[list[AuditEntry], Position]:
    query = (
        select(events, communities.c.id)
        .join(communities, communities.c.number == events.c.community)
        .where(_HAS_PLACE, events.c.arrival > after[0])
        .order_by(events.c.arrival)
        .limit(_PAGE)
    )
    rows = connection.execute(query).all()
    deeds = [_membership(row) for row in rows]
    return deeds, (rows[-1].arrival, 0) if rows else after


def _membership(row: Any) -> AuditEntry:
    said: Mapping[str, Any] = orjson.loads(row.body) if row.body else {}
    data = said.get("data", {})
    facts = {name: data[name] for name in _MEMBERSHIP if data.get(name) is not None}
    at = parse_time(said["wall_clock"]) if "wall_clock" in said else row.received_at / 1000
    stands = row.status == "accepted"
    return AuditEntry(
        at,
        "community",
        row.author,
        row.event_type,
        _format_facts({"in": row.id, **facts}),
        DONE if stands else row.status,
        "" if stands else row.rule or "",
    )


def _format_facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _stream_source(
    schema: Schema, stream: str, tell: Callable[[JournalEntry], Iterable[AuditEntry]]
) -> _Source:
    def begin(latest: int, connection: Connection) -> Position:
        reach = journal.stream_ranges(connection).get(stream)
        return (max(0, reach.head - latest), 0) if reach else _BEGINNING

    return _Source(schema, _of_stream(stream, tell), begin)


def _latest_of(query: Select[Any]) -> Callable[[int, Connection], Position]:
    """Where the latest rows begin, by a query for positions, the newest first."""

    def begin(latest: int, connection: Connection) -> Position:
        row = connection.execute(query.offset(latest).limit(1)).first()
        return _BEGINNING if row is None else (row[0], row[1])

    return begin


_MEMBERS: Final = (
    select(events.c.arrival, literal(0)).where(_HAS_PLACE).order_by(events.c.arrival.desc())
)
_STEPS: Final = select(steps.c.revision, steps.c.place).order_by(
    steps.c.revision.desc(), steps.c.place.desc()
)
_SOURCES: Final[Mapping[str, _Source]] = {
    "station": _stream_source(STATION, store.ACTS_STREAM, _station),
    "community": _Source(COMMUNITY, _community, _latest_of(_MEMBERS)),
    "relay": _stream_source(RELAY, CONTROL, _controlled("relay")),
    "webchat": _stream_source(WEBCHAT, WEBCHAT_CONTROL, _controlled("webchat")),
    "authority": _Source(AUTHORITY, _authority, _latest_of(_STEPS)),
}
