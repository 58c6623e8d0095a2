"""Sends the spans of this process to a collector, where one was named.

Owns the provider, its sampler and its exporter. Nothing waits for a collector: spans wait in a
bounded queue and are sent by a thread of its own, and one that is away, slow or in trouble costs
its spans, a line in the log, and nothing else. Without a collector no SDK is even imported.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog

from accord import __version__, tracing
from accord.station.settings import Settings
from accord.station.telemetry_settings import TelemetrySettings, pairs

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_PATH: Final = "/v1/traces"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# How long a collector may take over one batch.
_EXPORT_SECONDS: Final = 10.0
# How long the end may wait for what was not sent yet.
_LAST_SECONDS: Final = 5.0
_LIBRARY: Final = "opentelemetry.exporter"

_log = structlog.stdlib.get_logger(__name__)


@asynccontextmanager
async def recording(
    settings: TelemetrySettings, *, service: str, name: str = "", seconds: float = _LAST_SECONDS
) -> AsyncIterator[None]:
    """Record the spans of this process until the block ends, if a collector was named.

    Args:
        settings: Where to, how much of it.
        service: What the process is called among others: `service.name`.
        name: What the station is called.
        seconds: How long the end may wait for what was not sent yet.
    """
    if not is_wanted(settings, os.environ):
        yield
        return
    provider = _provider(settings, service, name)
    library = logging.getLogger(_LIBRARY)
    level = library.level
    # It tells every attempt of every batch; the exporter below tells it once.
    library.setLevel(logging.CRITICAL)
    try:
        with tracing.recorded_by(provider):
            yield
    finally:
        # A thread that nobody has to wait for: the SDK itself would wait for up to half a minute.
        ending = threading.Thread(target=provider.shutdown, name="telemetry", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, seconds)
        library.setLevel(level)


def of_station(settings: Settings) -> AbstractAsyncContextManager[None]:
    """Record a station's own spans; its end does not wait longer for them than for a plane."""
    station = settings.station
    seconds = min(station.drain_seconds, _LAST_SECONDS)
    return recording(settings.telemetry, service="accord", name=station.name, seconds=seconds)


def is_wanted(settings: TelemetrySettings, environment: Mapping[str, str]) -> bool:
    """Whether a collector was named: by the settings, else by the standard variables."""
    if settings.traces:
        return True
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return any(environment.get(each) for each in _ENDPOINTS)


def collector(url: str) -> str:
    """Where exactly spans go: a collector without a path gets the usual one."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else parts._replace(path=_PATH).geturl()


def _provider(settings: TelemetrySettings, service: str, name: str) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    # What the settings do not say, the exporter takes from the standard variables.
    exporter = OTLPSpanExporter(
        endpoint=collector(settings.traces) if settings.traces else None,
        headers=pairs(settings.headers.get_secret_value()) or None,
        timeout=_EXPORT_SECONDS if settings.traces else None,
        compression=Compression.Gzip if settings.traces else None,
    )
    share = TraceIdRatioBased(settings.sample)
    provider = TracerProvider(
        # A trace that came from a process that records nothing is sampled like one of our own.
        sampler=ParentBased(share, remote_parent_not_sampled=share),
        resource=Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME") or service,
                "service.version": __version__,
                **({"accord.station": name} if name else {}),
            }
        ),
        shutdown_on_exit=False,
    )
    place = settings.traces or next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    provider.add_span_processor(BatchSpanProcessor(_patient(exporter, place)))
    return provider


def _patient(exporter: "SpanExporter", place: str) -> "SpanExporter":
    """An exporter that says once that it is in trouble, and once that it is not any more."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Patient(SpanExporter):
        lost = 0

        def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
            try:
                result = exporter.export(spans)
            except Exception as error:  # noqa: BLE001 - whatever it is, it costs these spans only
                _log.debug("spans could not be sent", error=type(error).__name__)
                result = SpanExportResult.FAILURE
            if result is SpanExportResult.SUCCESS and self.lost:
                _log.info("the collector takes spans again", lost=self.lost)
                self.lost = 0
            elif result is not SpanExportResult.SUCCESS:
                if not self.lost:
                    _log.warning(
                        "the collector takes no spans; they are lost meanwhile", collector=place
                    )
                self.lost += len(spans)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

    return Patient()
