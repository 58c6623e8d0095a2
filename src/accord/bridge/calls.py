"""Calls over the bridge in both directions, those in progress, and their journal.

`Outward` is a service on the fabric that answers by calling the bus; `Inward` offers chosen RPCs as
capabilities while their contracts are active. The side on which a call begins has checked the
caller. Both journals have the same request id. The stream `bridge.calls` has one record per call,
with its trace and no content. Calls in progress are known by their trace, so that a service that
works for a member cannot call back over the bridge.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, Final, Literal

import structlog

from accord.bridge.rules import (
    CONTRACT,
    BridgedCapability,
    BridgeError,
    BridgeOffering,
    ChosenRpc,
    borrowed_capability,
    to_community,
    to_fabric,
)
from accord.capabilities.doors.local import descriptions
from accord.community.bus import Call, Registry
from accord.community.client import EVENT_STREAM_TYPE, Exchange, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.community.rules import wire
from accord.community.rules.capabilities import CapabilityDescriptor
from accord.fabric import Authority, FabricError, Link, Request, Service, Session, Terms
from accord.fabric.journal import keep_none
from accord.fabric.link import raise_error
from accord.fabric.rules import proofs
from accord.fabric.rules.terms import Rpc, read_payload, write_payload
from accord.kernel import canonical, identifiers
from accord.kernel.clock import Clock, format_time
from accord.kernel.identifiers import UlidSource, is_ulid
from accord.kernel.signing import SigningKey
from accord.storage import JournalRecord, Store, StoreError
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

_CALL: Final = "/bus/v1/call"
# Not a loopback address: the bus must not take a service for the node's owner, who has access to
# private corpora and chats and has no limits.
_ADDRESS: Final = "bridge"
_BUS_SECONDS: Final = 180.0


class BridgeBus:
    """The bus of a node in this process, not as its owner.

    Args:
        node: Its key signs.
        chosen: The community; empty for the first that the node is in.
    """

    def __init__(self, node: Node, clock: Clock, chosen: str = "") -> None:
        self._node = node
        self._clock = clock
        self._chosen = chosen
        self._exchange = Exchange(
            "http://node",
            node.key.id,
            clock=clock,
            ssl_context=None,
            transport=LocalTransport(node.application(), address=_ADDRESS),
            seconds=_BUS_SECONDS,
        )

    @property
    def community(self) -> str:
        """The bridged community; raises `partition` if the node is not in it."""
        hosted = self._node.communities
        found = [each for each in hosted if hosted[each].is_member]
        if self._chosen:
            found = [each for each in found if each == self._chosen]
        if not found:
            raise CommunityError(
                Code.PARTITION,
                f"this station is in no {'such ' if self._chosen else ''}community yet",
                mend="found one with accord community create, or join one",
            )
        return found[0]

    async def call(
        self, capability: str, version: str, body: Any, *, request_id: str
    ) -> dict[str, Any]:
        """Call a capability and return its response; raises the error of the bus."""
        request = wire.sign_request(
            self._node.key,
            capability=capability,
            version=version,
            request_id=request_id,
            community=self.community,
            timestamp=format_time(self._clock.now()),
            body=body,
            to=self._node.key.id,
        )
        content = canonical.encode(body)
        with tracing.span("bus request", SpanKind.CLIENT, capability=capability):
            answer = await self._ask(request, content)
        if not isinstance(answer, dict):
            raise CommunityError(Code.BAD_REQUEST, "the answer is not a JSON object")
        return answer

    async def _ask(self, request: wire.SignedRequest, content: bytes) -> Any:
        further = [(identifiers.TRACEPARENT, tracing.traceparent())]
        async with self._exchange.open("POST", _CALL, request, content, further=further) as found:
            if found.headers.get("content-type", "").startswith(EVENT_STREAM_TYPE):
                raise CommunityError(
                    Code.NOT_IMPLEMENTED, f"{request.capability} answers this by a stream"
                )
            return await self._exchange.read(found, request, verify=True)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._exchange.__aexit__()


async def ask_service(link: Link, rpc: Rpc, payload: Any, *, request_id: str, within: float) -> Any:
    """Call an RPC of a service and return its answer; raises `FabricError`."""
    data = write_payload(rpc.input, payload, "the request")
    now = int(link.clock.now())
    headers = proofs.sign(link.key, link.session, rpc.subject, data, now, request_id)
    with tracing.span("fabric request", SpanKind.CLIENT, subject=rpc.subject):
        headers[identifiers.TRACEPARENT] = tracing.traceparent()
        msg = await link.inbox.ask(rpc.subject, data, headers, within)
        raise_error(msg)
    return read_payload(rpc.output, msg.data, "the answer")


STREAM: Final = "bridge.calls"

CANCELLED: Final = "cancelled"
"""The error in the journal for a call whose caller left before the answer."""

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BridgedCall:
    """A call in progress.

    Attributes:
        direction: `outward` from a service to the community, `inward` from a member to a service.
        bus_request_id: The request id in the bus's journal.
        fabric_request_id: The request id in the journal of contracts.
        caller: The calling member, or the calling deployment or person.
    """

    direction: Literal["outward", "inward"]
    trace_id: str
    bus_request_id: str
    fabric_request_id: str
    community: str
    caller: str
    capability: str
    contract_id: str
    rpc: str


class BridgeJournal:
    """Writes the journal of bridged calls."""

    def __init__(self, store: Store, clock: Clock, source: str) -> None:
        self._store = store
        self._clock = clock
        self._source = source
        self._ids = UlidSource(clock)

    def now(self) -> float:
        """Return the time, for `since` of `record`."""
        return self._clock.now()

    async def record(self, call: BridgedCall, since: float, error: str | None = None) -> None:
        """Record a call that has ended, with its error's code or type."""
        now = self._clock.now()
        body = {
            "at": format_time(now, millis=True),
            **asdict(call),
            "outcome": "ok" if error is None else "error",
            "error": error,
            "ms": max(0, int((now - since) * 1000)),
        }
        text = canonical.encode(body).decode()
        record = JournalRecord(STREAM, self._ids.new(), int(now * 1000), self._source, text)
        try:
            await self._store.append(record)
        except StoreError as failure:
            _log.error("bridged call not journaled", error=str(failure))


