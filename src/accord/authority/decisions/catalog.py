"""What is active: effective contracts, the catalog, and what keeps things out of it (section 13).

Offers count in the order in which they were accepted. A digest that does not stand together with
those before it, or wants a subject that another lineage owns, is left out and raises an issue, so
that what was there before goes on. A catalog is made whole or not at all.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from accord.authority.decisions.ownership import Ownership
from accord.contracts import Effective, union
from accord.kernel.finding import Finding, pointer

FORMAT: Final = "trellis.catalog.v1"

MAX_DIGESTS: Final = 16
"""Digests of one lineage that may be active at once: each is compared with every other."""

Manifest = Mapping[str, Any]
United = Callable[[Sequence[str]], Effective]
"""Puts digests of one lineage together."""


@dataclass(frozen=True, slots=True)
class Active:
    """A digest that at least one active offer has, and since when."""

    contract_id: str
    digest: str
    accepted_at: float


@dataclass(frozen=True, slots=True)
class Projection:
    """What is active, as of one revision of the store.

    Attributes:
        revision: The revision that it was made from.
        wishes: How often what is desired had changed by then.
        catalog: The `trellis.catalog.v1` document.
        effective: The effective active contracts, by id.
        issues: Why active offers are left out; a pointer begins with the contract id.
        ownership: Who owns which subject, among what is active or accepted.
    """

    revision: int
    catalog: Mapping[str, Any]
    effective: Mapping[str, Effective]
    issues: tuple[Finding, ...] = ()
    ownership: Ownership = field(default_factory=Ownership)
    wishes: int = 0


def project(
    active: Iterable[Active],
    manifests: Mapping[str, Manifest],
    *,
    builtins: Mapping[str, str],
    accepted: Iterable[str] = (),
    revision: int = 0,
    wishes: int = 0,
    united: United | None = None,
) -> Projection:
    """Project what is active.

    Args:
        active: The digests that active offers have.
        manifests: Valid normalised manifests by digest, those of builtins included.
        builtins: The digest of each contract of the platform, by id.
        accepted: Digests that deployments were accepted to implement; they own their subjects.
        revision: The revision of the store.
        wishes: How often what is desired has changed.
        united: How digests stand together, where that is remembered.
    """
    united = united or (lambda digests: union([manifests[digest] for digest in digests]))
    ownership = Ownership()
    effective: dict[str, Effective] = {}
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


def _lineages(active: Iterable[Active], builtins: Mapping[str, str]) -> dict[str, list[str]]:
    """The digests of each lineage, both in the order of acceptance."""
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
    united: United,
    ownership: Ownership,
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
    effective: Mapping[str, Effective], manifests: Mapping[str, Manifest]
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
