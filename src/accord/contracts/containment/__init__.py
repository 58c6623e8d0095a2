"""Containment of JSON Schemas: is every value of one schema valid under another?

`contains` answers with a proof, with a witness that the validator has checked, or with the
construct that stopped it. `sender_language` is the sender's reading of a schema, with undeclared
members absent; `candidates` makes payloads at and around every bound. A walk through the method is
in `docs/concepts/containment.md`.
"""

from accord.contracts.containment.boundaries import candidates
from accord.contracts.containment.budget import MAX_STEPS
from accord.contracts.containment.decide import contains, find_instance, is_empty
from accord.contracts.containment.sender import sender_language
from accord.contracts.containment.verdict import ABSENT, Verdict

__all__ = [
    "ABSENT",
    "MAX_STEPS",
    "Verdict",
    "candidates",
    "contains",
    "find_instance",
    "is_empty",
    "sender_language",
]
