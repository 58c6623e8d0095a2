"""The page of the metrics: the one table of `accord.telemetry.metrics`, by plane."""

from itertools import groupby
from typing import Final

from accord.telemetry.metrics import METRICS, MetricDefinition

_PLANES: Final = {
    "station": "The station",
    "process": "The process",
    "stores": "Stores",
    "community": "The community",
    "models": "Language models",
    "relay": "The relay",
    "authority": "The authority",
    "pipeline": "The pipeline",
}


def reference_page() -> str:
    """Return the reference page of every metric, in Markdown."""
    parts = [_HEAD]
    for plane, measures in groupby(METRICS, key=lambda each: each.plane):
        rows = "\n".join(map(_row, measures))
        parts.append(f"## {_PLANES[plane]}\n\n{_COLUMNS}\n{rows}\n")
    return "\n".join(parts)


_HEAD: Final = """# Metrics

What a station shows at `/metrics`, in the text format of Prometheus. This page is made from the
table in `src/accord/telemetry/metrics.py`; a name in it means the same in every later version, or
is not used again. [The guide](../guides/monitoring.md) says how to scrape them, and what to do when
an alert fires.

A plane that does not run shows nothing. Of a histogram there are `_bucket`, `_sum` and `_count`.
The values of labels come from the program or the operator, and their number is bounded.
"""
_COLUMNS: Final = "| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|"


def _row(measure: MetricDefinition) -> str:
    labels = ", ".join(f"`{each}`" for each in measure.labels)
    cells = (f"`{measure.name}`", measure.kind.value, measure.unit, labels, measure.meaning)
    return f"| {' | '.join(cells)} |"
