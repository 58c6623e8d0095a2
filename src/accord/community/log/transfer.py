"""A log as a file: one JSON object a line, a header first, then every event in total order.

Owns the file's form. Import is nothing but receiving: whatever a file says is proven as if a
stranger had sent it. Holds a few lines at a time, however long the log is.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeAlias

from sqlalchemy import Connection

from accord.community.envelope import MAX_BYTES
from accord.community.errors import Code, CommunityError
from accord.community.log import rows
from accord.community.log.intake import BATCH, Refused
from accord.community.log.log import Log
from accord.kernel import canonical

FORMAT: Final = "accord.community.log.v1"

# Called with the number of events done so far.
Progress: TypeAlias = Callable[[int], None]

_AT_ONCE: Final = 4 * BATCH
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
# Longer by far than any event, so that the reader can say which line is too long.
_LINE: Final = 2 * MAX_BYTES


@dataclass(frozen=True, slots=True)
class Line:
    """A refused line of an imported file, the header being line 1."""

    number: int
    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of the lines of a file; of the refused ones the first thousand are told."""

    accepted: int
    duplicates: int
    rejected: int
    lines: tuple[Line, ...]


_TOLD: Final = 1000


def no_progress(_done: int) -> None:
    """Show nothing."""


async def export_log(log: Log, file: BinaryIO, *, progress: Progress = no_progress) -> int:
    """Write every event of a log that has its body, and return how many those were.

    Raises:
        OSError: The file cannot be written.
        StoreError: The store failed.
    """

    def write(connection: Connection) -> int:
        file.write(canonical.encode({"community_id": log.community_id, "format": FORMAT}) + b"\n")
        done = 0
        for *_, body in rows.rows(connection, rows.whole(log.number)):
            file.write(body.encode() + b"\n")
            done += 1
            if not done % rows.PAGE:
                progress(done)
        progress(done)
        return done

    return await log.store.read(write)


async def import_log(log: Log, file: BinaryIO, *, progress: Progress = no_progress) -> Imported:
    """Receive every event of a file.

    Raises:
        CommunityError: The header is missing, or names another format or community:
            `bad_request`; nothing was received.
        StoreError: The store failed; import the file again, which writes nothing twice.
    """
    _check_header(file.readline(_LINE), log.community_id)
    accepted = duplicates = rejected = 0
    told: list[Line] = []
    start = 2
    while part := await asyncio.to_thread(_part, file):
        receipt = await log.receive(part)
        accepted += receipt.accepted
        duplicates += receipt.duplicates
        rejected += len(receipt.rejected)
        told += _lines(receipt.rejected[: _TOLD - len(told)], start)
        start += len(part)
        progress(start - 2)
    return Imported(accepted, duplicates, rejected, tuple(told))


def _lines(refused: Sequence[Refused], start: int) -> list[Line]:
    return [Line(start + each.index, each.code, each.reason) for each in refused]


def _check_header(line: bytes, community_id: str) -> None:
    try:
        header: Any = canonical.decode(line)
    except canonical.CanonicalError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CommunityError(
            Code.BAD_REQUEST, "this is not an exported log", mend="export it with this version"
        )
    if header.get("community_id") != community_id:
        raise CommunityError(Code.BAD_REQUEST, "the file holds the log of another community")


def _part(file: BinaryIO) -> list[bytes]:
    """The next lines, as many as are received at once."""
    part: list[bytes] = []
    size = 0
    while len(part) < _AT_ONCE and size < _BYTES_AT_ONCE and (line := file.readline(_LINE)):
        part.append(line.rstrip(b"\n"))
        size += len(line)
        # What is longer is refused as it stands; its rest is no line of its own.
        while line and not line.endswith(b"\n"):
            line = file.readline(_LINE)
    return part
