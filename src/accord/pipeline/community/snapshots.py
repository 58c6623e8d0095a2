"""A snapshot from the published tables: the state at head, signed by an anchor.

The form is the one that nodes exchange (`fold.vouching`). Reads one row with Arrow and needs no
Spark; computes nothing and sends nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accord.community.fold import state_from
from accord.community.fold.vouching import MAX_BYTES, Snapshot, is_anchor, settled, sign_snapshot
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey
from accord.pipeline.errors import PipelineError, missing_extra

_SIGNED_BYTES: Final = 1024
"""What a snapshot has beside its state, at most."""


@dataclass(frozen=True, slots=True)
class Published:
    """The published state of a community, not yet read.

    Attributes:
        lamport: Of its head; -1 where nothing has happened that counts.
        digest: Of its bytes.
    """

    community_id: str
    name: str
    lamport: int
    digest: str
    size_bytes: int


def published_states(version: Path) -> list[Published]:
    """What the `state` table of a version of gold holds."""
    columns = ["community_id", "name", "lamport", "digest", "size_bytes"]
    return [Published(**row) for row in _read(version, columns)]


def published_state(version: Path, community_id: str) -> bytes:
    """The bytes of a community's state."""
    [row] = _read(version, ["state"], community_id)
    state: bytes = row["state"]
    return state


def snapshot_of(state: bytes, key: SigningKey, now: float) -> Snapshot:
    """Vouch for a state.

    Args:
        state: The bytes that the fold wrote.
        key: The anchor's.
        now: Seconds since the epoch.

    Raises:
        PipelineError: It is empty or too large, or the key is no anchor's by its own word.
    """
    if len(state) > MAX_BYTES - _SIGNED_BYTES:
        raise PipelineError(
            f"the state has {len(state)} bytes, and nodes read snapshots of up to {MAX_BYTES}",
            mend="let members read the whole log",
        )
    read = state_from(state)
    if read.content.head is None:
        raise PipelineError("nothing has happened in this community that a snapshot could hold")
    if not is_anchor(read, key.id):
        raise PipelineError(
            "this home's key is no anchor's of the community, and nobody would take its word",
            where=key.id,
            mend="make the snapshot on an anchor's machine, or have an anchor promote this node",
        )
    return sign_snapshot(
        key,
        community_id=read.community_id,
        lamport=read.lamport,
        wall_clock=format_time(now),
        state=settled(state),
    )


def _read(version: Path, columns: list[str], community_id: str | None = None) -> list[Any]:
    try:
        from pyarrow import ArrowException, dataset
    except ImportError:
        raise missing_extra() from None
    only = None if community_id is None else dataset.field("community_id") == community_id
    try:
        table = dataset.dataset(version / "state", format="parquet").to_table(columns, filter=only)
    except (ArrowException, OSError) as error:
        raise PipelineError(
            "the published state cannot be read",
            where=str(version / "state"),
            mend="run `accord pipeline refresh state`",
        ) from error
    rows: list[Any] = table.to_pylist()
    return rows
