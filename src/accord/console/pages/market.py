"""Market: posts, searching, posting and ending."""

from typing import Any, Final

from starlette.responses import Response

from accord.console.messages import mark, tr
from accord.console.page import Page, Visit
from accord.console.sessions import ConsoleError
from accord.console.templates import member_names
from accord.kernel.errors import AccordError
from accord.kernel.identifiers import UlidSource

CATEGORIES: Final = ("offer", "request", "info", "emergency")
_SHOWN: Final = 500
_FOUND: Final = 20
_DAY: Final = 86_400


async def show(visit: Visit) -> Response:
    """Show the current posts, the newest first, or the results of a search."""
    query, category = visit.query("q"), visit.query("category")
    found: list[dict[str, Any]] = []
    ranking: str | None = None
    trouble: AccordError | None = None
    async with visit.community() as client:
        number = await visit.changes(client)
        called = member_names(await client.get("/node/v1/members"))
        try:
            if query:
                answer = await client.call("market.search", {}, {"query": query, "k": _FOUND})
                found, ranking = answer["output"]["posts"], answer["meta"].get("ranking")
            else:
                wanted: dict[str, Any] = {"limit": _SHOWN}
                if category:
                    wanted["category"] = category
                found = (await client.call("market.list", {}, wanted))["output"]["posts"][::-1]
        except AccordError as error:
            trouble = error
    return visit.show(
        "market.html",
        posts=found,
        names=called,
        query=query,
        category=category,
        categories=CATEGORIES,
        ranking=ranking,
        missing=trouble,
        own=visit.parts.node.key.id,
        number=number,
    )


async def live(visit: Visit) -> Response:
    """Stream news about posts."""
    return visit.follow("market.")


async def post(visit: Visit) -> Response:
    """Create a post."""
    form = visit.form
    given = {
        "client_id": UlidSource(visit.parts.clock).new(),
        "category": form.text("category") or "info",
        "title": form.needed("title", tr("The title")),
        "body": form.text("body"),
        "tags": [each.strip() for each in form.text("tags").split(",") if each.strip()],
        "ttl_seconds": round(form.number("days", tr("The number of days"), 0.001, 30) * _DAY) or 1,
    }
    async with visit.community() as client:
        await client.call("market.post", {}, given, idempotent=True)
    return visit.done(tr("It is on the market."))


async def expire(visit: Visit) -> Response:
    """End a post."""
    reason = visit.form.text("reason") or "withdrawn"
    if reason not in ("withdrawn", "fulfilled"):
        raise ConsoleError(tr("there is no such reason"), where=reason[:40])
    given = {
        "client_id": UlidSource(visit.parts.clock).new(),
        "event_id": visit.form.needed("event_id", tr("The post")),
        "reason": reason,
    }
    async with visit.community() as client:
        await client.call("market.expire", {}, given, idempotent=True)
    return visit.done(tr("It is off the market."))


PAGE: Final = Page(
    "market",
    mark("Market"),
    show,
    reads={"live": live},
    acts={"post": post, "expire": expire},
    group=mark("People"),
)
