"""Runs: bring the tables up to date with the landing, and publish them if the accounts balance."""

from accord.pipeline.landing import admit, admitted
from accord.pipeline.runs.queries import StoredTables
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
