"""The upgrade token: what a gateway shows when it dials a connector (relay contract, section 2).

`base64url("{gateway}:{expiry}:{hmac}")`. The format is shared with peers that pad their base64,
so this is the one place that tolerates padding. Whether a token that never expires, or only
expires far in the future, is welcome is for the connector to decide, not for the format.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final

from accord.kernel import base64url

NEVER: Final = 0
"""The expiry of a token that does not expire."""

_TOKEN: Final = re.compile(rb"(?s)(?P<gateway>.*):(?P<expiry>[0-9]{1,15}):(?P<mac>[0-9a-f]{64})")


def make(gateway_id: str, secret: str, now: float, ttl: int = 300) -> str:
    """A token for the gateway, valid for `ttl` seconds, or forever when `ttl` is not above 0."""
    expiry = int(now) + ttl if ttl > 0 else NEVER
    return base64url.encode(
        f"{gateway_id}:{expiry}:{_mac(gateway_id.encode(), expiry, secret)}".encode()
    )


def verify(token: str, secrets: Iterable[str], now: float) -> str | None:
    """The id of the gateway that holds one of the secrets, or None.

    Args:
        token: What the gateway showed.
        secrets: The secrets of the rotation, newest first. Empty ones never match.
        now: Seconds since the epoch; a token is valid up to and including its expiry.
    """
    parts = _TOKEN.fullmatch(_unpack(token))
    if parts is None:
        return None
    gateway, expiry, mac = parts["gateway"], int(parts["expiry"]), parts["mac"].decode()
    matches = False
    for secret in secrets:  # every one is tried, so that the time taken tells nothing
        if secret:
            matches |= hmac.compare_digest(_mac(gateway, expiry, secret), mac)
    if not matches or (expiry != NEVER and now > expiry):
        return None
    try:
        return gateway.decode()
    except UnicodeDecodeError:
        return None


def expiry(token: str) -> int | None:
    """When a token says it expires, unverified; None when it is no token at all."""
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
