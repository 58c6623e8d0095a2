"""The console's application: login, logout, all pages, and the handling of errors.

An error is shown as a banner on its page; request bodies are not logged.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, TypeAlias

import structlog
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from accord.console.messages import LANGUAGES, choose_language, set_language, tr
from accord.console.page import (
    HTMX,
    Form,
    Handler,
    Page,
    Piece,
    Visit,
    event_parts,
    read_form,
    session_actor,
)
from accord.console.parts import ConsoleParts
from accord.console.sessions import (
    COOKIE,
    CSRF,
    CSRF_HEADER,
    PATH,
    ConsoleError,
    ConsoleSession,
    RequestGuard,
    Role,
    Tickets,
)
from accord.console.shared import SharedValues
from accord.console.templates import Templates, assets
from accord.kernel.errors import AccordError
from accord.web import sse

_log = structlog.stdlib.get_logger(__name__)

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # With less the browser would not tell us that a form is from our own page.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
_STREAMS: Final = 8
# Bundles simultaneous events, so that a busy log does not keep browsers busy; and all open pages
# together are loaded again so often that the station has time for its work.
_PAUSE_SECONDS: Final = 0.2
_RELOADS_PER_SECOND: Final = 10.0
_CHOICES: Final = 1000
_LOGIN: Final = f"{PATH}/login"
_LOOKS: Final = ("light", "dark")
_LANGUAGE_COOKIE: Final = "accord_console_language"
_LOOK_COOKIE: Final = "accord_console_look"
_YEAR_SECONDS: Final = 365 * 86_400

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class Console:
    """The console of a station.

    Args:
        pages: In the order of the navigation; the first is the start page.
        url: The public address, beside this machine's own names; may be empty.
    """

    def __init__(
        self, parts: ConsoleParts, pages: Sequence[Page], tickets: Tickets, url: str = ""
    ) -> None:
        self._parts = parts
        self.pages = pages
        self._tickets = tickets
        self._guard = RequestGuard(url)
        self.url = url
        self._assets = assets()
        listed = [page for page in pages if page.is_listed]
        groups = [(name, list(each)) for name, each in groupby(listed, lambda page: page.group)]
        self._templates = Templates(
            self._assets,
            {"station": parts.name, "groups": groups, "home_option": parts.home_option},
        )
        self.language = parts.language
        self.shared = SharedValues(parts.clock)
        self._closing = asyncio.Event()
        # By session; losing them with the process costs a sentence, or a choice.
        self._notes: dict[str, str] = {}
        self._chosen: dict[str, str] = {}
        self._streams: Counter[str] = Counter()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [each.route() for each in self._assets]
        routes += [
            Route(_LOGIN, self._route(self._show_login), methods=["GET"]),
            Route(_LOGIN, self._route(self._log_in), methods=["POST"]),
            Route(f"{PATH}/look", self._route(self._set_look), methods=["POST"]),
            Route(
                f"{PATH}/logout",
                self._act(self.pages[0], self._log_out, Role.READER),
                methods=["POST"],
            ),
            Route(
                f"{PATH}/community",
                self._act(self.pages[0], self._choose, Role.READER),
                methods=["POST"],
            ),
            Route(PATH, self._route(_onwards), methods=["GET"]),
        ]
        for page in self.pages:
            routes.append(Route(page.path, self._read(page, page.show), methods=["GET"]))
            for path, handler in page.reads.items():
                place = _below(page, path)
                routes.append(Route(place, self._read(page, handler), methods=["GET"]))
            for path, handler in page.acts.items():
                place = _below(page, path)
                routes.append(Route(place, self._act(page, handler), methods=["POST"]))
        return Starlette(routes=routes, exception_handlers={HTTPException: self._missing})

    def close(self) -> None:
        """End the open event streams."""
        self._closing.set()
        self.shared.stop()

    def page(self, visit: Visit, template: str, values: Mapping[str, Any]) -> str:
        """Render a whole page."""
        # The sentence is not shown to a page that refreshes itself.
        is_whole = not visit.by_itself
        return self._templates.render(
            template,
            {
                "visit": visit,
                "page": visit.page,
                "trouble": visit.trouble,
                "typed": visit.form.texts,
                "note": self._notes.pop(visit.session.id, None) if is_whole else None,
                "csrf": visit.csrf,
                "look": _look(visit.request),
                "here": visit.here,
                **values,
            },
        )

    def part(self, template: str, values: Mapping[str, Any]) -> Markup:
        """Render a part of a page."""
        return self._templates.render(template, values)

    def note(self, session: ConsoleSession, sentence: str) -> None:
        """Keep a sentence for the next page of a session."""
        self._notes[session.id] = sentence

    @property
    def tickets(self) -> Tickets:
        """The sessions."""
        return self._tickets

    def chosen(self, session: ConsoleSession) -> str | None:
        """Return the community that a session has chosen."""
        return self._chosen.get(session.id)

    def choose(self, session: ConsoleSession, community_id: str | None) -> None:
        """Choose a community for a session; None for the station's current one."""
        if community_id is None:
            self._chosen.pop(session.id, None)
            return
        if len(self._chosen) > _CHOICES:
            self._chosen.clear()  # most are of sessions that have ended
        self._chosen[session.id] = community_id

    @property
    def pause_seconds(self) -> float:
        """How long a live page waits after news: longer, the more of them are open."""
        return max(_PAUSE_SECONDS, self._streams.total() / _RELOADS_PER_SECOND)

    def stream(self, visit: Visit, pieces: AsyncGenerator[Piece, None]) -> Response:
        """Return an event stream; `ConsoleError` if the session has too many."""
        session = visit.session
        if self._streams[session.id] >= _STREAMS:
            raise ConsoleError(
                tr("this session has too many live pages open"), mend=tr("close a tab"), status=429
            )
        parts = event_parts(pieces, lambda: self._tickets.is_valid(session), self._closing)
        return sse.EventStream(parts, held=sse.counted(self._streams, session.id))

    def _route(self, work: Callable[[Request], Awaitable[Response]]) -> Endpoint:
        """Add checks, headers and error handling to a route."""

        async def endpoint(request: Request) -> Response:
            self._speak(request)
            try:
                self._guard.demand_name(request)
                if request.method == "POST":
                    self._guard.demand_own_page(request)
                response = await work(request)
            except ConsoleError as error:
                response = self._plain(request, "refused.html", error, error.status)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            response.headers.setdefault("cache-control", "no-store")
            return response

        return endpoint

    def _speak(self, request: Request) -> None:
        """Set the language of what is answered to a request."""
        chosen = request.cookies.get(_LANGUAGE_COOKIE, "")
        accepted = request.headers.get("accept-language", "")
        set_language(choose_language(self.language, chosen, accepted))

    def _read(self, page: Page, handler: Handler) -> Endpoint:
        async def work(request: Request) -> Response:
            session = await self._session(request)
            if session is None:
                return _to_login(request)
            visit = Visit(request, page, session, self._parts, self)
            try:
                _demand_role(session, page.read_by)
                return await handler(visit)
            except AccordError as error:
                return _with(visit, trouble=error).show("trouble.html")

        return self._route(work)

    def _act(self, page: Page, handler: Handler, least: Role | None = None) -> Endpoint:
        async def work(request: Request) -> Response:
            session = await self._session(request)
            if session is None:
                return _to_login(request)
            form = Form()
            visit = Visit(request, page, session, self._parts, self)
            try:
                async with read_form(request) as form:
                    given = form.texts.get(CSRF) or request.headers.get(CSRF_HEADER, "")
                    self._guard.demand_token(session, given)
                    visit = _with(visit, form=form)
                    _demand_role(session, page.acted_by if least is None else least)
                    return await handler(visit)
            except AccordError as error:
                return await _again(_with(visit, trouble=error))

        return self._route(work)

    async def _show_login(self, request: Request) -> Response:
        if await self._session(request) is not None:
            return RedirectResponse(self.pages[0].path, 303)
        link = request.query_params.get("link", "")[:64]
        return self._plain(request, "login.html", None, 200, link=link)

    async def _log_in(self, request: Request) -> Response:
        async with read_form(request, files=False) as form:
            try:
                secret = self._tickets.redeem(form.text("link"))
            except ConsoleError as error:
                _log.warning("console login refused", reason=error.what)
                return self._plain(request, "login.html", error, error.status, link="")
        _log.info("console login")
        session = self._tickets.session(secret)
        if session is not None:
            await self._parts.note("console.entered", session_actor(session))
        response = RedirectResponse(self.pages[0].path, 303)
        self._guard.set_cookie(request, response, secret)
        return response

    async def _set_look(self, request: Request) -> Response:
        """Keep the language or the colours that a browser chose, in that browser."""
        async with read_form(request, files=False) as form:
            back = form.text("back")
            # Not an address on another host.
            place = back if back.startswith(f"{PATH}/") and "\\" not in back else f"{PATH}/"
            response = RedirectResponse(place, 303)
            for cookie, name, known in (
                (_LANGUAGE_COOKIE, "language", tuple(LANGUAGES)),
                (_LOOK_COOKIE, "look", _LOOKS),
            ):
                if form.text(name) in known:
                    self._guard.keep_choice(
                        request, response, cookie, form.text(name), _YEAR_SECONDS
                    )
                elif name in form.texts:
                    response.delete_cookie(cookie, path=PATH)
        return response

    async def _log_out(self, visit: Visit) -> Response:
        self._tickets.end(visit.session)
        await self._parts.note("console.left", visit.actor)
        self._notes.pop(visit.session.id, None)
        self._chosen.pop(visit.session.id, None)
        response = RedirectResponse(_LOGIN, 303)
        self._guard.delete_cookie(response)
        return response

    async def _choose(self, visit: Visit) -> Response:
        wanted = visit.form.text("community")
        for each in await visit.parts.node.communities():
            if each["community_id"] == wanted:
                self.choose(visit.session, wanted)
                return visit.done(tr("You are in {name} now.", name=each["name"]))
        raise ConsoleError(tr("this station is in no such community"))

    async def _missing(self, request: Request, error: Exception) -> Response:
        self._speak(request)
        status = error.status_code if isinstance(error, HTTPException) else 500
        trouble = ConsoleError(
            tr("there is no such page"), mend=tr("go back to Home"), status=status
        )
        response = self._plain(request, "refused.html", trouble, status)
        response.headers.update({**HEADERS, "cache-control": "no-store"})
        return response

    def _plain(
        self,
        request: Request,
        template: str,
        error: AccordError | None,
        status: int,
        **values: object,
    ) -> Response:
        """Render a page for somebody who is not logged in."""
        text = self._templates.render(
            template,
            {"trouble": error, "look": _look(request), "here": _address(request), **values},
        )
        return Response(text, status, media_type="text/html; charset=utf-8")

    async def _session(self, request: Request) -> ConsoleSession | None:
        # A page that refreshes itself does not keep its session alive.
        by_itself = HTMX in request.headers or request.headers.get("accept") == sse.MEDIA_TYPE
        in_use = request.method == "POST" or not by_itself
        session = self._tickets.session(request.cookies.get(COOKIE, ""), in_use=in_use)
        if session is None or not session.user:
            return session
        users = self._parts.users
        role = None if users is None else await users.role(session.user)
        return None if role is None else replace(session, role=role)


