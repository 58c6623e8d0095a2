"""Bootstrap: a session presents its contract to the authority and waits until it is let in.

Owns the exchange over HTTP: the proof, the manifest where it is asked for, patience with blockers
that pass, and a strict reading of the answer. It connects to nothing else.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from accord.contracts.session_proof import connect_message, prove, session_key
from accord.fabric import exchange
from accord.fabric.errors import BootstrapError
from accord.fabric.link import Bound
from accord.fabric.terms import Terms
from accord.kernel.clock import Clock
from accord.kernel.schema import compile_schema
from accord.kernel.signing import SigningKey

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
class Ready:
    """What a session needs to connect.

    Attributes:
        urls: Where NATS is.
        jwt: The user as which a session knocks; the callout then lets it in as itself.
        seed: That user's secret, which opens nothing by itself.
        bound: What is bound to the session.
    """

    urls: tuple[str, ...]
    jwt: str = field(repr=False)
    seed: str = field(repr=False)
    bound: Bound


@dataclass(frozen=True, slots=True)
class Authority:
    """Where the authority is, and for how long it may let a session wait.

    Attributes:
        url: Its address.
        patience: How many seconds blockers are waited out; None for as long as it takes.
        tls: Whom to trust, for it and for NATS; None for whom this machine trusts.
    """

    url: str
    patience: float | None = None
    tls: ssl.SSLContext | None = None


async def bootstrap(authority: Authority, key: SigningKey, terms: Terms, clock: Clock) -> Ready:
    """Ask to be let in until the authority is ready.

    Raises:
        BootstrapError: It refuses for good, or patience is at its end.
    """
    loop = asyncio.get_running_loop()
    end = None if authority.patience is None else loop.time() + authority.patience
    told: str | None = None
    with_manifest, attempt = False, 0
    async with exchange.client(authority.tls) as http:
        while True:
            request = _request(key, terms, clock, with_manifest)
            answer = await exchange.ask(http, authority.url, "/bootstrap/v1", request)
            if answer.get("status") == "ready":
                return _ready(answer)
            code = str(answer.get("code", "refused"))
            if code == _MANIFEST_REQUIRED and not with_manifest:
                with_manifest = True
                continue
            pause = _pause(answer, attempt)
            attempt += 1
            waits = answer.get("status") == "blocked"
            if not waits or (end is not None and loop.time() + pause > end):
                raise exchange.refusal(answer, authority.url)
            if code != told:
                told = code
                _log.info("waiting for the authority", code=code, why=answer.get("message"))
            await asyncio.sleep(pause)


def _request(key: SigningKey, terms: Terms, clock: Clock, with_manifest: bool) -> dict[str, Any]:
    iat = int(clock.now())
    request: dict[str, Any] = {
        "sessionKey": session_key(key),
        "contractDigest": terms.digest,
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


def _ready(answer: Mapping[str, Any]) -> Ready:
    if not _READY.is_valid(answer):
        raise BootstrapError("bad_answer", "the authority's answer cannot be understood")
    sentinel = answer["sentinel"]
    return Ready(
        tuple(answer["transports"]["nats"]["urls"]),
        sentinel["jwt"],
        sentinel["seed"],
        Bound(answer.get("bindings", {}), answer.get("deployment"), answer.get("instance")),
    )
