"""Signatures of Standard Webhooks: `v1` by HMAC-SHA256, `v1a` by Ed25519. Pure.

Signed are the id, the time in seconds and the exact body, joined by full stops. While one key
replaces another there are several: all of them sign, and any of them verifies.
"""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from accord.kernel.signing import SigningKey, verify_bytes
from accord.relay.errors import Code, RelayError

_SHARED: Final = "whsec_"
_PUBLIC: Final = "whpk_"
_PRIVATE: Final = "whsk_"
_SEED_BYTES: Final = 32
_SHARED_BYTES: Final = range(24, 65)
_MAX_KEYS: Final = 16
_MEND: Final = "write whsec_ and 24 to 64 random bytes in Base64; several are parted by spaces"


@dataclass(frozen=True, slots=True)
class WebhookKeys:
    """The keys of one direction: shared ones for `v1`, pairs for `v1a`. `repr` shows none."""

    shared: tuple[bytes, ...] = field(default=(), repr=False)
    public: tuple[bytes, ...] = ()
    private: tuple[SigningKey, ...] = field(default=(), repr=False)

    def sign(self, message_id: str, timestamp: int, body: bytes) -> str:
        """The signature header of a message."""
        signed = _signed(message_id, str(timestamp), body)
        shared = [f"v1,{_written(_mac(key, signed))}" for key in self.shared]
        private = [f"v1a,{_written(key.sign_bytes(signed))}" for key in self.private]
        return " ".join(shared + private)

    def is_signed(self, message_id: str, timestamp: str, body: bytes, signatures: str) -> bool:
        """Whether one of the signatures is by one of the keys."""
        signed = _signed(message_id, timestamp, body)
        wanted = [_mac(key, signed) for key in self.shared]
        for each in signatures.split(" ", _MAX_KEYS)[:_MAX_KEYS]:
            version, _, text = each.partition(",")
            given = _read(text)
            if given is None:
                continue
            if version == "v1" and any(hmac.compare_digest(given, mac) for mac in wanted):
                return True
            if version == "v1a" and any(verify_bytes(key, signed, given) for key in self.public):
                return True
        return False


def read_keys(text: str, where: str) -> WebhookKeys:
    """The keys in a setting, separated by white space; raises RelayError if one is malformed."""
    shared: list[bytes] = []
    public: list[bytes] = []
    private: list[SigningKey] = []
    for word in text.split():
        prefix, _, rest = word.partition("_")
        prefix, key = f"{prefix}_", _read(rest)
        if prefix == _SHARED and key is not None and len(key) in _SHARED_BYTES:
            shared.append(key)
        elif prefix == _PUBLIC and key is not None and len(key) == _SEED_BYTES:
            public.append(key)
        elif prefix == _PRIVATE and key is not None and len(key) in (32, 64):
            private.append(SigningKey.from_seed(key[:_SEED_BYTES]))
        else:
            raise RelayError(
                Code.BAD_REQUEST, "this is no key of Standard Webhooks", where=where, mend=_MEND
            )
    if not (shared or public or private):
        raise RelayError(Code.BAD_REQUEST, "there is no key", where=where, mend=_MEND)
    return WebhookKeys(tuple(shared), tuple(public), tuple(private))


def _signed(message_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode("utf-8", "replace") + body


def _mac(key: bytes, signed: bytes) -> bytes:
    return hmac.new(key, signed, hashlib.sha256).digest()


def _written(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _read(text: str) -> bytes | None:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError:
        return None
