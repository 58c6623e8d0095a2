"""The report of a comparison, for programs and for people."""

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
class ContractChange:
    """One change between two contracts."""

    rule: str  # the stable id of the rule
    category: Category
    pointer: str  # a JSON Pointer into the new manifest, or the old one for removed parts
    message: str
    witness: Any = None  # a payload of one side that the other refuses, or None
    has_witness: bool = False  # distinguishes a witness of null from none

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `witness` is present only if there is one."""
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
class CompatibilityReport:
    """The result of a comparison."""

    relation: Relation
    # `breaking`, `unproven`, `migration` and `note`, in this order.
    findings: tuple[ContractChange, ...]
    updates: tuple[ContractChange, ...] = ()  # harmless additions

    @property
    def compatible(self) -> bool:
        """Whether nothing is breaking or unproven."""
        return not any(change.category in ("breaking", "unproven") for change in self.findings)

    @property
    def classification(self) -> Classification:
        """What the authority has to do: nothing, accept an update, or decide on a migration."""
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
        """For reviewers: the verdict, then every change by category."""
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
