"""What a blob is: chunks in order, named by the digest of the list of their digests.

Pure. Owns the form of a blob's manifest and every check that needs no bytes but a chunk's own.
Nothing is read or written here.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

from blake3 import blake3

from accord.community.errors import Code, CommunityError
from accord.kernel import canonical

CHUNK: Final = 262_144
"""The bytes of every chunk but the last."""

MAX_CHUNKS: Final = 65_536
"""How many chunks a blob has at most (16 GiB): its manifest must fit into one frame."""

MAX_SIZE: Final = CHUNK * MAX_CHUNKS

PREFIX: Final = "blake3:"
_CID: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)


def check_cid(cid: str) -> str:
    """The CID itself, when it has the form of one; so no name from outside becomes a path.

    Raises:
        CommunityError: It has not: `bad_request`.
    """
    if not _CID.fullmatch(cid):
        raise CommunityError(
            Code.BAD_REQUEST,
            f"{cid[:80]!r} is not a CID",
            mend="expected blake3: and 64 hexadecimal digits",
        )
    return cid


def check_size(size_bytes: int) -> None:
    """Check that a blob is not too long.

    Raises:
        CommunityError: It is: `bad_request`.
    """
    if size_bytes > MAX_SIZE:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"a blob has at most {MAX_SIZE} bytes",
            mend="cut it into several",
        )


def cid_of(data: bytes | memoryview) -> str:
    """The name of some bytes."""
    return PREFIX + blake3(data).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """A blob, without its bytes.

    Attributes:
        size_bytes: How long it is.
        chunks: The names of its chunks, in order.
    """

    size_bytes: int
    chunks: tuple[str, ...]

    @classmethod
    def of(cls, size_bytes: int, chunks: Iterable[str]) -> Self:
        """The manifest of a blob.

        Raises:
            CommunityError: There cannot be such a blob: `bad_request`.
        """
        named = tuple(chunks)
        check_size(size_bytes)
        expected = -(-size_bytes // CHUNK)
        if len(named) != expected:
            raise CommunityError(
                Code.BAD_REQUEST,
                f"a blob of {size_bytes} bytes has {expected} chunks, not {len(named)}",
            )
        return cls(size_bytes, named)

    @cached_property
    def content(self) -> bytes:
        """The canonical bytes, whose digest names the blob."""
        return canonical.encode(
            {
                "chunk_size_bytes": CHUNK,
                "chunks": [{"i": i, "cid": cid} for i, cid in enumerate(self.chunks)],
                "size_bytes": self.size_bytes,
            }
        )

    @cached_property
    def cid(self) -> str:
        """The blob's name."""
        return cid_of(self.content)

    def payload(self) -> dict[str, Any]:
        """The manifest as it goes over the wire: section 4.7."""
        return {
            "cid": self.cid,
            "size_bytes": self.size_bytes,
            "chunk_size_bytes": CHUNK,
            "chunks": [{"i": i, "cid": cid} for i, cid in enumerate(self.chunks)],
        }

    def length(self, i: int) -> int:
        """The bytes of one chunk."""
        return CHUNK if i < len(self.chunks) - 1 else self.size_bytes - i * CHUNK

    def check_chunk(self, i: int, data: bytes) -> None:
        """Check that bytes are the chunk that stands at a place.

        Raises:
            CommunityError: They are not: `bad_request`.
        """
        if cid_of(data) != self.chunks[i]:
            raise CommunityError(
                Code.BAD_REQUEST, "the bytes of a chunk do not match its CID", where=f"chunk {i}"
            )
        if len(data) != self.length(i):
            raise CommunityError(
                Code.BAD_REQUEST,
                f"the manifest lies about its size: a chunk has {len(data)} bytes instead of "
                f"{self.length(i)}",
                where=f"chunk {i}",
            )


def read_manifest(value: Any) -> Manifest:
    """Read a manifest that somebody sent, or that lies on disk without its `cid`.

    Raises:
        CommunityError: It is none, or has another name than it says: `bad_request`.
    """
    try:
        chunk_size = value.get("chunk_size_bytes", CHUNK)
        size, chunks, told = value["size_bytes"], value["chunks"], value.get("cid")
        numbers = [each["i"] for each in chunks]
        named = [check_cid(each["cid"]) for each in chunks]
    except (AttributeError, KeyError, TypeError):
        raise _bad("expected size_bytes and a list of chunks, each with i and cid") from None
    if chunk_size != CHUNK:
        raise _bad(f"a chunk has {CHUNK} bytes", "/chunk_size_bytes")
    if type(size) is not int or size < 0:
        raise _bad("expected a whole number", "/size_bytes")
    if len(named) > MAX_CHUNKS or numbers != list(range(len(named))):
        raise _bad("the chunks are not in order", "/chunks")
    manifest = Manifest.of(size, named)
    if told is not None and told != manifest.cid:
        raise _bad("the manifest has another CID than it says", "/cid")
    return manifest


def _bad(what: str, where: str | None = None) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where)
