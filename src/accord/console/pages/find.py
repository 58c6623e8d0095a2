"""Find: pages, forms, members, contracts, documents, posts and messages by words in their names.

The page works by itself; the script opens it as a dialog with Ctrl-K.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from accord.community.client import Client
from accord.console.messages import mark, word
from accord.console.page import Page, Visit
from accord.console.pages.files import latest_documents
from accord.console.sessions import PATH, Role
from accord.console.templates import MemberNames, member_names
from accord.kernel.errors import AccordError

_MOST: Final = 30
_POSTS: Final = 500
_MESSAGES: Final = 200
_EXCERPT: Final = 120


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that can be opened: what it is, what it is called, and where it is."""

    kind: str
    title: str
    path: str
    about: str = ""


FORMS: Final = tuple(
    Hit("form", title, f"{PATH}/{place}")
    for title, place in (
        (mark("Ask a question"), "ask"),
        (mark("Write to a member"), "chat#write"),
        (mark("Post something on the market"), "market#post"),
        (mark("Add a document or a file"), "files#add"),
        (mark("Invite somebody"), "members#invite"),
        (mark("Change a member's trust level"), "members#move"),
        (mark("Revoke a member"), "members#revoke"),
        (mark("Let an agent enrol"), "agents#token"),
        (mark("Revoke an agent"), "agents#revoke"),
        (mark("Dead letters"), "agents#letters"),
        (mark("Plans that wait for a decision"), "contracts#plans"),
        (mark("Compare two contracts"), "contracts#compare"),
        (mark("Run the pipeline, or ask what if"), "pipeline#whatif"),
    )
)


def find(query: str, hits: Iterable[Hit]) -> list[Hit]:
    """The hits that have every word of the query, those whose title begins with it first.

    Without a query only pages and forms are listed.
    """
    words = query.casefold().split()
    if not words:
        return [each for each in hits if each.kind in ("page", "form")][:_MOST]

    def rank(hit: Hit) -> tuple[int, int] | None:
        title = hit.title.casefold()
        if not all(word in f"{title} {hit.about.casefold()} {hit.kind}" for word in words):
            return None
        return (0 if title.startswith(words[0]) else 1 if words[0] in title else 2, len(title))

    ranked = [(place, each) for each in hits if (place := rank(each)) is not None]
    return [each for _, each in sorted(ranked, key=lambda pair: pair[0])][:_MOST]


async def show(visit: Visit) -> Response:
    """Show what was found; what cannot be searched now is named."""
    query = visit.query("q")
    hits: list[Hit] = [*_pages(visit), *_forms(visit)]
    missing: list[str] = []
    for name, search in _SOURCES if query else ():
        try:
            hits += [each async for each in search(visit)]
        except AccordError:
            missing.append(name)
    return visit.show("find.html", query=query, hits=find(query, hits), missing=missing)


def _forms(visit: Visit) -> list[Hit]:
    """The forms that this user may send."""
    least = {page.path: max(page.read_by, page.acted_by) for page in visit.console.pages}
    return [
        replace(each, title=word(each.title))
        for each in FORMS
        if visit.session.role >= least.get(each.path.partition("#")[0], Role.READER)
    ]


def _pages(visit: Visit) -> list[Hit]:
    return [
        Hit("page", word(each.title), each.path, word(each.group))
        for each in visit.console.pages
        if each.is_listed and visit.session.role >= each.read_by
    ]


async def _of_community(visit: Visit) -> AsyncIterator[Hit]:
    async with visit.community() as client:
        told = await client.get("/node/v1/members")
        names = member_names(told)
        for each in told["members"]:
            peer = quote(each["node_id"], safe="")
            yield Hit("member", names(each["node_id"]), f"{PATH}/chat?peer={peer}", each["node_id"])
        for read in (_documents, _posts, _messages):
            for hit in await read(client, names):
                yield hit


async def _documents(client: Client, names: MemberNames) -> Sequence[Hit]:
    return [
        Hit("document", each["title"], f"{PATH}/files/document/{each['cid']}", each["corpus"])
        for each in await latest_documents(client, names)
    ]


async def _posts(client: Client, _names: MemberNames) -> Sequence[Hit]:
    answer = await client.call("market.list", {}, {"limit": _POSTS})
    return [
        Hit("post", each["title"], f"{PATH}/market?q={quote(each['title'])}", each["category"])
        for each in answer["output"]["posts"]
    ]


async def _messages(client: Client, names: MemberNames) -> Sequence[Hit]:
    answer = await client.call("chat.history", {}, {"limit": _MESSAGES})
    found: list[dict[str, Any]] = answer["output"]["messages"]
    return [
        Hit(
            "message",
            each["body"][:_EXCERPT],
            f"{PATH}/chat?peer={quote(peer, safe='')}",
            names(peer),
        )
        for each in found
        if each.get("body")
        for peer in (each["to"] if each["from"] == client.node_id else each["from"],)
    ]


async def _of_authority(visit: Visit) -> AsyncIterator[Hit]:
    if (running := visit.parts.authority()) is None:
        return
    told = await running.operating.do("catalog", {})
    for each in told["catalog"]["contracts"]:
        yield Hit("contract", each["id"], f"{PATH}/contracts/contract?digest={each['digest']}")


_SOURCES: Final[tuple[tuple[str, Callable[[Visit], AsyncIterator[Hit]]], ...]] = (
    (mark("the community"), _of_community),
    (mark("contracts"), _of_authority),
)

PAGE: Final = Page("find", mark("Find"), show, is_listed=False)
