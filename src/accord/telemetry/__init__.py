"""Metrics and tracing. Import `accord.telemetry.metrics` or `accord.telemetry.tracing`."""
