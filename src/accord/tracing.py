"""The one way to open a span, and to say where in a trace something stands.

Owns what is current in a task, which is OpenTelemetry's own context, and the names of attributes.
It knows the API only: where nobody records, nothing is kept, but what belongs together still has
one trace id, for the log and the journals. Who records and where spans go is decided by whoever
runs the process. What people wrote, their names and secrets have no place in a span, so of an error
only its type is told.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final, TypeAlias

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
)

from accord.kernel.traceparent import HEADER, Trace, parse

__all__ = [
    "HEADER",
    "Opened",
    "Span",
    "SpanKind",
    "Trace",
    "apart",
    "current",
    "entry",
    "header",
    "parse",
    "past",
    "recorded_by",
    "step",
    "tell",
]

Attribute: TypeAlias = str | bool | int | float | None

_NAME: Final = "accord"
_SPAN: Final = (1 << 64) - 1
_LEFT: Final = (asyncio.CancelledError, GeneratorExit)
_tracer: Tracer = trace.get_tracer(_NAME)


class Opened:
    """A span for the time of a block, which is given it."""

    __slots__ = ("_is_current", "_span", "_token")

    def __init__(self, span: Span, *, is_current: bool = True) -> None:
        self._span = span
        self._is_current = is_current

    def __enter__(self) -> Span:
        if self._is_current:
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


@contextmanager
def recorded_by(provider: TracerProvider) -> Iterator[None]:
    """Let a provider record the spans of this process until the block ends.

    Without this they go to the provider that is set for the whole process, if there is one.
    """
    global _tracer
    before, _tracer = _tracer, provider.get_tracer(_NAME)
    try:
        yield
    finally:
        _tracer = before


def step(name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Opened:
    """A span under what is current, and current itself until the block ends."""
    here = trace.get_current_span()
    if _is_idle(here):
        return Opened(here, is_current=False)
    return Opened(_start(name, kind, None, attributes))


def entry(
    name: str, place: Trace | None, kind: SpanKind = SpanKind.SERVER, **attributes: Attribute
) -> Opened:
    """A span for what came in: it goes on with the trace that it names, or begins one."""
    return Opened(_start(name, kind, _at(place), attributes))


def apart(name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Opened:
    """A span under what is current that does not become current.

    For asynchronous generators: what one makes current would be so for its reader, too, and it
    may be closed by another task.
    """
    return Opened(_start(name, kind, None, attributes), is_current=False)


def past(
    name: str, place: Trace | None, since: float, kind: SpanKind, **attributes: Attribute
) -> None:
    """A span of something that has just ended, and began at a time in seconds since the epoch.

    It is of use to a trace that somebody records, and nothing is done for any other.
    """
    if place is not None and place.is_recorded:
        _start(name, kind, _at(place), attributes, int(since * 1e9)).end()


def tell(span: Span | None = None, /, **attributes: Attribute) -> None:
    """Add to a span, or to the one that is current."""
    told = span or trace.get_current_span()
    if told.is_recording():
        told.set_attributes(_named(attributes))


def current() -> Trace | None:
    """Where in a trace this task is."""
    return _place(trace.get_current_span())


def header(span: Span | None = None) -> str:
    """The `traceparent` of a span, of what is current, or else of a trace that begins here."""
    found = _place(span) if span is not None else current()
    return str(found or _place(_unrecorded()))


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
    found = made.get_span_context()
    if not found.is_valid:
        return _unrecorded()
    here = SpanContext(found.trace_id, found.span_id, False, found.trace_flags)
    return NonRecordingSpan(here)


def _is_idle(span: Span) -> bool:
    """Whether nothing that hangs below a span is recorded here: that was decided with the span."""
    found = span.get_span_context()
    return found.is_valid and not found.is_remote and not span.is_recording()


def _kind_of(error: BaseException) -> str:
    """The code of an error that has one, else its type: never its words."""
    code = getattr(error, "code", None)
    return str(code.value) if isinstance(code, Enum) else type(error).__name__


def _at(place: Trace | None) -> Context:
    """The context of what came from elsewhere; nothing of this task's own is in it."""
    if place is None:
        return Context()
    flags = trace.TraceFlags(int(place.flags, 16))
    far = SpanContext(int(place.id, 16), int(place.span, 16), is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(far), Context())


def _place(span: Span) -> Trace | None:
    found = span.get_span_context()
    if not found.is_valid:
        return None
    return Trace(
        f"{found.trace_id:032x}", f"{found.span_id:016x}", f"{int(found.trace_flags) & 0xFF:02x}"
    )


def _unrecorded() -> Span:
    """The beginning of a trace that nobody records here."""
    chance = secrets.randbits(192)
    return NonRecordingSpan(SpanContext(chance >> 64 or 1, chance & _SPAN or 1, is_remote=False))


def _named(attributes: dict[str, Attribute]) -> dict[str, str | bool | int | float]:
    return {f"accord.{name}": value for name, value in attributes.items() if value is not None}
