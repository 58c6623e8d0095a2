"""The call journal: every payload that crosses a service's surfaces (stream `contracts.calls`).

Records are written behind the calls, in order; calls wait when the store cannot keep up. RPCs,
feeds and events record themselves; handlers of operations and jobs are wrapped here.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeVar

import structlog

from accord.fabric.requests import Caller, Callers
from accord.fabric.rules.errors import FabricError
from accord.fabric.rules.terms import Terms
from accord.kernel import canonical, identifiers
from accord.kernel.clock import Clock, SystemClock, format_time
from accord.kernel.identifiers import UlidSource
from accord.telemetry import tracing

if TYPE_CHECKING:  # a client without a journal needs no database
    from accord.storage import JournalRecord, Store

CALLS_STREAM: Final = "contracts.calls"
SurfaceKind = Literal["rpc", "operations", "events", "feeds", "jobs"]
PayloadPolicy = Callable[[SurfaceKind, str, str, Any], bool]
"""Whether a payload may be stored."""

_WAITING: Final = 10_000
_BATCH: Final = 500
_SECRET: Final = re.compile(
    r"(?:secret|token|passw(?:or)?d|passphrase|authori[sz]ation|cookie|credentials?|jwt|seed"
    r"|(?:api|private|secret|access|signing)[_-]?key)$",
    re.IGNORECASE,
)

_log = structlog.stdlib.get_logger(__name__)


class NoPayload:
    """The type of NO_PAYLOAD: there is no payload, or none that could be read."""


NO_PAYLOAD: Final = NoPayload()


def keep_unless_secret(_kind: SurfaceKind, _surface: str, _part: str, payload: Any) -> bool:
    """The default policy: omit the whole payload if any member is named like a secret."""
    return not any(_SECRET.search(name) for name in _names(payload))


def keep_none(_kind: SurfaceKind, _surface: str, _part: str, _payload: Any) -> bool:
    """The policy that keeps no payload."""
    return False


@dataclass(frozen=True, slots=True)
class CallEntry:
    """One payload that crossed a surface, or the error instead."""

    at: float
    kind: SurfaceKind
    surface: str
    part: str
    caller: Caller
    request_id: str
    error: str | None  # its type
    ms: int | None  # how long the call took, if this ends it
    payload: Any
    trace: identifiers.Trace | None


Watch = Callable[[CallEntry], None]
"""Sees every call while it is recorded; must not block."""


class CallJournal:
    """Writes call records to the journal of a store, while it is entered; `watch` sees each."""

    def __init__(
        self,
        store: "Store | None",
        terms: Terms,
        service: str,
        *,
        policy: PayloadPolicy = keep_unless_secret,
        clock: Clock | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._store = store
        self._watch = watch
        self._terms = terms
        self._service = service
        self._policy = policy
        self._clock = clock or SystemClock()
        self._ids = UlidSource(self._clock)
        self._queue: asyncio.Queue[CallEntry] = asyncio.Queue(_WAITING)
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writer is not None
        await self._queue.join()
        self._writer.cancel()
        with suppress(asyncio.CancelledError):
            await self._writer

    def now(self) -> float:
        """The time, for `since`."""
        return self._clock.now()

    async def record(
        self,
        kind: SurfaceKind,
        surface: str,
        part: str,
        *,
        caller: Caller,
        request_id: str,
        payload: Any = NO_PAYLOAD,
        error: str | None = None,
        since: float | None = None,
    ) -> None:
        """Record one payload, such as the `input` of a surface, or the type of the error instead.

        `since` is when the call began, if this ends it; seconds since the epoch.
        """
        now = self._clock.now()
        ms = None if since is None else max(0, int((now - since) * 1000))
        trace = tracing.current_trace()
        entry = CallEntry(now, kind, surface, part, caller, request_id, error, ms, payload, trace)
        if self._watch is not None:
            self._watch(entry)
        if self._store is None:
            return
        try:
            self._queue.put_nowait(entry)
        except asyncio.QueueFull:
            await self._queue.put(entry)

    async def _write(self) -> None:
        if self._store is None:
            return
        from accord.storage import StoreError

        while True:
            batch = [await self._queue.get()]
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._store.append(*map(self._journal_record, batch))
            except StoreError as error:
                _log.error("calls could not be journaled", lost=len(batch), error=str(error))
            finally:
                for _ in batch:
                    self._queue.task_done()

    def _journal_record(self, entry: CallEntry) -> "JournalRecord":
        from accord.storage import JournalRecord

        body: dict[str, Any] = {
            "at": format_time(entry.at, millis=True),
            "contract_id": self._terms.id,
            "digest": self._terms.digest,
            "kind": entry.kind,
            "surface": entry.surface,
            "part": entry.part,
            "service": self._service,
            "caller": _party(entry.caller),
            "request_id": entry.request_id,
            "outcome": "ok" if entry.error is None else "error",
            "error": entry.error,
            "ms": entry.ms,
        }
        if entry.trace is not None:
            body["trace_id"] = entry.trace.id
        if entry.payload is not NO_PAYLOAD and self._policy(
            entry.kind, entry.surface, entry.part, entry.payload
        ):
            body["payload"] = entry.payload
        text = canonical.encode(body).decode()
        return JournalRecord(
            CALLS_STREAM, self._ids.new(), int(entry.at * 1000), self._service, text
        )


def _party(caller: Caller) -> dict[str, Any]:
    name = "deployment" if caller.holder in ("service", "device") else "session"
    return {
        name: caller.subject if name == "deployment" else caller.session,
        "contract_id": caller.contract_id,
        "digest": caller.digest,
    }


def _names(payload: Any) -> Iterator[str]:
    """The names of all members, at any depth."""
    heap = [payload]
    while heap:
        value = heap.pop()
        if isinstance(value, Mapping):
            yield from (name for name in value if isinstance(name, str))
            heap.extend(value.values())
        elif isinstance(value, list | tuple):
            heap.extend(value)


class WorkContext(Protocol):
    """What operation and job contexts have in common."""

    @property
    def id(self) -> str:
        """The id of the operation or job."""
        ...

    @property
    def caller(self) -> str:
        """The session key of the caller; empty for the service's own work."""
        ...


