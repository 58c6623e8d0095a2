"""The routes of the web chat: the page, a JSON API, and live updates by server-sent events.

A request must come from our own page: checked by a `SameSite=Strict` cookie, a custom header and
the origin. What a user cannot see is answered like what does not exist. No content is logged.
"""

import hashlib
import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from accord.kernel.clock import Clock
from accord.relay.connector.http import read_body
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import RateLimitedError
from accord.relay.platforms.settings import WebChatSettings
from accord.relay.platforms.webchat.accounts import Account, Login, LoginResult
from accord.relay.platforms.webchat.admin import CHAT_PATH
from accord.relay.platforms.webchat.chats import no_such_message
from accord.relay.platforms.webchat.feed import FeedTail
from accord.relay.platforms.webchat.messages import Conversation, FeedEvent, FeedUpdate
from accord.relay.rules.members import bad, text
from accord.storage import StoreError
from accord.web import sse
from accord.web.incoming import RateLimiter, address_key
from accord.web.origin import is_own_page

COOKIE: Final = "accord_chat"
HEADER: Final = "x-accord-chat"
_SAFE: Final = frozenset({"GET", "HEAD"})
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FILES: Final = (
    "index.html",
    "style.css",
    "icon.svg",
    "app.js",
    "api.js",
    "live.js",
    "markdown.js",
    "messages.js",
    "sidebar.js",
)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""What every answer of the web chat says to the browser."""
_RETRY: Final = b"retry: 1000\n\n"
_log = structlog.stdlib.get_logger(__name__)
_API: Final = f"{CHAT_PATH}/api"
_LARGEST: Final = 2**53 - 1
_UNAVAILABLE: Final = RelayError(
    Code.UNAVAILABLE, "the web chat's store does not answer", mend="try again"
)
HandlerResult: TypeAlias = dict[str, Any]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Handler: TypeAlias = Callable[[Request, Account], Awaitable[HandlerResult]]


class RequestGuard:
    """Checks requests, and sets cookies; its checks raise RelayError."""

    def __init__(self, clock: Clock, settings: WebChatSettings) -> None:
        self._base = urlsplit(settings.base_url)
        self._session_seconds = settings.session_seconds
        self._entering = RateLimiter(clock, per_minute=settings.entries_per_minute, burst=10)
        self._posting = RateLimiter(clock, per_minute=settings.posts_per_minute, burst=20)
        self._asking = RateLimiter(clock, per_minute=settings.requests_per_minute, burst=100)

    def require_own_page(self, request: Request) -> None:
        """Refuse requests that another site made a browser send."""
        if request.method in _SAFE:
            return
        if request.headers.get(HEADER) != "1":
            raise _foreign(f"the header {HEADER} is missing")
        if not is_own_page(request.headers, self._base):
            raise _foreign("another site sent it")

    def limit_entry(self, request: Request) -> None:
        """Count an attempt to join or log in against the client's address."""
        host = request.client.host if request.client else "nowhere"
        _take_token(self._entering, address_key(host))

    def limit_user(self, user_id: str, *, posts: bool) -> None:
        """Count a request of a user."""
        _take_token(self._posting if posts else self._asking, user_id)

    def set_cookie(self, request: Request, response: Response, session: str) -> None:
        """Set the session cookie."""
        response.set_cookie(
            COOKIE,
            session,
            max_age=self._session_seconds,
            path=CHAT_PATH,
            secure="https" in (self._base.scheme, request.url.scheme),
            httponly=True,
            samesite="strict",
        )

    def delete_cookie(self, response: Response) -> None:
        """Delete the session cookie."""
        response.delete_cookie(COOKIE, path=CHAT_PATH, httponly=True, samesite="strict")


def _take_token(limiter: RateLimiter, key: str) -> None:
    if seconds := limiter.wait(key):
        raise RateLimitedError("this was asked too often", seconds)


def _foreign(why: str) -> RelayError:
    return RelayError(Code.FORBIDDEN, f"this request is not from the web chat's page: {why}")


def page_routes(path: str) -> list[Route]:
    """The page at a path with a slash, and its files below."""
    made = [_file_route(f"{path}/static/{name}", name) for name in _FILES[1:]]

    async def onwards(_request: Request) -> Response:
        return RedirectResponse(f"{path}/", 308, HEADERS)

    return [Route(path, onwards), _file_route(f"{path}/", _FILES[0]), *made]


