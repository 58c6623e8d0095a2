"""Two contracts side by side: what every rule looks at.

It finds the payloads whose schemas changed, and knows in which directions each of them must stay
readable (specification, section 6.2). It judges nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal

from accord.contracts.compatibility.annotations import bare
from accord.contracts.compatibility.differences import Difference, Kind, differences
from accord.contracts.compatibility.proofs import Prover
from accord.contracts.compatibility.report import Relation
from accord.contracts.compatibility.settings import Path
from accord.contracts.compatibility.side import Side, read_side, state_version
from accord.contracts.errors import ContractError
from accord.kernel import canonical

MAX_CHANGED: Final = 8000
"""Changed payloads that one comparison looks at; one that has more is not proven compatible."""

Role = Literal["sent by callers", "sent by services", "stored"]


@dataclass(frozen=True, slots=True)
class Position:
    """What a payload at some place of a contract is.

    Attributes:
        role: Who writes it.
        durable: Whether it is kept, so that what old contracts wrote is read under new ones.
    """

    role: Role
    durable: bool

    @property
    def forward(self) -> bool:
        """Whether a replacement must read what was written under the old contract."""
        return self.durable or self.role == "sent by callers"

    @property
    def backward(self) -> bool:
        """Whether readers of the old contract meet what a replacement writes."""
        return self.role == "sent by services"


_POSITIONS: Final = {
    ("rpc", "input"): Position("sent by callers", durable=False),
    ("rpc", "output"): Position("sent by services", durable=False),
    ("operations", "input"): Position("sent by callers", durable=True),
    ("operations", "signals"): Position("sent by callers", durable=True),
    ("operations", "progress"): Position("sent by services", durable=True),
    ("operations", "output"): Position("sent by services", durable=True),
    ("events", "event"): Position("sent by services", durable=True),
    ("feeds", "input"): Position("sent by callers", durable=False),
    ("feeds", "event"): Position("sent by services", durable=False),
    ("jobs", "payload"): Position("sent by callers", durable=True),
    ("jobs", "result"): Position("sent by services", durable=True),
}
_ERROR: Final = Position("sent by services", durable=False)
_STORED: Final = Position("stored", durable=True)


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload whose schema changed.

    Attributes:
        path: Its place in the new contract.
        position: What it is.
        old: The old schema as canonical JSON, without annotations.
        new: The new schema, likewise.
        forward: Whether the new schema must accept what the old one describes.
        backward: Whether the old schema must accept what the new one describes.
    """

    path: Path
    position: Position
    old: bytes
    new: bytes
    forward: bool
    backward: bool

    @property
    def is_resource(self) -> bool:
        """Whether it lies in a resource, of which a narrower schema is a migration."""
        return self.path[0] == "resources"


@dataclass(frozen=True)
class Comparison:
    """Two contracts, and the relation that is asked for.

    Attributes:
        old: The contract that was there before.
        new: The contract that comes.
        relation: Whether the new one replaces the old one, or both answer at once.
        payloads: The payloads whose schemas changed, up to MAX_CHANGED.
        is_cut: Whether there are more.
        prover: Answers what the schemas of these payloads mean for each other.
    """

    old: Side
    new: Side
    relation: Relation
    payloads: tuple[Payload, ...]
    is_cut: bool = False
    prover: Prover = field(default_factory=Prover)
    _differences: dict[tuple[bytes, bytes], tuple[Difference, ...]] = field(default_factory=dict)

    @property
    def coexists(self) -> bool:
        """Whether both contracts answer at once."""
        return self.relation == "coexistence"

    def differences(self, payload: Payload) -> tuple[Difference, ...]:
        """What differs between the schemas of a payload."""
        key = (payload.old, payload.new)
        if key not in self._differences:
            self._differences[key] = differences(*key)
        return self._differences[key]

    @cached_property
    def _by_kind(self) -> dict[Kind, list[Payload]]:
        found: dict[Kind, list[Payload]] = {}
        for payload in self.payloads:
            for kind in dict.fromkeys(difference.kind for difference in self.differences(payload)):
                found.setdefault(kind, []).append(payload)
        return found

    def payloads_with(self, kind: Kind) -> list[Payload]:
        """The payloads whose schemas differ in a certain way."""
        return self._by_kind.get(kind, [])

    def kept(self, *path: str) -> Iterator[tuple[str, Any, Any]]:
        """The entries of a map that both contracts have: name, old and new."""
        new = self.new.section(*path)
        for name, entry in self.old.section(*path).items():
            if name in new:
                yield name, entry, new[name]


def read_comparison(old: Any, new: Any, relation: Relation) -> Comparison:
    """Put two manifests side by side.

    Raises:
        ContractError: A manifest is not valid, or there is no such relation.
    """
    if relation not in ("replacement", "coexistence"):
        raise ContractError(
            f"there is no relation {relation!r}", mend="ask for replacement or coexistence"
        )
    before, after = read_side(old, "old"), read_side(new, "new")
    both = relation == "coexistence"
    changed = tuple(islice(_changed(before, after, both), MAX_CHANGED + 1))
    is_cut = len(changed) > MAX_CHANGED
    return Comparison(before, after, relation, changed[:MAX_CHANGED], is_cut)


def _changed(old: Side, new: Side, both: bool) -> Iterator[Payload]:
    known: dict[bytes, bytes] = {}
    for path, position, before, after in _aligned(old, new):
        if (pair := _pair(before, after, known)) is not None:
            yield Payload(
                path, position, *pair, position.forward or both, position.backward or both
            )
    for path, before, after, is_written in _state(old, new):
        if (pair := _pair(before, after, known)) is not None:
            yield Payload(path, _STORED, *pair, forward=True, backward=both and is_written)


def _pair(old: bytes, new: bytes, known: dict[bytes, bytes]) -> tuple[bytes, bytes] | None:
    """Both schemas without annotations; None if they say the same."""
    if old == new:
        return None
    for schema in (old, new):
        if schema not in known:
            known[schema] = canonical.encode(bare(canonical.decode(schema)))
    return None if known[old] == known[new] else (known[old], known[new])


def _aligned(old: Side, new: Side) -> Iterator[tuple[Path, Position, bytes, bytes]]:
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
    """The versions of state that both contracts read, and whether the new one writes them."""
    for name, versions in old.state.items():
        for version, (path, after) in new.state.get(name, {}).items():
            if version in versions:
                is_written = version == state_version(new.section("state")[name])
                yield path, versions[version][1], after, is_written
