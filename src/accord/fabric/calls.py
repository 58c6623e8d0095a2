"""The journal of what crossed a service's surfaces: the stream `contracts.calls`.

Owns the form of a record and what of a payload may be kept. Records are written behind the calls,
in the order in which they happened; when the store cannot keep up, calls wait rather than pile up.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import structlog

from accord import tracing
from accord.fabric.callers import Caller
from accord.fabric.terms import Terms
from accord.kernel import canonical
from accord.kernel.clock import Clock, SystemClock, format_time
from accord.kernel.ulid import UlidSource
from accord.storage import Record, Store, StoreError

STREAM: Final = "contracts.calls"
Kind = Literal["rpc", "operations", "events", "feeds", "jobs"]
Policy = Callable[[Kind, str, str, Any], bool]
"""Whether a payload may be kept, by kind, surface, part and the payload itself."""

_WAITING: Final = 10_000
_BATCH: Final = 500
_SECRET: Final = re.compile(
    r"(?:secret|token|passw(?:or)?d|passphrase|authori[sz]ation|cookie|credentials?|jwt|seed"
    r"|(?:api|private|secret|access|signing)[_-]?key)$",
    re.IGNORECASE,
)

_log = structlog.stdlib.get_logger(__name__)


class Absent:
    """Stands where there is no payload, or none that could be read."""


ABSENT: Final = Absent()


def keep_unless_secret(_kind: Kind, _surface: str, _part: str, payload: Any) -> bool:
    """The usual policy: a payload with a member that is named like a secret is left out whole."""
    return not any(_SECRET.search(name) for name in _names(payload))


def keep_none(_kind: Kind, _surface: str, _part: str, _payload: Any) -> bool:
    """The policy that keeps no payload at all."""
    return False


@dataclass(frozen=True, slots=True)
class _Told:
    """One payload that crossed, before it is written."""

    at: float
    kind: Kind
    surface: str
    part: str
    caller: Caller
    request_id: str
    error: str | None
    ms: int | None
    payload: Any
    trace: tracing.Trace | None


class Calls:
    """Tells the journal of a store what crossed, while it is entered.

    Args:
        store: Whose journal it is.
        terms: The contract.
        service: The deployment.
        policy: Which payloads are kept.
    """

    def __init__(
        self,
        store: Store,
        terms: Terms,
        service: str,
        *,
        policy: Policy = keep_unless_secret,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._terms = terms
        self._service = service
        self._policy = policy
        self._clock = clock or SystemClock()
        self._ids = UlidSource(self._clock)
        self._queue: asyncio.Queue[_Told] = asyncio.Queue(_WAITING)
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writing is not None
        await self._queue.join()
        self._writing.cancel()
        with suppress(asyncio.CancelledError):
            await self._writing

    def now(self) -> float:
        """The time, to say later since when something took."""
        return self._clock.now()

    async def tell(
        self,
        kind: Kind,
        surface: str,
        part: str,
        *,
        caller: Caller,
        request_id: str,
        payload: Any = ABSENT,
        error: str | None = None,
        since: float | None = None,
    ) -> None:
        """Take note of one payload, or of its refusal.

        Args:
            kind: The section of the contract.
            surface: The surface's name.
            part: Which of its payloads.
            caller: Who is on the other side.
            request_id: The id of the request, event or job.
            payload: What crossed, where something did.
            error: The type of the error that came instead.
            since: When the call began, where this ends it.
        """
        now = self._clock.now()
        ms = None if since is None else max(0, int((now - since) * 1000))
        trace = tracing.current()
        told = _Told(now, kind, surface, part, caller, request_id, error, ms, payload, trace)
        try:
            self._queue.put_nowait(told)
        except asyncio.QueueFull:
            await self._queue.put(told)

    async def _write(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._store.append(*map(self._record, batch))
            except StoreError as error:
                _log.error("calls could not be journaled", lost=len(batch), error=str(error))
            finally:
                for _ in batch:
                    self._queue.task_done()

    def _record(self, told: _Told) -> Record:
        body: dict[str, Any] = {
            "at": format_time(told.at, millis=True),
            "contract_id": self._terms.id,
            "digest": self._terms.digest,
            "kind": told.kind,
            "surface": told.surface,
            "part": told.part,
            "service": self._service,
            "caller": _party(told.caller),
            "request_id": told.request_id,
            "outcome": "ok" if told.error is None else "error",
            "error": told.error,
            "ms": told.ms,
        }
        if told.trace is not None:
            body["trace_id"] = told.trace.id
        if told.payload is not ABSENT and self._policy(
            told.kind, told.surface, told.part, told.payload
        ):
            body["payload"] = told.payload
        text = canonical.encode(body).decode()
        return Record(STREAM, self._ids.new(), int(told.at * 1000), self._service, text)


def _party(caller: Caller) -> dict[str, Any]:
    name = "deployment" if caller.holder in ("service", "device") else "session"
    return {
        name: caller.subject if name == "deployment" else caller.session,
        "contract_id": caller.contract_id,
        "digest": caller.digest,
    }


def _names(payload: Any) -> Iterator[str]:
    """The names of all members, however deep."""
    heap = [payload]
    while heap:
        value = heap.pop()
        if isinstance(value, Mapping):
            yield from (name for name in value if isinstance(name, str))
            heap.extend(value.values())
        elif isinstance(value, list | tuple):
            heap.extend(value)
