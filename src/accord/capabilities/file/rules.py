"""The format of a blob: ordered chunks, named by the digest of the list of their digests. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

from blake3 import blake3

from accord.community.errors import bad_request
from accord.kernel import canonical

CHUNK: Final = 262_144
"""The size of every chunk but the last."""

MAX_CHUNKS: Final = 65_536
"""The most chunks of a blob (16 GiB): its manifest must fit into one frame."""

MAX_SIZE: Final = CHUNK * MAX_CHUNKS

PREFIX: Final = "blake3:"
_CID: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)


def check_cid(cid: str) -> str:
    """Return a well-formed CID, else raise `bad_request`, since CIDs become paths."""
    if not _CID.fullmatch(cid):
        raise bad_request(
            f"{cid[:80]!r} is not a CID", mend="expected blake3: and 64 hexadecimal digits"
        )
    return cid


def check_size(size_bytes: int) -> None:
    """Raise `bad_request` if a blob is too long."""
    if size_bytes > MAX_SIZE:
        raise bad_request(f"a blob has at most {MAX_SIZE} bytes", mend="cut it into several")


def cid_of(data: bytes | memoryview) -> str:
    """Return the CID of some bytes."""
    return PREFIX + blake3(data).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """A blob without its bytes; `chunks` are CIDs in order."""

    size_bytes: int
    chunks: tuple[str, ...]

    @classmethod
    def of(cls, size_bytes: int, chunks: Iterable[str]) -> Self:
        """Return the manifest of a blob; `bad_request` if size and chunks do not fit."""
        named = tuple(chunks)
        check_size(size_bytes)
        expected = -(-size_bytes // CHUNK)
        if len(named) != expected:
            raise bad_request(
                f"a blob of {size_bytes} bytes has {expected} chunks, not {len(named)}"
            )
        return cls(size_bytes, named)

    @cached_property
    def content(self) -> bytes:
        """The canonical bytes, whose digest is the CID."""
        return canonical.encode(
            {
                "chunk_size_bytes": CHUNK,
                "chunks": [{"i": i, "cid": cid} for i, cid in enumerate(self.chunks)],
                "size_bytes": self.size_bytes,
            }
        )

    @cached_property
    def cid(self) -> str:
        """The blob's CID."""
        return cid_of(self.content)

    def payload(self) -> dict[str, Any]:
        """Return the manifest as on the wire: section 4.7."""
        return {
            "cid": self.cid,
            "size_bytes": self.size_bytes,
            "chunk_size_bytes": CHUNK,
            "chunks": [{"i": i, "cid": cid} for i, cid in enumerate(self.chunks)],
        }

    def length(self, i: int) -> int:
        """Return the size of one chunk."""
        return CHUNK if i < len(self.chunks) - 1 else self.size_bytes - i * CHUNK

    def check_chunk(self, i: int, data: bytes) -> None:
        """Raise `bad_request` unless bytes are the chunk of that number."""
        if cid_of(data) != self.chunks[i]:
            raise bad_request("the bytes of a chunk do not match its CID", where=f"chunk {i}")
        if len(data) != self.length(i):
            raise bad_request(
                f"the manifest's size is wrong: a chunk has {len(data)} bytes instead of "
                f"{self.length(i)}",
                where=f"chunk {i}",
            )


def read_manifest(value: Any) -> Manifest:
    """Read a manifest from the wire, or from disk without `cid`; `bad_request` if malformed."""
    try:
        chunk_size = value.get("chunk_size_bytes", CHUNK)
        size, chunks, told = value["size_bytes"], value["chunks"], value.get("cid")
        numbers = [each["i"] for each in chunks]
        named = [check_cid(each["cid"]) for each in chunks]
    except (AttributeError, KeyError, TypeError):
        raise bad_request("expected size_bytes and a list of chunks, each with i and cid") from None
    if chunk_size != CHUNK:
        raise bad_request(f"a chunk has {CHUNK} bytes", "/chunk_size_bytes")
    if type(size) is not int or size < 0:
        raise bad_request("expected a whole number", "/size_bytes")
    if len(named) > MAX_CHUNKS or numbers != list(range(len(named))):
        raise bad_request("the chunks are not in order", "/chunks")
    manifest = Manifest.of(size, named)
    if told is not None and told != manifest.cid:
        raise bad_request("the manifest has another CID than it says", "/cid")
    return manifest
