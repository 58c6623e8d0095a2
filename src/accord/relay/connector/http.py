"""The HTTP routes of enrolment, provisioning, policy and management.

A caller's authority comes from its stored record; other identities in a body are ignored and
counted. No part of a body and no secret is logged.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time
from accord.relay.connector.authentication import close_reason
from accord.relay.connector.manage import Control
from accord.relay.connector.registry import IssuedCredentials, ManagedClaims, ProvisionRequest
from accord.relay.connector.store import Principal
from accord.relay.errors import Code, RelayError
from accord.relay.rules.gate import PrincipalPolicy, RelevancePolicy
from accord.relay.rules.members import (
    Payload,
    bad,
    flag,
    optional_name,
    optional_url,
    required_name,
    unique_names,
)
from accord.storage import StoreError
from accord.web import incoming
from accord.web.incoming import RateLimiter, address_key

MAX_BODY: Final = 65_536
_LIMITS: Final = incoming.BodyLimits(MAX_BODY)
_log: Final = structlog.stdlib.get_logger(__name__)

_POLICIES: Final = {policy.value: policy for policy in PrincipalPolicy}
_ASSERTED: Final = (
    ("instanceId", "instance"),
    ("instance_id", "instance"),
    ("tenant", "tenant"),
    ("gatewayId", "gateway_id"),
)
_UNAVAILABLE: Final = RelayError(
    Code.UNAVAILABLE, "the relay's store does not answer", mend="try again"
)

_UNKNOWN_CALLER: Final = 401
_ENROL: Final = "/relay/enroll"
_NO_GOOD_TOKEN: Final = 403
_BAD_TOKENS: Final = (Code.UNAUTHORIZED, Code.EXPIRED)

JsonObject: TypeAlias = dict[str, Any]


async def read_body(request: Request) -> Payload:
    """The JSON object in a request's body; a missing body is an empty object."""
    try:
        raw = await incoming.read(request, _LIMITS)
    except incoming.BodyError as error:
        code = Code.TOO_LARGE if error.status == Code.TOO_LARGE.status else Code.BAD_REQUEST
        raise RelayError(code, error.what, mend=error.mend) from None
    if not raw:
        return {}
    try:
        value = canonical.decode(raw, max_bytes=MAX_BODY)
    except canonical.CanonicalError as error:
        raise bad(f"the body is not strict JSON: {error.what}", where=error.where) from None
    if not isinstance(value, dict):
        raise bad("the body must be a JSON object")
    return value


class _RefusedError(Exception):
    """A refusal with a status or headers of its own."""

    def __init__(self, error: RelayError, status: int, headers: dict[str, str]) -> None:
        super().__init__(error.what)
        self.error = error
        self.status = status
        self.headers = headers


