"""Base64url without padding, in one canonical spelling.

Padding, white space and non-zero trailing bits are refused, so that bytes have only one text.
"""

import base64
import binascii
from typing import Final

from accord.kernel.errors import AccordError

# Maps base64url to base64, and characters foreign to the one to those foreign to the other.
_STANDARD: Final = bytes.maketrans(b"-_+/=", b"+/!!!")


class Base64Error(AccordError):
    """A text is not unpadded base64url in its one canonical spelling."""


def encode(data: bytes) -> str:
    """Write bytes as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """Decode the output of `encode`; raises Base64Error for everything else."""
    raw = text.encode("ascii", "replace").translate(_STANDARD)
    try:
        data = binascii.a2b_base64(raw + b"=" * (-len(raw) % 4), strict_mode=True)
    except binascii.Error:
        raise _refused() from None
    # Only the last group can have trailing bits.
    tail = len(data) % 3
    if tail and encode(data[-tail:]) != text[-tail - 1 :]:
        raise _refused()
    return data


def _refused() -> Base64Error:
    return Base64Error(
        "not base64url in its canonical form", mend="leave out padding and white space"
    )
