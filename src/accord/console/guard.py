"""What a request must be before anybody looks into it: for one of our names, and from our own page.

Owns the names under which the console answers, the cookie and the protection of forms. A page of
another site can neither name this machine (its name would not be ours), nor send the cookie (it is
`SameSite=Strict`), nor know a form's token; and where the browser says whence it comes, it counts.
"""

import hmac
import re
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from accord.console.errors import ConsoleError
from accord.console.tickets import Session

PATH: Final = "/console"
COOKIE: Final = "accord_console"
CSRF: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")


class Guard:
    """Looks at requests, and gives out cookies.

    Args:
        url: Where people reach the console, beside this machine's own names; may be empty.
    """

    def __init__(self, url: str = "") -> None:
        self._base = urlsplit(url)

    def demand_name(self, request: Request) -> None:
        """Refuse a request for a name that is not ours: another site may have it lead here.

        Raises:
            ConsoleError: The name is not one of ours.
        """
        host = request.headers.get("host", "").lower()
        ours = _PORT.sub("", host) in _LOOPBACK or (host and host == self._base.netloc.lower())
        if not ours:
            raise ConsoleError(
                "the console does not answer under this name",
                where=host[:200] or None,
                mend="use http://127.0.0.1 with the station's port, or set [console] url",
                status=421,
            )

    def demand_own_page(self, request: Request) -> None:
        """Refuse a change that another site made a browser ask for.

        Raises:
            ConsoleError: It does not come from our page.
        """
        headers = request.headers
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "same-origin") != "same-origin" or (
            origin is not None and not self._is_ours(origin, headers.get("host", ""))
        ):
            raise ConsoleError("another site asked for this, so nothing was done", status=403)

    def demand_token(self, session: Session, given: str) -> None:
        """Refuse a form that does not carry its session's token.

        Raises:
            ConsoleError: It does not.
        """
        if not hmac.compare_digest(session.csrf.encode(), given.encode()):
            raise ConsoleError(
                "this form is not one of this session's, so nothing was done",
                mend="load the page again and send it once more",
                status=403,
            )

    def give_cookie(self, request: Request, response: Response, secret: str) -> None:
        """Let the browser show its session from now on, until it is closed."""
        # A proxy before us may have ended TLS; what the browser says was checked already.
        came_by = request.headers.get("origin", self._base.scheme).partition(":")[0]
        response.set_cookie(
            COOKIE,
            secret,
            path=PATH,
            secure="https" in (request.url.scheme, came_by),
            httponly=True,
            samesite="strict",
        )

    def take_cookie(self, response: Response) -> None:
        """Let the browser forget its session."""
        response.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="strict")

    def _is_ours(self, origin: str, host: str) -> bool:
        try:
            given = urlsplit(origin)
        except ValueError:
            return False
        if given.scheme not in ("http", "https") or not given.netloc:
            return False
        if (given.scheme, given.netloc) == (self._base.scheme, self._base.netloc):
            return True
        return given.netloc.lower() == host.lower()
