"""The HTTP routes of sessions: bootstrap, login, binding a login, device activation.

Callers are authenticated by signature only, so that pages of any origin may call. A repeated
bootstrap gets the same response. Services that wait for a plan repeat their request every few
seconds; the plans of one that stops are deleted (section 14).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
from cachetools import FIFOCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accord.authority.http import exchange
from accord.authority.http.exchange import Endpoint, RateLimit, Refusals, json_response
from accord.authority.identities import Identities, PortalKind
from accord.authority.identities.login_flows import require_proof
from accord.authority.rules import clients, fields
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import Body
from accord.authority.rules.records import SessionHolder, SessionRecord
from accord.authority.service import Authority
from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import connect_message, is_proved
from accord.kernel.clock import Clock, format_time
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

SILENCE_SECONDS: Final = 600.0
_ROUND_SECONDS: Final = 30.0
_MAX_REQUESTERS: Final = 10_000


class PlanRequesters:
    """Remembers who waits for a plan, and deletes the plans of those who are gone."""

    def __init__(self, authority: Authority, clock: Clock) -> None:
        self._authority = authority
        self._clock = clock
        self._asked: FIFOCache[str, float] = FIFOCache(_MAX_REQUESTERS)

    def asked(self, requester: str) -> None:
        """Record a request; of too many requesters, the one silent longest is dropped."""
        self._asked[requester] = self._clock.monotonic()

    def served(self, requester: str) -> None:
        """Record that a requester no longer waits."""
        self._asked.pop(requester, None)

    async def forget_silent(self) -> None:
        """Delete the plans of those who stopped asking."""
        now = self._clock.monotonic()
        for requester in [each for each, at in self._asked.items() if now - at >= SILENCE_SECONDS]:
            await self._authority.plans.forget(requester)
            self.served(requester)

    async def run(self) -> None:
        """Delete plans every half minute until cancelled."""
        while True:
            await asyncio.sleep(_ROUND_SECONDS)
            try:
                await self.forget_silent()
            except AccordError as error:
                _log.warning("plans of inactive requesters could not be deleted", why=str(error))


WINDOW_SECONDS: Final = 30
_PLAN_CODES: Final = (Code.AUTHORITY_UPDATE_REQUIRED, Code.AUTHORITY_MIGRATION_REQUIRED)
_CORS: Final[Mapping[str, str]] = {
    "access-control-allow-origin": "*",
    "access-control-allow-headers": "content-type",
    "access-control-allow-methods": "GET, POST",
    "access-control-max-age": "600",
}


@dataclass(frozen=True, slots=True)
class NatsTransport:
    """How sessions reach NATS: the addresses and the sentinel user."""

    urls: tuple[str, ...]
    jwt: str
    seed: str = field(repr=False)
    websocket_urls: tuple[str, ...] = ()  # for browsers


class SessionRoutes:
    """The routes of sessions; `base_url` is empty for the address of each request."""

    def __init__(
        self,
        authority: Authority,
        identities: Identities,
        transport: NatsTransport,
        clock: Clock,
        refusals: Refusals,
        requesters: PlanRequesters,
        base_url: str = "",
    ) -> None:
        self._authority = authority
        self._identities = identities
        self._transport = transport
        self._clock = clock
        self._refusals = refusals
        self._requesters = requesters
        self._base_url = base_url.rstrip("/")
        self._asking = RateLimit(clock, per_minute=600, burst=200)
        self._beginning = RateLimit(clock, per_minute=60, burst=30)
        self._presenting = RateLimit(clock, per_minute=2, burst=10)

    @property
    def routes(self) -> list[Route]:
        """The routes, for the root."""
        logins = "/auth/v1/logins"
        return [
            self._route("/bootstrap/v1", "POST", self._bootstrap),
            self._route(logins, "POST", self._login),
            self._route(f"{logins}/{{login}}", "GET", self._describe),
            self._route("/auth/v1/flows/{flow}/bind", "POST", self._bind),
            self._route("/auth/v1/activations", "POST", self._activate),
        ]

    def _route(self, path: str, method: str, answer: Endpoint) -> Route:
        async def limited(request: Request) -> Response:
            if request.method == "OPTIONS":
                return Response(status_code=204)
            self._asking.take(exchange.client_key(request))
            return await answer(request)

        guarded = self._refusals.guarded(limited, exchange.error_response)

        async def endpoint(request: Request) -> Response:
            response = await guarded(request)
            response.headers.update(_CORS)
            return response

        return Route(path, endpoint, methods=[method, "OPTIONS"])

    async def _bootstrap(self, request: Request) -> Response:
        body = await exchange.read_json(request)
        key, digest = self._proved(request, body)
        session = await self._authority.sessions.get(key)
        if session is not None and session.holder is SessionHolder.PERSON:
            if session.revoked_at is not None:
                raise AuthorityError(Code.REVOKED, "this session was ended", mend="log in again")
            if session.expires_at is not None and session.expires_at <= self._clock.now():
                raise AuthorityError(
                    Code.UNKNOWN_SESSION, "this session has expired", mend="log in again"
                )
            taken = await self._identities.sessions.switch_contract(
                session, digest, await self._presented(request, body)
            )
            return json_response(self._ready(taken))
        manifest = fields.read_manifest(body)
        try:
            texts = fields.read_optional_text(body, "textDigest")
            ready = await self._authority.bootstrap.run(key, digest, manifest, key, texts)
        except AuthorityError as error:
            if error.code in _PLAN_CODES:
                self._requesters.asked(key)
            raise
        self._requesters.served(key)
        return json_response(
            {
                **self._connection(key),
                "contract": {"id": ready.contract_id, "digest": ready.digest},
                "bindings": dict(ready.settings),
                "deployment": ready.deployment,
                "instance": ready.instance,
            }
        )

    async def _login(self, request: Request) -> Response:
        self._beginning.take(exchange.client_key(request))
        body = await exchange.read_json(request)
        redirect_to = fields.read_text(body, "redirectTo", most=2000)
        key, context, proof = (
            fields.read_session_key(body),
            body.get("context"),
            fields.read_text(body, "sig"),
        )
        require_proof(key, redirect_to, context, proof)
        login = await self._identities.login_flows.begin(
            key,
            redirect_to,
            context,
            fields.read_digest(body),
            await self._presented(request, body),
            proof,
        )
        portal = await self._identities.portals.route(
            PortalKind.LOGIN, login.contract_id, clients.origin(redirect_to)
        )
        page = f"{self._base(request)}/login/{login.id}"
        return json_response(
            {
                "loginId": login.id,
                "loginUrl": page
                if portal is None
                else clients.with_query(portal, loginId=login.id, loginUrl=page),
                "expiresAt": format_time(login.expires_at),
            },
            201,
        )

    async def _describe(self, request: Request) -> Response:
        """What a custom page may show of a login."""
        login = await self._identities.login_flows.find(request.path_params["login"])
        contract = await self._authority.manifests.present(None, login.digest)
        return json_response(
            {
                "state": login.state.value,
                "contract": {
                    "id": login.contract_id,
                    "digest": login.digest,
                    "displayName": contract["displayName"],
                    "description": contract["description"],
                },
                "loginUrl": f"{self._base(request)}/login/{login.id}",
                "expiresAt": format_time(login.expires_at),
            }
        )

    async def _bind(self, request: Request) -> Response:
        self._beginning.take(exchange.client_key(request))
        body = await exchange.read_json(request)
        session = await self._identities.sessions.bind(
            request.path_params["flow"],
            fields.read_session_key(body),
            fields.read_text(body, "sig"),
        )
        return json_response(self._ready(session))

    async def _activate(self, request: Request) -> Response:
        self._beginning.take(exchange.client_key(request))
        body = await exchange.read_json(request)
        key, digest = self._proved(request, body)
        code, waiting = await self._identities.devices.begin(
            key,
            fields.read_text(body, "deployment"),
            digest,
            await self._presented(request, body),
            fields.read_text(body, "name", most=100),
        )
        portal = await self._identities.portals.route(PortalKind.DEVICE, waiting.deployment)
        page = f"{self._base(request)}/activate"
        return json_response(
            {
                "code": code,
                "activateUrl": page
                if portal is None
                else clients.with_query(portal, activateUrl=page),
                "expiresAt": format_time(waiting.expires_at),
            },
            201,
        )

    async def _presented(self, request: Request, body: Body) -> bytes | None:
        """The manifest of a client that no operator admitted, if its digest is unknown.

        Callers check the proof first, so that nobody else uses up the rate limit of an address.
        """
        presented = fields.read_manifest(body)
        if (
            presented is None
            or await self._authority.manifests.get(fields.read_digest(body)) is not None
        ):
            return None
        self._presenting.take(exchange.client_key(request))
        return presented

    def _proved(self, request: Request, body: Body) -> tuple[str, str]:
        key, digest = fields.read_session_key(body), fields.read_digest(body)
        request.state.claimed = key
        iat = body.get("iat")
        if not isinstance(iat, int) or isinstance(iat, bool):
            raise AuthorityError(Code.BAD_REQUEST, "expected seconds since the epoch", where="/iat")
        if not is_proved(key, connect_message(digest, iat), fields.read_text(body, "sig")):
            raise AuthorityError(Code.INVALID_PROOF, "the session did not sign this request")
        if abs(self._clock.now() - iat) > WINDOW_SECONDS:
            raise AuthorityError(
                Code.EXPIRED_PROOF,
                f"the proof is not of the last {WINDOW_SECONDS} seconds",
                mend="sign again, and check that the clock is right",
            )
        request.state.session = key  # proved: refusals from here on are audited under this key
        return key, digest

    def _ready(self, session: SessionRecord) -> Body:
        answer = {
            **self._connection(session.key),
            "contract": {"id": session.contract_id, "digest": session.digest},
            "bindings": {},
        }
        if session.expires_at is not None:
            answer["expiresAt"] = format_time(session.expires_at)
        return answer

    def _connection(self, key: str) -> Body:
        transports = {"nats": {"urls": list(self._transport.urls)}}
        if self._transport.websocket_urls:
            transports["websocket"] = {"urls": list(self._transport.websocket_urls)}
        return {
            "status": "ready",
            "transports": transports,
            "sentinel": {"jwt": self._transport.jwt, "seed": self._transport.seed},
            "inboxPrefix": inbox_prefix(key),
            "sessionKey": key,
        }

    def _base(self, request: Request) -> str:
        return self._base_url or f"{request.url.scheme}://{request.url.netloc}"
