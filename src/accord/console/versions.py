"""The versions of a contract as a graph: each step with its verdict and for whom it would fail."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accord.console.messages import tr
from accord.contracts.compatibility import ContractUser, compare, impact

MOST: Final = 7
"""Versions that are drawn."""

_WIDTH: Final = 360
_ROW: Final = 74
_MOST_LETTERS: Final = 40


@dataclass(frozen=True, slots=True)
class VersionStep:
    """The step from one version to the next: whether it is compatible, and who would fail."""

    old: str
    new: str
    compatible: bool
    fails: tuple[str, ...]

    @property
    def text(self) -> str:
        """Its verdict in words."""
        if self.fails:
            return _short(tr("may fail for {names}", names=", ".join(self.fails)))
        return tr("compatible") if self.compatible else tr("not compatible")

    @property
    def is_well(self) -> bool:
        """Whether it is compatible, and fails for nobody who is known."""
        return self.compatible and not self.fails


@dataclass(frozen=True, slots=True)
class VersionNode:
    """A version on the graph; `step` leads to it from the one below, if that is drawn."""

    digest: str
    name: str
    states: str
    y: int
    step: VersionStep | None


@dataclass(frozen=True, slots=True)
class VersionGraph:
    """The latest versions, the newest first, and how many more there are."""

    nodes: tuple[VersionNode, ...]
    more: int
    width: int = _WIDTH
    row: int = _ROW

    @property
    def height(self) -> int:
        """The height of the drawing."""
        return max(1, len(self.nodes)) * self.row


def version_graph(
    versions: Sequence[Mapping[str, Any]],
    manifests: Mapping[str, Mapping[str, Any]],
    users: Iterable[ContractUser],
) -> VersionGraph:
    """Compare neighbouring versions and place them; this may take a moment.

    Args:
        versions: The newest first; of several with one digest the newest is drawn.
        manifests: By digest; steps from or to one that is missing are left out.
    """
    known = list({each["digest"]: each for each in reversed(versions)}.values())[::-1]
    drawn, parties = known[:MOST], list(users)
    nodes = []
    for place, each in enumerate(drawn):
        step = None
        if place + 1 < len(drawn):
            step = _step(drawn[place + 1]["digest"], each["digest"], manifests, parties)
        nodes.append(
            VersionNode(
                each["digest"],
                tr("version {number}", number=each["number"]),
                _short("; ".join(each["states"])),
                place * _ROW + 22,
                step,
            )
        )
    return VersionGraph(tuple(nodes), len(known) - len(drawn))


def _step(
    old: str,
    new: str,
    manifests: Mapping[str, Mapping[str, Any]],
    users: Sequence[ContractUser],
) -> VersionStep | None:
    before, after = manifests.get(old), manifests.get(new)
    if before is None or after is None:
        return None
    report = compare(before, after)
    fails = {each.user.name for each in impact(report, before, users) if each.fails}
    return VersionStep(old, new, report.compatible, tuple(sorted(fails)))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"
