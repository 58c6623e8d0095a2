"""The pages for people: coming in, agreeing to a client, activating a device.

Thin: guard, limit, find the visitor, call, show. A page allows itself a stylesheet and its own
forms, and nothing else; the one that asks for consent may also send the browser on to where the
login ends.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from accord.authority.errors import AuthorityError, Code
from accord.authority.http import exchange, pages
from accord.authority.http.exchange import Endpoint, Refusals
from accord.authority.http.guard import Guard
from accord.authority.http.limits import Limit
from accord.authority.identities import Identities, Login, Person, places
from accord.authority.identities.entering import VISIT_SECONDS
from accord.kernel.clock import Clock

_ONWARDS: Final = re.compile(r"/login(/[A-Za-z0-9_-]{32})?|/activate", re.ASCII)
_MOST_SHOWN: Final = 200

Form = Mapping[str, str]
Handler = Callable[[Request, Form, Person], Awaitable[Response]]


class PortalRoutes:
    """The pages.

    Args:
        identities: Decides.
        clock: The time, for limits.
        refusals: Counts what is refused.
        base_url: Where people reach the pages; empty for the address of each request.
    """

    def __init__(
        self, identities: Identities, clock: Clock, refusals: Refusals, base_url: str = ""
    ) -> None:
        self._identities = identities
        self._refusals = refusals
        self._guard = Guard(base_url)
        self._opening = Limit(clock, per_minute=300, burst=100)
        self._entering = Limit(clock, per_minute=20, burst=10)
        self._named = Limit(clock, per_minute=20, burst=20)
        self._typing = Limit(clock, per_minute=10, burst=10)

    @property
    def routes(self) -> list[Route]:
        """The routes, to be mounted at the root; what is fixed comes before what is named."""
        get, post = self._get, self._post
        return [
            Route("/login/style.css", self._style),
            get("/login", self._front),
            post("/login", self._enter),
            get("/login/done", self._done),
            post("/login/password", self._visited(self._password)),
            post("/login/withdraw", self._visited(self._withdraw)),
            get("/login/link/{secret}", self._link),
            post("/login/link/{secret}", self._follow_link),
            get("/login/{login}", self._ask),
            post("/login/{login}", self._visited(self._answer)),
            post("/logout", self._visited(self._leave)),
            get("/activate", self._activation),
            post("/activate", self._visited(self._activate)),
        ]

    def _get(self, path: str, answer: Endpoint) -> Route:
        async def opened(request: Request) -> Response:
            self._opening.take(exchange.client(request))
            return await answer(request)

        return Route(path, self._refusals.guarded(opened, self._refuse), methods=["GET"])

    def _post(self, path: str, handle: Callable[[Request, Form], Awaitable[Response]]) -> Route:
        async def sent(request: Request) -> Response:
            self._opening.take(exchange.client(request))
            form = await exchange.read_form(request)
            self._guard.demand_own_form(request, form)
            return await handle(request, form)

        return Route(path, self._refusals.guarded(sent, self._refuse), methods=["POST"])

    def _visited(self, handle: Handler) -> Callable[[Request, Form], Awaitable[Response]]:
        async def answer(request: Request, form: Form) -> Response:
            person = await self._visitor(request)
            if person is None:
                return _onwards("/login")
            return await handle(request, form, person)

        return answer

    async def _visitor(self, request: Request) -> Person | None:
        return await self._identities.entering.visitor(self._guard.cookie(request))

    def _show(
        self,
        request: Request,
        make: Callable[[str], str],
        status: int = 200,
        ends_at: str = "",
    ) -> Response:
        """A page for this browser, made with the token of its forms."""
        known = self._guard.cookie(request)
        cookie = known or self._guard.new_cookie()
        body = make(self._guard.token(cookie))
        response = Response(body, status, _headers(ends_at), "text/html")
        if known is None:
            self._guard.give(request, response, cookie, VISIT_SECONDS)
        return response

    def _refuse(self, request: Request, error: AuthorityError) -> Response:
        def make(_token: str) -> str:
            parts = [pages.said(error.what, "wrong")]
            if error.mend:
                parts.append(pages.said(f"{error.mend[:1].upper()}{error.mend[1:]}."))
            return pages.page("That did not work", *parts)

        return self._show(request, make, error.code.status)

    async def _style(self, _request: Request) -> Response:
        headers = {**exchange.HEADERS, "cache-control": "max-age=3600"}
        return Response(pages.STYLE, 200, headers, "text/css")

    async def _front(self, request: Request) -> Response:
        person = await self._visitor(request)
        if person is None:
            return self._show(request, lambda token: pages.entry(token, "/login"))
        return await self._account(request, person)

    async def _account(self, request: Request, person: Person, note: str = "") -> Response:
        given = await self._identities.allowing.consents(person.id, _MOST_SHOWN)
        return self._show(request, lambda token: pages.account(token, person, given, note))

    async def _enter(self, request: Request, form: Form) -> Response:
        name = form.get("name", "")
        self._entering.take(exchange.client(request))
        self._named.take(name[:100].casefold())
        onwards = form.get("next", "")
        onwards = onwards if _ONWARDS.fullmatch(onwards) else "/login"
        try:
            person = await self._identities.entering.by_password(name, form.get("password", ""))
        except AuthorityError as error:
            if error.code is not Code.FORBIDDEN:
                raise
            self._refusals.note(request, error)
            wrong = f"{error.what[:1].upper()}{error.what[1:]}."
            return self._show(request, lambda token: pages.entry(token, onwards, wrong), 403)
        await self._identities.note("logged_in", person, "by password")
        return await self._let_in(request, person, onwards)

    async def _let_in(self, request: Request, person: Person, onwards: str) -> Response:
        response = _onwards(onwards)
        # A new cookie: one that somebody planted before must not become the person's.
        visit = await self._identities.entering.visit(person)
        self._guard.give(request, response, visit, VISIT_SECONDS)
        return response

    async def _link(self, request: Request) -> Response:
        secret = request.path_params["secret"]
        person = await self._identities.entering.of_link(secret)
        if person is None:
            raise AuthorityError(
                Code.FORBIDDEN,
                "this link is good no more",
                mend="ask whoever runs this authority for a new one",
            )
        return self._show(request, lambda token: pages.link(token, secret, person))

    async def _follow_link(self, request: Request, _form: Form) -> Response:
        self._entering.take(exchange.client(request))
        person = await self._identities.entering.by_link(request.path_params["secret"])
        await self._identities.note("logged_in", person, "by a link")
        return await self._let_in(request, person, "/login")

    async def _password(self, request: Request, form: Form, person: Person) -> Response:
        self._entering.take(exchange.client(request))
        await self._identities.entering.set_password(person.id, form.get("password", ""))
        await self._identities.note("password_set", person)
        return await self._let_in(request, person, "/login")

    async def _withdraw(self, _request: Request, form: Form, person: Person) -> Response:
        contract, anchor = form.get("contract", ""), form.get("anchor", "")
        if contract.isprintable() and anchor.isprintable():
            await self._identities.withdraw(person, contract, anchor)
            await self._identities.note("withdrew", person, f"{contract} at {anchor}")
        return _onwards("/login")

    async def _leave(self, request: Request, _form: Form, _person: Person) -> Response:
        if cookie := self._guard.cookie(request):
            await self._identities.entering.leave(cookie)
        response = _onwards("/login")
        self._guard.give(request, response, self._guard.new_cookie(), VISIT_SECONDS)
        return response

    async def _ask(self, request: Request) -> Response:
        login = await self._identities.logins.find(request.path_params["login"])
        person = await self._visitor(request)
        if person is None:
            onwards = f"/login/{login.id}"
            return self._show(request, lambda token: pages.entry(token, onwards))
        review = await self._identities.logins.review(login, person)
        if review.settled:
            return _onwards(await self._identities.logins.approve(login, person))
        origin = places.origin(login.redirect_to)
        return self._show(
            request, lambda token: pages.consent(token, review, person), ends_at=origin
        )

    async def _answer(self, request: Request, form: Form, person: Person) -> Response:
        login: Login = await self._identities.logins.find(request.path_params["login"])
        logins, client = self._identities.logins, f"{login.contract_id} at {login.anchor}"
        if form.get("answer") == "accept":
            onwards = await logins.approve(login, person)
            await self._identities.note("consented", person, client)
        else:
            onwards = await logins.deny(login, person)
            await self._identities.note("declined", person, client)
        return _onwards(onwards)

    async def _done(self, request: Request) -> Response:
        flow = request.query_params.get("flowId", "")[:64]
        if "authError" in request.query_params:
            refused = pages.page("You are done here", pages.said("You did not allow it."))
            return self._show(request, lambda _token: refused)
        return self._show(request, lambda _token: pages.code(flow))

    async def _activation(self, request: Request) -> Response:
        if await self._visitor(request) is None:
            return self._show(request, lambda token: pages.entry(token, "/activate"))
        typed = request.query_params.get("code", "")[:20]
        return self._show(request, lambda token: pages.activation(token, typed))

    async def _activate(self, request: Request, form: Form, person: Person) -> Response:
        self._typing.take(person.id)
        typed, step = form.get("code", "")[:20], form.get("step")
        devices = self._identities.devices
        try:
            if step == "confirm":
                made = await devices.confirm(typed, person)
                done = pages.page(
                    "It is activated", pages.said(f"{made.name} is part of {made.deployment} now.")
                )
                return self._show(request, lambda _token: done)
            if step == "refuse":
                await devices.refuse(typed, person)
                await self._identities.note("device_refused", person)
                gone = pages.page("It is refused", pages.said("The device was sent away."))
                return self._show(request, lambda _token: gone)
            waiting = await devices.find(typed, person)
        except AuthorityError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            wrong = str(error)
            return self._show(request, lambda token: pages.activation(token, typed, wrong), 404)
        return self._show(request, lambda token: pages.device(token, typed, waiting))


def _onwards(url: str) -> Response:
    return RedirectResponse(url, 303, exchange.HEADERS)


def _headers(ends_at: str) -> dict[str, str]:
    """What a browser may do with a page; an answered form may lead to where the login ends."""
    policy = (
        "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'; "
        f"form-action 'self' {ends_at}"
    )
    return {
        **exchange.HEADERS,
        "content-security-policy": policy.rstrip(),
        "cross-origin-opener-policy": "same-origin",
        # With less a browser would not say where a form comes from.
        "referrer-policy": "same-origin",
        "x-frame-options": "DENY",
    }
