"""Members and invites: the members, inviting somebody, and removing a member."""

from collections.abc import Callable
from typing import Any, Final

from markupsafe import Markup
from starlette.responses import Response

from accord.community.identity import qr_svg
from accord.community.petitions import (
    MEMBER_DEMOTED,
    MEMBER_INVITED,
    MEMBER_PROMOTED,
    MEMBER_REVOKED,
    PetitionOutcome,
    make_petition,
    petition_outcome,
    read_petition,
    submit_petition,
)
from accord.console.messages import mark, tr
from accord.console.page import Page, Visit
from accord.console.sessions import ConsoleError
from accord.console.templates import member_names
from accord.kernel.clock import format_time

_LEVELS: Final = ("member", "trusted", "anchor")
_REASONS: Final = ("other", "inactive", "policy_violation", "compromised")
_HOUR: Final = 3600


async def show(
    visit: Visit, done: PetitionOutcome | None = None, looked: PetitionOutcome | None = None
) -> Response:
    """Show the members, the open invites, and the result of the last petition."""
    async with visit.community() as client:
        number = await visit.changes(client)
        about = await client.get("/node/v1/community")
        told = await client.get("/node/v1/members")
        met = {each["node_id"]: each for each in (await client.get("/node/v1/peers"))["peers"]}
    names = member_names(told)
    return visit.show(
        "members.html",
        community=about,
        seen={each["node_id"]: _seen(met.get(each["node_id"])) for each in told["members"]},
        reached={each: _reached(peer, names) for each, peer in met.items()},
        members=told["members"],
        names=names,
        own=visit.parts.node.key.id,
        levels=_LEVELS,
        outcome=done,
        looked=looked,
        qr=_drawn(done.link if done else None),
        number=number,
    )


async def live(visit: Visit) -> Response:
    """Stream news about members and invites."""
    return visit.follow("community.", "node.")


async def invite(visit: Visit) -> Response:
    """Invite somebody, and show the link."""
    form = visit.form
    level = _one_of(form.text("level") or "member", _LEVELS)
    hours = form.number("hours", tr("The number of hours"), 0.1, 8760)
    node_id = form.needed("node_id", tr("The id of their station"))
    async with visit.community() as client:
        told = (await client.get("/node/v1/members"))["members"]
    if any(each["node_id"] == node_id for each in told):
        raise ConsoleError(tr("this station is a member already, so nobody was invited"))
    data: dict[str, Any] = {
        "invitee_node_id": node_id,
        "initial_level": level,
        "expires_at": format_time(visit.parts.clock.now() + hours * _HOUR),
    }
    if form.text("name"):
        data["display_name"] = form.text("name")
    return await show(_emptied(visit), await _petition(visit, MEMBER_INVITED, data))


async def withdraw(visit: Visit) -> Response:
    """Withdraw an invite that was not redeemed."""
    given = {
        "invitee_node_id": visit.form.needed("node_id", tr("The station's id")),
        "invite_event_id": visit.form.needed("event_id", tr("The invite")),
    }
    async with visit.community() as client:
        await client.call("experimental.community.withdraw", {}, given, idempotent=True)
    return visit.done(tr("The invite is withdrawn; every station refuses it from now on."))


async def revoke(visit: Visit) -> Response:
    """Revoke a member; its events so far stay valid."""
    node_id = visit.form.needed("node_id", tr("The member"))
    if visit.form.text("sure") != "yes":
        raise ConsoleError(
            tr("nothing was done: this cannot be undone"), mend=tr("tick the box, too")
        )
    async with visit.community() as client:
        last = await client.post("/node/v1/chain", {"node_id": node_id})
    data = {
        "target_node_id": node_id,
        "reason": _one_of(visit.form.text("reason") or "other", _REASONS),
        "target_last_seq": last["author_seq"],
        "target_last_hash": last["hash"],
    }
    return await show(_emptied(visit), await _petition(visit, MEMBER_REVOKED, data))


async def move(visit: Visit) -> Response:
    """Change the trust level of a member."""
    node_id = visit.form.needed("node_id", tr("The member"))
    level = _one_of(visit.form.text("level"), _LEVELS)
    async with visit.community() as client:
        told = (await client.get("/node/v1/members"))["members"]
    now = next((each["level"] for each in told if each["node_id"] == node_id), None)
    if now is None or now == level:
        raise ConsoleError(tr("nothing was done: there is no such member, or it is that already"))
    further = _LEVELS.index(level) > (_LEVELS.index(now) if now in _LEVELS else -1)
    data = {"target_node_id": node_id, "new_level": level}
    asked = await _petition(visit, MEMBER_PROMOTED if further else MEMBER_DEMOTED, data)
    return await show(_emptied(visit), asked)


async def look(visit: Visit) -> Response:
    """Show what a petition asks for, before it is signed."""
    found = read_petition(visit.form.needed("petition", tr("The petition")))
    async with visit.parts.node.client(found.community_id) as client:
        return await show(visit, looked=await petition_outcome(client, found))


async def cosign(visit: Visit) -> Response:
    """Co-sign a petition, and submit it when it has enough signatures."""
    found = read_petition(visit.form.needed("petition", tr("The petition")))
    async with visit.parts.node.client(found.community_id) as client:
        done = await submit_petition(client, found.signed_by(visit.parts.node.key))
    return await show(_emptied(visit), done)


async def _petition(visit: Visit, event_type: str, data: dict[str, Any]) -> PetitionOutcome:
    async with visit.community() as client:
        asked = make_petition(visit.parts.node.key, client, event_type, data, visit.parts.clock)
        return await submit_petition(client, asked)


def _seen(peer: dict[str, Any] | None) -> tuple[str, bool | None]:
    """Whether a member's device is reachable, in a word; being offline is no fault."""
    if peer is None:
        return mark("not seen yet"), None
    return (mark("is away"), None) if peer["failures"] else (mark("is here"), True)


def _reached(peer: dict[str, Any], names: Callable[[str], str]) -> str:
    """How a member's device was reached last."""
    match peer["reached"]:
        case {"how": "direct", "address": address}:
            return tr("directly, {address}", address=address)
        case {"how": "relayed", "anchor": anchor}:
            return tr("through {anchor}", anchor=names(anchor))
    return tr("not from here")


def _drawn(link: str | None) -> Markup | None:
    """A link as a QR code; its text is not in the markup."""
    return None if link is None else Markup(qr_svg(link, scale=3))  # noqa: S704


def _one_of(given: str, known: tuple[str, ...]) -> str:
    if given not in known:
        raise ConsoleError(tr("there is no such choice"), where=given[:40], mend=", ".join(known))
    return given


def _emptied(visit: Visit) -> Visit:
    """The visit with an empty form, after its content was processed."""
    return Visit(visit.request, visit.page, visit.session, visit.parts, visit.console)


PAGE: Final = Page(
    "members",
    mark("Members"),
    show,
    reads={"live": live},
    acts={
        "invite": invite,
        "withdraw": withdraw,
        "revoke": revoke,
        "move": move,
        "look": look,
        "cosign": cosign,
    },
    group=mark("People"),
)
