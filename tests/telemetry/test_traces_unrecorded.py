"""Where nobody records, what belongs together has one id, and nothing more is done."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from accord.kernel import identifiers
from accord.kernel.identifiers import Trace
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

PLACE = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01")
OF_THE_PROCESS = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from accord.telemetry import tracing

with tracing.incoming_span("before", None) as before:
    assert not before.is_recording()
trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
with tracing.incoming_span("after", None) as after, tracing.span("below") as below:
    assert after.is_recording() and below.is_recording()
    assert after.get_span_context().trace_id == below.get_span_context().trace_id
    here = tracing.current_trace()
    assert here == tracing.current_trace(below) != tracing.current_trace(after)
"""


def test_all_that_hangs_below_an_entry_is_the_same_place_and_no_span_of_its_own() -> None:
    with tracing.incoming_span("work", None) as span:
        here = tracing.current_trace()
        assert here is not None
        assert not here.is_recorded
        with (
            tracing.span("part", about="something") as part,
            tracing.detached_span("stream") as stream,
        ):
            assert part is stream is span
            assert tracing.current_trace() == here
        assert identifiers.parse_traceparent(tracing.traceparent()) == here
        with tracing.incoming_span("other work", None):
            other = tracing.current_trace()
            assert other is not None
            assert other.id != here.id
        assert tracing.current_trace() == here
    assert tracing.current_trace() is None


def test_a_step_that_nothing_is_above_begins_a_trace() -> None:
    with tracing.span("work"):
        here = tracing.current_trace()
        with tracing.span("part"):
            assert tracing.current_trace() == here is not None
    assert tracing.current_trace() is None


def test_a_trace_from_elsewhere_goes_on_as_it_came() -> None:
    with tracing.incoming_span("work", PLACE) as span:
        assert tracing.current_trace() == tracing.current_trace(span) == PLACE
        assert tracing.traceparent(span) == str(PLACE)
        found = span.get_span_context()
        assert (f"{found.trace_id:032x}", f"{found.span_id:016x}") == PLACE[:2]
        assert not found.is_remote


def test_an_error_leaves_what_was_current_before() -> None:
    with tracing.incoming_span("work", PLACE):
        with pytest.raises(ValueError, match="no"), tracing.incoming_span("more", None):
            raise ValueError("no")
        with pytest.raises(ValueError, match="no"), tracing.span("part"):
            raise ValueError("no")
        assert tracing.current_trace() == PLACE


def test_who_begins_to_record_records_what_comes_in_from_then_on() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    with tracing.incoming_span("unheard", None):
        here = tracing.current_trace()
        with tracing.record_with(provider):
            with tracing.span("below what nobody recorded") as span:
                assert not span.is_recording()
            with tracing.incoming_span("heard", PLACE) as heard:
                assert heard.is_recording()
                assert tracing.current_trace() == tracing.current_trace(heard) != here
        with tracing.incoming_span("unheard again", None):
            assert tracing.current_trace() != here
        assert tracing.current_trace() == here
    provider.shutdown()


def test_a_provider_of_the_whole_process_is_heard_from_the_moment_it_is_set() -> None:
    subprocess.run([sys.executable, "-c", OF_THE_PROCESS], check=True, timeout=60)


@pytest.mark.parametrize(
    ("place", "spans"),
    [
        (str(PLACE), 1),
        (str(PLACE._replace(flags="03")), 1),
        (str(PLACE._replace(flags="00")), 0),
        (str(PLACE._replace(flags="10")), 0),
        ("", 0),
        ("nonsense", 0),
    ],
)
def test_what_has_ended_is_told_of_traces_that_somebody_records(
    recorded: InMemorySpanExporter, place: str, spans: int
) -> None:
    tracing.record_span("delivered", place, 1.0, SpanKind.PRODUCER)
    assert len(recorded.get_finished_spans()) == spans
