"""A snapshot of a community from the published tables: the state at head, signed by an anchor."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accord.community.rules.snapshots import (
    MAX_SNAPSHOT,
    Snapshot,
    is_anchor,
    settled_state,
    sign_snapshot,
)
from accord.community.rules.state import read_state
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey
from accord.pipeline.errors import PipelineError, missing_extra

_SIGNED_BYTES: Final = 1024
"""The most bytes of a snapshot beside its state."""


@dataclass(frozen=True, slots=True)
class PublishedState:
    """A row of the `state` table; `lamport` is that of the head, -1 if no event is valid."""

    community_id: str
    name: str
    lamport: int
    digest: str
    size_bytes: int


def published_states(files: Sequence[Path]) -> list[PublishedState]:
    """The rows of the table `state`, by its files in a version of gold."""
    columns = ["community_id", "name", "lamport", "digest", "size_bytes"]
    return [PublishedState(**row) for row in _read(files, columns)]


def published_state(files: Sequence[Path], community_id: str) -> bytes:
    """The bytes of a community's state."""
    [row] = _read(files, ["state"], community_id)
    state: bytes = row["state"]
    return state


def snapshot_of(state: bytes, key: SigningKey, now: float) -> Snapshot:
    """Sign a state with an anchor's key; `now` is in seconds since the epoch.

    Raises `PipelineError` if the state is empty or too large, or the key is not an anchor's.
    """
    if len(state) > MAX_SNAPSHOT - _SIGNED_BYTES:
        raise PipelineError(
            f"the state has {len(state)} bytes, and nodes read snapshots of up to {MAX_SNAPSHOT}",
            mend="let members read the whole log",
        )
    read = read_state(state)
    if read.content.head is None:
        raise PipelineError(
            "this community has no valid event, so there is nothing to take a snapshot of"
        )
    if not is_anchor(read, key.id):
        raise PipelineError(
            "the key of this home is not an anchor's, so nodes would refuse the snapshot",
            where=key.id,
            mend="make the snapshot on an anchor's machine, or have an anchor promote this node",
        )
    return sign_snapshot(
        key,
        community_id=read.community_id,
        lamport=read.lamport,
        wall_clock=format_time(now),
        state=settled_state(state),
    )


def _read(files: Sequence[Path], columns: list[str], community_id: str | None = None) -> list[Any]:
    try:
        from pyarrow import ArrowException, dataset
    except ImportError:
        raise missing_extra() from None
    only = None if community_id is None else dataset.field("community_id") == community_id
    try:
        table = dataset.dataset([str(each) for each in files], format="parquet").to_table(
            columns, filter=only
        )
    except (ArrowException, OSError) as error:
        raise PipelineError(
            "the published state cannot be read",
            where=str(files[0]) if files else "state",
            mend="run `accord pipeline refresh state`",
        ) from error
    rows: list[Any] = table.to_pylist()
    return rows
