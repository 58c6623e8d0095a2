"""Calls that find their node: ranked by `rules.routing`, repeated elsewhere, bounded.

The caller of the serving node is this node, and the serving node decides by its own rules. A call
is repeated on another node only if it may be repeated and nothing of its answer was passed on.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import structlog
from cachetools import LRUCache
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp

from accord.community.bars import BarredNodes
from accord.community.bus import Call, Frame, Offer, Registry
from accord.community.bus.calls import ROUTE_STREAM, Produced
from accord.community.client import AnswerFormError, Client, LocalTransport, NodeRefusalError
from accord.community.communities import HostedCommunity
from accord.community.errors import Code, CommunityError
from accord.community.links import NodeLinks
from accord.community.rules import checks, routing, wire
from accord.community.rules.capabilities import CapabilityDescriptor, Version, read_descriptor
from accord.community.rules.formats import Level, display_id
from accord.community.rules.routing import (
    CallHistory,
    CallNeeds,
    CallOutcome,
    Misconduct,
    NodeFacts,
    OfferedModel,
    RetryPolicy,
    Route,
)
from accord.community.rules.wire import SignedRequest
from accord.community.settings import RoutingSettings
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.telemetry.metrics import family

_log = structlog.stdlib.get_logger(__name__)

_ONCE: Final = RetryPolicy(attempts=1)
_HISTORIES: Final = 4096
_MOST_ALTERNATIVES: Final = 8
_LONGEST_FULL_SECONDS: Final = 10.0
_BUSY_MS: Final = 1000
# A stream is measured by its first frame and this many more.
_MEASURED_FRAMES: Final = 32
_TOKENS: Final = 1024
_ANY: Final = {"type": "object"}


class _EndlessError(CommunityError):
    """A stream that is longer than it may be."""


@dataclass(eq=False, slots=True)
class _Search:
    """One call on its way to a node; `deadline` is by the monotonic clock."""

    hosted: HostedCommunity
    needs: CallNeeds
    version: str
    params: Mapping[str, Any]
    given: Mapping[str, Any]
    deadline: float
    tried: dict[str, tuple[str, CommunityError]] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)
    has_looked: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class Router:
    """Routes the calls of a node's own clients.

    Args:
        local: The node's own bus as an ASGI application.
    """

    key: SigningKey
    clock: Clock
    registry: Registry
    communities: Mapping[str, HostedCommunity]
    links: NodeLinks
    bars: BarredNodes
    local: ASGIApp
    settings: RoutingSettings
    _histories: LRUCache[tuple[str, str], CallHistory] = field(
        default_factory=lambda: LRUCache(_HISTORIES), init=False
    )
    _clients: dict[str, Client] = field(default_factory=dict, init=False)
    _forms: dict[str, Any] = field(default_factory=dict, init=False)
    _descriptors: LRUCache[str, CapabilityDescriptor] = field(
        default_factory=lambda: LRUCache(256), init=False
    )
    _holders: LRUCache[tuple[str, str], tuple[int, frozenset[str]]] = field(
        default_factory=lambda: LRUCache(256), init=False
    )
    _running: int = field(default=0, init=False)
    _calls: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _retries: Counter[tuple[str]] = field(default_factory=Counter, init=False)
    _hedges: int = field(default=0, init=False)

    def learn(self, forms: Mapping[str, Any]) -> None:
        """Know the descriptions of capabilities that other nodes may offer, by schema hash."""
        self._forms.update(forms)

    # What is known.

    def routes(
        self, community_id: str, needs: CallNeeds, tried: Mapping[str, Any] | None = None
    ) -> list[Route]:
        """All nodes of a community, ranked for a call, with reasons."""
        hosted = self._hosted(community_id)
        facts = self._facts(hosted, needs, tried or {})
        return routing.rank(needs, facts, self.settings.policy, self.clock.monotonic())

    async def explain(self, community_id: str, needs: CallNeeds) -> list[Route]:
        """Like `routes`, after a look at members that were not met lately."""
        if self.settings.enabled:
            await self.links.look(self._hosted(community_id), self.settings.look_seconds)
        return self.routes(community_id, needs)

    async def models(self, community_id: str, capability: str) -> list[OfferedModel]:
        """The models of a capability in the community, the best first."""
        needs = self.needs(capability, "1.0", {}, {})
        return routing.offered_models(await self.explain(community_id, needs))

    def offered(self, community_id: str) -> dict[str, CapabilityDescriptor]:
        """What can be called from here, by name: own offers, and known ones of other nodes."""
        found: dict[str, CapabilityDescriptor] = {}
        hosted = self._hosted(community_id)
        needs = CallNeeds("llm.chat", Version(1, 0))
        for node in self._facts(hosted, needs, {}):
            if node.local or not self._may_use(node):
                continue
            for listing in node.listings:
                name = str(listing.get("name"))
                known = self._known(str(listing.get("schema_hash")))
                if known is not None and routing.is_routed(name):
                    found[name] = max(known, found.get(name, known), key=lambda d: d.version)
        for listing in self.registry.listings():
            own = self.registry.serving(listing["name"], None)
            if own is not None:
                found[listing["name"]] = own.descriptor
        return dict(sorted(found.items()))

    def needs(
        self, capability: str, version: str, params: Mapping[str, Any], given: Mapping[str, Any]
    ) -> CallNeeds:
        """What a call needs of a node."""
        own = self.registry.serving(capability, None)
        if own is not None:
            idempotent = own.descriptor.idempotent
        else:
            known = [form for form in self._forms.values() if form["name"] == capability]
            idempotent = bool(known) and all(form["idempotent"] is True for form in known)
        return CallNeeds.of(capability, version, params, given, idempotent=idempotent)

    def others(self, request: SignedRequest, body: Any) -> list[str]:
        """Other nodes that may serve a call which this one refuses: `alt_nodes`."""
        if request.community not in self.communities or not self.settings.enabled:
            return []
        needs = self._needs_of(request, body)
        if not routing.is_routed(needs.capability):
            return []
        found = [each for each in self.routes(request.community, needs) if not each.local]
        usable = [each.node_id for each in found if each.usable]
        return [each for each in usable if each != request.caller][:_MOST_ALTERNATIVES]

    def collect(self) -> Iterator[Metric]:
        """All metric families."""
        barred: Counter[tuple[str]] = Counter({(kind.value,): 0 for kind in Misconduct})
        for each in self.bars.current(self.clock.now()):
            barred[(each.kind.value,)] += 1
        yield family("accord_route_calls_total", self._calls)
        yield family("accord_route_retries_total", self._retries)
        yield family("accord_route_hedges_total", self._hedges)
        yield family("accord_route_running", self._running)
        yield family("accord_route_misconduct_total", self.bars.counts)
        yield family("accord_route_barred_nodes", barred)

    # Calls.

    def offer(self, request: SignedRequest, body: Any, how: str) -> Offer | None:
        """The offer by which a call of an own client is routed; None if it is served here."""
        capability = request.capability or ""
        if (
            not self.settings.enabled
            or not routing.is_routed(capability)
            or request.community not in self.communities
        ):
            return None
        needs = self._needs_of(request, body)
        routes = [each for each in self.routes(request.community, needs) if each.usable]
        is_first = bool(routes) and routes[0].local and self.settings.policy.local_first
        if is_first and len(routes) == 1:
            return None
        version = str(needs.least)

        async def call(served: Call) -> Produced:
            params, given = served.body.get("params", {}), served.body.get("input", {})
            work = self.stream if how == ROUTE_STREAM else self.call
            made: Any = work(served.community, capability, params, given, version=version)
            return cast("Produced", made if how == ROUTE_STREAM else await made)

        return Offer(
            self._described(capability, routes),
            call,
            {},
            self.settings.max_concurrent,
            self.settings.seconds + self.settings.look_seconds,
        )

    async def call(
        self,
        community_id: str,
        capability: str,
        params: Mapping[str, Any],
        given: Mapping[str, Any],
        *,
        version: str = "1.0",
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Call the best node, and after a failure the next one, if that is safe.

        Raises the last error, with `alt_nodes` where others might serve the call; `not_found` if no
        node offers it.
        """
        with self._counted():
            search = self._search(community_id, capability, version, params, given, seconds)
            while True:
                route = await self._next(search)
                answer, route, failure = await self._race(search, route)
                if answer is not None:
                    self._calls[capability, "local" if route.local else "remote"] += 1
                    return answer
                if failure is not None:
                    self._calls[capability, "failed"] += 1
                    raise self._final(search, route, failure)
                self._retries[(capability,)] += 1

    async def stream(
        self,
        community_id: str,
        capability: str,
        params: Mapping[str, Any],
        given: Mapping[str, Any],
        *,
        version: str = "1.0",
        seconds: float | None = None,
    ) -> AsyncGenerator[Frame]:
        """Yield the frames of the best node; another takes over only before the first frame.

        Raises like `call`. Closing the generator ends the call on the serving node.
        """
        with self._counted():
            search = self._search(community_id, capability, version, params, given, seconds)
            while True:
                route = await self._next(search)
                has_begun = False
                try:
                    async with aclosing(self._stream_from(search, route)) as frames:
                        async for frame in frames:
                            has_begun = True
                            yield frame
                except CommunityError as error:
                    if not await self._failed(search, route, error, has_begun=has_begun):
                        self._calls[capability, "failed"] += 1
                        raise self._final(search, route, error) from error
                    self._retries[(capability,)] += 1
                else:
                    self._calls[capability, "local" if route.local else "remote"] += 1
                    return

    async def call_node(
        self,
        community_id: str,
        node_id: str,
        capability: str,
        params: Mapping[str, Any],
        given: Mapping[str, Any],
        *,
        seconds: float,
    ) -> dict[str, Any]:
        """Call just this node, with the limits and the memory of routed calls."""
        search = self._search(community_id, capability, "1.0", params, given, seconds)
        routes = self.routes(community_id, search.needs)
        route = next((each for each in routes if each.node_id == node_id), None)
        if route is None or not route.usable:
            why = "it is no member" if route is None else str(route.reasons[0].message)
            raise CommunityError(Code.PARTITION, f"the node is not called: {why}")
        try:
            return await self._call_at(search, route)
        except CommunityError as error:
            await self._failed(search, route, error)
            raise

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.__aexit__()
        self._clients.clear()
        await self.links.aclose()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._running >= self.settings.max_concurrent:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                f"{self._running} calls are being routed",
                details={"retry_after_ms": _BUSY_MS},
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _search(
        self,
        community_id: str,
        capability: str,
        version: str,
        params: Mapping[str, Any],
        given: Mapping[str, Any],
        seconds: float | None,
    ) -> _Search:
        most = self.settings.seconds if seconds is None else min(seconds, self.settings.seconds)
        return _Search(
            self._hosted(community_id),
            self.needs(capability, version, params, given),
            version,
            params,
            given,
            self.clock.monotonic() + most,
        )

    async def _next(self, search: _Search) -> Route:
        """The best node that was not tried; raises if there is none."""
        while True:
            routes = self.routes(search.hosted.community_id, search.needs, search.tried)
            usable = [each for each in routes if each.usable]
            if not self.settings.enabled or not routing.is_routed(search.needs.capability):
                usable = [each for each in usable if each.local]
            elif usable and not usable[0].local:
                await self.links.look(search.hosted, 0)
            hinted = [each for each in usable if each.node_id in search.hints]
            if usable:
                return (hinted or usable)[0]
            if search.has_looked or not self.settings.enabled:
                break
            search.has_looked = True
            await self.links.look(search.hosted, self.settings.look_seconds)
        if search.tried:
            name, error = list(search.tried.values())[-1]
            raise self._with_trail(search, name, error)
        # A malformed request is told as such, whoever could serve it.
        body = {"params": dict(search.params), "input": dict(search.given)}
        checks.check_schema(self._described(search.needs.capability, routes), body, None)
        raise _nobody(search.needs, routes)

    async def _race(
        self, search: _Search, route: Route
    ) -> tuple[dict[str, Any] | None, Route, CommunityError | None]:
        """Call a node, and a second one if the first takes long.

        Returns the answer with its node; or no answer, and the error if nobody else is to be tried.
        """
        racing = {asyncio.create_task(self._call_at(search, route)): route}
        pause = self._hedge_pause(search, route)
        failure: CommunityError | None = None
        try:
            if pause is not None:
                await asyncio.wait(racing, timeout=pause)
                if not any(task.done() for task in racing):
                    second = self._second(search, route)
                    if second is not None:
                        self._hedges += 1
                        racing[asyncio.create_task(self._call_at(search, second))] = second
            while racing:
                done, _ = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    route = racing.pop(task)
                    try:
                        return task.result(), route, None
                    except CommunityError as error:
                        goes_on = await self._failed(search, route, error)
                        failure = None if goes_on else error
            return None, route, failure
        finally:
            for task in racing:
                task.cancel()
            await asyncio.gather(*racing, return_exceptions=True)

    def _hedge_pause(self, search: _Search, route: Route) -> float | None:
        """After how long a second node is asked; None for never."""
        needs = search.needs
        if not self.settings.hedge_seconds or not needs.repeatable or route.local:
            return None
        if needs.capability.startswith("llm."):
            return None  # two generations cost more than waiting
        usual = self._history(route.node_id, needs.capability).latency(self.clock.monotonic())
        return max(self.settings.hedge_seconds, 3 * (usual or 0.0))

    def _second(self, search: _Search, first: Route) -> Route | None:
        tried = {**search.tried, first.node_id: None}
        routes = self.routes(search.hosted.community_id, search.needs, tried)
        return next((each for each in routes if each.usable), None)

    async def _call_at(self, search: _Search, route: Route) -> dict[str, Any]:
        is_whole = search.needs.capability.startswith("llm.")
        allowed = self.settings.answer_seconds if is_whole else self.settings.first_seconds
        with self._measured(search, route) as measured:
            async with self._within(search, allowed), self._client(search, route) as client:
                answer = await client.call(
                    search.needs.capability,
                    search.params,
                    search.given,
                    version=search.version,
                    retry=_ONCE,
                )
            schema = None if route.local else self._schema(route)
            if schema is not None and (
                schema.response is None or not schema.response.is_valid(answer)
            ):
                raise _garbage(search)
            measured.append(None)
            return answer

    async def _stream_from(self, search: _Search, route: Route) -> AsyncGenerator[Frame]:
        settings = self.settings
        schema = None if route.local else self._schema(route)
        most = _most_frames(search, settings.max_frames)
        count, size, waited, first = 0, 0, 0.0, 0.0
        history = self._begun(search, route)
        is_complete = False
        try:
            async with self._client(search, route) as client:
                stream = client.stream(
                    search.needs.capability,
                    search.params,
                    search.given,
                    version=search.version,
                )
                async with aclosing(cast("AsyncGenerator[Frame]", stream)) as frames:
                    while not is_complete:
                        began = self.clock.monotonic()
                        allowed = settings.silence_seconds if count else settings.first_seconds
                        async with self._within(search, allowed):
                            frame = await anext(frames)
                        waited += self.clock.monotonic() - began
                        first = first or waited
                        count += 1
                        size += len(repr(frame.data))
                        if not route.local and (count > most or size > settings.max_stream_bytes):
                            raise _EndlessError(
                                Code.INTERNAL_ERROR, "the answer is longer than it may be"
                            )
                        if schema is not None and not wire.is_allowed(
                            schema.frame, frame.event, frame.data
                        ):
                            raise _garbage(search)
                        is_complete = frame.event == wire.DONE
                        if is_complete:
                            seconds = first + (waited - first) / count * _MEASURED_FRAMES
                            now = self.clock.monotonic()
                            history.observe(CallOutcome(now, seconds, succeeded=True))
                        yield frame
        finally:
            if not is_complete:
                history.end_probe()

    @contextmanager
    def _measured(self, search: _Search, route: Route) -> Iterator[list[None]]:
        """Record a call that succeeded, which is when something was put into the list."""
        history = self._begun(search, route)
        began = self.clock.monotonic()
        done: list[None] = []
        try:
            yield done
        finally:
            if done:
                now = self.clock.monotonic()
                history.observe(CallOutcome(now, now - began, succeeded=True))
            else:
                history.end_probe()  # a failure is recorded by its cause, a cancelled call is none

    def _begun(self, search: _Search, route: Route) -> CallHistory:
        history = self._history(route.node_id, search.needs.capability)
        if history.quarantined_until:
            history.begin_probe()
        return history

    @asynccontextmanager
    async def _within(self, search: _Search, seconds: float) -> AsyncIterator[None]:
        """Raise `timeout` if the node takes too long, or the caller's time is over."""
        left = search.deadline - self.clock.monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(seconds, left))):
                yield
        except TimeoutError:
            if left < seconds:
                raise NodeRefusalError(Code.TIMEOUT, "the time for this call is over") from None
            raise CommunityError(
                Code.TIMEOUT, f"the node did not answer within {seconds:g} seconds"
            ) from None

    @asynccontextmanager
    async def _client(self, search: _Search, route: Route) -> AsyncIterator[Client]:
        community_id = search.hosted.community_id
        if not route.local:
            async with self.links.client(community_id, route.node_id) as client:
                yield client
            return
        if community_id not in self._clients:
            self._clients[community_id] = Client(
                "http://node",
                self.key,
                community_id,
                self.key.id,
                transport=LocalTransport(self.local),
                seconds=self.settings.seconds,
                retry=_ONCE,
                clock=self.clock,
            )
        yield self._clients[community_id]

    async def _failed(
        self, search: _Search, route: Route, error: CommunityError, *, has_begun: bool = False
    ) -> bool:
        """Record a failure; whether the next node is to be tried."""
        needs, now = search.needs, self.clock.monotonic()
        failure = routing.judge_failure(
            needs,
            error,
            is_refusal=isinstance(error, NodeRefusalError | AnswerFormError),
            has_begun=has_begun,
        )
        misconduct = Misconduct.ENDLESS if isinstance(error, _EndlessError) else failure.misconduct
        is_over = now >= search.deadline
        history = self._history(route.node_id, needs.capability)
        if failure.counts and not is_over:
            if history.quarantined_until and history.quarantined_until <= now:
                history.begin_probe()
            history.observe(CallOutcome(now, 0.0, succeeded=False))
        elif error.code in routing.REFUSED_FOR_NOW:
            pause = min(routing.asked_pause(error) or 1.0, _LONGEST_FULL_SECONDS)
            history.full_until = now + pause
        if not route.local:
            if failure.is_lost:
                self.links.lose(search.hosted.community_id, route.node_id)
            if misconduct is not None and not is_over:
                await self._bar(route, needs.capability, misconduct, error)
        search.tried[route.node_id] = route.name, error
        search.hints = routing.alternatives(error, search.hosted.state.roster.members)
        is_spent = len(search.tried) >= self.settings.attempts or is_over
        return failure.elsewhere and not is_spent

    async def _bar(
        self, route: Route, capability: str, kind: Misconduct, error: CommunityError
    ) -> None:
        made = self.bars.add(route.node_id, capability, kind, self.clock.now())
        _log.warning(
            "a node is left alone for a time",
            node=route.node_id,
            capability=made.capability or "all",
            misconduct=kind.value,
            seconds=round(made.until - self.clock.now()),
            why=error.what,
        )
        await asyncio.to_thread(self.bars.save)

    def _final(self, search: _Search, route: Route, error: CommunityError) -> CommunityError:
        return self._with_trail(search, route.name if not route.local else "", error)

    def _with_trail(self, search: _Search, name: str, error: CommunityError) -> CommunityError:
        """The last error, with the nodes that were tried and those that were not."""
        routes = self.routes(search.hosted.community_id, search.needs, search.tried)
        others = [each.node_id for each in routes if each.usable and not each.local]
        details = {key: error.details[key] for key in error.details if key != routing.UNSENT}
        if routing.is_routed(search.needs.capability) and others:
            details["alt_nodes"] = others[:_MOST_ALTERNATIVES]
        else:
            details.pop("alt_nodes", None)
        if len(search.tried) > 1:
            details["tried"] = [
                {"node": node_id, "error": each.code.value}
                for node_id, (_, each) in search.tried.items()
            ]
        return CommunityError(
            error.code,
            f"the node {name!r}: {error.what}" if name else error.what,
            where=error.where,
            mend=error.mend,
            findings=error.findings,
            details=details,
        )

    # Facts.

    def _hosted(self, community_id: str) -> HostedCommunity:
        hosted = self.communities.get(community_id)
        if hosted is None:
            raise CommunityError(
                Code.PARTITION,
                "this node is in no community yet",
                mend="found one with accord community create, or join one",
            )
        return hosted

    def _facts(
        self, hosted: HostedCommunity, needs: CallNeeds, tried: Mapping[str, Any]
    ) -> list[NodeFacts]:
        now = self.clock.now()
        community_id, own = hosted.community_id, self.key.id
        holders = None if needs.corpus is None else self._corpus_holders(hosted, needs.corpus)
        serving = self.registry.serving(needs.capability, None)
        found = [
            NodeFacts(
                own,
                "this node",
                hosted.level_of(own),
                local=True,
                listings=self.registry.listings(),
                load={"in_flight_total": 0 if serving is None else serving.in_hand},
                history=self._history(own, needs.capability),
                is_tried=own in tried,
            )
        ]
        if not self.settings.enabled:
            return found
        logged = hosted.state.content.manifests
        for node_id in tuple(hosted.state.roster.members):
            if node_id == own:
                continue
            peer = self.links.book.peer(community_id, node_id)
            manifest: Mapping[str, Any] = {} if peer is None else peer.manifest
            record = logged.get(node_id)
            name = manifest.get("display_name") or (record and record.display_name)
            found.append(
                NodeFacts(
                    node_id,
                    str(name or display_id(node_id)),
                    hosted.level_of(node_id),
                    listings=manifest.get("capabilities", ()),
                    hardware=_object(manifest.get("hardware")),
                    load=_object(manifest.get("load")),
                    age=None if peer is None else max(0.0, now - peer.seen),
                    is_lost=self.links.is_lost(community_id, node_id),
                    holds_corpus=None if holders is None else node_id in holders,
                    history=self._history(node_id, needs.capability),
                    barred=self._barred(node_id, needs.capability, now),
                    is_tried=node_id in tried,
                )
            )
        return found

    def _barred(self, node_id: str, capability: str, now: float) -> routing.Bar | None:
        """The bar of a node, whose end is given by the monotonic clock."""
        found = self.bars.find(node_id, capability, now)
        if found is None:
            return None
        until = found.until - now + self.clock.monotonic()
        return routing.Bar(node_id, found.capability, found.kind, found.count, until)

    def _may_use(self, node: NodeFacts) -> bool:
        return (
            node.age is not None
            and node.age <= routing.FRESH_SECONDS
            and not node.is_lost
            and node.level >= max(self.settings.policy.least_level, Level.MEMBER)
        )

    def _corpus_holders(self, hosted: HostedCommunity, corpus: str) -> frozenset[str]:
        """The nodes that have ingested a document of a corpus, by the log."""
        key, lamport = (hosted.community_id, corpus), hosted.state.lamport
        known = self._holders.get(key)
        if known is None or known[0] != lamport:
            documents = hosted.state.content.documents
            held = {each.ingester for (name, _), each in documents.items() if name == corpus}
            known = self._holders[key] = lamport, frozenset(held)
        return known[1]

    def _history(self, node_id: str, capability: str) -> CallHistory:
        key = node_id, capability
        found = self._histories.get(key)
        if found is None:
            found = self._histories[key] = CallHistory()
        return found

    def _needs_of(self, request: SignedRequest, body: Any) -> CallNeeds:
        members = _object(body)
        params, given = _object(members.get("params")), _object(members.get("input"))
        version = str(request.version) if request.version is not None else "1.0"
        return self.needs(request.capability or "", version, params, given)

    def _schema(self, route: Route) -> CapabilityDescriptor | None:
        return None if route.listing is None else self._known(str(route.listing.get("schema_hash")))

    def _known(self, schema_hash: str) -> CapabilityDescriptor | None:
        found = self._descriptors.get(schema_hash)
        if found is None and schema_hash in self._forms:
            found = self._descriptors[schema_hash] = read_descriptor(self._forms[schema_hash])
        return found

    def _described(self, capability: str, routes: list[Route]) -> CapabilityDescriptor:
        """The description by which a routed call is checked; one that allows all if unknown."""
        own = self.registry.serving(capability, None)
        if own is not None:
            return own.descriptor
        known = [self._schema(route) for route in routes]
        found = [each for each in known if each is not None]
        if found:
            return max(found, key=lambda each: each.version)
        for form in self._forms.values():
            if form["name"] == capability:
                return read_descriptor(form)
        return read_descriptor(
            {
                "name": capability,
                "version": "1.0",
                "stability": "experimental",
                "trust": "member",
                "idempotent": False,
                "request_schema": _ANY,
                "response_schema": _ANY,
                "stream_schema": _ANY,
            }
        )


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _most_frames(search: _Search, most: int) -> int:
    """The most frames of a stream; a model may send no more tokens than were asked for."""
    if not search.needs.capability.startswith("llm."):
        return most
    asked = search.given.get("max_tokens", _TOKENS)
    tokens = asked if isinstance(asked, int) and asked > 0 else _TOKENS
    return min(most, 2 * tokens + 64)


def _garbage(search: _Search) -> CommunityError:
    return CommunityError(
        Code.INTERNAL_ERROR, f"the answer is none that {search.needs.capability} may give"
    )


def _nobody(needs: CallNeeds, routes: list[Route]) -> CommunityError:
    what = f"no node of the community that can be reached offers {needs.capability}"
    if needs.model is not None:
        what += f" with the model {needs.model}"
    if any(each.is_busy for each in routes):
        return CommunityError(
            Code.CAPACITY_EXCEEDED,
            f"every node that offers {needs.capability} is busy",
            details={"retry_after_ms": _BUSY_MS},
        )
    return CommunityError(
        Code.NOT_FOUND if needs.model is None else Code.NOT_IMPLEMENTED,
        what,
        where=None if needs.model is None else "/params/model",
        mend=f"`accord community route {needs.capability} --why` says what is missing where",
    )
