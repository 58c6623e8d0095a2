"""Generated histories of every stream, with planted faults and the truth about them.

For tests, benchmarks and demonstrations. Events are signed, decisions are the gate's own, payloads
match their contracts; every invalid record is known. The same seed gives the same bytes. No other
part of the pipeline imports this.
"""

from accord.pipeline.generate.contracts import broken_payload, lineages, payload
from accord.pipeline.generate.history import TRUTH_FILE, GeneratedHistory, generate, land, slices
from accord.pipeline.generate.records import (
    FAULTS,
    KINDS,
    Fault,
    FaultOutcome,
    GroundTruth,
    SegmentRecords,
    plan_faults,
)
from accord.pipeline.generate.relay import PLATFORMS, REMARKS, gate_event, tenant_facts

__all__ = [
    "FAULTS",
    "KINDS",
    "PLATFORMS",
    "REMARKS",
    "TRUTH_FILE",
    "Fault",
    "FaultOutcome",
    "GeneratedHistory",
    "GroundTruth",
    "SegmentRecords",
    "broken_payload",
    "gate_event",
    "generate",
    "land",
    "lineages",
    "payload",
    "plan_faults",
    "slices",
    "tenant_facts",
]
