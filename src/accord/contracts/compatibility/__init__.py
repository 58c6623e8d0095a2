"""Whether one contract may follow another, or stand beside it, and why not.

`compare` puts two manifests of one lineage side by side and asks every rule in `RULES`. Payloads
are judged by proof: a change is compatible when it is proved that whoever reads accepts all that
may be written, breaking when there is a witness, and unproven otherwise.
"""

from collections.abc import Iterator
from typing import Any

from accord.contracts.compatibility.comparison import Comparison, read_comparison
from accord.contracts.compatibility.report import Category, Change, Relation, Report
from accord.contracts.compatibility.rule import Rule
from accord.contracts.compatibility.rules import RULES
from accord.contracts.containment import ABSENT
from accord.kernel.finding import pointer

__all__ = ["RULES", "Category", "Change", "Relation", "Report", "Rule", "compare"]


def compare(old: Any, new: Any, relation: Relation = "replacement") -> Report:
    """What a new contract means for those who rely on an old one.

    Args:
        old: The manifest that was there before.
        new: The manifest that comes.
        relation: `replacement` if the old contract goes, `coexistence` if both answer at once.

    Raises:
        ContractError: A manifest is not valid (it carries the findings), or there is no such
            relation.
    """
    comparison = read_comparison(old, new, relation)
    changes = [change for rule in RULES for change in _changes(rule, comparison)]
    return Report(
        relation=relation,
        findings=tuple(change for change in changes if change.category != "update"),
        updates=tuple(change for change in changes if change.category == "update"),
    )


def _changes(rule: Rule, comparison: Comparison) -> Iterator[Change]:
    for path, message, witness in rule.handler(comparison):
        yield Change(
            rule=rule.id,
            category=rule.category,
            pointer=pointer(*path),
            message=message,
            witness=None if witness is ABSENT else witness,
            has_witness=witness is not ABSENT,
        )
