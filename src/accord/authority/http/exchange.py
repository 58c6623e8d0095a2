"""Requests and answers of every route: strict bodies, small and in time, and refusals in one form.

Owns the limits on bodies, who is counted as one client, and what browsers are told about every
answer. Nothing that was sent, and no secret, is logged or shown.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from accord.authority.auditing import Refused
from accord.authority.bodies import Body, bad
from accord.authority.errors import AuthorityError, Code
from accord.authority.http.limits import TooOftenError
from accord.kernel import canonical
from accord.storage import StoreError

_log: Final = structlog.stdlib.get_logger(__name__)

# A manifest of 1 MiB, and what stands around it.
MAX_BODY: Final = (1 << 20) + (1 << 16)
_MAX_FORM: Final = 1 << 14
_SECONDS: Final = 10.0
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

Answer: TypeAlias = Mapping[str, Any]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class Refusals:
    """Turns what goes wrong in a route into an answer, and counts it.

    Args:
        audit: Told of whatever does not pass by itself.

    Attributes:
        counts: How often each code was given, for the metrics.
    """

    def __init__(self, audit: Callable[[Refused], None] = lambda _: None) -> None:
        self.counts: Counter[str] = Counter()
        self._audit = audit

    def guarded(
        self,
        answer: Endpoint,
        show: Callable[[Request, AuthorityError], Response],
    ) -> Endpoint:
        """A route that refuses in its own form instead of failing."""

        async def endpoint(request: Request) -> Response:
            try:
                return await answer(request)
            except AuthorityError as error:
                told = error
            except StoreError as error:
                _log.error("the authority's store failed", path=_path(request), why=error.what)
                told = _UNAVAILABLE
            self.note(request, told)
            return show(request, told)

        return endpoint

    def note(self, request: Request, told: AuthorityError) -> None:
        """Count a refusal, and tell of it."""
        self.counts[told.code.value] += 1
        # What passes by itself is asked again each second; the rest is for whoever audits the log.
        tell = _log.debug if told.code.is_waited_out else _log.warning
        session = getattr(request.state, "session", None)
        tell(
            "refused",
            path=_path(request),
            code=told.code.value,
            client=client(request),
            session=session,
        )
        if not told.code.is_waited_out:
            who = session or client(request)
            self._audit(Refused(told.code, _path(request), str(who)))


def refusal(_request: Request, error: AuthorityError) -> Response:
    """A refusal for a program: a blocker that may pass, or one that stays."""
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
    if isinstance(error, TooOftenError):
        body["retryAfterMs"] = error.seconds * 1000
        headers["retry-after"] = str(error.seconds)
    elif blocked:
        body["retryAfterMs"] = _RETRY_MS
    return respond(body, error.code.status, headers)


def respond(
    answer: Answer, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer for a program."""
    return JSONResponse(dict(answer), status, {**HEADERS, **(headers or {})})


async def read_json(request: Request) -> Body:
    """The JSON object that a request carries; no body at all is an empty one.

    Raises:
        AuthorityError: It is too large, too slow, or not an object in strict JSON.
    """
    raw = await _read(request, MAX_BODY)
    if not raw:
        return {}
    try:
        value = canonical.decode(raw, max_bytes=MAX_BODY)
    except canonical.CanonicalError as error:
        raise bad(f"the body is not strict JSON: {error.what}", error.where) from None
    if not isinstance(value, dict):
        raise bad("the body is a JSON object")
    return value


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form that a page of ours sent.

    Raises:
        AuthorityError: It is too large, too slow, or not a form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise bad("a form is wanted")
    raw = await _read(request, _MAX_FORM)
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise bad("the form cannot be read") from None


def client(request: Request) -> str:
    """Whom a request is counted for."""
    return request.client.host if request.client else "nowhere"


def _path(request: Request) -> str:
    # What follows may hold a secret, such as that of a link.
    return "/".join(request.url.path.split("/")[:3])


async def _read(request: Request, most: int) -> bytes:
    raw = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > most:
                    raise AuthorityError(Code.TOO_LARGE, f"a body has at most {most} bytes")
    except TimeoutError:
        raise bad("the body did not arrive in time") from None
    except ClientDisconnect:
        raise bad("the body did not arrive") from None
    return bytes(raw)
