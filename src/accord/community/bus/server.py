"""The bus of a node: its routes, metrics and signed answers."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from accord.community.bus import calls
from accord.community.bus.calls import CallServer, Registry
from accord.community.bus.exchange import (
    Admission,
    AdmittedRequest,
    AnswerSigner,
    Rates,
    RequestContext,
    error_body,
    internal_failure,
    rate_limited,
)
from accord.community.bus.ledger import CallLedger
from accord.community.bus.topics import SubscriptionServer, Topics
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import checks, wire
from accord.community.rules.checks import CommunityFacts
from accord.community.settings import BusSettings
from accord.kernel import canonical, identifiers
from accord.kernel.clock import Clock
from accord.kernel.identifiers import is_ulid
from accord.kernel.signing import SigningKey
from accord.telemetry import tracing
from accord.telemetry.metrics import family
from accord.web import sse

if TYPE_CHECKING:
    from accord.community.router import Router


class BusMetrics(Collector):
    """Counts of answered, refused and running requests."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._answered: Counter[str] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()

    @property
    def refusals(self) -> dict[tuple[str, str], int]:
        """Refused requests by check and code."""
        return dict(self._refused)

    def count(self, visit: RequestContext) -> None:
        """Count an answer, an accepted stream or a refusal."""
        if visit.refused is not None:
            check = visit.check.name if visit.check else "handler"
            self._refused[check, visit.refused.value] += 1
            return
        name = visit.request.capability if visit.request else None
        self._answered[name if name and self._registry.descriptors(name) else "-"] += 1

    def collect(self) -> Iterator[Metric]:
        """All metric families."""
        yield family(
            "accord_bus_answers_total",
            {(capability,): float(count) for capability, count in self._answered.items()},
        )
        yield family("accord_bus_refusals_total", self._refused)
        yield family("accord_bus_in_hand", self._registry.in_hand)


_log = structlog.stdlib.get_logger(__name__)

SignedHandler: TypeAlias = Callable[[AdmittedRequest], Awaitable[Mapping[str, Any] | bytes]]
"""What serves a signed request to a path of its own: JSON, or bytes that are not."""

SocketHandler: TypeAlias = Callable[[AdmittedRequest, WebSocket], Awaitable[None]]
"""What serves a WebSocket whose handshake was signed; it accepts the socket."""

_Work: TypeAlias = Callable[[HttpRequest, RequestContext], Awaitable[Response]]