class ControlRoutes:
    """`Control` over HTTP; `counts` are refused and ignored requests, for the metrics."""

    def __init__(self, control: Control, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._control = control
        self._authentication = control.directory.authentication
        settings = control.directory.settings
        self._by_address = _limiter(clock, settings.requests_per_minute, 3)
        self._joining = _limiter(clock, settings.enrolments_per_minute)
        self._by_caller = _limiter(clock, settings.manage_per_minute, 2)
        self._linking = _limiter(clock, settings.link_codes_per_minute)

    @property
    def routes(self) -> list[Route]:
        """The routes, to be mounted at the root."""
        post = {
            _ENROL: self._joining_route(self._enroll),
            "/relay/provision": self._joining_route(self._provision),
            "/relay/policy": self._managed_route(self._policy),
            "/relay/rotate": self._managed_route(self._rotate),
            "/manage/link": self._managed_route(self._link),
            "/manage/scope": self._managed_route(self._claim),
            "/manage/scope/release": self._managed_route(self._release),
            "/manage/principal": self._managed_route(self._principal),
            "/manage/dm-default": self._managed_route(self._dm_default),
            "/manage/deprovision": self._managed_route(self._deprovision),
            "/manage/rotate": self._managed_route(self._rotate),
            "/manage/wake-url": self._managed_route(self._wake_url),
        }
        return [
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()),
            Route("/manage/status", self._managed_route(self._status), methods=["GET"]),
        ]

    def _joining_route(
        self, handle: Callable[[Request, Payload], Awaitable[JsonObject]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> JsonObject:
            self._limit(self._joining, client_key(request))
            return await handle(request, await read_body(request))

        return self._route(answer)

    def _managed_route(
        self, handle: Callable[[Principal, Payload], Awaitable[JsonObject]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> JsonObject:
            caller = await self._known(read_bearer(request))
            self._limit(self._by_caller, caller.instance)
            body = await read_body(request)
            self._count_asserted(caller, body)
            return await handle(caller, body)

        return self._route(answer)

    def _route(
        self, answer: Callable[[Request], Awaitable[JsonObject]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                self._limit(self._by_address, client_key(request))
                return respond(200, await answer(request))
            except _RefusedError as refused:
                return self._refuse(request, refused.error, refused.status, refused.headers)
            except RelayError as error:
                return self._refuse(request, error, error.code.status)
            except StoreError as error:
                _log.error("the relay's store failed", path=request.url.path, reason=error.what)
                return self._refuse(request, _UNAVAILABLE, _UNAVAILABLE.code.status)

        return endpoint

    def _refuse(
        self,
        request: Request,
        error: RelayError,
        status: int,
        headers: dict[str, str] | None = None,
    ) -> Response:
        self.counts[f"refused_{error.code.value}"] += 1
        _log.info("refused", path=request.url.path, code=error.code.value, where=error.where)
        # An unknown caller gets the same reason as by a closed socket.
        code = close_reason(error).value if status == _UNKNOWN_CALLER else error.code.value
        if request.url.path == _ENROL:
            # Existing clients show the member `error`, and know 403 as a token that is wrong, used
            # or expired; of other statuses they show the number first.
            status = _NO_GOOD_TOKEN if error.code in _BAD_TOKENS else status
            return respond(
                status, {"error": str(error), "code": code, "message": str(error)}, headers
            )
        return respond(status, {"error": code, "message": str(error)}, headers)

    async def _known(self, bearer: str | None) -> Principal:
        try:
            return await self._authentication.by_either(bearer)
        except RelayError as error:
            raise _RefusedError(error, _UNKNOWN_CALLER, {"www-authenticate": "Bearer"}) from None

    def _claims(self, bearer: str | None) -> ManagedClaims:
        try:
            return self._authentication.claims(bearer)
        except RelayError as error:
            raise _RefusedError(error, _UNKNOWN_CALLER, {"www-authenticate": "Bearer"}) from None

    def _limit(self, limiter: RateLimiter, key: str) -> None:
        if wait := math.ceil(limiter.wait(key)):
            error = RelayError(Code.RATE_LIMITED, "too many requests", mend=f"wait {wait} seconds")
            raise _RefusedError(error, error.code.status, {"retry-after": str(wait)})

    def _count_asserted(self, caller: Principal, body: Payload) -> None:
        for member, field in _ASSERTED:
            if body.get(member) not in (None, getattr(caller, field)):
                self.counts["asserted_identity"] += 1
                _log.warning("a body asserts another identity", instance=caller.instance)
                return

    async def _enroll(self, _request: Request, body: Payload) -> JsonObject:
        credentials = await self._control.enrol(
            required_name(body, "enrollmentToken"),
            required_name(body, "gatewayId"),
            optional_url(body, "wakeUrl"),
        )
        return _credentials(credentials)

    async def _provision(self, request: Request, body: Payload) -> JsonObject:
        claims = self._claims(read_bearer(request))
        if body.get("instanceId") not in (None, claims.instance):
            self.counts["asserted_identity"] += 1
        credentials = await self._control.provision(
            claims,
            ProvisionRequest(
                required_name(body, "gatewayId"),
                required_name(body, "platform"),
                required_name(body, "botId"),
                unique_names(body, "routeKeys"),
                optional_url(body, "wakeUrl"),
            ),
        )
        return {**_credentials(credentials), "routeKeys": list(credentials.route_keys)}

    async def _policy(self, caller: Principal, body: Payload) -> JsonObject:
        platform = required_name(body, "platform")
        policy = RelevancePolicy.from_dict(body)
        pinned = await self._control.set_relevance(caller, platform, policy)
        if pinned is not None:
            # No error: gateways declare their policy at every start.
            return {"platform": platform, **pinned.to_dict(), "setBy": "operator"}
        return {"platform": platform, **policy.to_dict()}

    async def _link(self, caller: Principal, _body: Payload) -> JsonObject:
        self._limit(self._linking, caller.instance)
        code = await self._control.link(caller)
        return {"code": code.code, "expiresAt": format_time(code.expires_at / 1000)}

    async def _claim(self, caller: Principal, body: Payload) -> JsonObject:
        channel = _channel(body)
        await self._control.claim_scope(caller, *channel)
        return dict(zip(_CHANNEL, channel, strict=True))

    async def _release(self, caller: Principal, body: Payload) -> JsonObject:
        channel = _channel(body)
        await self._control.release_scope(caller, *channel)
        return dict(zip(_CHANNEL, channel, strict=True))

    async def _principal(self, caller: Principal, body: Payload) -> JsonObject:
        platform = required_name(body, "platform")
        policy = body.get("policy")
        if not isinstance(policy, str) or policy not in _POLICIES:
            raise bad(f"expected one of {', '.join(_POLICIES)}", where="/policy")
        allow = unique_names(body, "allow")
        await self._control.set_principal(caller, platform, _POLICIES[policy], allow)
        return {"platform": platform, "policy": policy, "allow": sorted(allow)}

    async def _dm_default(self, caller: Principal, body: Payload) -> JsonObject:
        platform, user_id = required_name(body, "platform"), required_name(body, "user_id")
        await self._control.set_dm_default(caller, platform, user_id)
        return {"platform": platform, "user_id": user_id}

    async def _deprovision(self, caller: Principal, _body: Payload) -> JsonObject:
        await self._control.deprovision(caller)
        return {"deprovisioned": caller.instance}

    async def _wake_url(self, caller: Principal, body: Payload) -> JsonObject:
        if "wakeUrl" not in body:
            raise bad("expected a URL, or null for none", where="/wakeUrl")
        url = optional_url(body, "wakeUrl")
        if not await self._control.set_wake_url(caller, url):
            # No error: gateways name their URL at every start.
            return {"hasWakeUrl": True, "setBy": "operator"}
        return {"hasWakeUrl": url is not None}

    async def _rotate(self, caller: Principal, body: Payload) -> JsonObject:
        if flag(body, "prepare", False):
            secret_id, prepared = await self._control.prepare_rotation(caller)
            return {
                "secret": prepared.secret,
                "secretId": secret_id,
                "gatewayId": caller.gateway_id,
                "confirmBy": format_time(prepared.old_until / 1000),
            }
        if body.get("confirm") is not None:
            until = await self._control.confirm_rotation(caller, required_name(body, "confirm"))
            return {"gatewayId": caller.gateway_id, "oldValidUntil": format_time(until / 1000)}
        rotated = await self._control.rotate(caller)
        return {
            "secret": rotated.secret,
            "gatewayId": caller.gateway_id,
            "oldValidUntil": format_time(rotated.old_until / 1000),
        }

    async def _status(self, caller: Principal, _body: Payload) -> JsonObject:
        return await self._control.status(caller)


def _limiter(clock: Clock, per_minute: int, share: int = 1) -> RateLimiter:
    """A limit whose burst is a share of what a minute allows."""
    return RateLimiter(clock, per_minute=per_minute, burst=max(1, per_minute // share))


_CHANNEL: Final = ("platform", "scope_id", "channel_id")


def _channel(body: Payload) -> tuple[str, str, str]:
    return (
        required_name(body, "platform"),
        optional_name(body, "scope_id"),
        required_name(body, "channel_id"),
    )


def _credentials(credentials: IssuedCredentials) -> JsonObject:
    named = {"tenant": credentials.tenant, "gatewayId": credentials.gateway_id}
    if not credentials.secret:
        return {"secretIssued": False, **named}
    return {
        "secret": credentials.secret,
        "deliveryKey": credentials.delivery_key,
        **named,
    }


def read_bearer(request: Request) -> str | None:
    """The bearer token of a request; None where there is none, or more than one."""
    headers = request.headers.getlist("authorization")
    if len(headers) != 1:
        return None
    scheme, _, token = headers[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def client_key(request: Request) -> str:
    """The key by which an address is limited."""
    return address_key(request.client.host) if request.client else "nowhere"


def respond(status: int, answer: JsonObject, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer that nobody may store."""
    return JSONResponse(answer, status, {"cache-control": "no-store", **(headers or {})})
