"""Spans of this process in memory, and the house of the concierge's tests."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.concierge.conftest import open_house as open_house
from tests.concierge.test_concierge_with_real_models import furnished as furnished
from tests.concierge.test_concierge_with_real_models import home as home

from accord.telemetry import tracing


@pytest.fixture
def recorded() -> Iterator[InMemorySpanExporter]:
    """Everything that this process records during a test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with tracing.record_with(provider):
        yield exporter
    provider.shutdown()
