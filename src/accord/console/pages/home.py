"""Home: the state of the station, its figures, and what needs attention."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.responses import Response

from accord.community.errors import CommunityError
from accord.community.rules.formats import display_id
from accord.console.map import CommunityMap, community_map
from accord.console.messages import language, mark, tr
from accord.console.needs import (
    Need,
    chat_needs,
    invite_needs,
    plan_needs,
    plane_needs,
    relay_needs,
)
from accord.console.page import NEWS, Page, Piece, Visit
from accord.console.plots import Samples, Tile, tiles
from accord.console.sessions import ConsoleError
from accord.console.templates import member_names
from accord.console.tour import Step, first_steps
from accord.kernel.errors import AccordError

_STEP_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Overview:
    """What Home shows of the community and of what needs attention, the same for every user."""

    needs: Sequence[Need]
    communities: Sequence[dict[str, Any]] = ()
    community: dict[str, Any] | None = None
    own_name: str = ""
    drawn: CommunityMap | None = None
    has_lost: bool = False
    is_alone: bool = False
    has_failed: bool = False


async def show(visit: Visit) -> Response:
    """Show the overview; parts that cannot be read do not hide the rest."""
    standing = await _standing(visit)
    steps: list[Step] = []
    if visit.by_itself:
        # What was read for the same standing is as new as it, for everybody who is told of news.
        key = ("overview", visit.console.chosen(visit.session), language(), standing)
        seen = await visit.console.shared.get(key, lambda: _overview(visit))
    else:
        seen = await _overview(visit)
        steps = await _steps(visit, seen)
    return visit.show(
        "home.html",
        needs=seen.needs,
        planes=visit.parts.planes(),
        community=seen.community,
        communities=[(each["community_id"], _title(each)) for each in seen.communities],
        own_name=seen.own_name,
        has_lost=seen.has_lost,
        is_alone=seen.is_alone,
        standing=standing,
        drawn=seen.drawn,
        steps=steps,
        tiles=await _tiles(visit),
    )


async def _overview(visit: Visit) -> Overview:
    needs = [*plane_needs(visit), *await relay_needs(visit), *await plan_needs(visit)]
    seen = Overview(needs)
    try:
        async with visit.parts.node.client() as client:
            told = await client.get("/node/v1/status")
        communities, lost = told["communities"], told["lost"]
        is_alone = not communities and not lost
        seen = replace(seen, communities=communities, has_lost=bool(lost), is_alone=is_alone)
        if communities:
            async with visit.community() as client:
                community = await client.get("/node/v1/community")
                own_name = next(
                    each["own_name"]
                    for each in communities
                    if each["community_id"] == community["community_id"]
                )
                seen = replace(seen, community=community, own_name=own_name)
                members = await client.get("/node/v1/members")
                names = member_names(members)
                needs += [*await chat_needs(client, names), *invite_needs(community)]
                peers = (await client.get("/node/v1/peers"))["peers"]
                drawn = community_map(
                    members["members"], peers, client.node_id, told["capabilities"], names
                )
                seen = replace(seen, drawn=drawn)
    except CommunityError as error:
        needs.append(Need(tr("The community cannot be seen"), why=str(error)))
        seen = replace(seen, has_failed=True)
    return seen


async def _steps(visit: Visit, seen: Overview) -> list[Step]:
    """The first steps, outside of the part that is loaded again."""
    if seen.has_failed:
        return []  # what has just failed after several tries would keep the page waiting again
    try:
        if seen.community is None:
            is_seen = seen.is_alone or (seen.has_lost and not seen.communities)
            return await first_steps(visit, None, None) if is_seen else []
        async with visit.community() as client:
            return await first_steps(visit, client, seen.community)
    except CommunityError:
        return []


async def live(visit: Visit) -> Response:
    """Stream news about planes and what needs attention."""
    seen = visit.query("seen")

    async def pieces() -> AsyncGenerator[Piece, None]:
        nonlocal seen
        while True:
            here = await _standing(visit)
            if here != seen:
                seen = here
                yield NEWS
            await asyncio.sleep(max(_STEP_SECONDS, visit.console.pause_seconds))

    return visit.stream(pieces())


async def found(visit: Visit) -> Response:
    """Found a community."""
    name = visit.form.needed("name", tr("The name"))
    async with visit.parts.node.client() as client:
        told = await client.post("/node/v1/found", {"name": name, "policy": {}})
    visit.console.choose(visit.session, told["community_id"])
    return visit.done(tr("{name} is founded, and this station is its first member.", name=name))


async def join(visit: Visit) -> Response:
    """Join by an invite."""
    given = {"link": visit.form.needed("link", tr("The link"))}
    if visit.form.text("own_name"):
        given["name"] = visit.form.text("own_name")
    async with visit.parts.node.client() as client:
        told = await client.post("/node/v1/join", given)
    visit.console.choose(visit.session, told["community_id"])
    return visit.done(tr("This station has joined. It is in {name} now.", name=told["name"]))


async def call(visit: Visit) -> Response:
    """Change the station's name in the community."""
    name = visit.form.needed("own_name", tr("The name"))
    async with visit.community() as client:
        await client.post("/node/v1/name", {"name": name})
    return visit.done(tr("This station is called {name} here now.", name=name))


async def leave(visit: Visit) -> Response:
    """Leave a community; its data stays in the home."""
    wanted = visit.form.needed("community", tr("The community"))
    if visit.form.text("sure") != "yes":
        raise ConsoleError(tr("nothing was done"), mend=tr("tick the box, too"))
    given = {"community_id": wanted, "untold": visit.form.text("untold") == "yes"}
    async with visit.parts.node.client() as client:
        told = await client.post("/node/v1/leave", given)
    visit.console.choose(visit.session, None)
    return visit.done(
        tr("This station has left; {count} of its members were told.", count=told["told"])
    )


async def _standing(visit: Visit) -> str:
    """A digest of everything on the page that changes by itself, for all who look at the same."""
    chosen = visit.console.chosen(visit.session)
    key = ("standing", chosen, language())
    return await visit.console.shared.get(key, lambda: _read_standing(visit))


async def _read_standing(visit: Visit) -> str:
    needs = [*await relay_needs(visit), *await plan_needs(visit)]
    seen: tuple[Any, ...] = ()
    try:
        async with visit.community() as client:
            peers = (await client.get("/node/v1/peers"))["peers"]
            reached = [(each["node_id"], each["failures"] > 0) for each in peers]
            seen = (await visit.changes(client), reached)
    except CommunityError:
        pass
    told = repr((visit.parts.planes(), needs, seen, [at for at, _ in await _figures(visit)][-1:]))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


async def _figures(visit: Visit) -> Samples:
    try:
        return await visit.console.shared.get("figures", lambda: _read_figures(visit))
    except AccordError:
        # The store cannot be read; Health says so.
        return ()


async def _read_figures(visit: Visit) -> Samples:
    return await visit.parts.figures()


async def _tiles(visit: Visit) -> list[Tile]:
    return tiles(await _figures(visit), visit.parts.clock.now())


def _title(community: dict[str, Any]) -> str:
    """A community's name, with its id if another has the same name."""
    return f"{community['name']} ({display_id(community['community_id'])})"


PAGE: Final = Page(
    "",
    mark("Home"),
    show,
    reads={"live": live},
    acts={"found": found, "join": join, "call": call, "leave": leave},
)
