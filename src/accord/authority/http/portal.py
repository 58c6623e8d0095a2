"""The pages for people: login, consent to a client, activation of a device.

The HTML is small, without scripts and external resources, and everything is escaped. A page allows
itself a stylesheet and its own forms, and nothing else; the consent page may also send the browser
on to the address where the login ends.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from cachetools import FIFOCache
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from accord.authority.http import exchange
from accord.authority.http.exchange import FORM_FIELD, Endpoint, FormGuard, RateLimit, Refusals
from accord.authority.identities import (
    Access,
    Consent,
    DeviceActivation,
    Identities,
    LoginFlow,
    Person,
    Review,
)
from accord.authority.identities.login import VISIT_SECONDS
from accord.authority.identities.people import name_key
from accord.authority.rules import clients
from accord.authority.rules.errors import AuthorityError, Code
from accord.kernel.clock import Clock

STYLE: Final = (files(__package__) / "style.css").read_text(encoding="utf-8")

_SHAPE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="/login/style.css">
</head>
<body><main>
<h1>{title}</h1>
{body}
</main></body>
</html>
"""


def page(title: str, *parts: str) -> str:
    """A whole page; the parts are HTML."""
    return _SHAPE.format(title=escape(title), body="\n".join(parts))


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph."""
    return f'<p class="{escape(kind)}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def html_form(
    action: str, token: str, *fields: str, hidden: Mapping[str, str] | None = None
) -> str:
    """A form with its token."""
    members = {FORM_FIELD: token, **(hidden or {})}
    kept = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
        for name, value in members.items()
    )
    return f'<form method="post" action="{escape(action)}">{kept}{"".join(fields)}</form>'


def field(label: str, name: str, kind: str, complete: str, value: str = "") -> str:
    """A labelled field."""
    return (
        f'<label>{escape(label)}<input name="{escape(name)}" type="{escape(kind)}" '
        f'autocomplete="{escape(complete)}" value="{escape(value)}" required></label>'
    )


def button(label: str, name: str = "", value: str = "", kind: str = "") -> str:
    """A button that sends its form."""
    named = f' name="{escape(name)}" value="{escape(value)}"' if name else ""
    return f'<button class="{escape(kind)}"{named}>{escape(label)}</button>'


def login_page(token: str, onwards: str, wrong: str | None = None) -> str:
    """The page to log in."""
    return page(
        "Log in",
        *([paragraph(wrong, "wrong")] if wrong else []),
        html_form(
            "/login",
            token,
            field("Name", "name", "text", "username"),
            field("Password", "password", "password", "current-password"),
            button("Log in"),
            hidden={"next": onwards},
        ),
        paragraph("No password yet? Ask whoever runs this authority for a link.", "note"),
    )


def link_page(token: str, secret: str, person: Person) -> str:
    """The page of a login link; only its button uses the link up."""
    return page(
        "Log in",
        paragraph(f"This link logs you in as {person.name}, once."),
        html_form(f"/login/link/{secret}", token, button(f"Log in as {person.name}")),
    )


def account_page(token: str, person: Person, consents: Sequence[Consent], note: str = "") -> str:
    """A person's own account."""
    return page(
        f"You are {person.name}",
        *([paragraph(note, "good")] if note else []),
        "<h2>Password</h2>",
        html_form(
            "/login/password",
            token,
            field("New password", "password", "password", "new-password"),
            button("Change it" if person.has_password else "Set it"),
        ),
        "<h2>What you agreed to</h2>",
        _consents(token, consents),
        html_form("/logout", token, button("Log out", kind="quiet")),
    )


def consent_page(token: str, review: Review, person: Person) -> str:
    """The question whether a client may act for a person."""
    login = review.login
    anchored = login.anchor != login.session_key
    where = (
        f"It runs at {login.anchor}."
        if anchored
        else f"It is a program with the key {login.session_key[:16]}…"
    )
    return page(
        f"Let {review.client} act for you?",
        paragraph(review.description),
        paragraph(where, "strong"),
        paragraph(f"You are {person.name}."),
        _requested(review),
        html_form(
            f"/login/{login.id}",
            token,
            button("Allow", "answer", "accept"),
            button("Refuse", "answer", "deny", "quiet"),
        ),
        _technical((f"{login.contract_id}, digest {login.digest}", *_lines(review.asked))),
    )


