"""The catalog: which contracts and offers are active, and what may be used of them now.

Offers count in the order of acceptance. A digest that is incompatible with those before it, or
wants a subject that another contract owns, is left out with an issue (section 13). An offer depends
on its connection and heartbeats, and is stale for a grace window before it expires (section 6.2).
The status of a surface is advisory; it grants nothing.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from accord.authority.rules.records import Offer
from accord.contracts import EffectiveContract, collisions, union
from accord.contracts.surfaces import SECTIONS, Section, Surface, effective_subjects
from accord.kernel.canonical import pointer
from accord.kernel.errors import Finding

_WILDCARDS: Final = ("*", ">")

_Subject: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""The tokens of a subject, and those of them before its first wildcard."""


class SubjectIndex:
    """The subjects of some contracts."""

    def __init__(self) -> None:
        # The digests of contracts, by each prefix of their subjects.
        self._beginnings: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        # The digests of contracts, by the tokens before the first wildcard of their subjects.
        self._wild: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        self._whole: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        self._contracts: dict[str, Mapping[str, Any]] = {}

    def add(self, digest: str, contract: Mapping[str, Any]) -> None:
        """Add the subjects of a valid contract."""
        if digest in self._contracts:
            return
        self._contracts[digest] = contract
        for tokens, literal in _tokens(contract):
            for length in range(1, len(literal) + 1):
                self._beginnings[literal[:length]].add(digest)
            if len(literal) < len(tokens):
                self._wild[literal].add(digest)
            else:
                self._whole[tokens].add(digest)

    def collisions(self, contract: Mapping[str, Any]) -> list[Finding]:
        """Where a contract wants a subject twice, or one that another contract owns."""
        near: set[str] = set()
        owned = list(_tokens(contract))
        for tokens, literal in owned:
            if len(literal) < len(tokens):
                near |= self._beginnings.get(literal, set())
            else:
                near |= self._whole.get(tokens, set())
            for length in range(1, len(literal) + 1):
                near |= self._wild.get(literal[:length], set())
        others = [
            self._contracts[digest]
            for digest in sorted(near)
            if self._contracts[digest]["id"] != contract["id"]
        ]
        if not others and not _may_overlap(owned):
            return []
        # Collisions among the others do not count.
        before = set(collisions(others))
        return [found for found in collisions([contract, *others]) if found not in before]


def _may_overlap(owned: Sequence[_Subject]) -> bool:
    """Whether subjects of one contract may overlap each other; those that do, always may."""
    beginnings = Counter(
        literal[:length] for _, literal in owned for length in range(1, len(literal) + 1)
    )
    whole = Counter(tokens for tokens, literal in owned if tokens == literal)
    return any(count > 1 for count in whole.values()) or any(
        beginnings[literal] > 1 for tokens, literal in owned if tokens != literal
    )


def _tokens(contract: Mapping[str, Any]) -> Iterator[_Subject]:
    for owned in effective_subjects(contract):
        tokens = tuple(owned.subject.split("."))
        wild = next((at for at, token in enumerate(tokens) if token in _WILDCARDS), len(tokens))
        yield tokens, tokens[:wild]


FORMAT: Final = "trellis.catalog.v1"

MAX_DIGESTS: Final = 16
"""Digests of one contract id that may be active at once; each is compared with every other."""

Manifest = Mapping[str, Any]
Unite = Callable[[Sequence[str]], EffectiveContract]
"""Computes the union of digests of one contract id."""


@dataclass(frozen=True, slots=True)
class ActiveDigest:
    """A digest with at least one active offer, and since when."""

    contract_id: str
    digest: str
    accepted_at: float


@dataclass(frozen=True, slots=True)
class Projection:
    """The active contracts, as of one revision of the store.

    `catalog` is the `trellis.catalog.v1` document, `wishes` how often the desired state had
    changed, and `issues` say why active offers are left out; a pointer begins with the contract id.
    """

    revision: int
    catalog: Mapping[str, Any]
    effective: Mapping[str, EffectiveContract]
    issues: tuple[Finding, ...] = ()
    ownership: SubjectIndex = field(default_factory=SubjectIndex)
    wishes: int = 0


