"""Whether one contract may replace another or run beside it, and why not.

`compare` applies every rule of `RULES` to two manifests of one lineage. A changed payload is
compatible if it is proved that readers accept everything that may be written, breaking if there is
a witness against it, and unproven otherwise.
"""

from collections.abc import Iterator
from typing import Any

from accord.contracts.compatibility.comparison import (
    MAX_CHANGED,
    Category,
    Comparison,
    CompatibilityReport,
    CompatibilityRule,
    ContractChange,
    Level,
    Relation,
    read_comparison,
)
from accord.contracts.compatibility.differences import strip_annotations
from accord.contracts.compatibility.impact import Affected, ContractUser, impact, used_surfaces
from accord.contracts.compatibility.policy import (
    LEVELS,
    Policy,
    PolicyException,
    Versions,
    read_policy,
)
from accord.contracts.compatibility.proofs import (
    clear_proof_cache,
    declare_members,
    is_obviously_read,
)
from accord.contracts.compatibility.review import (
    KnownVersion,
    Review,
    ReviewedVersion,
    SetAside,
    review,
)
from accord.contracts.compatibility.rules import RULES
from accord.contracts.compatibility.side import Side, read_side
from accord.contracts.containment import ABSENT
from accord.kernel.canonical import pointer

__all__ = [
    "LEVELS",
    "MAX_CHANGED",
    "RULES",
    "Affected",
    "Category",
    "CompatibilityReport",
    "CompatibilityRule",
    "ContractChange",
    "ContractUser",
    "KnownVersion",
    "Level",
    "Policy",
    "PolicyException",
    "Relation",
    "Review",
    "ReviewedVersion",
    "SetAside",
    "Side",
    "Versions",
    "clear_proof_cache",
    "compare",
    "declare_members",
    "impact",
    "is_obviously_read",
    "read_policy",
    "read_side",
    "review",
    "strip_annotations",
    "used_surfaces",
]


def compare(old: Any, new: Any, relation: Relation = "replacement") -> CompatibilityReport:
    """Compare two manifests of one lineage.

    The relation is `replacement` if the old contract goes, `coexistence` if both answer at once.
    Raises ContractError, with the findings, if a manifest is not valid.
    """
    comparison = read_comparison(old, new, relation)
    changes = [change for rule in RULES for change in _changes(rule, comparison)]
    return CompatibilityReport(
        relation=relation,
        findings=tuple(change for change in changes if change.category != "update"),
        updates=tuple(change for change in changes if change.category == "update"),
    )


def _changes(rule: CompatibilityRule, comparison: Comparison) -> Iterator[ContractChange]:
    for path, message, witness in rule.handler(comparison):
        yield ContractChange(
            rule=rule.id,
            category=rule.category,
            pointer=pointer(*path),
            message=message,
            witness=None if witness is ABSENT else witness,
            has_witness=witness is not ABSENT,
        )
