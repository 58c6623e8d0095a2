"""What a page is, and what it is given for one request.

Owns the form of a page and of a visit. How a visit is authenticated and its errors are shown is
`app`'s; what a page says is its own.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from accord.authority.assembly import Running
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.console.errors import ConsoleError
from accord.console.forms import Form
from accord.console.guard import PATH
from accord.console.parts import Parts
from accord.console.stream import Piece
from accord.console.tickets import Session
from accord.kernel.errors import AccordError

_QUERY_LENGTH: Final = 4000


def actor(session: Session) -> str:
    """Who acts at the console, for journals: which of its sessions."""
    return f"console {session.id[:8]}"


class Rendering(Protocol):
    """What a visit leaves to the console."""

    def page(self, visit: "Visit", template: str, values: Mapping[str, Any]) -> str:
        """A whole page."""
        ...

    def part(self, template: str, values: Mapping[str, Any]) -> Markup:
        """A part of one."""
        ...

    def stream(self, visit: "Visit", pieces: AsyncGenerator[Piece, None]) -> Response:
        """An answer that goes on."""
        ...

    def note(self, session: Session, sentence: str) -> None:
        """Keep a sentence for the next page of a session."""
        ...

    def chosen(self, session: Session) -> str | None:
        """The community in which a session acts, if it chose one."""
        ...


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of somebody who is logged in.

    Attributes:
        request: As it came.
        page: The page that it is for.
        session: Whose it is.
        parts: What the page stands on.
        form: What was filled in; empty unless something was sent.
        trouble: Why what was sent was refused: the page is shown again, with what was typed.
    """

    request: Request
    page: "Page"
    session: Session
    parts: Parts
    rendering: Rendering
    form: Form = field(default_factory=Form)
    trouble: AccordError | None = None

    @property
    def actor(self) -> str:
        """Who acts, for journals."""
        return actor(self.session)

    def query(self, name: str) -> str:
        """A member of the address' query, without the blanks around it; empty when missing.

        Raises:
            ConsoleError: It is too long.
        """
        value = self.request.query_params.get(name, "").strip()
        if len(value) > _QUERY_LENGTH:
            raise ConsoleError("this is too long", where=name, mend="say it in fewer words")
        return value

    def authority(self) -> Running:
        """The authority of this station.

        Raises:
            ConsoleError: It is away.
        """
        running = self.parts.authority()
        if running is None:
            raise ConsoleError(
                "the authority is not up",
                mend="wait a moment; Home says how its plane is doing",
                status=503,
            )
        return running

    @asynccontextmanager
    async def community(self) -> AsyncIterator[Client]:
        """The node, in the community that this session has chosen, else in its first.

        Raises:
            CommunityError: The node is away, or in no community.
        """
        there = [each["community_id"] for each in await self.parts.node.communities()]
        if not there:
            raise CommunityError(
                Code.NOT_FOUND,
                "this station is in no community yet",
                mend="found or join one on Home",
            )
        chosen = self.rendering.chosen(self.session)
        async with self.parts.node.client(chosen if chosen in there else there[0]) as client:
            yield client

    def show(self, template: str, **values: Any) -> Response:
        """A whole page, made from a template that extends `page.html`."""
        status = 200 if self.trouble is None else status_of(self.trouble)
        return Response(self.rendering.page(self, template, values), status, media_type=_HTML)

    def part(self, template: str, **values: Any) -> Markup:
        """A part of a page, for a stream or for htmx."""
        return self.rendering.part(template, values)

    def done(self, sentence: str, *, path: str | None = None) -> Response:
        """After a change: say a sentence on the page, which is loaded anew."""
        self.rendering.note(self.session, sentence)
        return RedirectResponse(path or self.page.path, 303)

    def stream(self, pieces: AsyncGenerator[Piece, None]) -> Response:
        """Tell the browser pieces as they come, by server-sent events."""
        return self.rendering.stream(self, pieces)


_HTML: Final = "text/html; charset=utf-8"
Handler: TypeAlias = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console.

    Attributes:
        slug: Its place in the address; empty for the first page.
        title: What it is called in the navigation.
        show: Answers a visit; also, with `trouble`, when something that was sent is refused.
        reads: What else can be looked at below it, by path; it changes nothing.
        acts: What can be sent to it, by path.
    """

    slug: str
    title: str
    show: Handler
    reads: Mapping[str, Handler] = field(default_factory=dict)
    acts: Mapping[str, Handler] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{PATH}/{self.slug}"


def status_of(error: AccordError) -> int:
    """The HTTP status that says what an error says."""
    if isinstance(error, CommunityError):
        return 403 if error.code is Code.UNAUTHORIZED else error.code.status
    return error.status if isinstance(error, ConsoleError) else 400
