"""The routes of the web chat: the page, a JSON interface, and live updates.

Thin: guard, limit, find the user, read, call, answer. Errors are JSON with `error` and `message`.
What somebody cannot see is answered like what does not exist. Nothing that was sent is logged.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from accord.kernel.clock import Clock
from accord.relay.connector.control.bodies import read_body
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat import page
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.admin import PATH
from accord.relay.platforms.webchat.chats import no_message
from accord.relay.platforms.webchat.conversation import PAGE, Conversation
from accord.relay.platforms.webchat.doors import Doors, Entry
from accord.relay.platforms.webchat.guard import COOKIE, Guard, TooOftenError
from accord.relay.platforms.webchat.news import News
from accord.relay.platforms.webchat.settings import WebChatSettings
from accord.relay.platforms.webchat.stream import EventStream
from accord.relay.platforms.webchat.tail import Tail
from accord.relay.wire.members import bad, text
from accord.storage import StoreError

_API: Final = f"{PATH}/api"
_LARGEST: Final = 2**53 - 1
_UNAVAILABLE: Final = RelayError(
    Code.UNAVAILABLE, "the web chat's store does not answer", mend="try again"
)
_log = structlog.stdlib.get_logger(__name__)

Answer: TypeAlias = dict[str, Any]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Handler: TypeAlias = Callable[[Request, Account], Awaitable[Answer]]


class ChatRoutes:
    """Answers over HTTP what users do.

    Attributes:
        counts: What was refused, by kind, for the metrics.
    """

    def __init__(
        self,
        conversation: Conversation,
        doors: Doors,
        tail: Tail,
        clock: Clock,
        settings: WebChatSettings,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._conversation = conversation
        self._doors = doors
        self._tail = tail
        self._settings = settings
        self._guard = Guard(clock, settings)
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
        return [*page.routes(PATH), *api]

    def _route(self, answer: Endpoint) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            try:
                self._guard.demand_own_page(request)
                return await answer(request)
            except TooOftenError as error:
                return self._refuse(request, error, error.headers)
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

    def _refuse(
        self, request: Request, error: RelayError, headers: Mapping[str, str] | None = None
    ) -> Response:
        self.counts[f"refused_{error.code.value}"] += 1
        _log.info("refused", path=request.url.path, code=error.code.value, where=error.where)
        answer = {"error": error.code.value, "message": str(error)}
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

    def _enter(self, request: Request, entry: Entry) -> Response:
        answer: Answer = {"me": {"id": entry.user.id, "name": entry.user.name}}
        if entry.login_key is not None:
            answer["key"] = entry.login_key
        response = _respond(200, answer)
        self._guard.give_cookie(request, response, entry.session)
        return response

    async def _log_out(self, request: Request) -> Response:
        session = request.cookies.get(COOKIE)
        if session:
            await self._doors.log_out(session)
        response = _respond(200, {})
        self._guard.take_cookie(response)
        return response

    async def _me(self, _request: Request, user: Account) -> Answer:
        return await self._conversation.overview(user)

    async def _history(self, request: Request, user: Account) -> Answer:
        before = _query(request, "before", _LARGEST)
        limit = _query(request, "limit", PAGE)
        return await self._conversation.history(user, _path(request, "chat"), before, limit)

    async def _post(self, request: Request, user: Account) -> Answer:
        body = await read_body(request)
        return await self._conversation.post(
            user, _path(request, "chat"), body.get("text"), body.get("key"), body.get("reply_to")
        )

    async def _edit(self, request: Request, user: Account) -> Answer:
        body = await read_body(request)
        return await self._conversation.edit(user, _message(request), body.get("text"))

    async def _thread(self, request: Request, user: Account) -> Answer:
        return {"chat": await self._conversation.open_thread(user, _message(request))}

    async def _direct(self, request: Request, user: Account) -> Answer:
        return {"chat": await self._conversation.open_direct(user, _path(request, "bot"))}

    async def _typing(self, request: Request, user: Account) -> Answer:
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

        async def news(seq: int) -> News | None:
            # A session that ended must not be told anything more.
            if await self._doors.user_of(session) is None:
                return None
            return await self._conversation.news(user, seq)

        def ended() -> None:
            self._streams[user.id] -= 1
            if not self._streams[user.id]:
                del self._streams[user.id]

        self._streams[user.id] += 1
        return EventStream(after, news, self._tail, ended)


def _path(request: Request, name: str) -> str:
    value: str = request.path_params[name]
    return value if value.isascii() and value.isalnum() and len(value) <= 64 else "-"


def _message(request: Request) -> int:
    number = _number(request.path_params["message"])
    if number is None:
        raise no_message()
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


def _respond(status: int, answer: Answer, headers: Mapping[str, str] | None = None) -> Response:
    told = {**page.HEADERS, "cache-control": "no-store", **(headers or {})}
    return JSONResponse(answer, status, told)
