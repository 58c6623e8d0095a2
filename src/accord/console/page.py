"""`Page` and `Visit`: what a page is and what it is given for a request; its forms and streams.

Forms have limits of size and time; what exceeds them is refused before it is stored. A stream of
server-sent events ends with its pieces, with the browser, with its session or with the console.
Nothing is buffered for a slow reader: the next piece is made when the last was sent.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl

from markupsafe import Markup
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from accord.authority.assembly import RunningAuthority
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.console.messages import tr
from accord.console.parts import CommandRunner, ConsoleParts, run_state
from accord.console.sessions import CSRF, PATH, ConsoleError, ConsoleSession, Role, not_up
from accord.kernel.errors import AccordError
from accord.web import incoming, sse

if TYPE_CHECKING:
    from accord.console.app import Console

_FIELDS: Final = 64
_FILES: Final = 4
_TEXT_BYTES: Final = 256 * 1024
# Texts arrive at once; files get the time that a slow line needs.
_TEXTS: Final = incoming.BodyLimits(_TEXT_BYTES, seconds=10.0)
_WITH_FILES: Final = incoming.BodyLimits(100 * 1024 * 1024, seconds=30.0, rate=32 * 1024)
_MULTIPART: Final = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form; the last one of each name."""

    texts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, UploadFile] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return a stripped field; empty if it is missing."""
        return self.texts.get(name, "").strip()

    def needed(self, name: str, label: str) -> str:
        """Return a field, or raise `ConsoleError` if it is empty."""
        value = self.text(name)
        if not value:
            raise ConsoleError(tr("{label} is missing", label=label), mend=tr("fill it in"))
        return value

    def number(self, name: str, label: str, least: float, most: float) -> float:
        """Return a number, or raise `ConsoleError` if it is none or not within the limits."""
        try:
            value = float(self.text(name)[:40])
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ConsoleError(
                tr(
                    "{label} should be a number from {least:g} to {most:g}",
                    label=label,
                    least=least,
                    most=most,
                )
            )
        return value

    def file(self, name: str, label: str) -> UploadFile:
        """Return a file, or raise `ConsoleError` if none was chosen."""
        found = self.files.get(name)
        if found is None or not found.filename:
            raise ConsoleError(tr("{label} is missing", label=label), mend=tr("choose one"))
        return found


@asynccontextmanager
async def read_form(request: Request, *, files: bool = True) -> AsyncIterator[Form]:
    """Yield the form of a request, or raise `ConsoleError`; its files are closed at the end."""
    if not files or not request.headers.get("content-type", "").lower().startswith(_MULTIPART):
        yield Form(await _texts(request))
        return
    given = await _multipart(request)
    try:
        yield Form(
            {name: value for name, value in given.items() if isinstance(value, str)},
            {name: value for name, value in given.items() if isinstance(value, UploadFile)},
        )
    finally:
        await given.close()


async def _texts(request: Request) -> dict[str, str]:
    try:
        body = await incoming.read(request, _TEXTS)
    except incoming.BodyError as error:
        raise _refusal(error) from None
    try:
        return dict(
            parse_qsl(
                body.decode(), keep_blank_values=True, max_num_fields=_FIELDS, errors="strict"
            )
        )
    except ValueError:
        raise _no_form(tr("it cannot be read")) from None


async def _multipart(request: Request) -> FormData:
    async with aclosing(incoming.parts(request, _WITH_FILES)) as parts:
        try:
            return await MultiPartParser(
                request.headers,
                parts,
                max_files=_FILES,
                max_fields=_FIELDS,
                max_part_size=_TEXT_BYTES,
            ).parse()
        except MultiPartException as error:
            raise _no_form(error.message) from None
        except incoming.BodyError as error:
            raise _refusal(error) from None
        except OSError as error:
            raise ConsoleError(
                tr("there is no room for what was sent ({strerror})", strerror=error.strerror),
                status=507,
            ) from error


def _refusal(error: incoming.BodyError) -> ConsoleError:
    return ConsoleError(error.what, mend=error.mend, status=error.status)


def _no_form(why: str) -> ConsoleError:
    return ConsoleError(tr("this is not a form: {why}", why=why), mend=tr("use the page's own"))


NOTHING: Final = Markup("")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a page for `sse-swap`: the event's name and escaped HTML."""

    event: str
    html: Markup = NOTHING

    def encode(self) -> bytes:
        """Return it as on the wire."""
        return sse.write_event(self.html.encode(), event=self.event)


