"""Upgrade tokens of gateways: `base64url("{gateway}:{expiry}:{hmac}")` (relay contract, section 2).

Peers may pad their base64. The connector decides whether far or missing expiry is acceptable.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final

from accord.kernel import canonical

NEVER: Final = 0
"""The expiry of a token that does not expire."""

_TOKEN: Final = re.compile(rb"(?s)(?P<gateway>.*):(?P<expiry>[0-9]{1,15}):(?P<mac>[0-9a-f]{64})")


def make(gateway_id: str, secret: str, now: float, ttl: int = 300) -> str:
    """A token valid for `ttl` seconds, or forever if `ttl` is not above 0."""
    expiry = int(now) + ttl if ttl > 0 else NEVER
    return canonical.encode_base64url(
        f"{gateway_id}:{expiry}:{_mac(gateway_id.encode(), expiry, secret)}".encode()
    )


def verify(token: str, secrets: Iterable[str], now: float) -> str | None:
    """The gateway id of a valid token, or None; a token is valid up to and including its expiry.

    `secrets` are those of the rotation, newest first. Empty ones never match.
    """
    parts = _TOKEN.fullmatch(_unpack(token))
    if parts is None:
        return None
    gateway, expiry, mac = parts["gateway"], int(parts["expiry"]), parts["mac"].decode()
    matches = False
    for secret in secrets:  # all are tried, so that timing reveals nothing
        if secret:
            matches |= hmac.compare_digest(_mac(gateway, expiry, secret), mac)
    if not matches or (expiry != NEVER and now > expiry):
        return None
    try:
        return gateway.decode()
    except UnicodeDecodeError:
        return None


def expiry(token: str) -> int | None:
    """The expiry that a token claims, unverified; None if it is malformed."""
    parts = _TOKEN.fullmatch(_unpack(token))
    return int(parts["expiry"]) if parts else None


def _mac(gateway: bytes, expiry: int, secret: str) -> str:
    return hmac.new(secret.encode(), b"%s:%d" % (gateway, expiry), hashlib.sha256).hexdigest()


def _unpack(token: str) -> bytes:
    bare = token.rstrip("=")
    try:
        return base64.b64decode(
            bare.encode("ascii") + b"=" * (-len(bare) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, UnicodeEncodeError):
        return b""