def _file_route(path: str, name: str) -> Route:
    body = (files(__package__) / "static" / name).read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag, "cache-control": "no-cache"}
    media_type = _TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, 200, headers, media_type)

    return Route(path, answer)


async def _event_parts(
    after: int,
    news: Callable[[int], Awaitable[FeedUpdate | None]],
    tail: FeedTail,
    alive_seconds: float,
) -> AsyncGenerator[bytes, None]:
    """Yield what follows the entry `after`, until `news` says None: the session has ended."""
    yield _RETRY
    while not tail.closed:
        try:
            update = await news(after)
        except StoreError as error:
            _log.warning("an event stream ended", reason=str(error))
            return
        if update is None:
            return
        if update.is_lost:
            yield _write_event(FeedEvent(update.seq, "reset", {}))
        elif update.seq > after:
            yield b"".join(map(_write_event, update.events)) + b"id: %d\n\n" % update.seq
        elif not await tail.wait_beyond(after, alive_seconds):
            yield sse.ALIVE
        after = update.seq


def _write_event(event: FeedEvent) -> bytes:
    return sse.write_event(orjson.dumps(event.data), event=event.name, seq=event.seq)


class ChatRoutes:
    """The JSON API; `counts` are refusals by kind, for metrics."""

    def __init__(
        self,
        conversation: Conversation,
        doors: Login,
        tail: FeedTail,
        clock: Clock,
        settings: WebChatSettings,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._conversation = conversation
        self._doors = doors
        self._tail = tail
        self._settings = settings
        self._guard = RequestGuard(clock, settings)
        self._streams: Counter[str] = Counter()

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes, to be mounted at the root."""
        chat, message = f"{_API}/chats/{{chat}}", f"{_API}/messages/{{message}}"
        made: list[tuple[str, str, Endpoint]] = [
            ("POST", f"{_API}/join", self._route(self._join)),
            ("POST", f"{_API}/login", self._route(self._log_in)),
            ("POST", f"{_API}/logout", self._route(self._log_out)),
            ("GET", f"{_API}/me", self._user_route(self._me)),
            ("GET", f"{_API}/events", self._route(self._events)),
            ("GET", f"{chat}/messages", self._user_route(self._history)),
            ("POST", f"{chat}/messages", self._user_route(self._post, posts=True)),
            ("POST", f"{chat}/typing", self._user_route(self._typing)),
            ("PATCH", message, self._user_route(self._edit, posts=True)),
            ("POST", f"{message}/thread", self._user_route(self._thread)),
            ("POST", f"{_API}/bots/{{bot}}/chat", self._user_route(self._direct)),
        ]
        api = [Route(path, endpoint, methods=[method]) for method, path, endpoint in made]
        return [*page_routes(CHAT_PATH), *api]

    def _route(self, answer: Endpoint) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            try:
                self._guard.require_own_page(request)
                return await answer(request)
            except RelayError as error:
                return self._refuse(request, error)
            except StoreError as error:
                _log.error("the web chat's store failed", path=request.url.path, reason=error.what)
                return self._refuse(request, _UNAVAILABLE)

        return endpoint

    def _user_route(self, handle: Handler, *, posts: bool = False) -> Endpoint:
        async def answer(request: Request) -> Response:
            user = await self._user(request)
            self._guard.limit_user(user.id, posts=posts)
            return _respond(200, await handle(request, user))

        return self._route(answer)

    def _refuse(self, request: Request, error: RelayError) -> Response:
        self.counts[f"refused_{error.code.value}"] += 1
        _log.info(
            "a request was refused",
            path=request.url.path,
            code=error.code.value,
            where=error.where,
        )
        answer = {"error": error.code.value, "message": str(error)}
        headers = {}
        if isinstance(error, RateLimitedError):
            headers["retry-after"] = str(math.ceil(error.retry_after))
        return _respond(error.code.status, answer, headers)

    async def _user(self, request: Request) -> Account:
        user = await self._doors.user_of(request.cookies.get(COOKIE))
        if user is None:
            raise RelayError(Code.UNAUTHORIZED, "you are not logged in")
        return user

    async def _join(self, request: Request) -> Response:
        self._guard.limit_entry(request)
        body = await read_body(request)
        invite = text(body, "invite")
        if body.get("name") is None:
            user = await self._user(request)
            await self._doors.join_more(invite, user)
            return _respond(200, {"me": {"id": user.id, "name": user.name}})
        entry = await self._doors.join(invite, body["name"])
        return self._enter(request, entry)

    async def _log_in(self, request: Request) -> Response:
        self._guard.limit_entry(request)
        entry = await self._doors.log_in(text(await read_body(request), "key"))
        return self._enter(request, entry)

    def _enter(self, request: Request, entry: LoginResult) -> Response:
        answer: HandlerResult = {"me": {"id": entry.user.id, "name": entry.user.name}}
        if entry.login_key is not None:
            answer["key"] = entry.login_key
        response = _respond(200, answer)
        self._guard.set_cookie(request, response, entry.session)
        return response

    async def _log_out(self, request: Request) -> Response:
        session = request.cookies.get(COOKIE)
        if session:
            await self._doors.log_out(session)
        response = _respond(200, {})
        self._guard.delete_cookie(response)
        return response

    async def _me(self, _request: Request, user: Account) -> HandlerResult:
        return await self._conversation.overview(user)

    async def _history(self, request: Request, user: Account) -> HandlerResult:
        before = _query(request, "before", _LARGEST)
        limit = _query(request, "limit", self._settings.page)
        return await self._conversation.history(user, _path(request, "chat"), before, limit)

    async def _post(self, request: Request, user: Account) -> HandlerResult:
        body = await read_body(request)
        return await self._conversation.post(
            user, _path(request, "chat"), body.get("text"), body.get("key"), body.get("reply_to")
        )

    async def _edit(self, request: Request, user: Account) -> HandlerResult:
        body = await read_body(request)
        return await self._conversation.edit(user, _message(request), body.get("text"))

    async def _thread(self, request: Request, user: Account) -> HandlerResult:
        return {"chat": await self._conversation.open_thread(user, _message(request))}

    async def _direct(self, request: Request, user: Account) -> HandlerResult:
        return {"chat": await self._conversation.open_direct(user, _path(request, "bot"))}

    async def _typing(self, request: Request, user: Account) -> HandlerResult:
        await self._conversation.typing(user, _path(request, "chat"))
        return {}

    async def _events(self, request: Request) -> Response:
        user = await self._user(request)
        self._guard.limit_user(user.id, posts=False)
        session = request.cookies.get(COOKIE)
        after = _last_seen(request)
        if self._streams[user.id] >= self._settings.streams_per_user:
            raise RelayError(Code.RATE_LIMITED, "you have too many pages open", mend="close some")
        if self._streams.total() >= self._settings.streams:
            raise RelayError(Code.UNAVAILABLE, "too many pages are open", mend="try again later")

        async def news(seq: int) -> FeedUpdate | None:
            # A session that ended gets nothing more.
            if await self._doors.user_of(session) is None:
                return None
            return await self._conversation.news(user, seq)

        return sse.EventStream(
            _event_parts(after, news, self._tail, self._settings.alive_seconds),
            headers=HEADERS,
            held=sse.counted(self._streams, user.id),
        )


def _path(request: Request, name: str) -> str:
    value: str = request.path_params[name]
    return value if value.isascii() and value.isalnum() and len(value) <= 64 else "-"


def _message(request: Request) -> int:
    number = _number(request.path_params["message"])
    if number is None:
        raise no_such_message()
    return number


def _query(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    number = _number(given)
    if number is None:
        raise bad("expected a number", where=name)
    return number


def _last_seen(request: Request) -> int:
    # A browser that resumes says so by itself; the address is that of its first time.
    resumed = _number(request.headers.get("last-event-id", ""))
    return _query(request, "after", 0) if resumed is None else resumed


def _number(given: str) -> int | None:
    if not (given.isascii() and given.isdecimal() and len(given) <= 16):
        return None
    return min(int(given), _LARGEST)


def _respond(
    status: int, answer: HandlerResult, headers: Mapping[str, str] | None = None
) -> Response:
    told = {**HEADERS, "cache-control": "no-store", **(headers or {})}
    return JSONResponse(answer, status, told)
