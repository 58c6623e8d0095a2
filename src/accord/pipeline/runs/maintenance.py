"""Maintenance of a pipeline's folder: what is not needed any more goes, what is needed is proven.

Needs no Spark. The caller's lock keeps runs out; readers keep what they read.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, lock_folder
from accord.pipeline.landing import admitted, release_retired
from accord.pipeline.runs import versions


@dataclass(frozen=True, slots=True)
class MaintenanceOutcome:
    """What maintenance removed and found."""

    versions: Sequence[str]  # the versions of gold that were removed
    drafts: int  # folders of runs that did not publish
    segments: int  # admitted files of segments that the landing has retired
    freed_bytes: int  # of gold
    damaged: Sequence[str]  # tables of the published version with a missing or changed file

    def payload(self) -> dict[str, Any]:
        """The outcome as JSON."""
        return asdict(self)


def maintain(
    layout: Layout, landing: str | None = None, *, keep: int = versions.KEPT_VERSIONS
) -> MaintenanceOutcome:
    """Keep the last `keep` versions and those that are read, and verify the published one.

    Raises PipelineError if a run holds the folder, or the published version cannot be read.
    """
    if keep < 1:
        raise PipelineError("at least one version is kept", where="--keep")
    with lock_folder(layout, "maintain"):
        current = versions.published(layout)
        if current is None:
            return MaintenanceOutcome((), 0, 0, 0, ())
        before = _size(layout)
        drafts = versions.drafts(layout, current)
        for name in drafts:
            shutil.rmtree(layout.version(name))
        removed = versions.remove_old(layout, keep)
        # Only what every table has may go, and the last run may have failed.
        is_whole = versions.is_current(layout, current, admitted(layout))
        released = release_retired(layout, landing) if is_whole else 0
        damaged = [name for name in current.tables if current.damaged(name)]
        freed = before - _size(layout)
    return MaintenanceOutcome(removed, len(drafts), released, freed, damaged)


def _size(layout: Layout) -> int:
    return sum(each.lstat().st_size for each in layout.gold.rglob("*") if each.is_file())