def code_page(flow: str) -> str:
    """The page that shows a flow id, for programs without a page of their own."""
    return page(
        "You are done here",
        paragraph("Go back to the program. If it asks for a code, this is the one:"),
        f"<p><code>{escape(flow)}</code></p>",
    )


def activation_page(token: str, typed: str = "", wrong: str | None = None) -> str:
    """The page to type the code of a device."""
    return page(
        "Activate a device",
        *([paragraph(wrong, "wrong")] if wrong else []),
        html_form(
            "/activate",
            token,
            field("The code that the device shows", "code", "text", "off", typed),
            button("Go on"),
            hidden={"step": "look"},
        ),
    )


def device_page(token: str, typed: str, waiting: DeviceActivation) -> str:
    """The question whether to activate a device."""
    return page(
        f"Activate {waiting.name}?",
        paragraph(f"It will belong to the deployment {waiting.deployment}.", "strong"),
        paragraph("Go on only if you see this code on a device that you know.", "note"),
        html_form(
            "/activate",
            token,
            button("Activate", "step", "confirm"),
            button("Refuse", "step", "refuse", "quiet"),
            hidden={"code": typed},
        ),
        _technical(
            (f"key {waiting.device_key}", f"{waiting.contract_id}, digest {waiting.digest}")
        ),
    )


def _requested(review: Review) -> str:
    if not review.texts:
        return paragraph("It asks only to know who you are.")
    items = "".join(
        f"<li><strong>{escape(each.name)}</strong> {escape(each.description)}"
        + (f' <em class="wrong">{escape(each.consequence)}</em>' if each.consequence else "")
        + (" <em>(you do not have this yourself)</em>" if each.key in review.missing else "")
        + "</li>"
        for each in review.texts
    )
    return f"<p>It asks to:</p><ul>{items}</ul>"


def _lines(access: Access) -> list[str]:
    return sorted(access.surfaces) + sorted(access.capabilities)


def _technical(lines: Iterable[str]) -> str:
    items = "".join(f"<li><code>{escape(line)}</code></li>" for line in lines)
    return f"<details><summary>Technical details</summary><ul>{items}</ul></details>"


def _consents(token: str, consents: Sequence[Consent]) -> str:
    latest: dict[tuple[str, str], Consent] = {}
    for each in consents:  # the latest come first
        latest.setdefault((each.contract_id, each.anchor), each)
    standing = [each for each in latest.values() if each.answer.allows]
    if not standing:
        return paragraph("Nothing yet.")
    return "".join(
        html_form(
            "/login/withdraw",
            token,
            paragraph(f"{each.contract_id} at {each.anchor}"),
            button("Withdraw", kind="quiet"),
            hidden={"contract": each.contract_id, "anchor": each.anchor},
        )
        for each in standing
    )


_RETURN_PATH: Final = re.compile(r"/login(/[A-Za-z0-9_-]{32})?|/activate", re.ASCII)
_MOST_SHOWN: Final = 200
_MOST_KNOWN: Final = 10_000

Form = Mapping[str, str]
Handler = Callable[[Request, Form, Person], Awaitable[Response]]


