"""Bootstrap: a session presents its contract to the authority and waits until it is admitted.

Blockers are retried until the time limit. An authority that cannot be reached, or whose answer
cannot be read, counts as a blocker.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import structlog

from accord.contracts import text_digest
from accord.contracts.session_proof import connect_message, prove, session_key
from accord.fabric.link import SessionBindings
from accord.fabric.rules.errors import BootstrapError
from accord.fabric.rules.terms import Terms
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.schema import compile_schema
from accord.kernel.signing import SigningKey
from accord.web import responses
from accord.web.responses import ResponseError

UNREACHABLE: Final = "unreachable"
_MAX_ANSWER: Final = 4 << 20
_ASK_SECONDS: Final = 10.0


def http_client(tls: ssl.SSLContext | None) -> httpx.AsyncClient:
    """An HTTP client for the authority; without `tls` the system's certificates are trusted."""
    return responses.bounded_client(None, timeout=_ASK_SECONDS, verify=tls or True)


async def ask(
    http: httpx.AsyncClient, url: str, path: str, request: Mapping[str, Any]
) -> dict[str, Any]:
    """POST to the authority; every failure is returned as a `blocked` or `refused` answer."""
    try:
        async with http.stream(
            "POST",
            f"{url.rstrip('/')}{path}",
            content=canonical.encode(request),
            headers={"content-type": "application/json"},
        ) as response:
            raw = await responses.read_bounded(response, _MAX_ANSWER)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        return {"status": "refused", "code": "bad_request", "message": f"invalid address: {error}"}
    except ResponseError as error:
        return _blocked(f"its answer was refused: {error}")
    except httpx.HTTPError as error:
        return _blocked(f"it cannot be reached ({str(error) or type(error).__name__})")
    try:
        answer = canonical.decode(raw)
    except canonical.CanonicalError:
        return _blocked(f"its answer with status {response.status_code} is not JSON")
    return answer if isinstance(answer, dict) else _blocked("its answer is not a JSON object")


async def ask_once(
    tls: ssl.SSLContext | None, url: str, path: str, request: Mapping[str, Any], *texts: str
) -> dict[str, Any]:
    """POST to the authority without retries; the answer has the members `texts` as strings.

    Raises:
        BootstrapError: The authority refuses or is unreachable.
    """
    async with http_client(tls) as http:
        answer = await ask(http, url, path, request)
    if answer.get("status") in ("blocked", "refused"):
        raise refusal(answer, url)
    if not all(isinstance(answer.get(text), str) for text in texts):
        raise BootstrapError("bad_answer", "the authority's answer cannot be understood")
    return answer


def refusal(answer: Mapping[str, Any], url: str) -> BootstrapError:
    """The error for an answer that does not admit the session."""
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


_PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_LONGEST_PAUSE: Final = 30.0
_MANIFEST_REQUIRED: Final = "manifest_required"

_TEXT: Final = {"type": "string"}
_READY: Final = compile_schema(
    {
        "type": "object",
        "properties": {
            "status": {"const": "ready"},
            "transports": {
                "type": "object",
                "properties": {
                    "nats": {
                        "type": "object",
                        "properties": {"urls": {"type": "array", "items": _TEXT, "minItems": 1}},
                        "required": ["urls"],
                    }
                },
                "required": ["nats"],
            },
            "sentinel": {
                "type": "object",
                "properties": {"jwt": _TEXT, "seed": _TEXT},
                "required": ["jwt", "seed"],
            },
            "bindings": {"type": "object", "additionalProperties": {"type": "object"}},
            "deployment": {"type": ["string", "null"]},
            "instance": {"type": ["string", "null"]},
        },
        "required": ["status", "transports", "sentinel"],
    }
)

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectInfo:
    """What a session needs to connect to NATS."""

    urls: tuple[str, ...]
    # The shared sentinel user; the auth callout replaces it with the session's permissions.
    jwt: str = field(repr=False)
    seed: str = field(repr=False)  # the sentinel's seed, which grants nothing by itself
    bound: SessionBindings


@dataclass(frozen=True, slots=True)
class Authority:
    """How to reach the authority."""

    url: str
    # Seconds to wait while the session is blocked; None waits without limit.
    patience: float | None = None
    # For the authority and for NATS; None trusts the system's certificates.
    tls: ssl.SSLContext | None = None


async def bootstrap(
    authority: Authority, key: SigningKey, terms: Terms, clock: Clock
) -> ConnectInfo:
    """Ask until admitted; raises BootstrapError if refused or `authority.patience` ran out."""
    loop = asyncio.get_running_loop()
    end = None if authority.patience is None else loop.time() + authority.patience
    told: str | None = None
    with_manifest, attempt = False, 0
    async with http_client(authority.tls) as http:
        while True:
            request = _bootstrap_request(key, terms, clock, with_manifest)
            answer = await ask(http, authority.url, "/bootstrap/v1", request)
            if answer.get("status") == "ready":
                return _connect_info(answer)
            code = str(answer.get("code", "refused"))
            if code == _MANIFEST_REQUIRED and not with_manifest:
                with_manifest = True
                continue
            pause = _pause(answer, attempt)
            attempt += 1
            waits = answer.get("status") == "blocked"
            if not waits or (end is not None and loop.time() + pause > end):
                raise refusal(answer, authority.url)
            if code != told:
                told = code
                _log.info("waiting for the authority", code=code, why=answer.get("message"))
            await asyncio.sleep(pause)


def _bootstrap_request(
    key: SigningKey, terms: Terms, clock: Clock, with_manifest: bool
) -> dict[str, Any]:
    iat = int(clock.now())
    request: dict[str, Any] = {
        "sessionKey": session_key(key),
        "contractDigest": terms.digest,
        "textDigest": text_digest(terms.manifest),
        "iat": iat,
        "sig": prove(key, connect_message(terms.digest, iat)),
    }
    return request | {"manifest": terms.manifest} if with_manifest else request


def _pause(answer: Mapping[str, Any], attempt: int) -> float:
    wished = answer.get("retryAfterMs")
    usual = _PAUSES[min(attempt, len(_PAUSES) - 1)]
    if isinstance(wished, bool) or not isinstance(wished, int | float):
        return usual
    return min(max(wished / 1000, 0.05), _LONGEST_PAUSE)


def _connect_info(answer: Mapping[str, Any]) -> ConnectInfo:
    if not _READY.is_valid(answer):
        raise BootstrapError("bad_answer", "the authority's answer cannot be understood")
    sentinel = answer["sentinel"]
    return ConnectInfo(
        tuple(answer["transports"]["nats"]["urls"]),
        sentinel["jwt"],
        sentinel["seed"],
        SessionBindings(
            answer.get("bindings", {}), answer.get("deployment"), answer.get("instance")
        ),
    )
