"""The forms of names, keys and words that come from outside, and what is kept of a free text."""

import re
from typing import Final

from accord.authority.errors import AuthorityError, Code
from accord.kernel import base64url

LONGEST: Final = 512
"""Characters of a free text that are kept."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_KEY_BYTES: Final = 32


def legible(text: str) -> str:
    """The text, with a mark in place of what no database keeps."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def remark(text: str) -> str:
    """What is kept of a free text."""
    return legible(text[:LONGEST]) or "?"


def is_digest(text: str) -> bool:
    """Whether a text may be the digest of a contract."""
    return _DIGEST.fullmatch(text) is not None


def is_key(text: str) -> bool:
    """Whether a text is an Ed25519 public key in base64url."""
    try:
        return len(base64url.decode(text)) == _KEY_BYTES
    except base64url.Base64Error:
        return False


def check_name(name: str, what: str) -> None:
    """Make sure that something can be called so.

    Raises:
        AuthorityError: It cannot.
    """
    if _NAME.fullmatch(name) is None:
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"{legible(name[:80])!r} cannot name {what}",
            mend="use letters, digits, dots, - and _, at most 128 of them",
        )


def check_key(key: str) -> None:
    """Make sure that a text is a session key.

    Raises:
        AuthorityError: It is not.
    """
    if not is_key(key):
        raise AuthorityError(
            Code.BAD_REQUEST,
            "this is not a session key",
            mend="give the Ed25519 public key, 43 characters of base64url",
        )