async def event_parts(
    pieces: AsyncGenerator[Piece, None], is_valid: Callable[[], bool], closing: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Yield pieces as bytes, with comments in between to keep the connection alive."""
    ended = asyncio.ensure_future(closing.wait())
    coming: asyncio.Future[Piece] | None = None
    async with aclosing(pieces):
        try:
            while is_valid() and not closing.is_set():
                coming = coming or asyncio.ensure_future(anext(pieces))
                either: set[asyncio.Future[Any]] = {coming, ended}
                await asyncio.wait(
                    either, timeout=sse.ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if coming.done():
                    try:
                        piece = coming.result()
                    except StopAsyncIteration:
                        return
                    coming = None
                    yield piece.encode()
                elif not closing.is_set():
                    yield sse.ALIVE
        finally:
            ended.cancel()
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})


HTMX: Final = "hx-request"
_QUERY_LENGTH: Final = 4000
_CHANGES: Final = "/node/v1/changes"
_WAIT_SECONDS: Final = 30
_AWAY_SECONDS: Final = 1.0
_RUN_SECONDS: Final = 0.3
NEWS: Final = Piece("news")
"""Tells a page to reload its live part."""


def session_actor(session: ConsoleSession) -> str:
    """Return the name of a session in journals."""
    return session_name(session.id, session.user)


def session_name(session_id: str, user: str = "") -> str:
    """Return the name of a session by its id and its user."""
    return f"{user} (console {session_id[:8]})" if user else f"console {session_id[:8]}"


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of somebody who is logged in.

    Attributes:
        form: Empty unless something was sent.
        trouble: Why the sent form was refused; the page is shown again with what was typed.
    """

    request: Request
    page: "Page"
    session: ConsoleSession
    parts: ConsoleParts
    console: "Console"
    form: Form = field(default_factory=Form)
    trouble: AccordError | None = None

    @property
    def actor(self) -> str:
        """The name of the session in journals."""
        return session_actor(self.session)

    @property
    def by_itself(self) -> bool:
        """Whether a page that is open loads a part of itself again."""
        return HTMX in self.request.headers

    def query(self, name: str) -> str:
        """Return a stripped query parameter, empty if missing; `ConsoleError` if it is too long."""
        value = self.request.query_params.get(name, "").strip()
        if len(value) > _QUERY_LENGTH:
            raise ConsoleError(tr("this is too long"), where=name, mend=tr("shorten it"))
        return value

    def number(self, name: str) -> int:
        """Return a query parameter that is a whole number, or raise `ConsoleError`."""
        value = self.query(name)
        if not (value.isascii() and value.isdecimal() and len(value) < _DIGITS):
            raise ConsoleError(tr("expected a number"), where=name)
        return int(value)

    @property
    def csrf(self) -> Markup:
        """The hidden field with the token of the session's forms."""
        field = '<input type="hidden" name="{}" value="{}">'
        return Markup(field).format(CSRF, self.session.csrf)  # noqa: S704

    @property
    def here(self) -> str:
        """The address of this page, or of the page to which something was sent."""
        url = self.request.url
        if self.request.method != "GET":
            return self.page.path
        return f"{url.path}?{url.query}" if url.query else url.path

    @property
    def may_act(self) -> bool:
        """Whether the forms of this page are accepted from this user."""
        return self.session.role >= self.page.acted_by

    def authority(self) -> RunningAuthority:
        """Return the station's authority, or raise `ConsoleError` if it is not up."""
        running = self.parts.authority()
        if running is None:
            raise not_up(tr("the authority"))
        return running

    @asynccontextmanager
    async def community(self) -> AsyncIterator[Client]:
        """Yield a client in the session's chosen community, else in the current one.

        Raises:
            CommunityError: The node is not up, or in no community.
        """
        there = [each["community_id"] for each in await self.parts.node.communities()]
        if not there:
            raise CommunityError(
                Code.NOT_FOUND,
                tr("this station is in no community yet"),
                mend=tr("found or join one on Home"),
            )
        chosen = self.console.chosen(self.session)
        async with self.parts.node.client(chosen if chosen in there else there[0]) as client:
            yield client

    def show(self, template: str, **values: Any) -> Response:
        """Render a template that extends `page.html`."""
        status = 200 if self.trouble is None else status_of(self.trouble)
        return Response(self.console.page(self, template, values), status, media_type=_HTML)

    def part(self, template: str, **values: Any) -> Markup:
        """Render a part of a page, for a stream or for htmx."""
        return self.console.part(template, values)

    def done(self, sentence: str, *, path: str | None = None) -> Response:
        """Redirect to the page after a change, with a sentence; to Home if it was asked there."""
        self.console.note(self.session, sentence)
        if self.form.text("back") == "home":
            path = self.console.pages[0].path
        return RedirectResponse(path or self.page.path, 303)

    async def changes(self, client: Client) -> int:
        """Return the position of the community's log; ask before reading, then `follow` from it."""
        return int((await client.post(_CHANGES, {}))["number"])

    def follow(self, *prefixes: str) -> Response:
        """Send `NEWS` whenever events with these type prefixes were accepted.

        Raises:
            ConsoleError: The query has no number `after`.
        """
        return self.stream(self._news(self.number("after"), prefixes))

    async def _news(self, after: int, prefixes: tuple[str, ...]) -> AsyncGenerator[Piece, None]:
        while True:
            try:
                async with self.community() as client:
                    while True:
                        after, is_new = await changed(client, after, prefixes)
                        if is_new:
                            yield NEWS
                        await asyncio.sleep(self.console.pause_seconds)
            except CommunityError:
                await asyncio.sleep(_AWAY_SECONDS)  # the plane is going, or coming

    def follow_run(self, runner: CommandRunner) -> Response:
        """Send the state of a command while it runs, as `command_run.html`."""
        return self.stream(self._run_pieces(runner))

    async def _run_pieces(self, runner: CommandRunner) -> AsyncGenerator[Piece, None]:
        shown: dict[str, Any] | None = None
        while True:
            work = run_state(runner.latest)
            if work != shown:
                shown = work
                yield Piece("work", self.part("command_run.html", work=work))
            if work is None or work["has_ended"]:
                yield Piece("end")
                return
            await asyncio.sleep(_RUN_SECONDS)

    def stream(self, pieces: AsyncGenerator[Piece, None]) -> Response:
        """Send pieces as server-sent events."""
        return self.console.stream(self, pieces)


_DIGITS: Final = 16
_HTML: Final = "text/html; charset=utf-8"
Handler: TypeAlias = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console.

    Attributes:
        slug: Its segment of the path; empty for the first page.
        show: Answers a visit; also, with `trouble`, when a form is refused.
        group: The group of the navigation that it belongs to; empty for none.
        is_listed: Whether the navigation has it.
        read_by: The least role that may look at it.
        acted_by: The least role whose forms are accepted.
    """

    slug: str
    title: str
    show: Handler
    reads: Mapping[str, Handler] = field(default_factory=dict)
    acts: Mapping[str, Handler] = field(default_factory=dict)
    group: str = ""
    is_listed: bool = True
    read_by: Role = Role.READER
    acted_by: Role = Role.OPERATOR

    @property
    def path(self) -> str:
        """The path of the page."""
        return f"{PATH}/{self.slug}"


async def changed(
    client: Client, after: int, prefixes: tuple[str, ...], seconds: int = _WAIT_SECONDS
) -> tuple[int, bool]:
    """Wait until a community's log is beyond a position, or for so many seconds.

    Returns:
        Its position now, and whether events with these type prefixes may have been accepted.
    """
    told = await client.post(_CHANGES, {"after": after, "seconds": seconds})
    types = told["event_types"]
    return told["number"], types is None or any(each.startswith(prefixes) for each in types)


def status_of(error: AccordError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, CommunityError):
        return 403 if error.code is Code.UNAUTHORIZED else error.code.status
    return error.status if isinstance(error, ConsoleError) else 400
