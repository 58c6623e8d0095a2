"""Pure rules of the pipeline: redaction, checks of records, proposals for what-ifs.

A name is imported when it is first used: the checks load the rules of other planes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from accord.pipeline.rules.checks import (
        MORE,
        MOST_SHAPES,
        RULES,
        EventHead,
        Manifests,
        RecordVerdict,
        RefusedError,
        check,
        check_batch,
        check_call,
        declared_names,
        payload_path,
        read_manifests,
        rules_version,
        shape,
    )
    from accord.pipeline.rules.redaction import (
        body_schema,
        redact,
    )
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
        RELAY_UNLINKED,
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
    "RELAY_UNLINKED",
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
    "rules_version",
    "shape",
]

_HOMES: Final = {
    "BUS_CALLS": "accord.pipeline.rules.streams",
    "COLUMNS": "accord.pipeline.rules.streams",
    "COMMUNITY_EVENTS": "accord.pipeline.rules.streams",
    "CONTRACTS_CALLS": "accord.pipeline.rules.streams",
    "CONTRACTS_HISTORY": "accord.pipeline.rules.streams",
    "MORE": "accord.pipeline.rules.checks",
    "MOST_SHAPES": "accord.pipeline.rules.checks",
    "RELAY_DECISIONS": "accord.pipeline.rules.streams",
    "RELAY_DELIVERIES": "accord.pipeline.rules.streams",
    "RELAY_INBOUND": "accord.pipeline.rules.streams",
    "RELAY_OUTBOUND": "accord.pipeline.rules.streams",
    "RELAY_UNLINKED": "accord.pipeline.rules.streams",
    "RULES": "accord.pipeline.rules.checks",
    "STREAMS": "accord.pipeline.rules.streams",
    "EventHead": "accord.pipeline.rules.checks",
    "Manifests": "accord.pipeline.rules.checks",
    "RecordVerdict": "accord.pipeline.rules.checks",
    "RefusedError": "accord.pipeline.rules.checks",
    "body_schema": "accord.pipeline.rules.redaction",
    "check": "accord.pipeline.rules.checks",
    "check_batch": "accord.pipeline.rules.checks",
    "check_call": "accord.pipeline.rules.checks",
    "declared_names": "accord.pipeline.rules.checks",
    "payload_path": "accord.pipeline.rules.checks",
    "read_manifests": "accord.pipeline.rules.checks",
    "redact": "accord.pipeline.rules.redaction",
    "rules_version": "accord.pipeline.rules.checks",
    "shape": "accord.pipeline.rules.checks",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
