"""Digests: SHA-256 in base64url for contracts, `blake3:` and hexadecimal for everything else."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Literal

from blake3 import blake3 as _blake3

from accord.kernel import base64url
from accord.kernel.errors import AccordError

SIZE: Final = 32
_BLAKE3: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)


class DigestError(AccordError):
    """A text is not a digest that Accord writes."""


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of some bytes; `str` gives its text in protocols."""

    algorithm: Literal["sha256", "blake3"]
    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != SIZE:
            raise DigestError(f"a digest of {len(self.value)} bytes instead of {SIZE}")

    def __str__(self) -> str:
        if self.algorithm == "sha256":
            return base64url.encode(self.value)
        return f"blake3:{self.value.hex()}"

    @property
    def short(self) -> str:
        """A short form for people, not for protocols."""
        return str(self)[:12] if self.algorithm == "sha256" else str(self)[:23]


def sha256(data: bytes) -> Digest:
    """The digest that identifies a contract."""
    return Digest("sha256", hashlib.sha256(data).digest())


def blake3(data: bytes) -> Digest:
    """The digest that identifies blobs, events and schemas of the community."""
    return Digest("blake3", _blake3(data).digest())


def parse(text: str) -> Digest:
    """Parse the text of a digest; raises DigestError."""
    if _BLAKE3.fullmatch(text):
        return Digest("blake3", bytes.fromhex(text.removeprefix("blake3:")))
    try:
        return Digest("sha256", base64url.decode(text))
    except (base64url.Base64Error, DigestError):
        raise DigestError(
            f"{text[:80]!r} is not a digest",
            mend="expected 43 characters of base64url, or blake3: and 64 hexadecimal digits",
        ) from None
