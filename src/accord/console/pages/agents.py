"""Agents and deliveries: who has enrolled, what became of each message and why, dead letters."""

import asyncio
import shlex
from collections.abc import AsyncGenerator
from typing import Final

from starlette.responses import Response

from accord.console.deliveries import (
    Told,
    agents,
    latest,
    moment,
    named,
    names,
    reached,
    told,
    waiting,
)
from accord.console.errors import ConsoleError
from accord.console.page import Page, Visit
from accord.console.stream import Piece
from accord.kernel.errors import AccordError
from accord.relay.connector.assembly import Connector
from accord.relay.connector.control import Control
from accord.relay.connector.control.handed import EnrolmentToken
from accord.relay.connector.operating import drop_letters, enrolment_tokens, letters_of
from accord.relay.connector.platform import PlatformState

_RECENT: Final = 25
_LETTERS: Final = 100
_TOKENS: Final = 20
_LONGEST_EVENT: Final = 600
# How many letters one unit of work takes up again, so that a running connector gets its turn.
_AT_ONCE: Final = 500
_STEP_SECONDS: Final = 1.0
_HOUR: Final = 3600


async def show(visit: Visit, minted: EnrolmentToken | None = None) -> Response:
    """Everybody who has enrolled, the latest messages, and what could not be delivered."""
    connector = visit.parts.relay()
    if connector is None:
        return visit.show("agents.html", agents=None)
    store, now = connector.store, int(visit.parts.clock.now() * 1000)
    connected = frozenset(each.principal.instance for each in connector.delivery.hub.connections)
    tokens = await store.read(enrolment_tokens)
    letters = await connector.delivery.dead_letters(limit=_LETTERS)
    standings = connector.delivery.standings
    bots = {(each.platform, each.bot_id) for each in standings}
    return visit.show(
        "agents.html",
        agents=agents(await connector.control.instances(), await store.read(waiting), connected),
        platforms=[
            (each, each.state in (PlatformState.READY, PlatformState.ELSEWHERE))
            for each in standings
        ],
        bots=await names(connector.delivery.platforms, bots),
        space=_lobby(visit),
        recent=await _recent(connector),
        letters=[(each, moment(each.dead_at)) for each in letters],
        owners=sorted({each.instance for each in letters}),
        more=len(letters) == _LETTERS,
        tokens=[
            (each, moment(each.expires_at))
            for each in tokens
            if each.used_at is None and each.expires_at > now
        ][:_TOKENS],
        minted=minted,
        minted_until=None if minted is None else moment(minted.expires_at),
    )


async def why(visit: Visit) -> Response:
    """Who received a message and who did not, with every layer's verdict."""
    event = visit.query("event")
    return visit.show("why.html", asked=event, told=await _explained(visit, event))


async def live(visit: Visit) -> Response:
    """The latest messages, told anew whenever the journal has grown."""

    async def pieces() -> AsyncGenerator[Piece, None]:
        seen: tuple[int, ...] | None = None
        while (connector := visit.parts.relay()) is not None:
            try:
                here = await connector.store.read(reached)
                recent = await _recent(connector) if here != seen else None
            except AccordError:
                return  # the plane is going; the browser asks again
            if recent is not None:
                seen = here
                yield Piece("deliveries", visit.part("agents_recent.html", recent=recent))
            await asyncio.sleep(_STEP_SECONDS)

    _connector(visit)
    return visit.stream(pieces())


async def token(visit: Visit) -> Response:
    """Make a token by which one gateway can enrol, and show it once."""
    form = visit.form
    hours = form.number("hours", "The number of hours", 0.001, 8760)
    made = await _control(visit, _connector(visit)).mint_token(
        form.text("tenant") or "default",
        form.text("agent") or None,
        name=form.text("name") or None,
        seconds=max(1, round(hours * _HOUR)),
    )
    emptied = Visit(visit.request, visit.page, visit.session, visit.parts, visit.rendering)
    return await show(emptied, made)


