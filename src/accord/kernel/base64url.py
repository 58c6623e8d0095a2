"""Base64url without padding, in just one spelling.

Two texts that decode to the same bytes would be two names for one thing, so padding, white space
and bits left over at the end are refused.
"""

import base64
import binascii
from typing import Final

from accord.kernel.errors import AccordError

# To the usual alphabet, and what is foreign here to what is foreign there.
_STANDARD: Final = bytes.maketrans(b"-_+/=", b"+/!!!")


class Base64Error(AccordError):
    """A text is not unpadded base64url in its one canonical spelling."""


def encode(data: bytes) -> str:
    """Write bytes as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """Read what `encode` writes, and nothing else.

    Raises:
        Base64Error: Another alphabet, padding, white space, or bits left over at the end.
    """
    raw = text.encode("ascii", "replace").translate(_STANDARD)
    try:
        data = binascii.a2b_base64(raw + b"=" * (-len(raw) % 4), strict_mode=True)
    except binascii.Error:
        raise _refused() from None
    # Only the last group can have bits left over.
    tail = len(data) % 3
    if tail and encode(data[-tail:]) != text[-tail - 1 :]:
        raise _refused()
    return data


def _refused() -> Base64Error:
    return Base64Error(
        "not base64url in its canonical form", mend="leave out padding and white space"
    )
