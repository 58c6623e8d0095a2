"""The bus of a node: its routes, and one way to answer whatever comes.

Owns the routes and that every request gets one signed answer. Checks, handlers and topics are
elsewhere; nothing is decided here.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import structlog
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from accord import tracing
from accord.community.bus import checks, streams
from accord.community.bus.answering import Signer, Visit, failed
from accord.community.bus.calling import Calling
from accord.community.bus.checks import Commons
from accord.community.bus.door import Door, Guest, rate_limited
from accord.community.bus.figures import Figures
from accord.community.bus.ledger import Ledger
from accord.community.bus.presence import GoneError
from accord.community.bus.rates import Rates
from accord.community.bus.registry import Registry
from accord.community.bus.settings import BusSettings
from accord.community.bus.subscribing import Subscribing
from accord.community.bus.topics import Topics
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import is_ulid

_log = structlog.stdlib.get_logger(__name__)

SignedHandler: TypeAlias = Callable[[Guest], Awaitable[Mapping[str, Any] | bytes]]
"""What serves a signed request to a path of its own: JSON, or bytes that are not."""

_Work: TypeAlias = Callable[[HttpRequest, Visit], Awaitable[Response]]


class Bus:
    """The signed bus of one node.

    Attributes:
        registry: What the node offers.
        topics: What it tells those who listen.
        figures: Its counters, for Prometheus.
    """

    def __init__(
        self,
        key: SigningKey,
        ledger: Ledger,
        *,
        clock: Clock,
        settings: BusSettings | None = None,
    ) -> None:
        settings = settings or BusSettings()
        self.topics = Topics(clock)
        self.registry = Registry(self.topics)
        self.figures = Figures(self.registry)
        self._clock = clock
        self._ledger = ledger
        self._rates = Rates(settings.limits)
        self._signer = Signer(key, clock)
        self._communities: dict[str, Commons] = {}
        self._door = Door(key.id, clock, self._rates, self._communities, settings)
        self._subscribing = Subscribing(self.topics, self._signer, settings)
        self._calling = Calling(
            clock=clock,
            ledger=ledger,
            rates=self._rates,
            registry=self.registry,
            signer=self._signer,
            settings=settings,
        )

    def join(self, commons: Commons) -> None:
        """Serve the members of a community."""
        self._communities[commons.community_id] = commons

    def leave(self, community_id: str) -> None:
        """Serve the members of a community no more."""
        self._communities.pop(community_id, None)

    @property
    def routes(self) -> Sequence[Route]:
        """The bus over HTTP."""
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
        """A route of its own whose requests pass the bus's checks and whose answers are signed.

        Args:
            path: Where.
            handler: What serves a request; a refusal is a `CommunityError`.
            methods: The HTTP methods.
            opaque: Whether bodies are bytes instead of JSON.
            strangers: Whether those who are no members are let through to the handler.
        """

        async def serve(http: HttpRequest, visit: Visit) -> Response:
            guest = await self._admit(http, visit, opaque=opaque, strangers=strangers)
            produced = await handler(guest)
            if isinstance(produced, bytes):
                return self._signer.opaque(visit, produced).response()
            return self._signer.answer(visit, produced).response()

        return Route(path, self._answering(serve), methods=list(methods))

    async def _call(self, http: HttpRequest, visit: Visit) -> Response:
        with tracing.entry("bus call", tracing.parse(http.headers.get(tracing.HEADER))):
            visit.trace = tracing.current()
            guest = await self._door.admit(http, visit)
            tracing.tell(capability=guest.request.capability)
            return await self._calling.serve(
                guest,
                visit,
                schema_hash=http.headers.get(checks.SCHEMA_HASH),
                acks=http.headers.get(streams.ACK) == "frames",
            )

    async def _subscribe(self, http: HttpRequest, visit: Visit) -> Response:
        guest = await self._admit(http, visit)
        return await self._subscribing.serve(http, guest, visit)

    async def _ack(self, guest: Guest) -> dict[str, Any]:
        body = guest.body
        if not isinstance(body, dict) or body.keys() != {"request_id", "upto"}:
            raise CommunityError(Code.BAD_REQUEST, "expected request_id and upto")
        request_id, upto = body["request_id"], body["upto"]
        if not isinstance(request_id, str) or not is_ulid(request_id):
            raise CommunityError(Code.BAD_REQUEST, "expected a ULID", where="/request_id")
        if type(upto) is not int or upto < 0:
            raise CommunityError(Code.BAD_REQUEST, "expected an integer from 0", where="/upto")
        self._calling.ack(guest.request.caller, request_id, upto)
        return {"upto": upto}

    async def _admit(self, http: HttpRequest, visit: Visit, **options: bool) -> Guest:
        """Let a request to another path in: the door, then its id and the caller's rate.

        Its id is remembered but not written down: what such requests do, they may do twice.
        """
        guest = await self._door.admit_path(http, visit, **options)
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
            visit = Visit(self._clock.monotonic())
            try:
                response = await work(http, visit)
            except GoneError:
                return Response()  # nobody hears it
            except CommunityError as error:
                response = self._signer.refusal(visit, error).response()
            except Exception:  # noqa: BLE001 - no request may bring down the server, or see inside
                _log.exception("a request failed", path=http.url.path)
                response = self._signer.refusal(visit, failed()).response()
            self.figures.count(visit)
            return response

        return answer
