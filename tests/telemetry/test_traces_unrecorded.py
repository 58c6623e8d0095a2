"""Where nobody records, what belongs together has one id, and nothing more is done."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from accord import tracing
from accord.kernel.traceparent import Trace
from accord.tracing import SpanKind

PLACE = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01")
OF_THE_PROCESS = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from accord import tracing

with tracing.entry("before", None) as before:
    assert not before.is_recording()
trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
with tracing.entry("after", None) as after, tracing.step("below") as below:
    assert after.is_recording() and below.is_recording()
    assert after.get_span_context().trace_id == below.get_span_context().trace_id
    assert tracing.current() == tracing.current(below) != tracing.current(after)
"""


def test_all_that_hangs_below_an_entry_is_the_same_place_and_no_span_of_its_own() -> None:
    with tracing.entry("work", None) as span:
        here = tracing.current()
        assert here is not None
        assert not here.is_recorded
        with tracing.step("part", about="something") as part, tracing.apart("stream") as stream:
            assert part is stream is span
            assert tracing.current() == here
        assert tracing.parse(tracing.header()) == here
        with tracing.entry("other work", None):
            other = tracing.current()
            assert other is not None
            assert other.id != here.id
        assert tracing.current() == here
    assert tracing.current() is None


def test_a_step_that_nothing_is_above_begins_a_trace() -> None:
    with tracing.step("work"):
        here = tracing.current()
        with tracing.step("part"):
            assert tracing.current() == here is not None
    assert tracing.current() is None


def test_a_trace_from_elsewhere_goes_on_as_it_came() -> None:
    with tracing.entry("work", PLACE) as span:
        assert tracing.current() == tracing.current(span) == PLACE
        assert tracing.header(span) == str(PLACE)
        found = span.get_span_context()
        assert (f"{found.trace_id:032x}", f"{found.span_id:016x}") == PLACE[:2]
        assert not found.is_remote


def test_an_error_leaves_what_was_current_before() -> None:
    with tracing.entry("work", PLACE):
        with pytest.raises(ValueError, match="no"), tracing.entry("more", None):
            raise ValueError("no")
        with pytest.raises(ValueError, match="no"), tracing.step("part"):
            raise ValueError("no")
        assert tracing.current() == PLACE


def test_who_begins_to_record_records_what_comes_in_from_then_on() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    with tracing.entry("unheard", None):
        here = tracing.current()
        with tracing.recorded_by(provider):
            with tracing.step("below what nobody recorded") as span:
                assert not span.is_recording()
            with tracing.entry("heard", PLACE) as heard:
                assert heard.is_recording()
                assert tracing.current() == tracing.current(heard) != here
        with tracing.entry("unheard again", None):
            assert tracing.current() != here
        assert tracing.current() == here
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
    tracing.past("delivered", place, 1.0, SpanKind.PRODUCER)
    assert len(recorded.get_finished_spans()) == spans
