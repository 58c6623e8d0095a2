"""What platforms share: webhook routes, bodies, HTTP with retries and rate limits, plain text.

What comes in is stored before it is acknowledged. Nothing here is particular to one service.
"""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import httpx
import orjson
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.settings import DEFAULT_LIMITS, PlatformLimits
from accord.relay.rules.connection import backoff
from accord.relay.rules.frames import Outcome, Result
from accord.relay.rules.members import Payload, bad
from accord.relay.rules.messages import InboundEvent
from accord.storage import StoreError
from accord.web import incoming, outgoing
from accord.web.incoming import BodyError, BodyLimits
from accord.web.outgoing import OutgoingError, ResponseError

PERMANENT: Final = frozenset({Code.BAD_REQUEST, Code.TOO_LARGE})
"""The refusals of events that can never be stored; any other may pass."""

Handler = Callable[[Request], Awaitable[Response]]

_log = structlog.stdlib.get_logger(__name__)
# Nothing of a request has left when one of these is raised.
_UNSENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)
R = TypeVar("R")
_FENCE: Final = ("```", "~~~")
_HEADING: Final = re.compile(r" {0,3}#{1,6} ++")
# Code first, so that marks inside it are left alone.
_MARKED: Final = re.compile(
    r"`(?P<code>[^`\n]++)`"
    r"|\*\*(?P<strong>[^*\n]++)\*\*"
    r"|\[(?P<label>[^\[\]\n]++)\]\((?P<link>https?://[^\s()]++)\)"
)


def webhook_route(
    path: str, handle: Handler, platform: str, methods: Sequence[str] = ("POST",)
) -> Route:
    """A route for a service's webhook; refusals are logged without the request's content.

    `handle` verifies, ingests and answers; it may raise RelayError and StoreError.
    """

    async def endpoint(request: Request) -> Response:
        try:
            return await handle(request)
        except RelayError as error:
            refusal = error
        except StoreError as error:
            _log.error("an event could not be stored", platform=platform, reason=error.what)
            refusal = RelayError(Code.UNAVAILABLE, "the store does not answer", mend="try again")
        _log.info("a webhook was refused", platform=platform, reason=str(refusal))
        answer = {"error": refusal.code.value, "message": str(refusal)}
        return JSONResponse(answer, refusal.code.status, {"cache-control": "no-store"})

    return Route(path, endpoint, methods=list(methods))


async def read_body(request: Request, limits: PlatformLimits = DEFAULT_LIMITS) -> bytes:
    """The body of a request, byte by byte as it was signed.

    Raises:
        RelayError: It is too long (TOO_LARGE), or did not arrive in time.
    """
    try:
        return await incoming.read(request, BodyLimits(limits.body_bytes, limits.body_seconds))
    except BodyError as error:
        code = Code.TOO_LARGE if error.status == 413 else Code.BAD_REQUEST
        raise RelayError(code, error.what) from None


def require_recent(timestamp: str, now: float, where: str, limits: PlatformLimits) -> None:
    """Refuse a request whose signed time, in seconds, is too far from ours; raises RelayError."""
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        raise bad("the timestamp is no number of seconds", where=where)
    if abs(now - int(timestamp)) > limits.tolerance_seconds:
        raise bad("the request is too old, or from the future", where=where)


def request_url(request: Request, public_url: str) -> str:
    """The URL that the sender requested, path and query exactly as sent."""
    path = request.scope.get("raw_path") or request.url.path.encode()
    query = request.scope["query_string"]
    written = path.partition(b"?")[0] + (b"?" + query if query else b"")
    return public_url.rstrip("/") + written.decode("latin-1")


def json_object(raw: bytes) -> Payload:
    """The JSON object in a body; raises RelayError if it is none in strict JSON."""
    try:
        value = canonical.decode(raw, max_bytes=len(raw) + 1)  # it was bounded when it was read
    except canonical.CanonicalError as error:
        raise bad(f"the body is not strict JSON: {error.what}", where=error.where) from None
    if not isinstance(value, dict):
        raise bad("the body is a JSON object")
    return value