class PortalRoutes:
    """The pages for people."""

    def __init__(
        self, identities: Identities, clock: Clock, refusals: Refusals, base_url: str = ""
    ) -> None:
        self._identities = identities
        self._refusals = refusals
        self._guard = FormGuard(base_url)
        self._opening = RateLimit(clock, per_minute=300, burst=100)
        self._logging_in = RateLimit(clock, per_minute=20, burst=10)
        self._guessing = RateLimit(clock, per_minute=5, burst=10)
        self._named = RateLimit(clock, per_minute=60, burst=100)
        self._known: FIFOCache[tuple[str, str], None] = FIFOCache(_MOST_KNOWN)
        self._typing = RateLimit(clock, per_minute=10, burst=10)

    @property
    def routes(self) -> list[Route]:
        """The routes, for the root; fixed paths come before parameters."""
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
            self._opening.take(exchange.client_key(request))
            return await answer(request)

        return Route(path, self._refusals.guarded(opened, self._refuse), methods=["GET"])

    def _post(self, path: str, handle: Callable[[Request, Form], Awaitable[Response]]) -> Route:
        async def sent(request: Request) -> Response:
            self._opening.take(exchange.client_key(request))
            form = await exchange.read_form(request)
            self._guard.demand_own_form(request, form)
            return await handle(request, form)

        return Route(path, self._refusals.guarded(sent, self._refuse), methods=["POST"])

    def _visited(self, handle: Handler) -> Callable[[Request, Form], Awaitable[Response]]:
        async def answer(request: Request, form: Form) -> Response:
            person = await self._visitor(request)
            if person is None:
                return _return_path("/login")
            return await handle(request, form, person)

        return answer

    async def _visitor(self, request: Request) -> Person | None:
        return await self._identities.login.visitor(self._guard.cookie(request))

    def _show(
        self, request: Request, make: Callable[[str], str], status: int = 200, ends_at: str = ""
    ) -> Response:
        """Render a page with this browser's form token."""
        known = self._guard.cookie(request)
        cookie = known or self._guard.new_cookie()
        body = make(self._guard.token(cookie))
        response = Response(body, status, _headers(ends_at), "text/html")
        if known is None:
            self._guard.give(request, response, cookie, VISIT_SECONDS)
        return response

    def _refuse(self, request: Request, error: AuthorityError) -> Response:
        def make(_token: str) -> str:
            parts = [paragraph(error.what, "wrong")]
            if error.mend:
                parts.append(paragraph(f"{error.mend[:1].upper()}{error.mend[1:]}."))
            return page("That did not work", *parts)

        return self._show(request, make, error.code.status)

    async def _style(self, _request: Request) -> Response:
        headers = {**exchange.HEADERS, "cache-control": "max-age=3600"}
        return Response(STYLE, 200, headers, "text/css")

    async def _front(self, request: Request) -> Response:
        person = await self._visitor(request)
        if person is None:
            return self._show(request, lambda token: login_page(token, "/login"))
        return await self._account(request, person)

    async def _account(self, request: Request, person: Person, note: str = "") -> Response:
        given = await self._identities.consents.answers(person.id, _MOST_SHOWN)
        return self._show(request, lambda token: account_page(token, person, given, note))

    async def _enter(self, request: Request, form: Form) -> Response:
        name, client = form.get("name", ""), exchange.client_key(request)
        who = name_key(name[:100])
        self._logging_in.take(client)
        # Guesses are limited for each address first. If many addresses use up the limit of a
        # name, addresses from which the person has logged in before are still let through.
        self._guessing.take(f"{client} {who}")
        if (client, who) not in self._known:
            self._named.take(who)
        onwards = form.get("next", "")
        onwards = onwards if _RETURN_PATH.fullmatch(onwards) else "/login"
        try:
            person = await self._identities.login.by_password(name, form.get("password", ""))
        except AuthorityError as error:
            if error.code is not Code.FORBIDDEN:
                raise
            self._refusals.note(request, error)
            wrong = f"{error.what[:1].upper()}{error.what[1:]}."
            return self._show(request, lambda token: login_page(token, onwards, wrong), 403)
        self._known[client, who] = None
        await self._identities.note("logged_in", person, "by password")
        return await self._let_in(request, person, onwards)

    async def _let_in(self, request: Request, person: Person, onwards: str) -> Response:
        response = _return_path(onwards)
        # A new cookie, against session fixation.
        visit = await self._identities.login.visit(person)
        self._guard.give(request, response, visit, VISIT_SECONDS)
        return response

    async def _link(self, request: Request) -> Response:
        secret = request.path_params["secret"]
        person = await self._identities.login.link_owner(secret)
        if person is None:
            raise AuthorityError(
                Code.FORBIDDEN,
                "this link is no longer valid",
                mend="ask whoever runs this authority for a new one",
            )
        return self._show(request, lambda token: link_page(token, secret, person))

    async def _follow_link(self, request: Request, _form: Form) -> Response:
        self._logging_in.take(exchange.client_key(request))
        person = await self._identities.login.by_link(request.path_params["secret"])
        await self._identities.note("logged_in", person, "by a link")
        return await self._let_in(request, person, "/login")

    async def _password(self, request: Request, form: Form, person: Person) -> Response:
        self._logging_in.take(exchange.client_key(request))
        await self._identities.login.set_password(person.id, form.get("password", ""))
        await self._identities.note("password_set", person)
        return await self._let_in(request, person, "/login")

    async def _withdraw(self, _request: Request, form: Form, person: Person) -> Response:
        contract, anchor = form.get("contract", ""), form.get("anchor", "")
        if contract.isprintable() and anchor.isprintable():
            await self._identities.withdraw(person, contract, anchor)
            await self._identities.note("withdrew", person, f"{contract} at {anchor}")
        return _return_path("/login")

    async def _leave(self, request: Request, _form: Form, _person: Person) -> Response:
        if cookie := self._guard.cookie(request):
            await self._identities.login.leave(cookie)
        response = _return_path("/login")
        self._guard.give(request, response, self._guard.new_cookie(), VISIT_SECONDS)
        return response

    async def _ask(self, request: Request) -> Response:
        login = await self._identities.login_flows.find(request.path_params["login"])
        person = await self._visitor(request)
        if person is None:
            onwards = f"/login/{login.id}"
            return self._show(request, lambda token: login_page(token, onwards))
        review = await self._identities.login_flows.review(login, person)
        if review.settled:
            return _return_path(await self._identities.login_flows.approve(login, person))
        origin = clients.origin(login.redirect_to)
        return self._show(
            request, lambda token: consent_page(token, review, person), ends_at=origin
        )

    async def _answer(self, request: Request, form: Form, person: Person) -> Response:
        login: LoginFlow = await self._identities.login_flows.find(request.path_params["login"])
        logins, client = self._identities.login_flows, f"{login.contract_id} at {login.anchor}"
        if form.get("answer") == "accept":
            onwards = await logins.approve(login, person)
            await self._identities.note("consented", person, client)
        else:
            onwards = await logins.deny(login, person)
            await self._identities.note("declined", person, client)
        return _return_path(onwards)

    async def _done(self, request: Request) -> Response:
        flow = request.query_params.get("flowId", "")[:64]
        if "authError" in request.query_params:
            refused = page("Access denied", paragraph("You did not allow it."))
            return self._show(request, lambda _token: refused)
        return self._show(request, lambda _token: code_page(flow))

    async def _activation(self, request: Request) -> Response:
        if await self._visitor(request) is None:
            return self._show(request, lambda token: login_page(token, "/activate"))
        typed = request.query_params.get("code", "")[:20]
        return self._show(request, lambda token: activation_page(token, typed))

    async def _activate(self, request: Request, form: Form, person: Person) -> Response:
        self._typing.take(person.id)
        typed, step = form.get("code", "")[:20], form.get("step")
        devices = self._identities.devices
        try:
            if step == "confirm":
                made = await devices.confirm(typed, person)
                done = page(
                    "The device is activated",
                    paragraph(f"{made.name} is part of {made.deployment} now."),
                )
                return self._show(request, lambda _token: done)
            if step == "refuse":
                await devices.refuse(typed, person)
                await self._identities.note("device_refused", person)
                gone = page("The device is refused", paragraph("The device was not activated."))
                return self._show(request, lambda _token: gone)
            waiting = await devices.find(typed, person)
        except AuthorityError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            wrong = str(error)
            return self._show(request, lambda token: activation_page(token, typed, wrong), 404)
        return self._show(request, lambda token: device_page(token, typed, waiting))


def _return_path(url: str) -> Response:
    return RedirectResponse(url, 303, exchange.HEADERS)


def _headers(ends_at: str) -> dict[str, str]:
    policy = (
        "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'; "
        f"form-action 'self' {ends_at}"
    )
    return {
        **exchange.HEADERS,
        "content-security-policy": policy.rstrip(),
        "cross-origin-opener-policy": "same-origin",
        # A stricter policy would leave out the origin of a form.
        "referrer-policy": "same-origin",
        "x-frame-options": "DENY",
    }
