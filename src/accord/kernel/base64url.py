"""Base64url without padding, in just one spelling.

Two texts that decode to the same bytes would be two names for one thing, so padding, white space
and bits left over at the end are refused.
"""

import base64
import binascii

from accord.kernel.errors import AccordError


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
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (binascii.Error, UnicodeEncodeError):
        data = b""
    if encode(data) != text:
        raise Base64Error(
            "not base64url in its canonical form", mend="leave out padding and white space"
        )
    return data
