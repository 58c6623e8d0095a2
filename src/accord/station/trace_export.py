"""Sends the spans of this process to an OTLP collector, if one is configured.

Spans wait in a bounded queue and are sent by a thread; a slow or missing collector costs its spans
and a log line. Without a collector the SDK is not imported.
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

from accord import __version__
from accord.station.sections import TelemetrySettings, parse_headers
from accord.station.settings import Settings
from accord.telemetry import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


_PATH: Final = "/v1/traces"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# The time limit for sending one batch.
_EXPORT_SECONDS: Final = 10.0
# The time limit for sending the rest at the end.
_LAST_SECONDS: Final = 5.0
_LIBRARY: Final = "opentelemetry.exporter"

_log = structlog.stdlib.get_logger(__name__)


@asynccontextmanager
async def export_traces(
    settings: TelemetrySettings, *, service: str, name: str = "", seconds: float = _LAST_SECONDS
) -> AsyncIterator[None]:
    """Record the spans of this process until the end of the block, if a collector is configured.

    Args:
        service: The name of the process: `service.name`.
    """
    if not is_wanted(settings, os.environ):
        yield
        return
    provider = _provider(settings, service, name)
    library = logging.getLogger(_LIBRARY)
    level = library.level
    # It logs every attempt of every batch; the exporter below logs changes only.
    library.setLevel(logging.CRITICAL)
    try:
        with tracing.record_with(provider):
            yield
    finally:
        # A daemon thread, since the SDK itself would wait for up to half a minute.
        ending = threading.Thread(target=provider.shutdown, name="telemetry", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, seconds)
        library.setLevel(level)


def station_traces(settings: Settings) -> AbstractAsyncContextManager[None]:
    """Record a station's spans; its end waits no longer for them than for a plane."""
    station = settings.station
    seconds = min(station.drain_seconds, _LAST_SECONDS)
    return export_traces(settings.telemetry, service="accord", name=station.name, seconds=seconds)


def is_wanted(settings: TelemetrySettings, environment: Mapping[str, str]) -> bool:
    """Whether a collector is configured by the settings or by the standard variables."""
    if settings.traces:
        return True
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return any(environment.get(each) for each in _ENDPOINTS)


def traces_url(url: str) -> str:
    """Return the URL for spans; the default path is added to a collector without one."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else parts._replace(path=_PATH).geturl()


def _provider(settings: TelemetrySettings, service: str, name: str) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    # What the settings leave open, the exporter takes from the standard variables.
    exporter = OTLPSpanExporter(
        endpoint=traces_url(settings.traces) if settings.traces else None,
        headers=parse_headers(settings.headers.get_secret_value()) or None,
        timeout=_EXPORT_SECONDS if settings.traces else None,
        compression=Compression.Gzip if settings.traces else None,
    )
    share = TraceIdRatioBased(settings.sample)
    provider = TracerProvider(
        # A trace from a process that does not record is sampled like one of our own.
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
    provider.add_span_processor(BatchSpanProcessor(_tolerant(exporter, place)))
    return provider


def _tolerant(exporter: "SpanExporter", place: str) -> "SpanExporter":
    """An exporter that logs once that it fails, and once that it works again."""
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
                _log.info("the collector accepts spans again", lost=self.lost)
                self.lost = 0
            elif result is not SpanExportResult.SUCCESS:
                if not self.lost:
                    _log.warning("the collector accepts no spans; they are lost", collector=place)
                self.lost += len(spans)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

    return Patient()
