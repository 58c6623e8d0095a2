"""Home: how the station is doing, what needs somebody, and the community that it is in."""

from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from accord.community.errors import CommunityError
from accord.console.guard import PATH
from accord.console.page import Page, Visit
from accord.kernel.errors import AccordError

_LETTERS: Final = 100
_MESSAGES: Final = 100


@dataclass(frozen=True, slots=True)
class Need:
    """Something that wants attention, and the page where to give it."""

    what: str
    path: str = ""
    why: str = ""


async def show(visit: Visit) -> Response:
    """Everything at a glance; what cannot be seen now does not hide the rest."""
    communities: list[dict[str, Any]] = []
    community: dict[str, Any] | None = None
    needs = [*_planes(visit), *await _letters(visit), *await _plans(visit)]
    is_alone = False
    try:
        communities = await visit.parts.node.communities()
        is_alone = not communities
        if communities:
            async with visit.community() as client:
                community = await client.get("/node/v1/community")
                needs += await _unread(client)
    except CommunityError as error:
        needs.append(Need("The community cannot be seen", why=str(error)))
    return visit.show(
        "home.html",
        needs=needs,
        planes=visit.parts.planes(),
        community=community,
        communities=[(each["community_id"], each["name"]) for each in communities],
        is_alone=is_alone,
    )


async def found(visit: Visit) -> Response:
    """Found a community."""
    name = visit.form.needed("name", "The name")
    async with visit.parts.node.client() as client:
        await client.post("/node/v1/found", {"name": name, "policy": {}})
    return visit.done(f"{name} is founded, and this station is its first member.")


async def join(visit: Visit) -> Response:
    """Join by an invite."""
    link = visit.form.needed("link", "The link")
    async with visit.parts.node.client() as client:
        await client.post("/node/v1/join", {"link": link})
    return visit.done("This station has joined.")


def _planes(visit: Visit) -> list[Need]:
    return [
        Need(f"{each.name} is {each.state}", f"{PATH}/log", each.reason)
        for plane in visit.parts.planes()
        for each in (plane, *plane.parts)
        if not each.is_well
    ]


async def _letters(visit: Visit) -> list[Need]:
    connector = visit.parts.relay()
    if connector is None:
        return []
    try:
        count = len(await connector.delivery.dead_letters(limit=_LETTERS))
    except AccordError as error:
        return [Need("Dead letters cannot be counted", why=str(error))]
    shown = f"{count} or more" if count == _LETTERS else str(count)
    return [Need(f"Messages that could not be delivered: {shown}", f"{PATH}/agents")] * bool(count)


async def _plans(visit: Visit) -> list[Need]:
    authority = visit.parts.authority()
    if authority is None:
        return []
    try:
        told = await authority.operating.do("plans/list", {"state": "pending"})
    except AccordError as error:
        return [Need("Plans cannot be counted", why=str(error))]
    count = len(told["plans"])
    return [Need(f"Plans that wait for a decision: {count}", f"{PATH}/contracts")] * bool(count)


async def _unread(client: Any) -> list[Need]:
    answer = await client.call("chat.history", {}, {"limit": _MESSAGES})
    count = sum(
        each["to"] == client.node_id and each["read_at"] is None
        for each in answer["output"]["messages"]
    )
    return [Need(f"Unread messages: {count}", f"{PATH}/chat")] * bool(count)


PAGE: Final = Page("", "Home", show, acts={"found": found, "join": join})
