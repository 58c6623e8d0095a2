"""Who owns which subject: an index that finds the few contracts that a newcomer may collide with.

Whether two contracts do collide is `contracts.collisions`'s to say; this only spares it from
looking at all of them. Two subjects that overlap have a common beginning up to the first wildcard
of either, so that is what is indexed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from accord.contracts import collisions
from accord.contracts.subjects import effective_subjects
from accord.kernel.finding import Finding

_WILDCARDS: Final = ("*", ">")

_Subject: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""The tokens of a subject, and those of them before its first wildcard."""


class Ownership:
    """The subjects of some contracts; filled once, then only asked."""

    def __init__(self) -> None:
        # By beginning, the digests of contracts with a subject that begins so.
        self._beginnings: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        # By what stands before the first wildcard, the digests of contracts with such a subject.
        self._wild: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        self._whole: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        self._contracts: dict[str, Mapping[str, Any]] = {}

    def add(self, digest: str, contract: Mapping[str, Any]) -> None:
        """Let a valid contract own its subjects."""
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
        """Where a contract wants a subject twice, or one that another lineage owns."""
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
        # What others have against each other is not the newcomer's fault.
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
    """Every subject that a contract owns."""
    for owned in effective_subjects(contract):
        tokens = tuple(owned.subject.split("."))
        wild = next((at for at, token in enumerate(tokens) if token in _WILDCARDS), len(tokens))
        yield tokens, tokens[:wild]
