"""Pure rules of the pipeline: redaction, checks of records, proposals for what-ifs."""

from accord.pipeline.rules.checks import (
    RULES,
    EventHead,
    Manifests,
    RecordVerdict,
    RefusedError,
    check,
    check_batch,
    check_call,
    payload_path,
    read_manifests,
)
from accord.pipeline.rules.redaction import body_schema, redact
from accord.pipeline.rules.shapes import MORE, MOST_SHAPES, declared_names, shape
from accord.pipeline.rules.streams import (
    BUS_CALLS,
    COLUMNS,
    COMMUNITY_EVENTS,
    CONTRACTS_CALLS,
    CONTRACTS_HISTORY,
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_INBOUND,
    RELAY_OUTBOUND,
    STREAMS,
)

__all__ = [
    "BUS_CALLS",
    "COLUMNS",
    "COMMUNITY_EVENTS",
    "CONTRACTS_CALLS",
    "CONTRACTS_HISTORY",
    "MORE",
    "MOST_SHAPES",
    "RELAY_DECISIONS",
    "RELAY_DELIVERIES",
    "RELAY_INBOUND",
    "RELAY_OUTBOUND",
    "RULES",
    "STREAMS",
    "EventHead",
    "Manifests",
    "RecordVerdict",
    "RefusedError",
    "body_schema",
    "check",
    "check_batch",
    "check_call",
    "declared_names",
    "payload_path",
    "read_manifests",
    "redact",
    "shape",
]
