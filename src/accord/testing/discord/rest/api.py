"""The API as one function from a request to an answer.

Owns the order: route, token, limits, form, function. Trouble that a test makes comes before all.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson

from accord.testing.discord.rest import interactions, messages, places
from accord.testing.discord.rest.calls import Call, Route, Service
from accord.testing.discord.rest.limits import Admission, Limits
from accord.testing.discord.rest.refusals import Refused, unauthorized
from accord.testing.discord.world import Json

PREFIX = "/api/v10"
ROUTES: tuple[Route, ...] = (*places.ROUTES, *messages.ROUTES, *interactions.ROUTES)
_TOP = ("channel_id", "guild_id", "webhook_id", "webhook_token")
_COUNTED = (401, 403, 429)
_VERSION = re.compile(r"/api(?:/v\d{1,3})?(?=/|$)")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked."""

    method: str
    target: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)

    @property
    def path(self) -> str:
        """Where it was asked, unescaped."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> Mapping[str, str]:
        """What came after the path."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as tests look at it, without secrets.

    Attributes:
        path: Where, below the prefix; tokens stand as their names, and unknown places are empty.
    """

    method: str
    path: str
    status: int


class Api:
    """The REST API.

    Attributes:
        asked: Every request and the status of its answer, in order.
        invalid_requests: How many were answered 401, 403 or 429; at 10,000 in ten minutes the
            service bans an address.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service = service
        self.limits = limits
        self.asked: list[Asked] = []
        self.invalid_requests = 0

    def answer(self, request: Request) -> Answer:
        """Do what is asked, or refuse it."""
        headers: Mapping[str, str] = {}
        shown, is_counted = "", True
        try:
            route, params = _route(request.method, request.path)
            shown = _shown(route.template, params)
            _check_client(route, request)
            is_bot = self._authenticate(route, request)
            place = "/".join(params[name] for name in _TOP if name in params)
            admission = self.limits.admit(f"{route.method} {route.template}", place, is_bot=is_bot)
            headers, is_counted = admission.headers, not admission.is_shared
            if admission.wait is None:
                call = Call(self.service, params, request.query, _body(request))
                status, body = route.answer(call)
            else:
                status, body = 429, _limited(admission)
        except Refused as why:
            status, body = why.status, why.json()
        self.asked.append(Asked(request.method, shown, status))
        self.invalid_requests += is_counted and status in _COUNTED
        return made(status, body, headers)

    def _authenticate(self, route: Route, request: Request) -> bool:
        shown = request.headers.get("authorization", "")
        kind, _, token = shown.partition(" ")
        known = kind == "Bot" and self.service.application.knows(token)
        if not known and not route.is_open:
            raise unauthorized()
        return known


def made(status: int, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer with JSON in it, or with nothing."""
    if body is None:
        return Answer(status, b"", headers or {})
    return Answer(
        status, orjson.dumps(body), {"Content-Type": "application/json", **(headers or {})}
    )


def _check_client(route: Route, request: Request) -> None:
    # Bots "must provide a valid User Agent", and are blocked where they do not.
    if not route.is_open and not request.headers.get("user-agent", "").startswith("DiscordBot ("):
        raise Refused(403, 40333, "internal network error")


def _route(method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    versioned = _VERSION.match(path)
    if versioned is None:
        raise _not_found()
    if versioned[0] != PREFIX:
        raise Refused(400, 50041, "Invalid API version provided")
    inner = path[versioned.end() :]
    other = False
    for each in ROUTES:
        params = each.match(method, inner)
        if params is not None:
            return each, params
        other = other or each.match(each.method, inner) is not None
    raise Refused(405, 0, "405: Method Not Allowed") if other else _not_found()


def _not_found() -> Refused:
    return Refused(404, 0, "404: Not Found")


def _limited(admission: Admission) -> Json:
    what = "The resource is" if admission.is_shared else "You are"
    return {
        "message": f"{what} being rate limited.",
        "retry_after": round(admission.wait or 0.0, 3),
        "global": admission.is_global,
    }


def _body(request: Request) -> Any:
    if not request.body:
        return {} if request.method in ("POST", "PATCH") else None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(400, 50035, 'Expected "Content-Type" header to be application/json.')
    try:
        return orjson.loads(request.body)
    except orjson.JSONDecodeError:
        raise Refused(400, 50109, "The request body contains invalid JSON.") from None


def _shown(template: str, params: Mapping[str, str]) -> str:
    for name, value in params.items():
        if not name.endswith("_token"):
            template = template.replace(f"{{{name}}}", value)
    return template
