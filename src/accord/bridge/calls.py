"""Calls over the bridge: calling either side, calls in progress, and their journal.

Both sides' journals have the same request id. The stream `bridge.calls` has one record per call,
with its trace and no content. Calls in progress are known by their trace, so that a service that
works for a member cannot call back over the bridge.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import structlog

from accord.community.client import EVENT_STREAM_TYPE, Exchange, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.community.rules import requests
from accord.fabric import Link
from accord.fabric.link import raise_error
from accord.fabric.rules import proofs
from accord.fabric.rules.terms import Rpc, read_payload, write_payload
from accord.kernel import canonical, traceparent
from accord.kernel.clock import Clock, format_time
from accord.kernel.ulid import UlidSource
from accord.storage import JournalRecord, Store, StoreError
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

_CALL: Final = "/bus/v1/call"
# Not a loopback address: the bus must not take a service for the node's owner, who has access to
# private corpora and chats and has no limits.
_ADDRESS: Final = "bridge"
_SECONDS: Final = 180.0


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
            seconds=_SECONDS,
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
        request = requests.sign_request(
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

    async def _ask(self, request: requests.SignedRequest, content: bytes) -> Any:
        further = [(traceparent.HEADER, tracing.traceparent())]
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
        headers[traceparent.HEADER] = tracing.traceparent()
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
        trace_id: The trace that both sides carry.
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