def project_catalog(
    active: Iterable[ActiveDigest],
    manifests: Mapping[str, Manifest],
    *,
    builtins: Mapping[str, str],
    accepted: Iterable[str] = (),
    revision: int = 0,
    wishes: int = 0,
    united: Unite | None = None,
) -> Projection:
    """Project the active contracts.

    `manifests` are valid and normalised, by digest; `builtins` are the platform's digests by
    contract id; `accepted` digests own their subjects, too; `united` may be a cached union of
    digests.
    """
    united = united or (lambda digests: union([manifests[digest] for digest in digests]))
    ownership = SubjectIndex()
    effective: dict[str, EffectiveContract] = {}
    issues: list[Finding] = []
    for identity, digest in sorted(builtins.items()):
        ownership.add(digest, manifests[digest])
        effective[identity] = united((digest,))
    for identity, digests in _lineages(active, builtins).items():
        standing: tuple[str, ...] = ()
        for digest in digests:
            issue = _issue(identity, digest, standing, manifests, united, ownership)
            if issue is None:
                standing = (*standing, digest)
                ownership.add(digest, manifests[digest])
            else:
                issues.append(issue)
        if standing:
            effective[identity] = united(standing)
    for digest in sorted(accepted):
        if digest in manifests:
            ownership.add(digest, manifests[digest])
    catalog = _catalog(effective, manifests)
    return Projection(revision, catalog, effective, tuple(issues), ownership, wishes)


def _lineages(active: Iterable[ActiveDigest], builtins: Mapping[str, str]) -> dict[str, list[str]]:
    lineages: dict[str, list[str]] = {}
    for each in sorted(active, key=lambda one: (one.accepted_at, one.contract_id, one.digest)):
        if each.contract_id not in builtins:
            lineages.setdefault(each.contract_id, []).append(each.digest)
    return lineages


def _issue(
    identity: str,
    digest: str,
    standing: tuple[str, ...],
    manifests: Mapping[str, Manifest],
    united: Unite,
    ownership: SubjectIndex,
) -> Finding | None:
    """Why a digest is left out, if it is."""
    where = pointer(identity, digest)
    if digest not in manifests:
        message = f"the manifest of {digest} is missing until it is presented again"
        return Finding("catalog.manifest-missing", where, message)
    if manifests[digest]["id"] != identity:
        return Finding("catalog.other-lineage", where, f"{digest} is of another contract")
    if len(standing) == MAX_DIGESTS:
        message = f"{MAX_DIGESTS} digests of {identity} are active already"
        return Finding("catalog.too-many-digests", where, message)
    if standing and not (together := united((*standing, digest))).ok:
        return Finding("catalog.incompatible-offers", where, together.findings[0].message)
    if collisions := ownership.collisions(manifests[digest]):
        return Finding("catalog.subject-collision", where, collisions[0].message)
    return None


def _catalog(
    effective: Mapping[str, EffectiveContract], manifests: Mapping[str, Manifest]
) -> Mapping[str, Any]:
    return {
        "format": FORMAT,
        "contracts": [
            {
                "id": identity,
                "digest": digest,
                "displayName": manifests[digest]["displayName"],
                "description": manifests[digest]["description"],
            }
            for identity in sorted(effective)
            for digest in effective[identity].digests
        ],
    }


HEARTBEAT_SECONDS: Final = 10.0
"""Seconds between two heartbeats of an instance."""

GRACE_SECONDS: Final = 30.0
"""Seconds for which an offer outlives its connection."""

LEASE_SECONDS: Final = 2 * HEARTBEAT_SECONDS + GRACE_SECONDS
"""Seconds for which a live offer counts without a heartbeat: one may be lost."""


class Liveness(StrEnum):
    """The state of an offer at some time."""

    LIVE = "live"
    STALE = "stale"
    EXPIRED = "expired"

    @property
    def is_active(self) -> bool:
        """Whether the offer counts; its deployment and instance must be enabled, too."""
        return self is not Liveness.EXPIRED


def offer_liveness(offer: Offer, now: float) -> Liveness:
    """The state of an offer; without heartbeats a live one becomes stale, then expires."""
    if now >= offer.expires_at:
        return Liveness.EXPIRED
    if offer.live and now < offer.expires_at - GRACE_SECONDS:
        return Liveness.LIVE
    return Liveness.STALE


