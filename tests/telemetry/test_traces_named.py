"""What a caller says of its trace is read strictly, carried on, and in the log."""

import io
import json
import logging
import re

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.community.bus.conftest import Opener
from tests.community.bus.conftest import open_stage as open_stage

from accord.community.errors import Code, CommunityError
from accord.kernel import identifiers
from accord.kernel.identifiers import Trace, parse_traceparent
from accord.relay.rules import Inbound, MessageEvent, SessionSource, read_frame, write_frame
from accord.station.logs import configured
from accord.station.sections import LogSettings
from accord.telemetry import tracing

PLACE = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01")
HEX = re.compile("[0-9a-f]{32}")

traces = st.builds(
    Trace,
    st.text("0123456789abcdef", min_size=32, max_size=32).filter(lambda it: it.strip("0")),
    st.text("0123456789abcdef", min_size=16, max_size=16).filter(lambda it: it.strip("0")),
    st.sampled_from(["00", "01", "ff"]),
)


@given(traces)
def test_a_place_is_read_as_it_was_written(place: Trace) -> None:
    assert parse_traceparent(str(place)) == place


@given(st.text(max_size=80) | st.integers() | st.none() | st.binary())
def test_whatever_else_comes_names_no_trace(given: object) -> None:
    assert parse_traceparent(given) is None


@pytest.mark.parametrize(
    "text",
    [
        f"00-{'0' * 32}-{PLACE.span}-01",
        f"00-{PLACE.id}-{'0' * 16}-01",
        f"ff-{PLACE.id}-{PLACE.span}-01",
        f"00-{PLACE.id}-{PLACE.span}-01-more",
        f"00-{PLACE.id.upper()}-{PLACE.span}-01",
        f"{PLACE}\n",
        f"01-{PLACE.id}-{PLACE.span}-01-{'x' * 300}",
    ],
)
def test_what_the_standard_forbids_names_no_trace(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert parse_traceparent(f"01-{PLACE.id}-{PLACE.span}-01-what.ever") == PLACE


async def test_a_caller_who_says_nonsense_of_its_trace_is_served_and_its_words_are_kept_nowhere(
    open_stage: Opener, recorded: InMemorySpanExporter
) -> None:
    stream = io.StringIO()
    nonsense = f"00-{'g' * 32}-<script>alert</script>-01"
    async with open_stage() as stage:
        with configured(LogSettings(level="debug"), stream=stream):
            for header in (nonsense, str(PLACE)):
                answer = await stage.call(headers={identifiers.TRACEPARENT: header})
                assert answer.status_code == 200
        other, known = (each["trace_id"] for each in await stage.journal())
    assert HEX.fullmatch(other)
    assert other != PLACE.id
    assert known == PLACE.id
    kept = stream.getvalue() + "".join(each.to_json() for each in recorded.get_finished_spans())
    assert "script" not in kept
    assert "g" * 32 not in kept


async def test_a_call_and_a_stream_go_on_with_the_trace_of_whoever_calls(
    open_stage: Opener, recorded: InMemorySpanExporter
) -> None:
    async with open_stage() as stage:
        stage.offer_tokens()
        async with stage.client() as client:
            with tracing.incoming_span("somebody's work", PLACE):
                await client.call("experimental.echo")
                async for _ in client.stream("experimental.tokens", {}, {"n": 3}):
                    # What a stream does is its own: its reader stays where it was.
                    assert tracing.current_trace() is not None
                with pytest.raises(CommunityError):
                    await client.call("experimental.none")
    spans = recorded.get_finished_spans()
    assert {f"{each.context.trace_id:032x}" for each in spans} == {PLACE.id}
    assert {each.name for each in spans} == {
        "somebody's work",
        "bus request",
        "bus call",
        "bus stream",
    }
    (refused,) = [each for each in spans if (each.attributes or {}).get("accord.refused")]
    assert refused.attributes is not None
    assert refused.attributes["accord.refused"] == Code.NOT_FOUND.value


@pytest.mark.parametrize("told", ["x", 5, None, {"a": 1}, f"00-{'0' * 32}-{'0' * 16}-00"])
def test_a_frame_with_a_bad_trace_is_a_frame_without_one(told: object) -> None:
    event = MessageEvent("hello", SessionSource("web", "c1", "dm"))
    written = json.loads(write_frame(Inbound(event, "b1", PLACE)))
    assert written["traceparent"] == str(PLACE)
    assert read_frame(json.dumps(written)) == Inbound(event, "b1", PLACE)
    assert read_frame(json.dumps(written | {"traceparent": told})) == Inbound(event, "b1")


def test_every_line_of_something_that_belongs_to_a_trace_names_it_also_one_of_a_library() -> None:
    stream = io.StringIO()
    with configured(LogSettings(), stream=stream):
        structlog.stdlib.get_logger("a.plane").info("before")
        with tracing.incoming_span("work", PLACE):
            structlog.stdlib.get_logger("a.plane").info("ours")
            logging.getLogger("a.library").warning("theirs")
        with tracing.incoming_span("work", None):
            structlog.stdlib.get_logger("a.plane").info("begun here")
    lines = {each["event"]: each for each in map(json.loads, stream.getvalue().splitlines())}
    assert "trace_id" not in lines["before"]
    assert lines["ours"]["trace_id"] == lines["theirs"]["trace_id"] == PLACE.id
    assert HEX.fullmatch(lines["begun here"]["trace_id"])


def test_of_an_error_only_its_kind_is_told(recorded: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="secret"), tracing.span("work"):
        raise ValueError("the secret is 1234")
    with pytest.raises(CommunityError), tracing.span("work"):
        raise CommunityError(Code.NOT_FOUND, "the secret is 1234")
    plain, coded = recorded.get_finished_spans()
    assert plain.status.description == "ValueError"
    assert coded.status.description == "not_found"
    assert "1234" not in plain.to_json() + coded.to_json()