async def ingest(context: PlatformContext | None, inbound: InboundEvent) -> bool:
    """Ingest an event; whether it was new.

    Raises:
        RelayError: It can never be stored (BAD_REQUEST, TOO_LARGE), or not now (UNAVAILABLE).
        StoreError: The store failed.
    """
    if context is None:
        raise RelayError(Code.UNAVAILABLE, "the connector is starting", mend="try again")
    try:
        return await context.ingest(inbound)
    except RelayError as error:
        if error.code in PERMANENT:
            raise
        raise RelayError(Code.UNAVAILABLE, error.what, mend="try again") from None


async def ingest_or_skip(context: PlatformContext | None, inbound: InboundEvent) -> None:
    """Ingest an event; one that can never be stored is skipped.

    Raises:
        RelayError: It was not stored; the service should send it again.
        StoreError: The store failed.
    """
    with skip_invalid(inbound.platform, inbound.event_id):
        await ingest(context, inbound)


@contextmanager
def skip_invalid(platform: str, event_id: str) -> Iterator[None]:
    """Log an event that can never be stored, and go on; every other error is raised."""
    try:
        yield
    except RelayError as error:
        if error.code not in PERMANENT:
            raise
        _log.warning(
            "an event cannot be stored",
            platform=platform,
            event_id=event_id[:80],
            reason=error.what,
        )


async def watch_service(
    context: PlatformContext,
    probe: Callable[[], Awaitable[object]],
    limits: PlatformLimits = DEFAULT_LIMITS,
) -> None:
    """Probe a service now and then and report its state, until credentials are refused."""
    failures = 0
    while True:
        try:
            await probe()
        except (RelayError, TimeoutError) as error:
            if not isinstance(error, RelayError):
                error = RelayError(Code.UNAVAILABLE, str(error))
            if error.code is Code.UNAUTHORIZED:
                raise error from None
            context.troubled(error)
            await asyncio.sleep(retry_delay(failures, limits))
            failures += 1
        else:
            context.ready()
            failures = 0
            await asyncio.sleep(limits.watch_seconds)


def retry_delay(failures: int, limits: PlatformLimits) -> float:
    """Seconds to wait after so many failures before this one: 1, 2, 4, ... up to the longest."""
    return backoff(failures, 1.0, first=1.0, longest=limits.pause_seconds)


class UnansweredError(RelayError):
    """A request was sent and not answered: whether it was done is unknown."""


class RateLimitedError(RelayError):
    """A service takes no more requests for `retry_after` seconds."""

    def __init__(self, what: str, retry_after: float) -> None:
        seconds = max(1, math.ceil(retry_after))
        super().__init__(Code.RATE_LIMITED, what, mend=f"retry after {seconds} seconds")
        self.retry_after = retry_after


def failed_result(error: RelayError) -> Result:
    """The result of an action that ended in an error."""
    wait = error.retry_after if isinstance(error, RateLimitedError) else None
    return Result(False, error=str(error), retry_after=wait, outcome=error_outcome(error))


def error_outcome(error: RelayError) -> Outcome:
    """What is known of an action that ended in an error."""
    if isinstance(error, UnansweredError):
        return Outcome.UNKNOWN
    passing = (Code.UNAVAILABLE, Code.RATE_LIMITED)
    return Outcome.RETRYABLE if error.code in passing else Outcome.PERMANENT


_GATEWAY_TIMEOUT: Final = 504


