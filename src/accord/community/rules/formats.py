"""Formats of the values in signed data: ids, signatures, times, hosts and trust levels."""

import base64
import re
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, Self

from accord.community.errors import Code, CommunityError
from accord.kernel import base64url, canonical, signing
from accord.kernel.clock import TimestampError, parse_time

_PREFIX: Final = "ed25519:"
_ID_LENGTH: Final = len(_PREFIX) + 43
_MAX_HOST: Final = 253
_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
# What some systems take for an IPv4 address, such as 127.1, 2130706433 or 0x7f.1.
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)


def is_id(value: Any) -> bool:
    """Whether this is the full id of a node or a community."""
    return public_key(value) is not None


def public_key(value: Any) -> bytes | None:
    """The public key in a full id; None if it is malformed."""
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
    """Whether this is a timestamp such as 2026-05-26T08:14:22Z."""
    if not isinstance(value, str):
        return False
    try:
        parse_time(value)
    except TimestampError:
        return False
    return True


def is_host(value: Any) -> bool:
    """Whether this is a DNS name or an IP address, and nothing else."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_HOST:
        return False
    try:
        ip_address(value)
    except ValueError:
        labels = value.split(".")
        return all(map(_LABEL.fullmatch, labels)) and not _NUMBER.fullmatch(labels[-1])
    return "%" not in value


def write_signature(signature: bytes) -> str:
    """A signature as text."""
    return _PREFIX + base64url.encode(signature)


def read_signature(value: Any) -> bytes | None:
    """The 64 bytes of a signature; None if it is malformed."""
    if not isinstance(value, str) or not value.startswith(_PREFIX):
        return None
    try:
        signature = base64url.decode(value.removeprefix(_PREFIX))
    except base64url.Base64Error:
        return None
    return signature if len(signature) == signing.SIGNATURE_SIZE else None


def signed_bytes(payload: Mapping[str, Any]) -> bytes:
    """The canonical bytes that a payload's signature covers; `bad_request` if there are none."""
    try:
        return signing.signed_bytes(payload)
    except canonical.CanonicalError as error:
        raise CommunityError(Code.BAD_REQUEST, error.what, where=error.where) from None


class Level(IntEnum):
    """Trust levels; a higher one includes the lower ones."""

    UNKNOWN = 0
    MEMBER = 1
    TRUSTED = 2
    ANCHOR = 3

    @property
    def text(self) -> str:
        """The level in its protocol form."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a level; raises `bad_request`."""
        for level in cls:
            if level.text == text:
                return level
        raise CommunityError(
            Code.BAD_REQUEST,
            f"there is no trust level {text[:40]!r}",
            mend="expected unknown, member, trusted or anchor",
        )


def display_id(node_id: str) -> str:
    """An id for people: its first ten bytes in four groups of four; `bad_request` if malformed.

    Not for decisions: keys can be generated until these ten bytes match.
    """
    try:
        public = signing.parse_id(node_id)
    except signing.SigningError as error:
        raise CommunityError(Code.BAD_REQUEST, error.what, mend=error.mend) from None
    text = base64.b32encode(public[:10]).decode("ascii")
    return "-".join(text[start : start + 4] for start in range(0, 16, 4))
