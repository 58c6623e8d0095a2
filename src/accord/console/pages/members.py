"""Members and invites: who belongs, asking somebody in, and removing somebody for good."""

from typing import Any, Final

from markupsafe import Markup
from starlette.responses import Response

from accord.community.client.petitioning import (
    DEMOTED,
    INVITED,
    PROMOTED,
    REVOKED,
    Outcome,
    outcome,
    petition,
    put,
    read,
)
from accord.community.identity import as_svg
from accord.console.errors import ConsoleError
from accord.console.naming import names
from accord.console.page import Page, Visit
from accord.kernel.clock import format_time

_LEVELS: Final = ("member", "trusted", "anchor")
_REASONS: Final = ("other", "inactive", "policy_violation", "compromised")
_HOUR: Final = 3600


async def show(
    visit: Visit, done: Outcome | None = None, looked: Outcome | None = None
) -> Response:
    """Everybody, the invites that stand, and what became of the last petition."""
    async with visit.community() as client:
        about = await client.get("/node/v1/community")
        told = await client.get("/node/v1/members")
        met = {each["node_id"]: each for each in (await client.get("/node/v1/peers"))["peers"]}
    return visit.show(
        "members.html",
        community=about,
        seen={each["node_id"]: _seen(met.get(each["node_id"])) for each in told["members"]},
        members=told["members"],
        names=names(told),
        own=visit.parts.node.key.id,
        levels=_LEVELS,
        outcome=done,
        looked=looked,
        qr=_drawn(done.link if done else None),
    )


async def invite(visit: Visit) -> Response:
    """Ask somebody in, and show the link that does it."""
    form = visit.form
    level = _one_of(form.text("level") or "member", _LEVELS)
    hours = form.number("hours", "The number of hours", 0.1, 8760)
    data: dict[str, Any] = {
        "invitee_node_id": form.needed("node_id", "The node's id"),
        "initial_level": level,
        "expires_at": format_time(visit.parts.clock.now() + hours * _HOUR),
    }
    if form.text("name"):
        data["display_name"] = form.text("name")
    return await show(_emptied(visit), await _petition(visit, INVITED, data))


async def revoke(visit: Visit) -> Response:
    """Remove a member; what is known of it until now stands."""
    node_id = visit.form.needed("node_id", "The member")
    if visit.form.text("sure") != "yes":
        raise ConsoleError("nothing was done: this cannot be undone", mend="tick the box, too")
    async with visit.community() as client:
        last = await client.post("/node/v1/chain", {"node_id": node_id})
    data = {
        "target_node_id": node_id,
        "reason": _one_of(visit.form.text("reason") or "other", _REASONS),
        "target_last_seq": last["author_seq"],
        "target_last_hash": last["hash"],
    }
    return await show(_emptied(visit), await _petition(visit, REVOKED, data))


async def move(visit: Visit) -> Response:
    """Trust a member further, or less."""
    node_id = visit.form.needed("node_id", "The member")
    level = _one_of(visit.form.text("level"), _LEVELS)
    async with visit.community() as client:
        told = (await client.get("/node/v1/members"))["members"]
    now = next((each["level"] for each in told if each["node_id"] == node_id), None)
    if now is None or now == level:
        raise ConsoleError("nothing was done: there is no such member, or it is that already")
    further = _LEVELS.index(level) > (_LEVELS.index(now) if now in _LEVELS else -1)
    data = {"target_node_id": node_id, "new_level": level}
    asked = await _petition(visit, PROMOTED if further else DEMOTED, data)
    return await show(_emptied(visit), asked)


async def look(visit: Visit) -> Response:
    """Show what a petition asks for, before anybody signs it."""
    found = read(visit.form.needed("petition", "The petition"))
    async with visit.parts.node.client(found.community_id) as client:
        return await show(visit, looked=await outcome(client, found))


async def cosign(visit: Visit) -> Response:
    """Sign a petition too, and submit it when enough have."""
    found = read(visit.form.needed("petition", "The petition"))
    async with visit.parts.node.client(found.community_id) as client:
        done = await put(client, found.signed_by(visit.parts.node.key))
    return await show(_emptied(visit), done)


async def _petition(visit: Visit, event_type: str, data: dict[str, Any]) -> Outcome:
    async with visit.community() as client:
        asked = petition(visit.parts.node.key, client, event_type, data, visit.parts.clock)
        return await put(client, asked)


def _seen(peer: dict[str, Any] | None) -> tuple[str, bool]:
    """Whether a member's device can be reached, in a word, and whether that is as it should be."""
    if peer is None:
        return "not seen yet", False
    return ("is away", False) if peer["failures"] else ("is here", True)


def _drawn(link: str | None) -> Markup | None:
    """A link as an image that a camera reads; nothing of the link's text is in its markup."""
    return None if link is None else Markup(as_svg(link, scale=3))  # noqa: S704


def _one_of(given: str, known: tuple[str, ...]) -> str:
    if given not in known:
        raise ConsoleError("there is no such choice", where=given[:40], mend=", ".join(known))
    return given


def _emptied(visit: Visit) -> Visit:
    """What was filled in was done, so the forms are empty again."""
    return Visit(visit.request, visit.page, visit.session, visit.parts, visit.rendering)


PAGE: Final = Page(
    "members",
    "Members",
    show,
    acts={"invite": invite, "revoke": revoke, "move": move, "look": look, "cosign": cosign},
)
