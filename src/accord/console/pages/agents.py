"""Agents and deliveries: enrolled agents, what became of each message and why, dead letters.

It reads the relay's store but no message texts; names of people and rooms come from the platforms.
"""

import asyncio
import shlex
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection, func, select
from starlette.responses import Response

from accord.console.messages import mark, tr, trn
from accord.console.page import Page, Piece, Visit
from accord.console.sessions import ConsoleError, not_up
from accord.kernel.clock import format_time
from accord.kernel.errors import AccordError
from accord.relay.connector.connector import Connector
from accord.relay.connector.dead_letters import letter_numbers
from accord.relay.connector.ingest import Explanation, latest_events
from accord.relay.connector.manage import Control
from accord.relay.connector.outbox_store import backlog as outbox_backlog
from accord.relay.connector.platform import Platform, PlatformState, PlatformWithNames
from accord.relay.connector.registry import EnrolmentToken, InstanceRecord, list_tokens
from accord.relay.connector.tables import buffer, queues
from accord.relay.platforms.webchat import Admin, Invite, PendingInvite, User
from accord.relay.rules.verdicts import GateVerdict
from accord.storage import journal

STREAMS: Final = ("relay.inbound", "relay.decisions", "relay.deliveries")
_STATES: Final = {
    "pending": mark("waits to be sent"),
    "sent": mark("sent, not acknowledged yet"),
    "acked": mark("acknowledged"),
    "dead": mark("a dead letter"),
    "parked": mark("waits for an answer of its platform"),
    "refused": mark("not delivered"),
}


@dataclass(frozen=True, slots=True)
class AgentQueue:
    """The queue of an agent, and whether the agent sleeps."""

    waiting: int = 0
    asleep: bool = False


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent as it is shown.

    Attributes:
        is_well: Whether messages reach it, now or when it wakes.
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
    """An agent that a message was considered for, with every layer's verdict."""

    instance: str
    state: str
    is_well: bool
    reason: str
    verdicts: tuple[GateVerdict, ...]


@dataclass(frozen=True, slots=True)
class MessageReport:
    """What became of one message.

    Attributes:
        refusal: What kept it from everybody, if anything.
        verdicts: Those of the layers before any agent is considered.
    """

    event: str
    event_id: str
    at: str
    platform: str
    chat: str
    author: str
    tenant: str | None
    deliveries: tuple[Recipient, ...]
    refusal: GateVerdict | None
    verdicts: tuple[GateVerdict, ...]
    candidates: tuple[Recipient, ...]
    trace_id: str | None = None
    chat_name: str = ""
    author_name: str = ""


def format_millis(milliseconds: int) -> str:
    """Format a time of the store as on the wire."""
    return format_time(milliseconds / 1000)


def stream_heads(connection: Connection) -> tuple[int, ...]:
    """Return the heads of the streams about deliveries, to detect changes."""
    found = journal.stream_ranges(connection)
    return tuple(found[each].head if each in found else 0 for each in STREAMS)


def agent_queues(connection: Connection) -> dict[str, AgentQueue]:
    """Return the queues of all agents that ever had one."""
    count = select(buffer.c.instance, func.count()).group_by(buffer.c.instance)
    rows: dict[str, int] = {row[0]: row[1] for row in connection.execute(count)}
    return {
        row.instance: AgentQueue(rows.get(row.instance, 0), bool(row.flipped))
        for row in connection.execute(select(queues.c.instance, queues.c.flipped))
    }


def latest_messages(connection: Connection, limit: int) -> list[MessageReport]:
    """Return what became of the latest messages, the newest first; `StoreError` if damaged."""
    return [message_report(each) for each in latest_events(connection, limit)]


def agent_rows(
    instances: Iterable[InstanceRecord], queued: Mapping[str, AgentQueue], connected: frozenset[str]
) -> list[AgentRow]:
    """Return all enrolled agents."""
    return [
        _agent_row(each, queued.get(each.instance, AgentQueue()), connected) for each in instances
    ]


def message_report(explained: Explanation) -> MessageReport:
    """Convert an explanation of a message."""
    event, decision = explained.recorded.event, explained.recorded.decision
    later = {each.instance: each for each in explained.later}
    standings = {each.instance: each for each in explained.statuses}
    received = {each.instance for each in explained.statuses if each.state != "refused"}
    candidates = []
    for each in decision.candidates:
        standing = standings.get(each.instance)
        state = mark("not delivered") if standing is None else _STATES[standing.state]
        candidates.append(
            Recipient(
                each.instance,
                state,
                standing is not None and standing.state not in ("dead", "refused"),
                "" if standing is None else standing.reason,
                # What was decided after it had waited for a fact is what holds.
                tuple((later.get(each.instance) or each).verdicts),
            )
        )
    return MessageReport(
        explained.event,
        event.event_id,
        format_millis(explained.received_at),
        event.platform,
        event.chat_id,
        tr("somebody who is not linked") if explained.is_counted else event.author or tr("nobody"),
        decision.tenant,
        tuple(each for each in candidates if each.instance in received),
        None if received else decision.refusal,
        decision.verdicts,
        tuple(candidates),
        explained.trace_id,
    )


