"""HTTP requests and responses: bounded bodies, refusals, rate limits and form tokens.

Every browser that opens a page gets a random cookie, and the token of a form is derived from it, so
that only our own pages can send forms. Request content and secrets are neither logged nor shown.
"""

import hashlib
import hmac
import math
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from accord.authority.revisions import AuditedRefusal
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import Body, bad_request
from accord.kernel import canonical
from accord.storage import StoreError
from accord.web import incoming
from accord.web.incoming import BodyError, BodyLimits, RateLimiter, address_key
from accord.web.origin import is_own_page

_log = structlog.stdlib.get_logger(__name__)


class RateLimitedError(AuthorityError):
    """A refusal that says when to try again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(Code.RATE_LIMITED, "too many requests", mend=f"wait {seconds} seconds")
        self.seconds = seconds


class RateLimit(RateLimiter):
    """A rate limit that refuses by an error."""

    def take(self, key: str) -> None:
        """Take one token; `RateLimitedError` if there is none left."""
        if seconds := self.wait(key):
            raise RateLimitedError(math.ceil(seconds))


# A manifest of 1 MiB and its envelope.
MAX_BODY: Final = (1 << 20) + (1 << 16)
_MAX_FORM: Final = 1 << 14
_RETRY_MS: Final = 1000
_UNAVAILABLE: Final = AuthorityError(
    Code.UNAVAILABLE, "the authority's store does not answer", mend="try again"
)

HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""What every answer says to a browser; pages allow themselves a little more."""

JsonObject: TypeAlias = Mapping[str, Any]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class Refusals:
    """Turns errors of a route into responses; counts them, and audits those that last."""

    def __init__(self, audit: Callable[[AuditedRefusal], None] = lambda _: None) -> None:
        self.counts: Counter[str] = Counter()
        self._audit = audit

    def guarded(
        self, answer: Endpoint, show: Callable[[Request, AuthorityError], Response]
    ) -> Endpoint:
        """An endpoint that shows refusals with `show` instead of failing."""

        async def endpoint(request: Request) -> Response:
            try:
                return await answer(request)
            except AuthorityError as error:
                refusal = error
            except StoreError as error:
                _log.error("the authority's store failed", path=_path(request), why=error.what)
                refusal = _UNAVAILABLE
            self.note(request, refusal)
            return show(request, refusal)

        return endpoint

    def note(self, request: Request, refusal: AuthorityError) -> None:
        """Count, log and audit a refusal."""
        self.counts[refusal.code.value] += 1
        # Clients repeat these every second; the others matter to auditors.
        tell = _log.debug if refusal.code.is_waited_out else _log.warning
        session = getattr(request.state, "session", None)
        claimed = getattr(request.state, "claimed", None)
        tell(
            "refused",
            path=_path(request),
            code=refusal.code.value,
            client=client_key(request),
            session=session,
            **({} if session is not None or claimed is None else {"claimed": claimed}),
        )
        if not refusal.code.is_waited_out:
            who = session or client_key(request)
            self._audit(AuditedRefusal(refusal.code, _path(request), str(who)))


def error_response(_request: Request, error: AuthorityError) -> Response:
    """A refusal as JSON: `blocked` if waiting may resolve it, else `refused`."""
    blocked = error.code.is_waited_out
    body: Body = {
        "status": "blocked" if blocked else "refused",
        "code": error.code.value,
        "message": f"{error.where}: {error.what}" if error.where else error.what,
    }
    if error.mend is not None:
        body["mend"] = error.mend
    if error.findings:
        body["findings"] = [
            {"rule": each.rule, "pointer": each.pointer, "message": each.message}
            for each in error.findings[:100]
        ]
    headers: dict[str, str] = {}
    if isinstance(error, RateLimitedError):
        body["retryAfterMs"] = error.seconds * 1000
        headers["retry-after"] = str(error.seconds)
    elif blocked:
        body["retryAfterMs"] = _RETRY_MS
    return json_response(body, error.code.status, headers)


def json_response(
    answer: JsonObject, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON response."""
    return JSONResponse(dict(answer), status, {**HEADERS, **(headers or {})})


async def read_json(request: Request) -> Body:
    """The JSON object of a request, bounded in size and time; an empty body is an empty object."""
    raw = await _read_body(request, MAX_BODY)
    if not raw:
        return {}
    try:
        value = canonical.decode(raw, max_bytes=MAX_BODY)
    except canonical.CanonicalError as error:
        raise bad_request(f"the body is not strict JSON: {error.what}", error.where) from None
    if not isinstance(value, dict):
        raise bad_request("the body is a JSON object")
    return value


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, bounded in size and time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise bad_request("expected a form")
    raw = await _read_body(request, _MAX_FORM)
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise bad_request("the form cannot be read") from None


def client_key(request: Request) -> str:
    """The key for rate limits: an address, or a network of IPv6."""
    return address_key(request.client.host) if request.client else "nowhere"


def _path(request: Request) -> str:
    # The rest may hold a secret, such as that of a link.
    return "/".join(request.url.path.split("/")[:3])


async def _read_body(request: Request, most: int) -> bytes:
    try:
        return await incoming.read(request, BodyLimits(most))
    except BodyError as error:
        code = Code.TOO_LARGE if error.status == 413 else Code.BAD_REQUEST
        raise AuthorityError(code, error.what) from None


VISIT_COOKIE: Final = "accord_visit"
FORM_FIELD: Final = "token"
_COOKIE_VALUE: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_PURPOSE: Final = b"accord authority forms"


class FormGuard:
    """Cookies and form tokens; `base_url` is empty for the address of each request."""

    def __init__(self, base_url: str = "") -> None:
        self._base = urlsplit(base_url)

    def cookie(self, request: Request) -> str | None:
        """The browser's cookie, if it is well-formed."""
        value = request.cookies.get(VISIT_COOKIE, "")
        return value if _COOKIE_VALUE.fullmatch(value) else None

    def new_cookie(self) -> str:
        """A new cookie."""
        return secrets.token_urlsafe(32)

    def token(self, cookie: str) -> str:
        """The token of forms for this browser."""
        return canonical.encode_base64url(
            hmac.new(cookie.encode(), _PURPOSE, hashlib.sha256).digest()
        )

    def demand_own_form(self, request: Request, form: dict[str, str]) -> str:
        """The browser's cookie; `AuthorityError` if the form is not from a page of ours."""
        cookie = self.cookie(request)
        if (
            cookie is None
            or not hmac.compare_digest(
                form.get(FORM_FIELD, "").encode("utf-8", "replace"), self.token(cookie).encode()
            )
            or not is_own_page(request.headers, self._base, also_typed=True)
        ):
            raise AuthorityError(
                Code.FORBIDDEN,
                "this form was not sent by our own page",
                mend="go back, load the page again and allow its cookie",
            )
        return cookie

    def give(self, request: Request, response: Response, cookie: str, seconds: int) -> None:
        """Set the cookie."""
        response.set_cookie(
            VISIT_COOKIE,
            cookie,
            max_age=seconds,
            path="/",
            secure="https" in (self._base.scheme, request.url.scheme),
            httponly=True,
            # Not strict: people who come from an app should not have to log in again.
            samesite="lax",
        )
