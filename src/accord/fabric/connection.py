"""The way of a session to NATS: bootstrap at the authority, and the connection that follows.

A session presents its contract and waits until it is admitted; an authority that cannot be reached
counts as a blocker. It connects through the auth callout, reconnects with a fresh token, and
repeats the bootstrap when the server no longer accepts the session.
"""

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import nkeys  # type: ignore[import-untyped]
import structlog
from nats.errors import Error as NatsError

from accord.contracts import text_digest
from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import connect_message, connect_token, prove, session_key
from accord.fabric.link import Link, NatsClient, SessionBindings
from accord.fabric.rules.errors import BootstrapError, FabricError, UnavailableError
from accord.fabric.rules.terms import Terms
from accord.kernel import canonical
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.schema import compile_schema
from accord.kernel.signing import SigningKey
from accord.web import outgoing
from accord.web.outgoing import ResponseError

_log = structlog.stdlib.get_logger(__name__)

UNREACHABLE: Final = "unreachable"
_MAX_ANSWER: Final = 4 << 20
_ASK_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Authority:
    """How to reach the authority."""

    url: str
    # Seconds to wait while the session is blocked; None waits without limit.
    patience: float | None = None
    # For the authority and for NATS; None trusts the system's certificates.
    tls: ssl.SSLContext | None = None


def http_client(tls: ssl.SSLContext | None) -> httpx.AsyncClient:
    """An HTTP client for the authority; without `tls` the system's certificates are trusted."""
    return outgoing.bounded_client(None, timeout=_ASK_SECONDS, verify=tls or True)


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
            raw = await outgoing.read_bounded(response, _MAX_ANSWER)
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
    authority: Authority, path: str, request: Mapping[str, Any], *texts: str
) -> dict[str, Any]:
    """POST without retries, for an answer with the members `texts`; raises BootstrapError."""
    async with http_client(authority.tls) as http:
        answer = await ask(http, authority.url, path, request)
    if answer.get("status") in ("blocked", "refused"):
        raise refusal(answer, authority.url)
    if not all(isinstance(answer.get(text), str) for text in texts):
        raise BootstrapError("bad_answer", "the authority's answer cannot be understood")
    return answer


def refusal(answer: Mapping[str, Any], url: str) -> BootstrapError:
    """The error for an answer that does not admit the session."""
    code, mend = str(answer.get("code", "refused")), answer.get("mend")
    return BootstrapError(
        code,
        f"the authority does not admit this session: {answer.get('message', code)}",
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


@dataclass(frozen=True, slots=True)
class ConnectInfo:
    """What a session needs to connect to NATS."""

    urls: tuple[str, ...]
    # The shared sentinel user; the auth callout replaces it with the session's permissions.
    jwt: str = field(repr=False)
    seed: str = field(repr=False)  # the sentinel's seed, which grants nothing by itself
    bound: SessionBindings


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


_ATTEMPT_SECONDS: Final = 5.0
# A connect token is valid once, for its second.
_RETRY_SECONDS: Final = 1
_PING_SECONDS: Final = 20
_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
_LOCKED_OUT: Final = ("authorization", "authentication", "revoked")


class Connection:
    """A session's connection; `ended` holds the error, if it was closed for good by one."""

    def __init__(
        self, authority: Authority, key: SigningKey, terms: Terms, clock: Clock | None = None
    ) -> None:
        self._authority = authority
        self._key = key
        self._terms = terms
        self._clock = clock or SystemClock()
        self._stale = asyncio.Event()
        self._ready: ConnectInfo
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.link: Link

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        """Connect, and stay connected until the block ends.

        Raises BootstrapError if the authority refuses, UnavailableError if NATS cannot be reached
        in time.
        """
        client = await self._connect()
        renewing = asyncio.create_task(self._renew(client))
        try:
            yield self.link
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
            await client.close()
            if not self.ended.done():
                self.ended.set_result(None)
            elif not self.ended.cancelled():
                self.ended.exception()  # mark it as retrieved, so that asyncio does not log it

    async def _connect(self) -> NatsClient:
        loop = asyncio.get_running_loop()
        patience = self._authority.patience
        end = None if patience is None else loop.time() + patience
        while True:
            self._ready = await bootstrap(self._authority, self._key, self._terms, self._clock)
            client = NatsClient()
            self.link = Link(client, self._key, bound=self._ready.bound, clock=self._clock)
            try:
                async with asyncio.timeout(_attempt(end, loop.time())):
                    await self._dial(client)
            except (OSError, NatsError, TimeoutError) as error:
                await client.close()
                why = client.last_error or error
                if end is not None and loop.time() >= end:
                    raise UnavailableError(
                        f"this session cannot connect to NATS ({why})",
                        where=", ".join(self._ready.urls),
                    ) from error
                _log.warning("the connection to NATS cannot be made", why=str(why))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._stale.clear()
                return client

    async def _dial(self, client: NatsClient) -> None:
        await client.connect(
            list(self._ready.urls),
            name=f"{self._terms.id} {self._ready.bound.instance or ''}".strip(),
            user_jwt_cb=lambda: self._ready.jwt.encode(),
            signature_cb=lambda nonce: _signature(self._ready.seed, nonce),
            token=lambda: connect_token(self._key, self._terms.digest, int(self._clock.now())),
            inbox_prefix=inbox_prefix(session_key(self._key)),
            error_cb=self._hear_error,
            disconnected_cb=self._lost,
            reconnected_cb=self._back,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RETRY_SECONDS,
            ping_interval=_PING_SECONDS,
            tls=self._authority.tls,
        )

    async def _hear_error(self, error: Exception) -> None:
        text = str(error)
        denied = _DENIED.search(text.lower())
        if denied is not None:
            _log.warning("the server denied a permission", why=text)
            self.link.deny(denied[1], denied[2])
        elif any(word in text.lower() for word in _LOCKED_OUT):
            _log.warning("the server rejected the session", why=text)
            self._stale.set()
        else:
            _log.info("the connection to NATS has a problem", why=text or type(error).__name__)

    async def _lost(self) -> None:
        self.link.inbox.interrupt()

    async def _back(self) -> None:
        _log.info("connected to NATS again")
        for call in list(self.link.on_return):
            call()

    async def _renew(self, client: NatsClient) -> None:
        """Repeat the bootstrap whenever the server rejects the session."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                self._ready = await bootstrap(self._authority, self._key, self._terms, self._clock)
            except BootstrapError as error:
                await self._end(client, error)
                return
            self.link.bound = self._ready.bound
            with suppress(NatsError):
                client.set_server_pool(list(self._ready.urls))

    async def _end(self, client: NatsClient, error: FabricError) -> None:
        _log.error("the session ended", why=str(error))
        if not self.ended.done():
            self.ended.set_exception(error)
        await client.close()


def _attempt(end: float | None, now: float) -> float:
    """Seconds for one attempt: bounded, and little more than is left until `end`."""
    return _ATTEMPT_SECONDS if end is None else min(_ATTEMPT_SECONDS, max(1.0, end - now))


def _signature(seed: str, nonce: str) -> bytes:
    pair = nkeys.from_seed(bytearray(seed.encode()))
    try:
        return base64.b64encode(pair.sign(nonce.encode()))
    finally:
        pair.wipe()
