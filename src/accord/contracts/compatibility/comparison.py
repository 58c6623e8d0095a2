"""Two contracts side by side: the facts that rules look at, the type of a rule, and the report.

Finds the payloads whose schemas changed, and the directions in which each of them must stay
readable (specification, section 6.2).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from accord.contracts.compatibility.differences import (
    Difference,
    DifferenceKind,
    differences,
    strip_annotations,
)
from accord.contracts.compatibility.proofs import Prover
from accord.contracts.compatibility.side import Path, Side, read_side, state_version
from accord.contracts.containment import ABSENT
from accord.contracts.errors import ContractError
from accord.kernel import canonical

MAX_CHANGED: Final = 8000
"""Changed payloads that one comparison looks at; one that has more is not proven compatible."""

Category = Literal["breaking", "unproven", "migration", "note", "update"]
Relation = Literal["replacement", "coexistence"]
Classification = Literal["none", "update", "migration"]
Level = Literal["wire", "source", "full"]
Role = Literal["sent by callers", "sent by services", "stored"]


@dataclass(frozen=True, slots=True)
class PayloadPosition:
    """The role of a payload in a contract."""

    role: Role  # who writes it
    durable: bool  # whether it is stored, so that old payloads are read under new contracts

    @property
    def forward(self) -> bool:
        """Whether a replacement must read what was written under the old contract."""
        return self.durable or self.role == "sent by callers"

    @property
    def backward(self) -> bool:
        """Whether readers of the old contract receive what a replacement writes."""
        return self.role == "sent by services"


_POSITIONS: Final = {
    ("rpc", "input"): PayloadPosition("sent by callers", durable=False),
    ("rpc", "output"): PayloadPosition("sent by services", durable=False),
    ("operations", "input"): PayloadPosition("sent by callers", durable=True),
    ("operations", "signals"): PayloadPosition("sent by callers", durable=True),
    ("operations", "progress"): PayloadPosition("sent by services", durable=True),
    ("operations", "output"): PayloadPosition("sent by services", durable=True),
    ("events", "event"): PayloadPosition("sent by services", durable=True),
    ("feeds", "input"): PayloadPosition("sent by callers", durable=False),
    ("feeds", "event"): PayloadPosition("sent by services", durable=False),
    ("jobs", "payload"): PayloadPosition("sent by callers", durable=True),
    ("jobs", "result"): PayloadPosition("sent by services", durable=True),
}
_ERROR: Final = PayloadPosition("sent by services", durable=False)
_STORED: Final = PayloadPosition("stored", durable=True)


@dataclass(frozen=True, slots=True)
class ChangedPayload:
    """A payload whose schema changed."""

    path: Path  # its place in the new contract
    position: PayloadPosition
    old: bytes  # the old schema as canonical JSON, without annotations; `new` likewise
    new: bytes
    forward: bool  # whether the new schema must accept everything of the old one
    backward: bool  # whether the old schema must accept everything of the new one

    @property
    def is_resource(self) -> bool:
        """Whether it is stored in a resource, where a narrower schema is a migration."""
        return self.path[0] == "resources"


@dataclass(frozen=True)
class Comparison:
    """Two contracts, and the relation that is asked for."""

    old: Side
    new: Side
    relation: Relation
    payloads: tuple[ChangedPayload, ...]  # the payloads whose schemas changed, at most MAX_CHANGED
    is_cut: bool = False  # whether there are more
    # Decides whether one schema's payloads are valid under another.
    prover: Prover = field(default_factory=Prover)
    _differences: dict[tuple[bytes, bytes], tuple[Difference, ...]] = field(default_factory=dict)

    @property
    def coexists(self) -> bool:
        """Whether both contracts answer at once."""
        return self.relation == "coexistence"

    def differences(self, payload: ChangedPayload) -> tuple[Difference, ...]:
        """The differences between a payload's schemas."""
        key = (payload.old, payload.new)
        if key not in self._differences:
            self._differences[key] = differences(*key)
        return self._differences[key]

    @cached_property
    def _by_kind(self) -> dict[DifferenceKind, list[ChangedPayload]]:
        found: dict[DifferenceKind, list[ChangedPayload]] = {}
        for payload in self.payloads:
            for kind in dict.fromkeys(difference.kind for difference in self.differences(payload)):
                found.setdefault(kind, []).append(payload)
        return found

    def payloads_with(self, kind: DifferenceKind) -> list[ChangedPayload]:
        """The payloads with a certain kind of difference."""
        return self._by_kind.get(kind, [])

    def common(self, *path: str) -> Iterator[tuple[str, Any, Any]]:
        """The entries of a map that both contracts have: name, old and new."""
        new = self.new.section(*path)
        for name, entry in self.old.section(*path).items():
            if name in new:
                yield name, entry, new[name]


