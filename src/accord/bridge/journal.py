"""The journal of the bridge: one record for each call that crossed, with its ids on both sides.

Owns the stream `bridge.calls`. The journals of the bus and of contracts have the same request id;
this one has the trace, too. Nothing of what was said is kept here.
"""

from dataclasses import asdict, dataclass
from typing import Final, Literal

import structlog

from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time
from accord.kernel.ulid import UlidSource
from accord.storage import Record, Store, StoreError

STREAM: Final = "bridge.calls"

CANCELLED: Final = "cancelled"
"""What stands for the error of a call that had no answer because nobody waited for one."""

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A call on its way.

    Attributes:
        direction: `outward` from a service to the community, `inward` from a member to a service.
        trace_id: The trace that both sides carry.
        bus_request_id: By which the bus's journal knows it.
        fabric_request_id: By which the journal of contracts knows it.
        community: In which community.
        caller: The member, or the deployment or person, that asks.
        capability: What it is on the bus.
        contract_id: The contract that it belongs to on the fabric.
        rpc: What it is there.
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


class Journal:
    """Writes down what crossed."""

    def __init__(self, store: Store, clock: Clock, source: str) -> None:
        self._store = store
        self._clock = clock
        self._source = source
        self._ids = UlidSource(clock)

    def now(self) -> float:
        """The time, to say later since when something took."""
        return self._clock.now()

    async def tell(self, crossing: Crossing, since: float, error: str | None = None) -> None:
        """Take note of a call that has its answer, or its error's code or type."""
        now = self._clock.now()
        body = {
            "at": format_time(now, millis=True),
            **asdict(crossing),
            "outcome": "ok" if error is None else "error",
            "error": error,
            "ms": max(0, int((now - since) * 1000)),
        }
        text = canonical.encode(body).decode()
        record = Record(STREAM, self._ids.new(), int(now * 1000), self._source, text)
        try:
            await self._store.append(record)
        except StoreError as failure:
            _log.error("a crossing could not be journaled", error=str(failure))
