"""The small forms that everything signed is made of: ids, signatures, times.

Each has just one spelling.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from accord.community.errors import Code, CommunityError
from accord.kernel import base64url, canonical, signing
from accord.kernel.clock import TimestampError, parse_time

_PREFIX: Final = "ed25519:"
_ID_LENGTH: Final = len(_PREFIX) + 43


def is_id(value: Any) -> bool:
    """Whether this is the full id of a node or a community."""
    return public_key(value) is not None


def public_key(value: Any) -> bytes | None:
    """The key that a full id spells, or None where this is not one."""
    if not isinstance(value, str) or len(value) != _ID_LENGTH:
        return None
    return _public_key(value)


@lru_cache(maxsize=4096)  # a log has few authors and many events
def _public_key(text: str) -> bytes | None:
    try:
        return signing.parse_id(text)
    except signing.SigningError:
        return None


def is_time(value: Any) -> bool:
    """Whether this is a moment such as 2026-05-26T08:14:22Z."""
    if not isinstance(value, str):
        return False
    try:
        parse_time(value)
    except TimestampError:
        return False
    return True


def write_signature(signature: bytes) -> str:
    """A signature as text."""
    return _PREFIX + base64url.encode(signature)


def read_signature(value: Any) -> bytes | None:
    """The 64 bytes of a signature, or None where this is not one."""
    if not isinstance(value, str) or not value.startswith(_PREFIX):
        return None
    try:
        signature = base64url.decode(value.removeprefix(_PREFIX))
    except base64url.Base64Error:
        return None
    return signature if len(signature) == signing.SIGNATURE_SIZE else None


def signed_bytes(payload: Mapping[str, Any]) -> bytes:
    """The canonical bytes that a payload's signature covers.

    Raises:
        CommunityError: It has no canonical form: `bad_request`.
    """
    try:
        return signing.signed_bytes(payload)
    except canonical.CanonicalError as error:
        raise CommunityError(Code.BAD_REQUEST, error.what, where=error.where) from None
