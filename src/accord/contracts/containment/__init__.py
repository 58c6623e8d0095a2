"""Containment of JSON Schemas: is every value of one schema valid under another?

`contains` answers with a proof, a witness that the validator has checked, or the construct that
stopped it. `sender_language` is a schema without undeclared members; `candidates` generates
payloads around every bound. The method is explained in `docs/concepts/containment.md`.
"""

from accord.contracts.containment.boundaries import candidates
from accord.contracts.containment.budget import (
    ABSENT,
    MAX_STEPS,
    Budget,
    ContainmentVerdict,
    ExhaustedError,
)
from accord.contracts.containment.formulas import Literal, Matches, Size
from accord.contracts.containment.nodes import SchemaNodes
from accord.contracts.containment.patterns import UnsupportedError, automaton
from accord.contracts.containment.sender import sender_language
from accord.contracts.containment.solver import Evaluator, contains, find_instance, is_empty
from accord.contracts.containment.strings import clear_string_cache

__all__ = [
    "ABSENT",
    "MAX_STEPS",
    "Budget",
    "ContainmentVerdict",
    "Evaluator",
    "ExhaustedError",
    "Literal",
    "Matches",
    "SchemaNodes",
    "Size",
    "UnsupportedError",
    "automaton",
    "candidates",
    "clear_string_cache",
    "contains",
    "find_instance",
    "is_empty",
    "sender_language",
]