class CallsInProgress:
    """The traces of members' calls that services are working on.

    What such a service asks of the community would return to its origin, so the bridge refuses it.
    """

    def __init__(self) -> None:
        self._traces: Counter[str] = Counter()

    def __contains__(self, trace: str) -> bool:
        return trace in self._traces

    @contextmanager
    def track(self, trace: str) -> Iterator[None]:
        """Mark a trace as in progress until the end of the block."""
        self._traces[trace] += 1
        try:
            yield
        finally:
            self._traces[trace] -= 1
            if not self._traces[trace]:
                del self._traces[trace]


_SERVICE_SECONDS: Final = 170.0


def offered_forms(registry: Registry, wanted: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return the descriptions of the wanted capabilities that a node offers."""
    known = descriptions()
    return [
        known[descriptor.schema_hash]
        for name in sorted(set(wanted))
        for descriptor in registry.descriptors(name)
        if descriptor.schema_hash in known
    ]


class Outward:
    """Answers the RPCs of an offering by calling the bus.

    Args:
        in_progress: The traces of members' calls in the other direction.
    """

    def __init__(
        self, bus: BridgeBus, journal: BridgeJournal, in_progress: CallsInProgress, clock: Clock
    ) -> None:
        self._bus = bus
        self._journal = journal
        self._in_progress = in_progress
        self._ids = UlidSource(clock)

    def service(
        self,
        offering: BridgeOffering,
        *,
        key: SigningKey,
        authority: Authority,
        store: Store,
        clock: Clock,
    ) -> Service:
        """Return the service that offers the RPCs; its journal records callers, not content."""
        service = Service(
            offering.manifest,
            key=key,
            authority=authority,
            store=store,
            # The bus stores no content of calls, so neither does the journal of contracts.
            policy=keep_none,
            deadline=_SERVICE_SECONDS,
            clock=clock,
        )
        for name, bridged in offering.bridged.items():
            service.rpc(name)(self._answering(bridged))
        return service

    def _answering(self, bridged: BridgedCapability) -> Callable[[Request, Any], Awaitable[Any]]:
        async def answer(request: Request, payload: Any) -> dict[str, Any]:
            try:
                return await self._cross(bridged, request, payload)
            except CommunityError as error:
                raise to_fabric(error) from error

        return answer

    async def _cross(
        self, bridged: BridgedCapability, request: Request, payload: Any
    ) -> dict[str, Any]:
        bus = self._bus
        # Request ids of the bus are ULIDs; on the fabric they may be any text.
        request_id = request.id if is_ulid(request.id) else self._ids.new()
        bridged_call = BridgedCall(
            "outward",
            request.trace.id,
            request_id,
            request.id,
            bus.community,
            request.who.subject,
            bridged.capability,
            CONTRACT,
            bridged.rpc,
        )
        since = self._journal.now()
        error_code: str | None = CANCELLED
        try:
            self._check_loop(request)
            body = _at_once(payload) if bridged.may_stream else payload
            answer = await bus.call(
                bridged.capability, bridged.version, body, request_id=request_id
            )
            error_code = None
        except CommunityError as error:
            error_code = error.code.value
            raise
        finally:
            await self._journal.record(bridged_call, since, error_code)
        return answer

    def _check_loop(self, request: Request) -> None:
        if request.trace.id in self._in_progress:
            raise CommunityError(
                Code.BAD_REQUEST,
                "a call that came over the bridge does not go back over it",
                mend="make this call outside of a call that a member started",
            )


def _at_once(payload: Any) -> Any:
    """Ask for an answer that is no stream."""
    asked = payload.get("input") if isinstance(payload, dict) else None
    if not isinstance(asked, dict):
        return payload  # the bus says what is wrong with it
    return {**payload, "input": {**asked, "stream": False}}


Active = tuple[str, Mapping[str, Any]]
"""An active contract: its digest and its manifest."""

FindContract = Callable[[str], Awaitable[Active | None]]
"""Finds the active contract of an id."""

_CAPABILITY_SECONDS: Final = 60.0
# Answer before the deadline of the bus.
_MARGIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Registered:
    digest: str
    key: str


@dataclass(eq=False, repr=False)
class Inward:
    """Serves chosen RPCs as capabilities.

    Args:
        session: The bridge's session, whose grants decide.
        level: The least trust level of a caller.
    """

    session: Session
    bus: BridgeBus
    registry: Registry
    _: KW_ONLY
    journal: BridgeJournal
    in_progress: CallsInProgress
    clock: Clock
    level: str
    _registered: dict[str, _Registered] = field(init=False, default_factory=dict)
    _reported: dict[str, str] = field(init=False, default_factory=dict)

    async def refresh(self, chosen: Sequence[ChosenRpc], find: FindContract) -> None:
        """Register the RPCs of active contracts, and remove the others."""
        found = {name: await find(name) for name in {each.contract for each in chosen}}
        for each in chosen:
            self._update(each, found[each.contract])

    def close(self) -> None:
        """Remove all capabilities; calls in progress are finished."""
        for capability in list(self._registered):
            self._remove(capability)

    def _update(self, chosen: ChosenRpc, active: Active | None) -> None:
        name = chosen.capability
        known = self._registered.get(name)
        if known is not None and (active is None or active[0] != known.digest):
            self._remove(name)
        elif known is not None:
            return
        if active is None:
            return
        try:
            terms = Terms(active[1])
            self._register(chosen, terms, borrowed_capability(terms.manifest, chosen, self.level))
        except (BridgeError, CommunityError, FabricError) as error:
            if self._reported.get(name) != str(error):
                self._reported[name] = str(error)
                _log.warning("service not offered as a capability", capability=name, why=str(error))

    def _register(self, chosen: ChosenRpc, terms: Terms, descriptor: CapabilityDescriptor) -> None:
        rpc = terms.rpc[chosen.rpc]

        async def serve(call: Call) -> Mapping[str, Any]:
            return await self._serve(call, chosen, rpc)

        self.registry.register(descriptor, serve, seconds=_CAPABILITY_SECONDS)
        self._registered[chosen.capability] = _Registered(terms.digest, descriptor.key)
        self._reported.pop(chosen.capability, None)
        _log.info("service offered as a capability", capability=descriptor.key, contract=terms.id)

    def _remove(self, capability: str) -> None:
        known = self._registered.pop(capability)
        self.registry.deregister(known.key)
        _log.info("service no longer offered as a capability", capability=known.key)

    async def _serve(self, call: Call, chosen: ChosenRpc, rpc: Rpc) -> Mapping[str, Any]:
        if call.community != self.bus.community:
            raise CommunityError(Code.UNAUTHORIZED, "services are for another community")
        trace = call.trace_id
        bridged_call = BridgedCall(
            "inward",
            trace,
            call.request_id,
            call.request_id,
            call.community,
            call.caller,
            chosen.capability,
            chosen.contract,
            chosen.rpc,
        )
        since = self.journal.now()
        error_code: str | None = CANCELLED
        within = max(call.deadline - self.clock.monotonic() - _MARGIN, _MARGIN)
        try:
            with self.in_progress.track(trace):
                output = await ask_service(
                    self.session.link,
                    rpc,
                    call.body["input"],
                    request_id=call.request_id,
                    within=within,
                )
            error_code = None
        except FabricError as error:
            error_code = error.type
            raise to_community(error) from error
        finally:
            await self.journal.record(bridged_call, since, error_code)
        ms = max(0, int((self.journal.now() - since) * 1000))
        return {"output": output, "meta": {"ms": ms, "trace_id": trace}}