def status_outcome(status: int) -> Outcome:
    """What is known of a request that was not confirmed, by the status of its answer.

    After a success that cannot be read, and after a proxy's wait in vain, nothing is known.
    """
    if status < 300 or status == _GATEWAY_TIMEOUT:
        return Outcome.UNKNOWN
    return Outcome.RETRYABLE if status >= 500 or status in (408, 425, 429) else Outcome.PERMANENT


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """What a service answered; the body is empty where it is encoded or too long."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_too_long: bool = False
    default_wait: float = DEFAULT_LIMITS.rate_default_seconds

    @property
    def succeeded(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def members(self) -> Payload:
        """The JSON object in the body; empty where there is none."""
        try:
            return json_object(self.body)
        except RelayError:
            return {}

    @property
    def json(self) -> Any:
        """The JSON in the body, read leniently; None where there is none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    @property
    def retry_header(self) -> float | None:
        """The seconds in the header `Retry-After`; None where it has none."""
        value = self.headers.get("retry-after", "")
        is_number = value.isascii() and value.isdecimal() and len(value) < 10
        return float(value) if is_number else None

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait after a 429; None for any other status."""
        if self.status != 429:
            return None
        return self.default_wait if self.retry_header is None else self.retry_header


@dataclass(frozen=True, slots=True)
class HttpService:
    """The HTTP API of a platform's service; every request to it is sent here.

    Errors of the HTTP library are replaced, since their texts hold URLs and with them secrets.
    """

    name: str  # the service, for errors
    client: httpx.AsyncClient
    limits: PlatformLimits = DEFAULT_LIMITS
    # Whether a whole exchange has to end within `call_seconds`, beside the client's own timeouts.
    has_deadline: bool = True

    async def call(self, method: str, url: str, **options: Any) -> ServiceResponse:
        """Send a request, again after a short rate limit; raises what `send` raises."""
        return await retry_limited(
            lambda: self.send(method, url, **options),
            lambda reply: reply.retry_after,
            self.limits,
        )

    async def send(
        self, method: str, url: str, *, more_seconds: float = 0.0, **options: Any
    ) -> ServiceResponse:
        """Send a request once; `options` are those of `httpx.AsyncClient.build_request`.

        `more_seconds` are added to the time that the exchange may take.

        Raises:
            RelayError: Nothing was sent: the service cannot be reached (UNAVAILABLE), or its
                address is not allowed (FORBIDDEN).
            TimeoutError: There was no answer, so the outcome is unknown.
        """
        deadline = self.limits.call_seconds + more_seconds if self.has_deadline else None
        body, is_too_long = b"", False
        try:
            async with asyncio.timeout(deadline):
                request = self.client.build_request(method, url, **options)
                response = await self.client.send(request, stream=True)
                try:
                    body = await outgoing.read_bounded(response, self.limits.answer_bytes)
                except ResponseError:
                    is_too_long = True
                finally:
                    await response.aclose()
        except OutgoingError as refused:
            raise RelayError(Code.FORBIDDEN, refused.what, where=refused.where) from None
        except _UNSENT as error:
            what = f"{self.name} cannot be reached ({type(error).__name__})"
            raise RelayError(Code.UNAVAILABLE, what) from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise TimeoutError(f"{self.name} did not answer ({type(error).__name__})") from None
        wait = self.limits.rate_default_seconds
        return ServiceResponse(response.status_code, response.headers, body, is_too_long, wait)


async def retry_limited(
    send: Callable[[], Awaitable[R]],
    retry_after: Callable[[R], float | None],
    limits: PlatformLimits,
    patience: float | None = None,
) -> R:
    """Send until the answer is no rate limit, at most `rate_tries` times; the last answer.

    `retry_after` gives the seconds that an answer asks to wait, or None. An answer that asks for
    more than `patience` seconds, by default `rate_wait_seconds`, is returned at once.
    """
    longest = limits.rate_wait_seconds if patience is None else patience
    answer = await send()
    for _ in range(limits.rate_tries - 1):
        wait = retry_after(answer)
        if wait is None or wait > longest:
            break
        await asyncio.sleep(wait)
        answer = await send()
    return answer


def timeouts(limits: PlatformLimits, more_seconds: float = 0.0) -> httpx.Timeout:
    """The timeouts of a client; the service may take `more_seconds` until it answers."""
    silent, connect = limits.silent_seconds, limits.connect_seconds
    return httpx.Timeout(silent, read=silent + more_seconds, connect=connect, pool=connect)


def open_client(limits: PlatformLimits = DEFAULT_LIMITS, **options: Any) -> httpx.AsyncClient:
    """A client for the service that the operator's settings name; close it when done.

    It follows no redirects and ignores proxies of the environment. `options` are those of httpx.
    """
    headers = {"user-agent": "accord-relay", **options.pop("headers", {})}
    fixed = {"trust_env": False, "follow_redirects": False, "headers": headers}
    return outgoing.bounded_client(None, **{"timeout": timeouts(limits), **options, **fixed})


class RewritingTransport(httpx.AsyncBaseTransport):
    """Sends each request to the URL that `rewrite` returns.

    For services with a secret in the URL: the client, which logs URLs, never sees it.
    """

    def __init__(self, rewrite: Callable[[httpx.Request], httpx.URL]) -> None:
        self._rewrite = rewrite
        self._inner = httpx.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to its real URL."""
        rewritten = httpx.Request(
            request.method,
            self._rewrite(request),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return await self._inner.handle_async_request(rewritten)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


_MOST_PAUSES: Final = 10_000


class Pauses:
    """Kinds of requests of which a service takes no more for a while.

    A request in that time would be refused, and may make the time longer, so none is sent: neither
    by this connector nor by the bot's others, which are told.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        # The connector, once the platform is bound to it.
        self.context: PlatformContext | None = None

    def note(self, what: str, seconds: float) -> None:
        """The service takes no more requests of a kind for some time."""
        self.hold(what, seconds)
        if self.context is not None:
            self.context.paused(what, seconds)

    def hold(self, what: str, seconds: float) -> None:
        """Send none of a kind for some time, as another connector was told."""
        if len(self._until) >= _MOST_PAUSES:
            self._until.clear()
        until = self._clock.monotonic() + seconds
        self._until[what] = max(until, self._until.get(what, until))

    def left(self, what: str) -> float:
        """For how many seconds no request of a kind should be sent."""
        left = self._until.get(what, 0.0) - self._clock.monotonic()
        if left <= 0:
            self._until.pop(what, None)
            return 0.0
        return left

    async def keep(self, what: str, name: str, send: Callable[[], Awaitable[R]]) -> R:
        """Send a request of a kind to the service of this name, and note a rate limit.

        Raises:
            RateLimitedError: It was not sent, since the service takes none now.
        """
        if left := self.left(what):
            raise RateLimitedError(f"{name} has too many requests at the moment", left)
        try:
            answer = await send()
        except RateLimitedError as error:
            self.note(what, error.retry_after)
            raise
        if isinstance(answer, Result) and not answer.success and answer.retry_after is not None:
            self.note(what, answer.retry_after)
        return answer


_SENDING: Final = "send"


class HookedPlatform:
    """What platforms by webhook share; their chats are direct unless they say otherwise."""

    context: PlatformContext | None = None
    _is_refused = False

    def __init__(self, service: str, clock: Clock) -> None:
        self._service_name = service
        self._pauses = Pauses(clock)

    def bind(self, context: PlatformContext) -> None:
        """Set the connector, for requests to this process and for rate limits."""
        self.context = self._pauses.context = context

    def pause(self, what: str, seconds: float) -> None:
        """Send nothing for some time, as another connector of this bot was told."""
        self._pauses.hold(what, seconds)

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether it is the user's own chat."""
        return user_id == channel_id

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """False: nobody manages a direct chat."""
        return False

    async def _deliver(self, send: Callable[[], Awaitable[Result]]) -> Result:
        """The result of an action; refused credentials are also reported to the connector.

        Nothing is sent while the service takes no more requests.
        """
        try:
            result = await self._pauses.keep(_SENDING, self._service_name, send)
        except RelayError as error:
            if error.code is Code.UNAUTHORIZED and self.context is not None:
                self._is_refused = True
                self.context.troubled(error)
            return replace(failed_result(error), error=error.what)
        if result.success and self._is_refused and self.context is not None:
            self._is_refused = False
            self.context.ready()
        return result


def plain_text(text: str) -> str:
    """The text without its markup; never longer, and unchanged if nothing else would be left."""
    lines: list[str] = []
    in_code = False
    for line in text.split("\n"):
        if line.lstrip(" ").startswith(_FENCE):
            in_code = not in_code
        elif in_code:
            lines.append(line)
        else:
            lines.append(_MARKED.sub(_without_marks, _HEADING.sub("", line, count=1)))
    bare = "\n".join(lines)
    return bare if bare.strip() else text


def _without_marks(found: re.Match[str]) -> str:
    if found["link"] is None:
        return found["code"] or found["strong"]
    is_bare = found["label"] == found["link"]
    return found["link"] if is_bare else f"{found['label']} ({found['link']})"
