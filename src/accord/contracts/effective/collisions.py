"""Collisions: subjects that two surfaces own, or that overlap (specification, section 15).

Overlapping counts, not only equality: a subscription to `a.*` receives what is sent to `a.b`, so
two owners would see each other's messages without each other's capabilities. Surfaces are compared
by the effective subject, with `.control` and feeds. The same surface of the same lineage never
collides with itself; whether two digests of it mean the same is for `union` to say.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from accord.contracts.manifest import digest
from accord.contracts.subjects import effective_subjects, overlap
from accord.kernel.finding import Finding, pointer

MAX_COLLISIONS: Final = 100
"""How many collisions are listed at most."""

# How many tokens are looked at before the check refuses to go on: some, and some for each token.
_EFFORT: Final = 500_000
_EFFORT_PER_TOKEN: Final = 20
_SECTION: Final = {"operation": "operations", "control": "operations", "event": "events"}


class _Owner(NamedTuple):
    contract: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} of {self.contract}"

    @property
    def pointer(self) -> str:
        section = "feeds" if self.kind == "feed" else _SECTION.get(self.kind, self.kind)
        return pointer(self.contract, section, self.name, "subject")


def collisions(contracts: Iterable[Any]) -> list[Finding]:
    """Every two surfaces that collide, up to MAX_COLLISIONS; the order of contracts is no matter.

    A finding's pointer starts with the id of the contract that it points into.

    Raises:
        ContractError: One of them is not a valid contract; it carries the findings.
    """
    owners: defaultdict[str, set[_Owner]] = defaultdict(set)
    for contract in contracts:
        digest(contract)
        for owned in effective_subjects(contract):
            owners[owned.subject].add(_Owner(contract["id"], owned.kind, owned.name))
    found: list[Finding] = []
    for finding in _collisions({subject: sorted(owners[subject]) for subject in sorted(owners)}):
        if len(found) == MAX_COLLISIONS:
            break
        found.append(finding)
    return found


def _collisions(owners: dict[str, list[_Owner]]) -> Iterator[Finding]:
    for subject, (first, *others) in owners.items():
        for other in others:
            yield Finding(
                "collision.same-subject", other.pointer, f"{subject!r}, of {other}, is {first}"
            )
    for pair in _overlaps(owners):
        if pair is None:
            yield Finding(
                "collision.unproven",
                "",
                "there are too many subjects with templates at the same places to tell whether"
                " they overlap; put the names before the templates",
            )
            return
        subject, wildcard = pair
        for other in owners[subject]:
            for first in owners[wildcard]:
                if other != first:
                    yield Finding(
                        "collision.overlapping-subjects",
                        other.pointer,
                        f"{subject!r}, of {other}, overlaps {wildcard!r}, of {first}",
                    )


def _overlaps(subjects: Iterable[str]) -> Iterator[tuple[str, str] | None]:
    """Each two different subjects that overlap, the second with a wildcard; None to give up.

    Subjects are found by length and token: whatever overlaps another has, at each place, the same
    token or a wildcard. The place where fewest do is looked at.
    """
    index: defaultdict[tuple[int, int, str], list[str]] = defaultdict(list)
    tokens = {subject: subject.split(".") for subject in subjects}
    lengths = {len(parts) for parts in tokens.values() if "*" in parts}
    for subject, parts in tokens.items():
        if len(parts) in lengths:
            for place, part in enumerate(parts):
                index[len(parts), place, part].append(subject)
    effort = _EFFORT + _EFFORT_PER_TOKEN * sum(map(len, tokens.values()))
    for subject, parts in tokens.items():
        if "*" not in parts:
            continue
        places = [
            (index[len(parts), place, part], index.get((len(parts), place, "*"), []))
            for place, part in enumerate(parts)
            if part != "*"
        ]
        for candidates in min(places, key=lambda lists: len(lists[0]) + len(lists[1])):
            for candidate in candidates:
                effort -= len(parts)
                if effort < 0:
                    yield None
                    return
                # Two with wildcards meet twice, and only once is told.
                if ("*" not in tokens[candidate] or candidate > subject) and overlap(
                    candidate, subject
                ):
                    yield candidate, subject