def read_comparison(old: Any, new: Any, relation: Relation) -> Comparison:
    """Read two manifests; raises ContractError if one is not valid or the relation is unknown."""
    if relation not in ("replacement", "coexistence"):
        raise ContractError(
            f"there is no relation {relation!r}", mend="ask for replacement or coexistence"
        )
    before, after = read_side(old, "old"), read_side(new, "new")
    both = relation == "coexistence"
    changed = tuple(islice(_changed(before, after, both), MAX_CHANGED + 1))
    is_cut = len(changed) > MAX_CHANGED
    return Comparison(before, after, relation, changed[:MAX_CHANGED], is_cut)


def _changed(old: Side, new: Side, both: bool) -> Iterator[ChangedPayload]:
    known: dict[bytes, bytes] = {}
    for path, position, before, after in _aligned(old, new):
        if (pair := _pair(before, after, known)) is not None:
            yield ChangedPayload(
                path, position, *pair, position.forward or both, position.backward or both
            )
    for path, before, after, is_written in _state(old, new):
        if (pair := _pair(before, after, known)) is not None:
            yield ChangedPayload(path, _STORED, *pair, forward=True, backward=both and is_written)


def _pair(old: bytes, new: bytes, known: dict[bytes, bytes]) -> tuple[bytes, bytes] | None:
    """Both schemas without annotations; None if they are equal then."""
    if old == new:
        return None
    for schema in (old, new):
        if schema not in known:
            known[schema] = canonical.encode(strip_annotations(canonical.decode(schema)))
    return None if known[old] == known[new] else (known[old], known[new])


def _aligned(old: Side, new: Side) -> Iterator[tuple[Path, PayloadPosition, bytes, bytes]]:
    # Of several declarations of one type the first counts.
    declared = reversed(list(new.section("errors").items()))
    errors = {error["type"]: name for name, error in declared}
    for path, before in old.payloads.items():
        after = new.payloads.get(path)
        if after is None:
            continue
        if path[0] == "errors":
            yield ("errors", errors[path[1]], "schema"), _ERROR, before, after
        elif path[0] == "resources":
            yield path, _STORED, before, after
        else:
            yield path, _POSITIONS[path[0], path[2]], before, after


def _state(old: Side, new: Side) -> Iterator[tuple[Path, bytes, bytes, bool]]:
    """The state versions that both contracts read, and whether the new one writes them."""
    for name, versions in old.state.items():
        for version, (path, after) in new.state.get(name, {}).items():
            if version in versions:
                is_written = version == state_version(new.section("state")[name])
                yield path, versions[version][1], after, is_written


class Occurrence(NamedTuple):
    """One place to which a rule applies."""

    path: Path
    message: str
    witness: Any = ABSENT


RuleHandler = Callable[[Comparison], Iterator[Occurrence]]


@dataclass(frozen=True, slots=True)
class CompatibilityRule:
    """One kind of change, and what it means."""

    id: str  # stable; named by changes
    category: Category
    purpose: str  # one sentence for people
    handler: RuleHandler  # yields the places with such a change
    level: Level = "full"  # the most lenient level of a policy that selects it


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