class Bus:
    """The signed bus of one node; `metrics` are for Prometheus."""

    def __init__(
        self,
        key: SigningKey,
        ledger: CallLedger,
        *,
        clock: Clock,
        settings: BusSettings | None = None,
    ) -> None:
        settings = settings or BusSettings()
        self.topics = Topics(clock)
        self.registry = Registry(self.topics)
        self.metrics = BusMetrics(self.registry)
        self._clock = clock
        self._ledger = ledger
        self._rates = Rates(settings.limits)
        self._signer = AnswerSigner(key, clock)
        self._communities: dict[str, CommunityFacts] = {}
        self._admission = Admission(key.id, clock, self._rates, self._communities, settings)
        self._subscriptions = SubscriptionServer(self.topics, self._signer, settings)
        self._calls = CallServer(
            clock=clock,
            ledger=ledger,
            rates=self._rates,
            registry=self.registry,
            signer=self._signer,
            settings=settings,
        )

    def join(self, community: CommunityFacts) -> None:
        """Start serving the members of a community."""
        self._communities[community.community_id] = community

    def leave(self, community_id: str) -> None:
        """Stop serving the members of a community."""
        self._communities.pop(community_id, None)

    def route_by(self, router: "Router") -> None:
        """Have calls of the node's own clients routed, and name other nodes in refusals."""
        self._calls.router = router

    @property
    def routes(self) -> Sequence[Route]:
        """The HTTP routes of the bus."""
        return (
            Route("/bus/v1/call", self._answering(self._call), methods=["POST"]),
            self.signed_route("/bus/v1/ack", self._ack, methods=["POST"]),
            Route("/pubsub/v1/subscribe", self._answering(self._subscribe), methods=["GET"]),
        )

    def signed_route(
        self,
        path: str,
        handler: SignedHandler,
        *,
        methods: Sequence[str] = ("GET",),
        opaque: bool = False,
        strangers: bool = False,
    ) -> Route:
        """A route whose requests pass the checks of the bus and whose answers are signed.

        Args:
            handler: Serves a request; refuses by raising `CommunityError`.
            opaque: Whether bodies are bytes instead of JSON.
            strangers: Whether non-members are passed to the handler.
        """

        async def serve(http: HttpRequest, visit: RequestContext) -> Response:
            guest = await self._admit(http, visit, opaque=opaque, strangers=strangers)
            produced = await handler(guest)
            if isinstance(produced, bytes):
                return self._signer.opaque(visit, produced).response()
            return self._signer.answer(visit, produced).response()

        return Route(path, self._answering(serve), methods=list(methods))

    def signed_socket(self, path: str, handler: SocketHandler) -> WebSocketRoute:
        """A WebSocket whose handshake passes the checks of the bus.

        `handler` refuses by raising `CommunityError`, before or after it has accepted.
        """

        async def serve(socket: WebSocket) -> None:
            visit = RequestContext(self._clock.monotonic())
            # Admission reads headers, and a body that a handshake does not have.
            http = HttpRequest({**socket.scope, "type": "http", "method": "GET"}, _no_body)
            try:
                guest = await self._admit(http, visit)
                await handler(guest, socket)
            except CommunityError as error:
                await self._refuse_socket(socket, visit, error)
            except Exception:  # noqa: BLE001 - no request may bring down the server, or see inside
                _log.exception("a WebSocket failed", path=path)
                await self._refuse_socket(socket, visit, internal_failure())
            else:
                await _close(socket, _NORMAL)
            self.metrics.count(visit)

        return WebSocketRoute(path, serve)

    async def _refuse_socket(
        self, socket: WebSocket, visit: RequestContext, error: CommunityError
    ) -> None:
        visit.unread = False
        response = self._signer.refusal(visit, error).response()
        if socket.application_state is WebSocketState.CONNECTING:
            await socket.send_denial_response(response)
        else:
            await _close(socket, _REFUSED)

    async def _call(self, http: HttpRequest, visit: RequestContext) -> Response:
        with tracing.incoming_span(
            "bus call", identifiers.parse_traceparent(http.headers.get(identifiers.TRACEPARENT))
        ):
            visit.trace = tracing.current_trace()
            guest = await self._admission.admit(http, visit)
            tracing.set_attributes(capability=guest.request.capability)
            return await self._calls.serve(
                guest,
                visit,
                schema_hash=http.headers.get(checks.SCHEMA_HASH),
                acks=http.headers.get(calls.ACK) == "frames",
                route=http.headers.get(calls.ROUTE),
            )

    async def _subscribe(self, http: HttpRequest, visit: RequestContext) -> Response:
        guest = await self._admit(http, visit)
        return await self._subscriptions.serve(http, guest, visit)

    async def _ack(self, guest: AdmittedRequest) -> dict[str, Any]:
        body = guest.body
        if not isinstance(body, dict) or body.keys() != {"request_id", "upto"}:
            raise bad_request("expected request_id and upto")
        request_id, upto = body["request_id"], body["upto"]
        if not isinstance(request_id, str) or not is_ulid(request_id):
            raise bad_request("expected a ULID", where="/request_id")
        if type(upto) is not int or upto < 0:
            raise bad_request("expected an integer from 0", where="/upto")
        self._calls.ack(guest.request.caller, request_id, upto)
        return {"upto": upto}

    async def _admit(
        self, http: HttpRequest, visit: RequestContext, **options: bool
    ) -> AdmittedRequest:
        """Admit a request to another path: admission, then replay and rate.

        Its id is remembered but not stored: such requests are safe to repeat after a restart.
        """
        guest = await self._admission.admit_path(http, visit, **options)
        request = guest.request
        visit.check = checks.REPLAY
        claim, _ = self._ledger.replay.claim(
            request.caller,
            request.request_id,
            visit.digest or "",
            self._clock.now(),
            idempotent=False,
        )
        claim.durable = True
        visit.check = checks.CALLER_RATE
        if not guest.own and (
            wait := self._rates.caller(request.caller, None, self._clock.monotonic())
        ):
            raise rate_limited("this caller", wait)
        visit.check = None
        return guest

    def _answering(self, work: _Work) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def answer(http: HttpRequest) -> Response:
            visit = RequestContext(self._clock.monotonic())
            try:
                response = await work(http, visit)
            except sse.ClientGoneError:
                return Response()  # it is not sent
            except CommunityError as error:
                response = self._signer.refusal(visit, error).response()
            except Exception:  # noqa: BLE001 - no request may bring down the server, or see inside
                _log.exception("a request failed", path=http.url.path)
                response = self._signer.refusal(visit, internal_failure()).response()
            self.metrics.count(visit)
            return response

        return answer


_NORMAL: Final = 1000
_REFUSED: Final = 1008


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _close(socket: WebSocket, code: int) -> None:
    # The other side may have closed it.
    with suppress(RuntimeError, WebSocketDisconnect):
        await socket.close(code)


def public_routes(
    *,
    manifest: Callable[[str | None], Mapping[str, Any] | None],
    is_ready: Callable[[], bool],
) -> Sequence[Route]:
    """The routes that answer anyone.

    `manifest` gives the node's signed manifest for a community (None: its first one), or None if
    the node is not in it.
    """

    async def show(request: Request) -> Response:
        found = manifest(request.headers.get(wire.COMMUNITY))
        if found is None:
            error = CommunityError(
                Code.NOT_FOUND,
                "this node has no such manifest",
                mend="ask a node of that community",
            )
            return _json(error_body(error), error.code.status)
        return _json(found)

    async def health(_request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(_request: Request) -> Response:
        return _json({"ready": True}) if is_ready() else _json({"ready": False}, 503)

    return (Route("/manifest", show), Route("/health", health), Route("/ready", ready))


def member_routes(
    bus: Bus, community_manifest: Callable[[str], Mapping[str, Any] | None]
) -> Sequence[Route]:
    """The routes that answer members.

    `community_manifest` gives a community's signed manifest, or None if this node may not sign it.
    """
    registry = CollectorRegistry()
    registry.register(bus.metrics)

    async def show(guest: AdmittedRequest) -> Mapping[str, Any]:
        found = community_manifest(guest.request.community)
        if found is None:
            raise CommunityError(
                Code.NOT_FOUND,
                "this node has no such manifest",
                mend="ask an anchor of the community",
            )
        return found

    async def metrics(_guest: AdmittedRequest) -> bytes:
        return generate_latest(registry)

    return (
        bus.signed_route("/community/manifest", show),
        bus.signed_route("/metrics", metrics),
    )


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(canonical.encode(dict(body)), status, media_type="application/json")
