"""What sessions ask over HTTP: to bootstrap, to log in, to bind a login, to be activated.

Thin: limit, read, verify the proof, call, answer. Whoever asks proves itself by its signature and
by nothing else, so that pages of any origin may ask. A bootstrap that is sent again answers the
same again: what it answers is worth nothing without the session's key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accord.authority import bodies
from accord.authority.bodies import Body
from accord.authority.core import Authority
from accord.authority.errors import AuthorityError, Code
from accord.authority.http import exchange
from accord.authority.http.exchange import Endpoint, Refusals, respond
from accord.authority.http.limits import Limit
from accord.authority.http.requesters import Requesters
from accord.authority.identities import Identities, PortalKind, places
from accord.authority.records import Holder, Session
from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import connect_message, is_proved
from accord.kernel.clock import Clock, format_time

WINDOW_SECONDS: Final = 30
_WAITS_FOR_A_PLAN: Final = (
    Code.AUTHORITY_UPDATE_REQUIRED,
    Code.AUTHORITY_MIGRATION_REQUIRED,
)
_CORS: Final[Mapping[str, str]] = {
    "access-control-allow-origin": "*",
    "access-control-allow-headers": "content-type",
    "access-control-allow-methods": "GET, POST",
    "access-control-max-age": "600",
}


@dataclass(frozen=True, slots=True)
class Transport:
    """How sessions reach NATS: the addresses, and the user that they connect as at first."""

    urls: tuple[str, ...]
    jwt: str
    seed: str = field(repr=False)


class SessionRoutes:
    """The routes of sessions.

    Args:
        authority: Decides about services and devices.
        identities: Decides about people, and about devices that are new.
        transport: Where NATS is.
        clock: The time.
        refusals: Counts what is refused.
        requesters: Remembers which services wait for a plan.
        base_url: Where people reach the pages; empty for the address of each request.
    """

    def __init__(
        self,
        authority: Authority,
        identities: Identities,
        transport: Transport,
        clock: Clock,
        refusals: Refusals,
        requesters: Requesters,
        base_url: str = "",
    ) -> None:
        self._authority = authority
        self._identities = identities
        self._transport = transport
        self._clock = clock
        self._refusals = refusals
        self._requesters = requesters
        self._base_url = base_url.rstrip("/")
        self._asking = Limit(clock, per_minute=600, burst=200)
        self._beginning = Limit(clock, per_minute=60, burst=30)
        self._presenting = Limit(clock, per_minute=2, burst=60)

    @property
    def routes(self) -> list[Route]:
        """The routes, to be mounted at the root."""
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
            self._asking.take(exchange.client(request))
            return await answer(request)

        guarded = self._refusals.guarded(limited, exchange.refusal)

        async def endpoint(request: Request) -> Response:
            response = await guarded(request)
            response.headers.update(_CORS)
            return response

        return Route(path, endpoint, methods=[method, "OPTIONS"])

    async def _bootstrap(self, request: Request) -> Response:
        body = await exchange.read_json(request)
        key, digest = self._proved(request, body)
        manifest = bodies.manifest(body)
        session = await self._authority.session(key)
        if session is not None and session.holder is Holder.PERSON:
            if session.revoked_at is not None:
                raise AuthorityError(Code.REVOKED, "this session was ended", mend="log in again")
            if session.expires_at is not None and session.expires_at <= self._clock.now():
                raise AuthorityError(
                    Code.UNKNOWN_SESSION, "this session has expired", mend="log in again"
                )
            taken = await self._identities.sessions.take_up(session, digest, manifest)
            return respond(self._ready(taken))
        try:
            ready = await self._authority.bootstrap(key, digest, manifest, key)
        except AuthorityError as error:
            if error.code in _WAITS_FOR_A_PLAN:
                self._requesters.asked(key)
            raise
        self._requesters.served(key)
        return respond(
            {
                **self._connection(key),
                "contract": {"id": ready.contract_id, "digest": ready.digest},
                "bindings": dict(ready.settings),
                "deployment": ready.deployment,
                "instance": ready.instance,
            }
        )

    async def _login(self, request: Request) -> Response:
        self._beginning.take(exchange.client(request))
        body = await exchange.read_json(request)
        redirect_to = bodies.text(body, "redirectTo", most=2000)
        login = await self._identities.logins.begin(
            bodies.session_key(body),
            redirect_to,
            body.get("context"),
            bodies.digest(body),
            await self._presented(body),
            bodies.text(body, "sig"),
        )
        portal = await self._identities.portals.route(
            PortalKind.LOGIN, login.contract_id, places.origin(redirect_to)
        )
        page = f"{self._base(request)}/login/{login.id}"
        return respond(
            {
                "loginId": login.id,
                "loginUrl": page
                if portal is None
                else places.with_query(portal, loginId=login.id, loginUrl=page),
                "expiresAt": format_time(login.expires_at),
            },
            201,
        )

    async def _describe(self, request: Request) -> Response:
        """What a custom page may show of a login."""
        login = await self._identities.logins.find(request.path_params["login"])
        contract = await self._authority.present(None, login.digest)
        return respond(
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
        self._beginning.take(exchange.client(request))
        body = await exchange.read_json(request)
        session = await self._identities.sessions.bind(
            request.path_params["flow"], bodies.session_key(body), bodies.text(body, "sig")
        )
        return respond(self._ready(session))

    async def _activate(self, request: Request) -> Response:
        self._beginning.take(exchange.client(request))
        body = await exchange.read_json(request)
        key, digest = self._proved(request, body)
        code, waiting = await self._identities.devices.begin(
            key,
            bodies.text(body, "deployment"),
            digest,
            await self._presented(body),
            bodies.text(body, "name", most=100),
        )
        portal = await self._identities.portals.route(PortalKind.DEVICE, waiting.deployment)
        page = f"{self._base(request)}/activate"
        return respond(
            {
                "code": code,
                "activateUrl": page
                if portal is None
                else places.with_query(portal, activateUrl=page),
                "expiresAt": format_time(waiting.expires_at),
            },
            201,
        )

    async def _presented(self, body: Body) -> bytes | None:
        """The manifest of somebody whom nobody has let in yet: new ones are taken seldom.

        Raises:
            AuthorityError: Too many unknown contracts were presented.
        """
        presented = bodies.manifest(body)
        if presented is None or await self._authority.contract(bodies.digest(body)) is not None:
            return None
        self._presenting.take("")
        return presented

    def _proved(self, request: Request, body: Body) -> tuple[str, str]:
        key, digest = bodies.session_key(body), bodies.digest(body)
        request.state.session = key
        iat = body.get("iat")
        if not isinstance(iat, int) or isinstance(iat, bool):
            raise AuthorityError(Code.BAD_REQUEST, "expected seconds since the epoch", where="/iat")
        if not is_proved(key, connect_message(digest, iat), bodies.text(body, "sig")):
            raise AuthorityError(Code.INVALID_PROOF, "the session did not sign this request")
        if abs(self._clock.now() - iat) > WINDOW_SECONDS:
            raise AuthorityError(
                Code.EXPIRED_PROOF,
                f"the proof is not of the last {WINDOW_SECONDS} seconds",
                mend="sign anew, and look whether the clock is right",
            )
        return key, digest

    def _ready(self, session: Session) -> Body:
        answer = {
            **self._connection(session.key),
            "contract": {"id": session.contract_id, "digest": session.digest},
            "bindings": {},
        }
        if session.expires_at is not None:
            answer["expiresAt"] = format_time(session.expires_at)
        return answer

    def _connection(self, key: str) -> Body:
        return {
            "status": "ready",
            "transports": {"nats": {"urls": list(self._transport.urls)}},
            "sentinel": {"jwt": self._transport.jwt, "seed": self._transport.seed},
            "inboxPrefix": inbox_prefix(key),
            "sessionKey": key,
        }

    def _base(self, request: Request) -> str:
        return self._base_url or f"{request.url.scheme}://{request.url.netloc}"
