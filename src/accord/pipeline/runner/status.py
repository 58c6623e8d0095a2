"""How a pipeline stands, read off its folder: no Spark, no lock, no wait."""

from dataclasses import asdict
from typing import Any

from accord.pipeline.landing.place import Landing
from accord.pipeline.layout import Layout
from accord.pipeline.runner import admission, publishing
from accord.pipeline.runner.lock import holder
from accord.pipeline.runner.settings import table_format
from accord.pipeline.streams import STREAMS


def status(layout: Layout, landing: str | None = None) -> dict[str, Any]:
    """What is published, what waits, what was left out, and who is at work.

    Raises:
        PipelineError: The folder or the landing cannot be read.
    """
    version = publishing.published(layout)
    facts = version.facts if version else {}
    place = Landing(landing or layout.landing)
    known = admission.admitted_names(layout)
    spoilt = admission.spoilt_segments(layout)
    waiting = {
        stream: sum(each.rows for each in place.segments(stream) if each.name not in known[stream])
        for stream in STREAMS
    }
    return {
        "folder": str(layout.root),
        "table_format": table_format(layout),
        "version": version.name if version else None,
        "published_at": facts.get("published_at"),
        "tables": version.tables if version else [],
        "accounts": facts.get("accounts", []),
        "waiting": {stream: rows for stream, rows in waiting.items() if rows},
        "spoilt": [asdict(each) for each in spoilt],
        "running": holder(layout),
    }
