"""The REST API as one function from a request to an answer, with its rate limits.

The order is: trouble made by the test, route, token, limits, form, function.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson
from tests.fakes.discord.rest import guilds, interactions, messages
from tests.fakes.discord.rest.calls import Call, Refused, Route, Service, unauthorized
from tests.fakes.discord.world import Json

from accord.kernel.clock import Clock


@dataclass(frozen=True, slots=True)
class Rate:
    """So many requests in so many seconds."""

    requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RateTerms:
    """What a bot may ask how often.

    Attributes:
        messages: Creating messages, in each channel.
        others: Everything else, on each route and place.
        everything: All requests with the bot's token together.
    """

    messages: Rate = Rate(5, 5.0)
    others: Rate = Rate(50, 1.0)
    everything: Rate = Rate(50, 1.0)


@dataclass(eq=False, slots=True)
class _Bucket:
    rate: Rate
    ends_at: float = -math.inf
    used: int = 0

    def take(self, now: float) -> bool:
        if now >= self.ends_at:
            self.ends_at, self.used = now + self.rate.seconds, 0
        self.used += 1
        return self.used <= self.rate.requests


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a request may go on, and the headers of its answer.

    Attributes:
        wait: Seconds to wait, where it may not.
        is_shared: Whether the fault lies with others, so that it is not counted against the bot.
    """

    headers: Mapping[str, str]
    wait: float | None = None
    is_global: bool = False
    is_shared: bool = False


@dataclass(eq=False, slots=True)
class Limits:
    """The buckets of one bot."""

    clock: Clock
    terms: RateTerms = RateTerms()
    _forced: list[float] = field(default_factory=list)
    _buckets: dict[tuple[str, str], _Bucket] = field(default_factory=dict)
    _everything: _Bucket | None = None

    def force(self, waits: Sequence[float]) -> None:
        """Turn the next requests away, each for so many seconds, as if others had been too busy."""
        self._forced.extend(waits)

    def admit(self, route: str, place: str, *, is_bot: bool) -> Admission:
        """Count a request.

        Args:
            route: Its method and template.
            place: The channel, guild or webhook that it is about.
            is_bot: Whether it is made with the bot's token: others are not limited as a whole.
        """
        now = self.clock.now()
        if self._forced:
            wait = self._forced.pop(0)
            shared = {"Retry-After": str(math.ceil(wait)), "X-RateLimit-Scope": "shared"}
            return Admission(shared, wait, is_shared=True)
        if is_bot:
            self._everything = self._everything or _Bucket(self.terms.everything)
            if not self._everything.take(now):
                wait = self._everything.ends_at - now
                headers = {
                    "Retry-After": str(math.ceil(wait)),
                    "X-RateLimit-Global": "true",
                    "X-RateLimit-Scope": "global",
                }
                return Admission(headers, wait, is_global=True)
        is_message = route == "POST /channels/{channel_id}/messages"
        rate = self.terms.messages if is_message else self.terms.others
        bucket = self._buckets.setdefault((route, place), _Bucket(rate))
        taken = bucket.take(now)
        left = max(0.0, bucket.ends_at - now)
        headers = {
            "X-RateLimit-Limit": str(bucket.rate.requests),
            "X-RateLimit-Remaining": str(max(0, bucket.rate.requests - bucket.used)),
            "X-RateLimit-Reset": f"{bucket.ends_at:.3f}",
            "X-RateLimit-Reset-After": f"{left:.3f}",
            "X-RateLimit-Bucket": hashlib.sha256(route.encode()).hexdigest()[:32],
        }
        if taken:
            return Admission(headers)
        refused = {"Retry-After": str(math.ceil(left)), "X-RateLimit-Scope": "user"}
        return Admission(headers | refused, left)


PREFIX = "/api/v10"
ROUTES: tuple[Route, ...] = (*guilds.ROUTES, *messages.ROUTES, *interactions.ROUTES)
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
