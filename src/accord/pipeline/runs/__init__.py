"""Runs: bring the tables up to date with the landing, and publish them if the accounts balance.

A name is imported when it is first used, so that a reader of published tables loads no rules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from accord.pipeline.landing import (
        admit,
        admitted,
    )
    from accord.pipeline.runs.runner import (
        RunOutcome,
        SparkTarget,
        prepare,
        refresh,
        run,
        run_continuously,
        run_once,
        status,
    )
    from accord.pipeline.runs.versions import (
        GoldVersion,
        create_draft,
        layer_ids,
        open_published,
        publish,
        published,
        published_tables,
        require_query,
        run_query,
    )
    from accord.pipeline.tables.layers import (
        StoredTables,
    )

__all__ = [
    "GoldVersion",
    "RunOutcome",
    "SparkTarget",
    "StoredTables",
    "admit",
    "admitted",
    "create_draft",
    "layer_ids",
    "open_published",
    "prepare",
    "publish",
    "published",
    "published_tables",
    "refresh",
    "require_query",
    "run",
    "run_continuously",
    "run_once",
    "run_query",
    "status",
]

_HOMES: Final = {
    "GoldVersion": "accord.pipeline.runs.versions",
    "RunOutcome": "accord.pipeline.runs.runner",
    "SparkTarget": "accord.pipeline.runs.runner",
    "StoredTables": "accord.pipeline.tables.layers",
    "admit": "accord.pipeline.landing",
    "admitted": "accord.pipeline.landing",
    "create_draft": "accord.pipeline.runs.versions",
    "layer_ids": "accord.pipeline.runs.versions",
    "open_published": "accord.pipeline.runs.versions",
    "prepare": "accord.pipeline.runs.runner",
    "publish": "accord.pipeline.runs.versions",
    "published": "accord.pipeline.runs.versions",
    "published_tables": "accord.pipeline.runs.versions",
    "refresh": "accord.pipeline.runs.runner",
    "require_query": "accord.pipeline.runs.versions",
    "run": "accord.pipeline.runs.runner",
    "run_continuously": "accord.pipeline.runs.runner",
    "run_once": "accord.pipeline.runs.runner",
    "run_query": "accord.pipeline.runs.versions",
    "status": "accord.pipeline.runs.runner",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