async def with_names(
    platforms: Iterable[Platform], some: Sequence[MessageReport]
) -> list[MessageReport]:
    """Add the names of people and rooms."""
    known = await platform_names(
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


async def platform_names(
    platforms: Iterable[Platform], wanted: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Return the names of (platform, id) pairs that their platform knows."""
    asked: defaultdict[str, set[str]] = defaultdict(set)
    for platform, identifier in wanted:
        asked[platform].add(identifier)
    # Bots of one platform know the same people.
    knowing = {each.name: each for each in platforms if isinstance(each, PlatformWithNames)}
    return {
        (platform, identifier): name
        for platform, ids in asked.items()
        if platform in knowing
        for identifier, name in (await knowing[platform].names(ids)).items()
    }


def _agent_row(record: InstanceRecord, queue: AgentQueue, connected: frozenset[str]) -> AgentRow:
    if record.suspended:
        state, is_well = mark("its tenant is switched off"), False
    elif record.revoked_at is not None:
        state, is_well = mark("revoked"), False
    elif record.instance in connected:
        state, is_well = mark("connected"), True
    elif queue.asleep:
        state, is_well = mark("asleep"), True
    else:
        state, is_well = mark("not connected"), False
    return AgentRow(
        record.instance,
        record.tenant,
        record.name,
        record.gateway_id,
        record.origin,
        format_millis(record.created_at),
        state,
        is_well,
        queue.waiting,
        record.live,
    )


_RECENT: Final = 25
_LETTERS: Final = 100
_TOKENS: Final = 20
_LONGEST_EVENT: Final = 600
# Letters replayed per transaction, so that a running connector gets its turn.
_AT_ONCE: Final = 500
_STEP_SECONDS: Final = 1.0
_HOUR: Final = 3600
_WEBCHAT: Final = "webchat"


async def show(
    visit: Visit, minted: EnrolmentToken | None = None, invited: Invite | None = None
) -> Response:
    """Show the agents, the latest messages and the dead letters of both directions."""
    connector = visit.parts.relay()
    if connector is None:
        return visit.show("agents.html", agents=None)
    store, now = connector.store, int(visit.parts.clock.now() * 1000)
    connected = frozenset(each.principal.instance for each in connector.delivery.hub.connections)
    tokens = await store.read(list_tokens)
    letters = await connector.delivery.dead_letters(limit=_LETTERS)
    replies = await connector.delivery.outbox(limit=_LETTERS, dead=True)
    standings = connector.delivery.statuses
    bots = {(each.platform, each.bot_id) for each in standings}
    return visit.show(
        "agents.html",
        agents=agent_rows(
            await connector.control.instances(), await store.read(agent_queues), connected
        ),
        platforms=[
            (each, each.state in (PlatformState.READY, PlatformState.ELSEWHERE))
            for each in standings
        ],
        bots=await platform_names(connector.delivery.platforms, bots),
        space=_agent_space(visit),
        recent=await _recent_messages(connector),
        letters=[(each, format_millis(each.dead_at)) for each in letters],
        owners=sorted({each.instance for each in letters}),
        more=len(letters) == _LETTERS,
        replies=[(each, format_millis(each.ended_at or each.created_at)) for each in replies],
        more_replies=len(replies) == _LETTERS,
        backlog=await store.read(lambda c: outbox_backlog(c, now)),
        tokens=[
            (each, format_millis(each.expires_at))
            for each in tokens
            if each.used_at is None and each.expires_at > now
        ][:_TOKENS],
        minted=minted,
        minted_until=None if minted is None else format_millis(minted.expires_at),
        chat=await _people(visit),
        invited=None if invited is None else _invite_url(visit, invited),
        invited_until=None if invited is None else format_millis(invited.expires_at),
    )


async def show_why(visit: Visit) -> Response:
    """Show who received a message and who did not, with every layer's verdict."""
    event = visit.query("event")
    return visit.show("why.html", asked=event, told=await _explain(visit, event))


async def live(visit: Visit) -> Response:
    """Stream the latest messages whenever the journal has grown."""

    async def pieces() -> AsyncGenerator[Piece, None]:
        seen: tuple[int, ...] | None = None
        while (connector := visit.parts.relay()) is not None:
            try:
                here = await connector.store.read(stream_heads)
                recent = await _recent_messages(connector) if here != seen else None
            except AccordError:
                return  # the plane is going; the browser asks again
            if recent is not None:
                seen = here
                yield Piece("deliveries", visit.part("agents_recent.html", recent=recent))
            await asyncio.sleep(_STEP_SECONDS)

    _connector(visit)
    return visit.stream(pieces())


async def token(visit: Visit) -> Response:
    """Create a token by which one gateway can enrol, and show it once."""
    form = visit.form
    hours = form.number("hours", tr("The number of hours"), 0.001, 8760)
    made = await _control(visit, _connector(visit)).mint_token(
        form.text("tenant") or "default",
        form.text("agent") or None,
        name=form.text("name") or None,
        seconds=max(1, round(hours * _HOUR)),
    )
    emptied = Visit(visit.request, visit.page, visit.session, visit.parts, visit.console)
    return await show(emptied, made)


async def invite(visit: Visit) -> Response:
    """Create a link by which one person joins a space of the web chat, and show it once."""
    form, chat = visit.form, _chat(visit)
    hours = form.number("invite_hours", tr("The number of hours"), 0.001, 8760)
    space = form.needed("space", tr("The space"))
    if space not in {each.id for each in await chat.spaces()}:
        raise ConsoleError(
            tr("there is no such space"), where=space[:80], mend=tr("load the page again")
        )
    made = await chat.invite(
        space, manager=form.text("manager") == "yes", seconds=max(1, round(hours * _HOUR))
    )
    emptied = Visit(visit.request, visit.page, visit.session, visit.parts, visit.console)
    return await show(emptied, invited=made)


async def withdraw(visit: Visit) -> Response:
    """Withdraw an invitation."""
    await _chat(visit).withdraw(visit.form.needed("invite", tr("The invitation")))
    return visit.done(tr("Nobody can join by that invitation any more."))


async def remove(visit: Visit) -> Response:
    """Remove a person's access to the web chat, with all links to agents."""
    chat, user = _chat(visit), visit.form.needed("user", tr("The person"))
    known = {each.id: each.name for each in await chat.users() if not each.is_removed}
    if user not in known:
        raise ConsoleError(
            tr("there is nobody with that id"), where=user[:80], mend=tr("load the page again")
        )
    await chat.remove_user(user)
    await _control(visit, _connector(visit)).unbind(_WEBCHAT, user)
    return visit.done(tr("{name} cannot come in any more.", name=known[user]))


async def revoke(visit: Visit) -> Response:
    """Revoke an agent at once."""
    instance = visit.form.needed("instance", tr("The agent"))
    if visit.form.text("sure") != "yes":
        raise ConsoleError(
            tr("nothing was done: what waits for it would become dead letters"),
            mend=tr("tick the box, too"),
        )
    await _control(visit, await _connector_of(visit, instance)).revoke(instance)
    return visit.done(tr("{instance} is revoked.", instance=instance))


async def pardon(visit: Visit) -> Response:
    """Let a revoked agent enrol again."""
    instance = visit.form.needed("instance", tr("The agent"))
    await _control(visit, await _connector_of(visit, instance)).pardon(instance)
    return visit.done(tr("{instance} may enrol again.", instance=instance))


async def replay(visit: Visit) -> Response:
    """Put dead letters at the end of their agent's queue."""
    connector, instance = _connector(visit), visit.form.needed("instance", tr("The agent"))
    chosen = await _chosen(visit, connector, instance)
    for start in range(0, len(chosen), _AT_ONCE):
        some = chosen[start : start + _AT_ONCE]
        await connector.delivery.replay(instance, some, by=visit.actor)
    return visit.done(
        tr("{count} will be delivered to {instance} again.", count=len(chosen), instance=instance)
    )


async def drop(visit: Visit) -> Response:
    """Delete a dead letter."""
    connector, instance = _connector(visit), visit.form.needed("instance", tr("The agent"))
    chosen = await _chosen(visit, connector, instance)
    await connector.delivery.drop(instance, chosen[:_AT_ONCE], by=visit.actor)
    return visit.done(tr("It is forgotten."))


async def retry(visit: Visit) -> Response:
    """Try a reply again that was given up, or the latest of them."""
    delivery = _connector(visit).delivery
    if visit.form.text("reply") == "all":
        found = await delivery.outbox(limit=_LETTERS, dead=True)
        retried = await delivery.retry_actions([each.number for each in found], by=visit.actor)
        return visit.done(
            trn(
                "{count} reply will be tried again.",
                "{count} replies will be tried again.",
                len(retried),
            )
        )
    chosen = _reply(visit)
    if not await delivery.retry_actions([chosen], by=visit.actor):
        raise _no_reply(str(chosen))
    return visit.done(tr("It will be tried again."))


async def forget(visit: Visit) -> Response:
    """Delete a reply that was given up."""
    chosen = _reply(visit)
    if not await _connector(visit).delivery.drop_actions([chosen], by=visit.actor):
        raise _no_reply(str(chosen))
    return visit.done(tr("It is forgotten."))


def _reply(visit: Visit) -> int:
    """The number of the reply that a form names."""
    wanted = visit.form.needed("reply", tr("The reply"))
    if not wanted.isascii() or not wanted.isdecimal() or len(wanted) > 18:
        raise _no_reply(wanted)
    return int(wanted)


def _no_reply(wanted: str) -> ConsoleError:
    return ConsoleError(
        tr("there is no such reply"), where=wanted[:40], mend=tr("load the page again")
    )


async def _explain(visit: Visit, event: str) -> MessageReport | None:
    if not event:
        return None
    found = None
    if len(event) <= _LONGEST_EVENT and "\0" not in event:
        found = await _connector(visit).delivery.why(event)
    if found is None:
        raise ConsoleError(
            tr("nothing is known of this message"),
            where=event[:80],
            mend=tr("Agents shows the latest; records are kept as long as the journal"),
            status=404,
        )
    [shown] = await with_names(_connector(visit).delivery.platforms, [message_report(found)])
    return shown


@dataclass(frozen=True, slots=True)
class _People:
    """The people and invitations of the web chat."""

    spaces: list[tuple[str, str]]
    users: list[tuple[User, str]]
    pending: list[tuple[PendingInvite, str, str]]


async def _people(visit: Visit) -> _People | None:
    chat = visit.parts.chat()
    if chat is None:
        return None
    spaces = {each.id: each.name for each in await chat.spaces()}
    users = [each for each in await chat.users() if not each.is_removed]
    return _People(
        list(spaces.items()),
        [(each, ", ".join(spaces.get(space, space) for space in each.spaces)) for each in users],
        [
            (each, spaces.get(each.space_id, each.space_id), format_millis(each.expires_at))
            for each in await chat.pending()
        ],
    )


def _invite_url(visit: Visit, invited: Invite) -> str:
    """The full link: relative to the address asked for, if none is configured."""
    base = str(visit.request.base_url).rstrip("/")
    return f"{base}{invited.url}" if invited.url.startswith("/") else invited.url


def _chat(visit: Visit) -> Admin:
    """The web chat's administration, in the name of this session."""
    chat = visit.parts.chat()
    if chat is None:
        raise not_up(
            tr("the web chat"), tr("switch it on with `[relay] webchat`, or wait a moment")
        )
    return chat.acting_as(visit.actor)


def _agent_space(visit: Visit) -> str:
    """The option that selects the concierge's space in commands; empty if unset."""
    chosen = (each for each in visit.parts.settings() if each.section == "concierge")
    space = next((each.value for each in chosen if each.key == "space"), "")
    return f" --space {shlex.quote(space)}" if space else ""


async def _recent_messages(connector: Connector) -> list[MessageReport]:
    found = await connector.store.read(lambda c: latest_messages(c, _RECENT))
    return await with_names(connector.delivery.platforms, found)


async def _chosen(visit: Visit, connector: Connector, instance: str) -> list[int]:
    """The existing letter that a form names, or all of the agent's."""
    there = await connector.store.read(lambda c: letter_numbers(c, instance))
    wanted = visit.form.needed("letter", tr("The letter"))
    if wanted == "all":
        return there
    if wanted not in map(str, there):
        raise ConsoleError(
            tr("the agent has no such dead letter"),
            where=wanted[:40],
            mend=tr("load the page again"),
        )
    return [int(wanted)]


async def _connector_of(visit: Visit, instance: str) -> Connector:
    """The connector, after checking that it knows an agent."""
    connector = _connector(visit)
    if instance not in {each.instance for each in await connector.control.instances()}:
        raise ConsoleError(
            tr("no such agent has enrolled"), where=instance[:80], mend=tr("load the page again")
        )
    return connector


def _control(visit: Visit, connector: Connector) -> Control:
    """The relay's administration, in the name of this session."""
    return connector.control.acting_as(visit.actor)


def _connector(visit: Visit) -> Connector:
    connector = visit.parts.relay()
    if connector is None:
        raise not_up(tr("the relay"))
    return connector


PAGE: Final = Page(
    "agents",
    mark("Agents"),
    show,
    reads={"why": show_why, "live": live},
    acts={
        "token": token,
        "invite": invite,
        "withdraw": withdraw,
        "remove": remove,
        "revoke": revoke,
        "pardon": pardon,
        "replay": replay,
        "drop": drop,
        "retry": retry,
        "forget": forget,
    },
    group=mark("Agents"),
)
