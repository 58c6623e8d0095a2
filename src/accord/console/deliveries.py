"""What the relay's store says of agents and deliveries, as a page shows it.

Units of work that read, and the words for what they find: the same as `accord relay why` prints,
with the names of people and rooms where their platform knows them. Never reads what anybody wrote,
and changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection, func, select

from accord.kernel.clock import format_time
from accord.relay.connector.control.records import Instance
from accord.relay.connector.delivery.inspect import Explained, why
from accord.relay.connector.delivery.tables import buffer, queues
from accord.relay.connector.operating import latest_events
from accord.relay.connector.platform import Naming, Platform
from accord.relay.gate import Verdict
from accord.storage import journal

STREAMS: Final = ("relay.inbound", "relay.decisions", "relay.deliveries")
_STATES: Final = {
    "pending": "waits to be sent",
    "sent": "sent, not acknowledged yet",
    "acked": "acknowledged",
    "dead": "a dead letter",
}


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits for an agent, and whether it sleeps meanwhile."""

    waiting: int = 0
    asleep: bool = False


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent as it is shown.

    Attributes:
        state: How it stands, in a word or two.
        is_well: Whether messages reach it, now or when it wakes.
        waiting: How many messages wait for it.
        is_live: Whether it may do anything at all.
    """

    instance: str
    tenant: str
    name: str
    gateway: str
    origin: str
    since: str
    state: str
    is_well: bool
    waiting: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class Recipient:
    """An agent that a message was considered for, and every layer's verdict on it."""

    instance: str
    state: str
    is_well: bool
    reason: str
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one message.

    Attributes:
        deliveries: The agents to whom it goes.
        refusal: What kept it from everybody, where something did.
        verdicts: Of the layers that judge before any agent is considered.
        trace_id: The trace under which it came, where that is known.
        chat_name: What its room is called; empty where nobody knows.
        author_name: What its author is called; empty where nobody knows.
    """

    event: str
    event_id: str
    at: str
    platform: str
    chat: str
    author: str
    tenant: str | None
    deliveries: tuple[Recipient, ...]
    refusal: Verdict | None
    verdicts: tuple[Verdict, ...]
    candidates: tuple[Recipient, ...]
    trace_id: str | None = None
    chat_name: str = ""
    author_name: str = ""


def moment(milliseconds: int) -> str:
    """A time of the store as it is written on the wire."""
    return format_time(milliseconds / 1000)


def reached(connection: Connection) -> tuple[int, ...]:
    """How far the streams about deliveries reach; another answer means that there is news."""
    found = journal.reach(connection)
    return tuple(found[each].head if each in found else 0 for each in STREAMS)


def waiting(connection: Connection) -> dict[str, Queue]:
    """The queues of all agents that ever had one."""
    count = select(buffer.c.instance, func.count()).group_by(buffer.c.instance)
    rows: dict[str, int] = {row[0]: row[1] for row in connection.execute(count)}
    return {
        row.instance: Queue(rows.get(row.instance, 0), bool(row.flipped))
        for row in connection.execute(select(queues.c.instance, queues.c.flipped))
    }


def latest(connection: Connection, limit: int) -> list[Told]:
    """What became of the latest messages, the newest first.

    Raises:
        StoreError: A record was damaged.
    """
    found = (why(connection, each) for each in latest_events(connection, limit))
    return [told(each) for each in found if each is not None]


def agents(
    instances: Iterable[Instance], queued: Mapping[str, Queue], connected: frozenset[str]
) -> list[Agent]:
    """Everybody who has enrolled, and how each stands."""
    return [_agent(each, queued.get(each.instance, Queue()), connected) for each in instances]


def told(explained: Explained) -> Told:
    """What was decided about a message, and where its rows are now."""
    event, _, decision = explained.recorded
    standings = {each.instance: each for each in explained.standings}
    candidates = []
    for each in decision.candidates:
        standing = standings.get(each.instance)
        state = "not delivered" if standing is None else _STATES[standing.state]
        candidates.append(
            Recipient(
                each.instance,
                state,
                standing is not None and standing.state != "dead",
                "" if standing is None else standing.reason,
                tuple(each.verdicts),
            )
        )
    return Told(
        explained.event,
        event.event_id,
        moment(explained.received_at),
        event.platform,
        event.chat_id,
        event.author or "nobody",
        decision.tenant,
        tuple(each for each in candidates if each.instance in decision.deliveries),
        decision.refusal,
        decision.verdicts,
        tuple(candidates),
        explained.trace_id,
    )


async def named(platforms: Iterable[Platform], some: Sequence[Told]) -> list[Told]:
    """The same, with what people and rooms are called."""
    known = await names(
        platforms,
        {(each.platform, each.chat) for each in some}
        | {(each.platform, each.author) for each in some},
    )
    return [
        replace(
            each,
            chat_name=known.get((each.platform, each.chat), ""),
            author_name=known.get((each.platform, each.author), ""),
        )
        for each in some
    ]


async def names(
    platforms: Iterable[Platform], wanted: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """What those are called whom their platform knows; each is a platform's name and an id."""
    asked: defaultdict[str, set[str]] = defaultdict(set)
    for platform, identifier in wanted:
        asked[platform].add(identifier)
    # Bots of one platform know the same people.
    knowing = {each.name: each for each in platforms if isinstance(each, Naming)}
    return {
        (platform, identifier): name
        for platform, ids in asked.items()
        if platform in knowing
        for identifier, name in (await knowing[platform].names(ids)).items()
    }


def _agent(record: Instance, queue: Queue, connected: frozenset[str]) -> Agent:
    if record.suspended:
        state, is_well = "its tenant is switched off", False
    elif record.revoked_at is not None:
        state, is_well = "revoked", False
    elif record.instance in connected:
        state, is_well = "connected", True
    elif queue.asleep:
        state, is_well = "asleep", True
    else:
        state, is_well = "not connected", False
    return Agent(
        record.instance,
        record.tenant,
        record.name,
        record.gateway_id,
        record.origin,
        moment(record.created_at),
        state,
        is_well,
        queue.waiting,
        record.live,
    )
