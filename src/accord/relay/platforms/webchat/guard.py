"""What a request must be before anybody looks into it: from our own page, and not too often.

Owns the protection against requests that another site makes a browser send. Three walls: the cookie
is `SameSite=Strict`; a header that no form can set and no other site may set; and the origin, where
the browser names it.
"""

import math
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from accord.kernel.clock import Clock
from accord.relay.connector.control.limits import Limiter
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat.admin import PATH
from accord.relay.platforms.webchat.settings import WebChatSettings

COOKIE: Final = "accord_chat"
HEADER: Final = "x-accord-chat"
_SAFE: Final = frozenset({"GET", "HEAD"})


class TooOftenError(RelayError):
    """A refusal that says when to try again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(
            Code.RATE_LIMITED, "this was asked too often", mend=f"wait {seconds} seconds"
        )
        self.headers: Mapping[str, str] = {"retry-after": str(seconds)}


class Guard:
    """Looks at requests, and gives out cookies."""

    def __init__(self, clock: Clock, settings: WebChatSettings) -> None:
        self._base = urlsplit(settings.base_url)
        self._session_seconds = settings.session_seconds
        self._entering = Limiter(clock, per_minute=settings.entries_per_minute, burst=10)
        self._posting = Limiter(clock, per_minute=settings.posts_per_minute, burst=20)
        self._asking = Limiter(clock, per_minute=settings.requests_per_minute, burst=100)

    def demand_own_page(self, request: Request) -> None:
        """Refuse what another site made a browser send.

        Raises:
            RelayError: It does not come from our page.
        """
        if request.method in _SAFE:
            return
        headers = request.headers
        if headers.get(HEADER) != "1":
            raise _foreign(f"the header {HEADER} is missing")
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise _foreign("another site sent it")
        origin = headers.get("origin")
        if origin is not None and not self._is_ours(origin, headers.get("host", "")):
            raise _foreign("its origin is another site")

    def limit_entry(self, request: Request) -> None:
        """Count a try to come in.

        Raises:
            RelayError: There were too many from this address.
        """
        _take(self._entering, request.client.host if request.client else "nowhere")

    def limit_user(self, user_id: str, *, posts: bool) -> None:
        """Count a request of a user.

        Raises:
            RelayError: There were too many.
        """
        _take(self._posting if posts else self._asking, user_id)

    def give_cookie(self, request: Request, response: Response, session: str) -> None:
        """Let the browser show the session from now on."""
        response.set_cookie(
            COOKIE,
            session,
            max_age=self._session_seconds,
            path=PATH,
            secure="https" in (self._base.scheme, request.url.scheme),
            httponly=True,
            samesite="strict",
        )

    def take_cookie(self, response: Response) -> None:
        """Let the browser forget the session."""
        response.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="strict")

    def _is_ours(self, origin: str, host: str) -> bool:
        try:
            given = urlsplit(origin)
        except ValueError:
            return False
        if given.scheme not in ("http", "https") or not given.netloc:
            return False
        if self._base.netloc:
            return (given.scheme, given.netloc) == (self._base.scheme, self._base.netloc)
        return given.netloc.lower() == host.lower()


def _take(limiter: Limiter, key: str) -> None:
    if seconds := math.ceil(limiter.wait(key)):
        raise TooOftenError(seconds)


def _foreign(why: str) -> RelayError:
    return RelayError(Code.FORBIDDEN, f"this request is not from the web chat's page: {why}")
