"""Generated histories of every stream, with planted faults and the truth about them.

For tests, benchmarks and demonstrations. Events are really signed, decisions are the gate's own,
payloads keep their contracts; what does not stand is known record by record. The same seed gives
the same bytes. No other part of the pipeline depends on it.
"""

from accord.pipeline.generate.arrivals import Portion
from accord.pipeline.generate.faults import FAULTS, Fate, Fault, planned
from accord.pipeline.generate.history import Generated
from accord.pipeline.generate.landing import TRUTH, generate, land
from accord.pipeline.generate.slicing import slices
from accord.pipeline.generate.truth import Truth

__all__ = [
    "FAULTS",
    "TRUTH",
    "Fate",
    "Fault",
    "Generated",
    "Portion",
    "Truth",
    "generate",
    "land",
    "planned",
    "slices",
]
