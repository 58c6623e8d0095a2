"""One question to the authority over HTTP, and a strict reading of its answer.

Owns limits and what becomes of an answer that cannot be had or read: it is a blocker like any
other, so that whoever can wait waits.
"""

import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx

from accord.fabric.errors import BootstrapError
from accord.kernel import canonical

UNREACHABLE: Final = "unreachable"
_MAX_ANSWER: Final = 4 << 20
_SECONDS: Final = 10.0


def client(tls: ssl.SSLContext | None) -> httpx.AsyncClient:
    """A client to ask with; `tls` says whom to trust, None whom this machine trusts."""
    return httpx.AsyncClient(timeout=_SECONDS, verify=tls or True)


async def ask(
    http: httpx.AsyncClient, url: str, path: str, request: Mapping[str, Any]
) -> dict[str, Any]:
    """The authority's answer, whatever it is."""
    try:
        async with http.stream(
            "POST",
            f"{url.rstrip('/')}{path}",
            content=canonical.encode(request),
            headers={"content-type": "application/json"},
        ) as response:
            raw = bytearray()
            async for chunk in response.aiter_bytes():
                raw += chunk
                if len(raw) > _MAX_ANSWER:
                    return _blocked("its answer is too large")
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        return {"status": "refused", "code": "bad_request", "message": f"no address: {error}"}
    except httpx.HTTPError as error:
        return _blocked(f"it cannot be reached ({str(error) or type(error).__name__})")
    try:
        answer = canonical.decode(bytes(raw))
    except canonical.CanonicalError:
        return _blocked(f"its answer, of status {response.status_code}, is no JSON")
    return answer if isinstance(answer, dict) else _blocked("its answer is no JSON object")


async def ask_once(
    tls: ssl.SSLContext | None, url: str, path: str, request: Mapping[str, Any], *texts: str
) -> dict[str, Any]:
    """The authority's answer, which must hold some texts.

    Raises:
        BootstrapError: It refuses, or cannot be asked at the moment.
    """
    async with client(tls) as http:
        answer = await ask(http, url, path, request)
    if answer.get("status") in ("blocked", "refused"):
        raise refusal(answer, url)
    if not all(isinstance(answer.get(text), str) for text in texts):
        raise BootstrapError("bad_answer", "the authority's answer cannot be understood")
    return answer


def refusal(answer: Mapping[str, Any], url: str) -> BootstrapError:
    """The error for an answer that does not let the session in."""
    code, mend = str(answer.get("code", "refused")), answer.get("mend")
    return BootstrapError(
        code,
        f"the authority does not let this session in: {answer.get('message', code)}",
        where=url,
        mend=mend if isinstance(mend, str) else None,
        body=answer,
    )


def _blocked(why: str) -> dict[str, Any]:
    return {"status": "blocked", "code": UNREACHABLE, "message": why}
