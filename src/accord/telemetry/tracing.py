"""The one way to open a span, and to say where in a trace something stands.

Owns what is current in a task, which is OpenTelemetry's own context, and the names of attributes.
It knows the API only, and where nobody records it does not even ask that: nothing is kept, but what
belongs together still has one trace id, for the log and the journals. Who records and where spans
go is decided by whoever runs the process. What people wrote, their names and secrets have no place
in a span, so of an error only its type is told.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Final, TypeAlias

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
)

from accord.kernel.identifiers import TRACEPARENT, Trace, parse_traceparent

__all__ = [
    "TRACEPARENT",
    "Span",
    "SpanKind",
    "Trace",
    "current_trace",
    "detached_span",
    "incoming_span",
    "parse_traceparent",
    "record_span",
    "record_with",
    "set_attributes",
    "span",
    "traceparent",
]

Attribute: TypeAlias = str | bool | int | float | None

_NAME: Final = "accord"
_NOWHERE: Final = Context()
_FLAG: Final = slice(54, 55)
_LEFT: Final = (asyncio.CancelledError, GeneratorExit)
_PROCESS: Final = trace.get_tracer(_NAME)
_tracer: Tracer = _PROCESS


class _Unrecorded(NonRecordingSpan):
    """A place in a trace where nobody records.

    As a block it does nothing, so one serves for whatever hangs below it. What OpenTelemetry asks
    of it is made when it asks: where nobody records it hardly ever does.
    """

    def __init__(self, place: Trace) -> None:
        self.place = place

    def get_span_context(self) -> SpanContext:
        return _context_of(self.place, is_remote=False)

    def __repr__(self) -> str:
        return f"_Unrecorded({self.place})"


# What is current where nobody records. It comes before OpenTelemetry's context: what hangs below
# something that nobody recorded is not recorded either.
_unheard: ContextVar[_Unrecorded | None] = ContextVar("accord_unheard", default=None)


class _Unheard:
    """A place that is current for the time of a block, and nothing more."""

    __slots__ = ("_span", "_token")

    def __init__(self, place: Trace) -> None:
        self._span = _Unrecorded(place)

    def __enter__(self) -> Span:
        self._token = _unheard.set(self._span)
        return self._span

    def __exit__(self, *_: object) -> None:
        _unheard.reset(self._token)


class _Opened:
    """A span for the time of a block, which is given it."""

    __slots__ = ("_before", "_is_current", "_span", "_token")

    def __init__(self, span: Span, *, is_current: bool = True) -> None:
        self._span = span
        self._is_current = is_current

    def __enter__(self) -> Span:
        if self._is_current:
            self._before = _unheard.set(None)
            self._token = context.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, _LEFT):
            self._span.set_attribute("accord.cancelled", True)
        elif error is not None:
            self._span.set_status(Status(StatusCode.ERROR, _kind_of(error)))
        self._span.end()
        if self._is_current:
            context.detach(self._token)
            _unheard.reset(self._before)


@contextmanager
def record_with(provider: TracerProvider) -> Iterator[None]:
    """Let a provider record the spans of this process until the block ends.

    Without this they go to the provider that is set for the whole process, if there is one.
    """
    global _tracer
    before, _tracer = _tracer, provider.get_tracer(_NAME)
    try:
        yield
    finally:
        _tracer = before


def span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute
) -> AbstractContextManager[Span]:
    """A span under what is current, and current itself until the block ends."""
    here = _current()
    if type(here) is _Unrecorded:
        return here
    if _is_unheard():
        return _Unheard(_begun())
    return _Opened(_start(name, kind, None, attributes))


def incoming_span(
    name: str, place: Trace | None, kind: SpanKind = SpanKind.SERVER, **attributes: Attribute
) -> AbstractContextManager[Span]:
    """A span for what came in: it goes on with the trace that it names, or begins one."""
    if _is_unheard():
        return _Unheard(place or _begun())
    return _Opened(_start(name, kind, _at(place), attributes))


def detached_span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute
) -> AbstractContextManager[Span]:
    """A span under what is current that does not become current.

    For asynchronous generators: what one makes current would be so for its reader, too, and it
    may be closed by another task.
    """
    here = _current()
    if type(here) is _Unrecorded:
        return here
    return _Opened(_start(name, kind, None, attributes), is_current=False)


def record_span(
    name: str, place: str, since: float, kind: SpanKind, **attributes: Attribute
) -> None:
    """A span of something that has just ended, and began at a time in seconds since the epoch.

    It is of use to a trace that somebody records, and nothing is done for any other: of the header
    of such a one not more than the flag is looked at.
    """
    if place[_FLAG] in "13579bdf" and (found := parse_traceparent(place)) is not None:
        _start(name, kind, _at(found), attributes, int(since * 1e9)).end()


def set_attributes(span: Span | None = None, /, **attributes: Attribute) -> None:
    """Add to a span, or to the one that is current."""
    told = span or _current()
    if told.is_recording():
        told.set_attributes(_named(attributes))


def current_trace(span: Span | None = None) -> Trace | None:
    """Where in a trace a span is, or this task."""
    return _place(span or _current())


def traceparent(span: Span | None = None) -> str:
    """The `traceparent` of a span, of what is current, or else of a trace that begins here."""
    return str(current_trace(span) or _begun())


def _current() -> Span:
    return _unheard.get() or trace.get_current_span()


def _is_unheard() -> bool:
    """Whether there is nobody who might record."""
    return _tracer is _PROCESS and type(trace.get_tracer_provider()) is ProxyTracerProvider


def _start(
    name: str,
    kind: SpanKind,
    within: Context | None,
    attributes: dict[str, Attribute],
    began: int | None = None,
) -> Span:
    made = _tracer.start_span(name, within, kind, _named(attributes), start_time=began)
    if made.is_recording():
        return made
    return _Unrecorded(_place(made) or _begun())


def _kind_of(error: BaseException) -> str:
    """The code of an error that has one, else its type: never its words."""
    code = getattr(error, "code", None)
    return str(code.value) if isinstance(code, Enum) else type(error).__name__


def _at(place: Trace | None) -> Context:
    """The context of what came from elsewhere; nothing of this task's own is in it."""
    if place is None:
        return _NOWHERE
    return trace.set_span_in_context(NonRecordingSpan(_context_of(place, is_remote=True)), _NOWHERE)


def _context_of(place: Trace, *, is_remote: bool) -> SpanContext:
    flags = trace.TraceFlags(int(place.flags, 16))
    return SpanContext(int(place.id, 16), int(place.span, 16), is_remote, flags)


def _place(span: Span) -> Trace | None:
    if type(span) is _Unrecorded:
        return span.place
    found = span.get_span_context()
    if not found.is_valid:
        return None
    return Trace(
        f"{found.trace_id:032x}", f"{found.span_id:016x}", f"{int(found.trace_flags) & 0xFF:02x}"
    )


def _begun() -> Trace:
    """The beginning of a trace that nobody records here."""
    chance = secrets.token_hex(24)
    return Trace(chance[:32], chance[32:])


def _named(attributes: dict[str, Attribute]) -> dict[str, str | bool | int | float]:
    return {f"accord.{name}": value for name, value in attributes.items() if value is not None}
