"""Users: who may log in with which role, and the sessions of their browsers."""

from typing import Final

from markupsafe import Markup
from starlette.responses import Response

from accord.community.identity import qr_svg
from accord.console.messages import mark, tr
from accord.console.page import Page, Visit, session_name
from accord.console.sessions import LINK_SECONDS, PATH, ConsoleError, Role, not_up
from accord.console.users import Users
from accord.kernel.clock import format_time

ROLES: Final = {
    Role.READER: (mark("Reader"), mark("sees everything, and asks questions")),
    Role.OPERATOR: (mark("Operator"), mark("also acts on the pages of the planes")),
    Role.OWNER: (
        mark("Owner"),
        mark("also adds and removes users, ends sessions, makes backups, and changes settings"),
    ),
}


async def show(visit: Visit, link: str | None = None, named: str = "") -> Response:
    """Show the users and the sessions, and a link that was just made."""
    users = await _users(visit).listed()
    return visit.show(
        "users.html",
        users=users,
        roles=[(role.name, *words) for role, words in ROLES.items()],
        called={role.name: title for role, (title, _) in ROLES.items()},
        sessions=[
            (
                each,
                session_name(each.id, each.user),
                int(each.used_at * 1000),
                int(each.ends_at * 1000),
            )
            for each in visit.console.tickets.sessions()
        ],
        link=link,
        named=named,
        until=format_time(visit.parts.clock.now() + LINK_SECONDS),
        qr=None if link is None else Markup(qr_svg(link, scale=3)),  # noqa: S704
    )


async def add(visit: Visit) -> Response:
    """Add a user, and show a link that logs them in."""
    name, role = visit.form.needed("name", tr("The name")), _role(visit)
    await _users(visit).add(name, role)
    await visit.parts.note("console.user_added", visit.actor)
    return await _with_link(visit, name)


async def link(visit: Visit) -> Response:
    """Show a new link for a user."""
    name = visit.form.needed("name", tr("The name"))
    if await _users(visit).role(name) is None:
        raise ConsoleError(tr("there is no such user"), where=name[:40], status=404)
    return await _with_link(visit, name)


async def change(visit: Visit) -> Response:
    """Give a user another role; it holds from their next request."""
    name, role = visit.form.needed("name", tr("The name")), _role(visit)
    await _users(visit).change(name, role)
    await visit.parts.note("console.user_changed", visit.actor)
    return visit.done(tr("{name} has another role now.", name=name))


async def remove(visit: Visit) -> Response:
    """Remove a user, and end their sessions."""
    name = visit.form.needed("name", tr("The name"))
    await _users(visit).remove(name)
    visit.console.tickets.end_all(name)
    await visit.parts.note("console.user_removed", visit.actor)
    return visit.done(tr("{name} is removed and logged out.", name=name))


async def end(visit: Visit) -> Response:
    """End a session of another browser, or this one."""
    ended = visit.form.needed("session", tr("The session"))
    visit.console.tickets.end_other(ended)
    await visit.parts.note("console.ended", visit.actor)
    return visit.done(
        tr(
            "The session {name} has ended; its browser is logged out.",
            name=session_name(ended),
        )
    )


async def _with_link(visit: Visit, name: str) -> Response:
    base = visit.console.url or str(visit.request.base_url).rstrip("/")
    made = f"{base}{PATH}/login?link={visit.console.tickets.link(name)}"
    await visit.parts.note("console.link_issued", visit.actor)
    emptied = Visit(visit.request, visit.page, visit.session, visit.parts, visit.console)
    return await show(emptied, made, name)


def _role(visit: Visit) -> Role:
    given = visit.form.text("role")
    if given not in Role.__members__:
        raise ConsoleError(tr("there is no such role"), where=given[:40])
    return Role[given]


def _users(visit: Visit) -> Users:
    if visit.parts.users is None:
        raise not_up(tr("the store of users"))
    return visit.parts.users


PAGE: Final = Page(
    "users",
    mark("Users"),
    show,
    acts={"add": add, "link": link, "change": change, "remove": remove, "end": end},
    group=mark("Station"),
    read_by=Role.OWNER,
    acted_by=Role.OWNER,
)
