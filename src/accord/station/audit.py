"""Who did what to a station, when, and what came of it: every plane's journal, as one trail.

Owns how each journal is read, and the words in which its entries are told alike. The journals stay
where they are, each written in the same store as what it tells about; nothing is copied and nothing
is decided. What people wrote, and secrets, are in none of them.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import orjson
from sqlalchemy import Connection, Select, literal, select

from accord.authority import history
from accord.authority.schema import AUTHORITY
from accord.authority.tables import history as steps
from accord.community.log import SCHEMA as COMMUNITY
from accord.community.log.tables import communities, events
from accord.kernel.clock import format_time, parse_time
from accord.relay.connector import RELAY
from accord.relay.connector.control.changes import STREAM as CONTROL
from accord.relay.platforms.webchat.changes import STREAM as WEBCHAT_CONTROL
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.station import acts
from accord.station.settings import Settings
from accord.station.store import STATION, place
from accord.storage import Entry, Schema, Store, exists, journal, open_store

PLANES: Final = ("station", "community", "relay", "webchat", "authority")
DONE: Final = "done"

_PAGE: Final = 1000
# Of an event's data: whom and what it is about. What it says in words is left out.
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

# Where a journal was read to; what comes later is behind it.
Position: TypeAlias = tuple[int, int]
_BEGINNING: Final[Position] = (0, -1)
# A stub that a peer gave never arrived by itself.
_HAS_PLACE: Final = (events.c.stage == "membership") & events.c.arrival.is_not(None)


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that somebody did.

    Attributes:
        at: When, in seconds since the epoch, as its journal says.
        plane: Whose journal it stands in.
        who: Who did it, or asked for it.
        what: The act, in one word of its plane.
        about: Whom or what it touched.
        result: `done`, or why it does not stand.
        why: What whoever did it had to say.
    """

    at: float
    plane: str
    who: str
    what: str
    about: str = ""
    result: str = DONE
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "at": format_time(self.at, millis=True),
            "plane": self.plane,
            "who": self.who,
            "what": self.what,
            "about": self.about,
            "result": self.result,
            "why": self.why,
        }


# Reads a page behind a position: the deeds, and how far it came; the same position at the end.
Read: TypeAlias = Callable[[Connection, Position], tuple[list[Deed], Position]]


@dataclass(slots=True)
class _Journal:
    """A journal, and how far it was read."""

    store: Store
    read: Read
    at: Position

    async def page(self) -> list[Deed] | None:
        """What follows, at most a page; None at the end."""
        here = self.at
        deeds, self.at = await self.store.read(lambda c: self.read(c, here))
        return None if self.at == here else deeds


class Trail:
    """The journals of a station, read on from where they were last read; see `open_trail`."""

    def __init__(self, journals: Sequence[_Journal]) -> None:
        self._journals = journals

    async def news(self) -> list[Deed]:
        """What was done since the last call, in the order of time.

        Raises:
            StoreError: A journal cannot be read.
        """
        found: list[Deed] = []
        for each in self._journals:
            while (deeds := await each.page()) is not None:
                found += deeds
        return sorted(found, key=lambda deed: deed.at)


@asynccontextmanager
async def open_trail(
    settings: Settings, planes: Iterable[str] = PLANES, *, latest: int | None = None
) -> AsyncIterator[Trail]:
    """The trail of a station, whether or not it runs; a plane that never ran has none.

    Args:
        settings: The station's.
        planes: Whose journals to read.
        latest: Begin with so many entries of each; None for everything.

    Raises:
        StoreError: A store cannot be opened.
    """
    where, wanted = place(settings), frozenset(planes)
    journals: list[_Journal] = []
    async with AsyncExitStack() as opened:
        for plane, source in _SOURCES.items():
            if plane in wanted and exists(where, source.schema):
                store = await opened.enter_async_context(open_store(where, source.schema))
                at = _BEGINNING
                if latest is not None:
                    at = await store.read(partial(source.begin, latest))
                journals.append(_Journal(store, source.read, at))
        yield Trail(journals)


async def recent(settings: Settings, limit: int) -> list[Deed]:
    """The latest deeds of all planes, the newest last.

    Raises:
        StoreError: A journal cannot be read.
    """
    async with open_trail(settings, latest=limit) as trail:
        return (await trail.news())[-limit:]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a plane keeps its journal, how it is read, and where its latest entries begin."""

    schema: Schema
    read: Read
    begin: Callable[[int, Connection], Position]


def _of_stream(stream: str, tell: Callable[[Entry], Iterable[Deed]]) -> Read:
    def read(connection: Connection, after: Position) -> tuple[list[Deed], Position]:
        page = journal.read(connection, stream, after=after[0], limit=_PAGE)
        deeds = [deed for entry in page for deed in tell(entry)]
        return deeds, (page[-1].seq, 0) if page else after

    return read


def _station(entry: Entry) -> Iterable[Deed]:
    told = orjson.loads(entry.body)
    yield Deed(entry.recorded_at / 1000, "station", told["by"], told["what"], _facts(told["about"]))


def _controlled(plane: str) -> Callable[[Entry], Iterable[Deed]]:
    def tell(entry: Entry) -> Iterable[Deed]:
        told = orjson.loads(entry.body)
        for each in told.get("actions", [told]):
            facts = {name: each[name] for name in each if name not in ("action", "by")}
            # Older entries do not say who it was.
            who = str(each.get("by", "unknown"))
            yield Deed(entry.recorded_at / 1000, plane, who, each["action"], _facts(facts))

    return tell


def _authority(connection: Connection, after: Position) -> tuple[list[Deed], Position]:
    page = history.follow(connection, *after, limit=_PAGE)
    deeds = [
        Deed(
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


def _community(connection: Connection, after: Position) -> tuple[list[Deed], Position]:
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


def _membership(row: Any) -> Deed:
    said: Mapping[str, Any] = orjson.loads(row.body) if row.body else {}
    data = said.get("data", {})
    facts = {name: data[name] for name in _MEMBERSHIP if data.get(name) is not None}
    at = parse_time(said["wall_clock"]) if "wall_clock" in said else row.received_at / 1000
    stands = row.status == "accepted"
    return Deed(
        at,
        "community",
        row.author,
        row.event_type,
        _facts({"in": row.id, **facts}),
        DONE if stands else row.status,
        "" if stands else row.rule or "",
    )


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _stream(schema: Schema, stream: str, tell: Callable[[Entry], Iterable[Deed]]) -> _Source:
    def begin(latest: int, connection: Connection) -> Position:
        reach = journal.reach(connection).get(stream)
        return (max(0, reach.head - latest), 0) if reach else _BEGINNING

    return _Source(schema, _of_stream(stream, tell), begin)


def _latest_of(query: Select[Any]) -> Callable[[int, Connection], Position]:
    """Where the latest rows begin, by a query for places, the newest first."""

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
    "station": _stream(STATION, acts.STREAM, _station),
    "community": _Source(COMMUNITY, _community, _latest_of(_MEMBERS)),
    "relay": _stream(RELAY, CONTROL, _controlled("relay")),
    "webchat": _stream(WEBCHAT, WEBCHAT_CONTROL, _controlled("webchat")),
    "authority": _Source(AUTHORITY, _authority, _latest_of(_STEPS)),
}
