"""The outcome of a comparison, for programs and for people. It decides nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from accord.kernel import canonical

Category = Literal["breaking", "unproven", "migration", "note", "update"]
Relation = Literal["replacement", "coexistence"]
Classification = Literal["none", "update", "migration"]

_HEADINGS: Final[dict[Category, str]] = {
    "breaking": "breaking: others fail on this",
    "unproven": "unproven: nobody fails as far as is known, but there is no proof",
    "migration": "migration: work, data or authority may change hands or be lost",
    "note": "note: compatible, and worth a look",
    "update": "update: compatible",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs between two contracts, and what a rule makes of it.

    Attributes:
        rule: The stable id of the rule.
        category: What the change means; see `Report`.
        pointer: A JSON Pointer into the new manifest, or into the old one for what is gone.
        message: A sentence for a person.
        witness: A payload of one side that the other refuses, where there is one, else None.
        has_witness: Tells a witness that is null from none.
    """

    rule: str
    category: Category
    pointer: str
    message: str
    witness: Any = None
    has_witness: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the member `witness` is there only if there is one."""
        plain = {
            "rule": self.rule,
            "category": self.category,
            "pointer": self.pointer,
            "message": self.message,
        }
        return {**plain, "witness": self.witness} if self.has_witness else plain

    def __str__(self) -> str:
        place = self.pointer or "(whole contract)"
        line = f"{place}: {self.message} [{self.rule}]"
        if not self.has_witness:
            return line
        return f"{line}\n    witness: {canonical.encode(self.witness).decode()}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a comparison of two contracts found.

    Attributes:
        relation: Which relation was asked for.
        findings: What speaks against the change, or is worth a look: `breaking`, `unproven`,
            `migration` and `note`, in this order.
        updates: What is new or has grown, and harms nobody.
    """

    relation: Relation
    findings: tuple[Change, ...]
    updates: tuple[Change, ...] = ()

    @property
    def compatible(self) -> bool:
        """Whether nothing is breaking and nothing is unproven."""
        return not any(change.category in ("breaking", "unproven") for change in self.findings)

    @property
    def classification(self) -> Classification:
        """What authority has to do: nothing, accept an update, or decide on a migration."""
        if any(change.category != "note" for change in self.findings):
            return "migration"
        return "update" if self.findings or self.updates else "none"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "relation": self.relation,
            "compatible": self.compatible,
            "classification": self.classification,
            "findings": [change.to_dict() for change in self.findings],
            "updates": [change.to_dict() for change in self.updates],
        }

    def text(self) -> str:
        """For a reviewer: the verdict, then every change under its category."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        verdict = "compatible" if self.compatible else "not compatible"
        yield f"{verdict} ({self.relation}); classification: {self.classification}"
        for category, heading in _HEADINGS.items():
            changes = [c for c in (*self.findings, *self.updates) if c.category == category]
            if changes:
                yield f"\n{heading}"
                yield from (f"  {change}" for change in changes)

    def __str__(self) -> str:
        return self.text()