async def revoke(visit: Visit) -> Response:
    """Take an agent away at once."""
    instance = visit.form.needed("instance", "The agent")
    if visit.form.text("sure") != "yes":
        raise ConsoleError(
            "nothing was done: what waits for it would become dead letters",
            mend="tick the box, too",
        )
    await _control(visit, await _knowing(visit, instance)).revoke(instance)
    return visit.done(f"{instance} is revoked.")


async def pardon(visit: Visit) -> Response:
    """Let a revoked agent enrol again."""
    instance = visit.form.needed("instance", "The agent")
    await _control(visit, await _knowing(visit, instance)).pardon(instance)
    return visit.done(f"{instance} may enrol again.")


async def replay(visit: Visit) -> Response:
    """Put dead letters at the end of their agent's queue."""
    connector, instance = _connector(visit), visit.form.needed("instance", "The agent")
    chosen = await _chosen(visit, connector, instance)
    for start in range(0, len(chosen), _AT_ONCE):
        some = chosen[start : start + _AT_ONCE]
        await connector.delivery.replay(instance, some, by=visit.actor)
    return visit.done(f"{len(chosen)} will be delivered to {instance} again.")


async def drop(visit: Visit) -> Response:
    """Forget a dead letter for good."""
    connector, instance = _connector(visit), visit.form.needed("instance", "The agent")
    chosen = await _chosen(visit, connector, instance)
    burial = connector.delivery.burial("dropped", visit.actor)
    await connector.store.write(lambda c: drop_letters(c, instance, chosen[:_AT_ONCE], burial))
    return visit.done("It is forgotten.")


async def _explained(visit: Visit, event: str) -> Told | None:
    if not event:
        return None
    found = None
    if len(event) <= _LONGEST_EVENT and "\0" not in event:
        found = await _connector(visit).delivery.why(event)
    if found is None:
        raise ConsoleError(
            "nothing is known of this message",
            where=event[:80],
            mend="Agents shows the latest; records are kept as long as the journal",
            status=404,
        )
    [shown] = await named(_connector(visit).delivery.platforms, [told(found)])
    return shown


def _lobby(visit: Visit) -> str:
    """The option by which a command means the concierge's space; empty where that is not set."""
    chosen = (each for each in visit.parts.settings if each.section == "concierge")
    space = next((each.value for each in chosen if each.key == "space"), "")
    return f" --space {shlex.quote(space)}" if space else ""


async def _recent(connector: Connector) -> list[Told]:
    found = await connector.store.read(lambda c: latest(c, _RECENT))
    return await named(connector.delivery.platforms, found)


async def _chosen(visit: Visit, connector: Connector, instance: str) -> list[int]:
    """The letter that a form names, or all of the agent's; each is there."""
    there = await connector.store.read(lambda c: letters_of(c, instance))
    wanted = visit.form.needed("letter", "The letter")
    if wanted == "all":
        return there
    if wanted not in map(str, there):
        raise ConsoleError(
            "the agent has no such dead letter", where=wanted[:40], mend="load the page again"
        )
    return [int(wanted)]


async def _knowing(visit: Visit, instance: str) -> Connector:
    """The connector, which knows an agent."""
    connector = _connector(visit)
    if instance not in {each.instance for each in await connector.control.instances()}:
        raise ConsoleError(
            "no such agent has enrolled", where=instance[:80], mend="load the page again"
        )
    return connector


def _control(visit: Visit, connector: Connector) -> Control:
    """What operators can do, in the name of this session."""
    return connector.control.acting_as(visit.actor)


def _connector(visit: Visit) -> Connector:
    connector = visit.parts.relay()
    if connector is None:
        raise ConsoleError(
            "the relay is not up",
            mend="wait a moment; Home says how its plane is doing",
            status=503,
        )
    return connector


PAGE: Final = Page(
    "agents",
    "Agents",
    show,
    reads={"why": why, "live": live},
    acts={"token": token, "revoke": revoke, "pardon": pardon, "replay": replay, "drop": drop},
)
