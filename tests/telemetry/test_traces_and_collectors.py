"""Where spans go: to a real collector, as it wants them; and what one in trouble costs."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from pydantic import SecretStr, ValidationError
from tests.concierge.concierge_bus import ScriptedBus
from tests.concierge.conftest import Open, until

from accord.kernel.identifiers import Trace
from accord.station import trace_export
from accord.station.sections import TelemetrySettings
from accord.telemetry import tracing
from accord.testing.collector import CollectorMode, collector

PLACE = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01")


async def test_a_collector_gets_spans_as_it_wants_them_and_all_of_them_by_the_end(
    tmp_path: Path,
) -> None:
    with collector(tmp_path) as receiver:
        settings = TelemetrySettings(
            traces=receiver.url, headers=SecretStr("authorization=Bearer a=b, x-more=1")
        )
        async with trace_export.export_traces(settings, service="accord", name="kitchen"):
            for _ in range(1000):
                with tracing.incoming_span("work", PLACE, count=3, is_good=True, none=None):
                    pass
        assert receiver.faults() == []
        spans = receiver.spans()
    assert len(spans) == 1000
    span = spans[0]
    assert (span["name"], span["trace_id"], span["parent_id"]) == ("work", PLACE.id, PLACE.span)
    assert span["attributes"] == {"accord.count": 3, "accord.is_good": True}
    assert span["authorization"] == "Bearer a=b"
    assert span["resource"]["service.name"] == "accord"
    assert span["resource"]["accord.station"] == "kitchen"


@pytest.mark.parametrize("manner", ["fail", "hang", "away"])
async def test_a_collector_in_trouble_costs_its_spans_and_one_line_and_no_message(
    manner: CollectorMode | str, tmp_path: Path, open_house: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setattr(trace_export, "_EXPORT_SECONDS", 0.2)
    kind: CollectorMode = "fail" if manner == "away" else manner  # type: ignore[assignment]
    with structlog.testing.capture_logs() as lines, collector(tmp_path, kind) as receiver:
        settings = TelemetrySettings(traces=_closed() if manner == "away" else receiver.url)
        async with (
            trace_export.export_traces(settings, service="accord", seconds=0.2),
            open_house(ScriptedBus()) as house,
        ):
            ann = await house.person("ann")
            lobby = await house.lobby()
            for number in range(3):
                assert await ann.say(
                    lobby, f"When is the shed open? {number}", "(blake3:" + "a" * 64 + ")"
                )
            await until(_told(lines))
            assert await ann.say(lobby, "And the key?", "(blake3:" + "a" * 64 + ")")
    told = [each for each in lines if "collector" in each["event"]]
    assert [each["log_level"] for each in told] == ["warning"]
    assert not any("exc_info" in each for each in lines)


async def test_a_collector_that_comes_back_is_sent_what_happens_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setattr(trace_export, "_EXPORT_SECONDS", 0.2)
    with structlog.testing.capture_logs() as lines, collector(tmp_path) as receiver:
        held = receiver.file.with_suffix(".held")
        receiver.file.rename(held)
        receiver.file.mkdir()  # so that it can keep nothing, and says so
        settings = TelemetrySettings(traces=receiver.url)
        async with trace_export.export_traces(settings, service="accord"):
            with tracing.incoming_span("lost", PLACE):
                pass
            await until(_told(lines))
            receiver.file.rmdir()
            held.rename(receiver.file)
            with tracing.incoming_span("kept", PLACE):
                pass
            await until(lambda: bool(receiver.spans()))
            await until(lambda: len(_about(lines)) == 2)
        assert [each["name"] for each in receiver.spans()] == ["kept"]
    assert [each.get("lost") for each in _about(lines)] == [None, 1]


async def test_the_share_of_traces_is_chosen_by_their_ids_and_all_have_one(tmp_path: Path) -> None:
    low, high = (Trace(f"{'1' * 16}{digit * 16}", "1" * 16, "00") for digit in "1e")
    recorded_elsewhere = high._replace(flags="01")
    with collector(tmp_path) as receiver:
        settings = TelemetrySettings(traces=receiver.url, sample=0.5)
        async with trace_export.export_traces(settings, service="accord"):
            for name, place in (("low", low), ("high", high), ("told", recorded_elsewhere)):
                with tracing.incoming_span(name, place):
                    found = tracing.current_trace()
                    assert found is not None
                    assert found.id == place.id
        assert sorted(each["name"] for each in receiver.spans()) == ["low", "told"]


async def test_without_a_collector_nothing_is_recorded_and_everything_has_a_trace() -> None:
    async with trace_export.export_traces(TelemetrySettings(), service="accord"):
        with tracing.span("work") as span:
            assert not span.is_recording()
            outer = tracing.current_trace()
            with tracing.span("more work"):
                inner = tracing.current_trace()
    assert outer is not None
    assert inner is not None
    assert outer.id == inner.id
    assert tracing.current_trace() is None
    assert tracing.traceparent() != tracing.traceparent()


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_a_process_without_settings_follows_the_standard_variables(
    variables: dict[str, str], wanted: bool
) -> None:
    assert trace_export.is_wanted(TelemetrySettings(), variables) is wanted


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_a_collector_is_named_by_its_address_or_its_path(url: str, place: str) -> None:
    assert trace_export.traces_url(url) == place


@pytest.mark.parametrize("wrong", ["nonsense", "a b=c", "=c", "name=", "name=x\ny"])
def test_headers_that_are_none_are_refused_without_being_shown(wrong: str) -> None:
    with pytest.raises(ValidationError, match="separated by commas"):
        TelemetrySettings(headers=SecretStr(wrong))


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(ValidationError):
        TelemetrySettings(traces="http://user:secret@collector")


def _about(lines: list[structlog.typing.EventDict]) -> list[structlog.typing.EventDict]:
    return [each for each in lines if "collector" in each["event"]]


def _told(lines: list[structlog.typing.EventDict]) -> Callable[[], bool]:
    return lambda: bool(_about(lines))


def _closed() -> str:
    """An address at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"