def mark_heard(offer: Offer, now: float) -> Offer:
    """The offer after a connection or a heartbeat; an expired one stays expired."""
    if offer_liveness(offer, now) is Liveness.EXPIRED:
        return offer
    return dataclasses.replace(offer, live=True, stale_at=None, expires_at=now + LEASE_SECONDS)


def mark_lost(offer: Offer, now: float) -> Offer:
    """The offer after its connection ended; the grace window begins once."""
    if not offer.live:
        return offer
    expires_at = min(offer.expires_at, now + GRACE_SECONDS)
    return dataclasses.replace(offer, live=False, stale_at=now, expires_at=expires_at)


Status = Literal["unknown_contract", "unknown_surface", "unauthorized", "unavailable", "available"]
Runtime = Literal["live", "no_live_implementer", "disabled"]

_SECTIONS: Final[dict[str, Section]] = {
    **{section: section for section in SECTIONS},
    "operation": "operations",
    "event": "events",
    "feed": "feeds",
}
_DEFAULTS: Final[dict[Section, str]] = {
    "rpc": "call",
    "operations": "call",
    "events": "subscribe",
    "feeds": "subscribe",
}
# The list of a use for each action that has no list of its own.
_SELECTORS: Final = {"observe": "call", "cancel": "call", "control": "call"}


@dataclass(frozen=True, slots=True)
class SurfaceStatus:
    """The status of a surface for a session, which may lack the capabilities `missing`."""

    status: Status
    missing: tuple[str, ...] = ()
    reason: str | None = None
    runtime: Runtime | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        answer: dict[str, Any] = {"status": self.status}
        if self.missing:
            answer["missingCapabilities"] = list(self.missing)
        if self.reason is not None:
            answer["reason"] = self.reason
        if self.runtime is not None:
            answer |= {"liveImplementer": self.runtime == "live", "runtime": self.runtime}
        return answer


@dataclass(frozen=True, slots=True)
class SurfaceOffer:
    """An offer of the contract id, as far as it matters for the status."""

    digest: str
    liveness: Liveness
    disabled: bool = False


def section_of(kind: str) -> Section | None:
    """The manifest section of a kind of surface, in the singular or as written there."""
    return _SECTIONS.get(kind)


def default_action(section: Section) -> str:
    """The action on a surface if none is given."""
    return _DEFAULTS[section]


def selector_of(action: str) -> str:
    """The list of a use that covers an action."""
    return _SELECTORS.get(action, action)


def find_surface_status(
    lineage: Mapping[str, Iterable[Surface]] | None,
    section: Section | None,
    name: str,
    action: str,
    *,
    covered: bool,
    capabilities: frozenset[str],
    offered: Iterable[SurfaceOffer],
    builtin: bool = False,
) -> SurfaceStatus:
    """The status of a surface for a session, by the known digests of the contract id.

    `covered` says whether the use was accepted; `builtin`, whether the platform implements it.
    """
    if lineage is None:
        return SurfaceStatus("unknown_contract")
    found = {
        digest: surface
        for digest, surfaces in lineage.items()
        for surface in surfaces
        if (surface.section, surface.name) == (section, name)
    }
    if not found:
        return SurfaceStatus("unknown_surface")
    if not covered:
        return SurfaceStatus("unavailable")
    # Of the offered digests if there are any, else of the known ones.
    matching = [offer for offer in offered if offer.digest in found and offer.liveness.is_active]
    gates = [found[offer.digest].gates for offer in matching] or [s.gates for s in found.values()]
    needed = [gate[action] for gate in gates if action in gate]
    if not needed:
        return SurfaceStatus("unauthorized")
    missing = min(
        (need - capabilities for need in needed), key=lambda keys: (len(keys), *sorted(keys))
    )
    if missing:
        return SurfaceStatus("unauthorized", missing=tuple(sorted(missing)))
    if builtin:
        return SurfaceStatus("available", runtime="live")
    enabled = [offer for offer in matching if not offer.disabled]
    if any(offer.liveness is Liveness.LIVE for offer in enabled):
        return SurfaceStatus("available", runtime="live")
    if enabled:
        return SurfaceStatus("available", runtime="no_live_implementer")
    if matching:
        return SurfaceStatus("available", runtime="disabled")
    return SurfaceStatus("unavailable", reason="dependency_not_active")
