"""The review of a change: one new contract against versions that others rely on, under a policy.

Transitive comparison is a review against every version that is still in use: that a change is
compatible with the last version says nothing of those before it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from accord.contracts.compatibility.comparison import CompatibilityReport, ContractChange, Level
from accord.contracts.compatibility.policy import Policy, PolicyException

Verdict = Literal["compatible", "migration", "unproven", "breaking"]

_GRAVITY: Final[tuple[Verdict, ...]] = ("breaking", "unproven", "migration")


@dataclass(frozen=True, slots=True)
class SetAside:
    """A change that does not count, and why: by level, or by an exception."""

    change: ContractChange
    why: str
    exception: PolicyException | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.change.to_dict(), "why": self.why}


@dataclass(frozen=True, slots=True)
class ReviewedVersion:
    """The comparison with one version; `report` holds only what counts."""

    name: str  # for people: a number, a file or a revision
    digest: str
    report: CompatibilityReport
    set_aside: tuple[SetAside, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The gravest category of what counts."""
        found = {change.category for change in self.report.findings}
        return next((each for each in _GRAVITY if each in found), "compatible")

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "version": self.name,
            "digest": self.digest,
            "verdict": self.verdict,
            **self.report.to_dict(),
            "set_aside": [each.to_dict() for each in self.set_aside],
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield from self.report.text().split("\n")
        if self.set_aside:
            yield "\nset aside: does not count"
            for each in self.set_aside:
                yield f"  {each.change}"
                yield f"    {each.why}"


@dataclass(frozen=True, slots=True)
class ReviewFinding:
    """A change with the versions for which it was found; `set_aside` is set if it counts not."""

    change: ContractChange
    versions: tuple[str, ...]
    set_aside: SetAside | None = None


@dataclass(frozen=True, slots=True)
class Review:
    """A new contract against each version, under a policy."""

    contract: str
    digest: str
    level: Level
    versions: tuple[ReviewedVersion, ...]
    unused: tuple[PolicyException, ...] = ()  # exceptions for this contract that nothing needs

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict of all versions; compatible where there are none."""
        found = {each.verdict for each in self.versions}
        return next((each for each in _GRAVITY if each in found), "compatible")

    def findings(self) -> list[ReviewFinding]:
        """Every change once, with the versions that show it; those that count come first."""
        found: dict[tuple[str, str, str, bool], ReviewFinding] = {}
        for version in self.versions:
            counting = ((change, None) for change in version.report.findings)
            aside = ((each.change, each) for each in version.set_aside)
            for change, why in (*counting, *aside):
                key = (change.rule, change.pointer, change.message, why is None)
                known = found.get(key)
                if known is None:
                    found[key] = ReviewFinding(change, (version.name,), why)
                else:
                    found[key] = replace(known, versions=(*known.versions, version.name))
        return sorted(found.values(), key=lambda each: each.set_aside is not None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "contract": self.contract,
            "digest": self.digest,
            "level": self.level,
            "verdict": self.verdict,
            "versions": [each.to_dict() for each in self.versions],
            "unused_exceptions": [
                {"rule": each.rule, "pointer": each.pointer, "owner": each.owner}
                for each in self.unused
            ],
        }

    def text(self) -> str:
        """For reviewers: the verdict, then each version."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if not self.versions:
            yield f"{self.contract}: there is no version to compare with"
        else:
            many = "version" if len(self.versions) == 1 else "versions"
            yield f"{self.contract}: {self.verdict} with {len(self.versions)} {many} ({self.level})"
        for each in self.versions:
            yield f"\n{each.name} ({each.digest[:12]})"
            yield from (f"  {line}" if line else "" for line in "\n".join(each.lines()).split("\n"))
        yield from self.notes()

    def notes(self) -> Iterator[str]:
        """What the owners of exceptions should know."""
        for each in self.unused:
            yield f"the exception of {each.owner} for {each.rule} is not needed: remove it"


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """A version to compare with: its name for people, its digest and its manifest."""

    name: str
    digest: str
    manifest: Any


def judge(
    report: CompatibilityReport, contract: str, policy: Policy
) -> tuple[CompatibilityReport, tuple[SetAside, ...]]:
    """Keep of a report what counts under a policy; returns what does not count beside it."""
    counting, aside = [], []
    for change in report.findings:
        exception = policy.exception(contract, change)
        if not policy.selects(change.rule):
            aside.append(SetAside(change, f"not asked at the level {policy.level}"))
        elif exception is not None:
            aside.append(SetAside(change, str(exception), exception))
        else:
            counting.append(change)
    return replace(report, findings=tuple(counting)), tuple(aside)


def review(
    manifest: Any,
    digest: str,
    versions: Iterable[tuple[KnownVersion, CompatibilityReport]],
    policy: Policy,
) -> Review:
    """The review of a valid manifest, given how it compares with each version."""
    contract: str = manifest["id"]
    judged: list[ReviewedVersion] = []
    for version, report in versions:
        kept, aside = judge(report, contract, policy)
        judged.append(ReviewedVersion(version.name, version.digest, kept, aside))
    used = {each.exception for version in judged for each in version.set_aside}
    unused: Sequence[PolicyException] = [
        each for each in policy.exceptions if each.contract == contract and each not in used
    ]
    return Review(contract, digest, policy.level, tuple(judged), tuple(unused))