C = TypeVar("C", bound=WorkContext)
WorkHandler = Callable[[C, Any], Awaitable[Any]]


def record_operation(
    calls: CallJournal, name: str, run: "WorkHandler[C]", callers: Callers, own: Caller
) -> "WorkHandler[C]":
    """Wrap an operation's handler so that input and outcome are journaled."""

    def who(session: str) -> Caller:
        if session == own.session:
            return own
        return callers.known(session) or Caller(session, "session", session)

    return _record(calls, "operations", name, ("input", "output"), run, who)


def record_job(
    calls: CallJournal, name: str, run: "WorkHandler[C]", own: Caller, *, has_result: bool
) -> "WorkHandler[C]":
    """Wrap a job handler so that payload and outcome are journaled.

    Without `has_result` only the fact that the job ended is recorded.
    """
    parts = ("payload", "result")
    return _record(calls, "jobs", name, parts, run, lambda _: own, has_result=has_result)


def _record(
    calls: CallJournal,
    kind: Literal["operations", "jobs"],
    name: str,
    parts: tuple[str, str],
    run: "WorkHandler[C]",
    who: Callable[[str], Caller],
    *,
    has_result: bool = True,
) -> "WorkHandler[C]":
    async def recorded(context: C, payload: Any) -> Any:
        caller, since = who(context.caller), calls.now()
        first, last = parts
        await calls.record(kind, name, first, caller=caller, request_id=context.id, payload=payload)
        result, error = NO_PAYLOAD, None
        try:
            result = await run(context, payload)
        except FabricError as failure:
            error = failure.type
            raise
        except Exception:
            error = FabricError.type
            raise
        else:
            return result
        finally:
            if result is not NO_PAYLOAD or error is not None:  # neither: it was cancelled
                await calls.record(
                    *(kind, name, last),
                    caller=caller,
                    request_id=context.id,
                    payload=result if has_result else NO_PAYLOAD,
                    error=error,
                    since=since,
                )

    return recorded
