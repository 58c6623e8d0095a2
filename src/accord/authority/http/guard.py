"""What a form must be before anybody looks into it: sent by our own page, by the browser it is for.

Owns the cookie and the token of forms. Every browser that opens a page gets a random cookie, which
the secret of a visit replaces when a person comes in. The token is made from the cookie, so that
another site, which can neither read the cookie nor set it, cannot know it.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from accord.authority.errors import AuthorityError, Code
from accord.kernel import base64url

COOKIE: Final = "accord_visit"
FIELD: Final = "token"
_VALUE: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_PURPOSE: Final = b"accord authority forms"


class Guard:
    """Gives cookies, and believes forms or does not.

    Args:
        base_url: Where people reach the pages; empty for the address of each request.
    """

    def __init__(self, base_url: str = "") -> None:
        self._base = urlsplit(base_url)

    def cookie(self, request: Request) -> str | None:
        """The browser's cookie, if it has one of ours."""
        value = request.cookies.get(COOKIE, "")
        return value if _VALUE.fullmatch(value) else None

    def new_cookie(self) -> str:
        """A cookie for a browser that has none."""
        return secrets.token_urlsafe(32)

    def token(self, cookie: str) -> str:
        """What every form on a page for this browser carries."""
        return base64url.encode(hmac.new(cookie.encode(), _PURPOSE, hashlib.sha256).digest())

    def demand_own_form(self, request: Request, form: dict[str, str]) -> str:
        """Refuse a form that another site made a browser send; the browser's cookie.

        Raises:
            AuthorityError: It does not come from our page, or the page is too old.
        """
        cookie = self.cookie(request)
        if (
            cookie is None
            or not hmac.compare_digest(
                form.get(FIELD, "").encode("utf-8", "replace"), self.token(cookie).encode()
            )
            or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
            or not self._is_ours(request)
        ):
            raise AuthorityError(
                Code.FORBIDDEN,
                "this form was not sent by our own page",
                mend="go back, load the page again and allow its cookie",
            )
        return cookie

    def give(self, request: Request, response: Response, cookie: str, seconds: int) -> None:
        """Let the browser show a cookie from now on."""
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=seconds,
            path="/",
            secure="https" in (self._base.scheme, request.url.scheme),
            httponly=True,
            # Not strict: an app sends people here, who shall not have to come in again each time.
            samesite="lax",
        )

    def _is_ours(self, request: Request) -> bool:
        origin = request.headers.get("origin")
        if origin is None:
            return True
        try:
            given = urlsplit(origin)
        except ValueError:
            return False
        if self._base.netloc:
            return (given.scheme, given.netloc) == (self._base.scheme, self._base.netloc)
        return given.netloc.lower() == request.headers.get("host", "").lower() != ""