def _demand_role(session: ConsoleSession, least: Role) -> None:
    """Raise `ConsoleError` for a user who may not do this."""
    if session.role < least:
        raise ConsoleError(
            tr("your role does not allow this"),
            mend=tr("ask somebody who may, or whoever owns the station"),
            status=403,
        )


def _look(request: Request) -> str:
    """The colours that a browser chose; empty for those of the device."""
    chosen = request.cookies.get(_LOOK_COOKIE, "")
    return chosen if chosen in _LOOKS else ""


def _address(request: Request) -> str:
    """Where a browser is, or the start page after something was sent."""
    return request.url.path if request.method == "GET" else f"{PATH}/"


def _to_login(request: Request) -> Response:
    if HTMX in request.headers:
        # htmx would insert the login page as the part that it asked for.
        return Response(status_code=204, headers={"hx-redirect": _LOGIN})
    return RedirectResponse(_LOGIN, 303)


async def _onwards(_request: Request) -> Response:
    return RedirectResponse(f"{PATH}/", 308)


async def _again(visit: Visit) -> Response:
    """Show the page again with the error; if that fails, only the error."""
    if visit.session.role < visit.page.read_by:
        return visit.show("trouble.html")
    try:
        return await visit.page.show(visit)
    except AccordError:
        return visit.show("trouble.html")


def _below(page: Page, path: str) -> str:
    return f"{page.path}/{path}" if page.slug else f"{PATH}/home/{path}"


def _with(visit: Visit, *, form: Form | None = None, trouble: AccordError | None = None) -> Visit:
    return Visit(
        visit.request,
        visit.page,
        visit.session,
        visit.parts,
        visit.console,
        visit.form if form is None else form,
        trouble,
    )
