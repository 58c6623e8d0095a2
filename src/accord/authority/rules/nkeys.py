"""NATS keys: Ed25519 keys that sign, and X25519 keys that encrypt.

The text of a key is base32 of a type prefix, 32 bytes and a checksum; that of a seed begins with
`S`.
"""

import base64
import binascii
import secrets
from enum import Enum
from typing import Final, Self

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from accord.authority.rules.errors import AuthorityError, Code
from accord.kernel.signing import SigningKey, verify_bytes

_SEED: Final = 18 << 3
_SIZE: Final = 32
_TEXT: Final = 58
_BOX_VERSION: Final = b"xkv1"
_NONCE: Final = 24
_MOST_BOXES: Final = 64


class KeyType(Enum):
    """The type of a key; the value is the prefix byte."""

    OPERATOR = 14 << 3
    ACCOUNT = 0
    USER = 20 << 3
    SERVER = 13 << 3
    CURVE = 23 << 3


class NKey:
    """A signing key. Its repr shows the public key only."""

    __slots__ = ("_key", "kind", "public")

    def __init__(self, kind: KeyType, key: SigningKey) -> None:
        self.kind = kind
        self.public = write_public(kind, key.public)
        self._key = key

    @classmethod
    def generate(cls, kind: KeyType) -> Self:
        """A new random key."""
        return cls(kind, SigningKey.generate())

    @classmethod
    def from_seed(cls, seed: str, kind: KeyType) -> Self:
        """The key of a seed; `AuthorityError` if it is not one of that kind."""
        return cls(kind, SigningKey(_read_seed(seed, kind)))

    @property
    def seed(self) -> str:
        """The text of the private key. Keep it secret."""
        return _write_seed(self.kind, self._key.seed)

    def sign(self, message: bytes) -> bytes:
        """The signature of raw bytes."""
        return self._key.sign_bytes(message)

    def __repr__(self) -> str:
        return f"NKey({self.public})"


class XKey:
    """A key that encrypts to other such keys and decrypts from them."""

    __slots__ = ("_boxes", "_private", "public")

    def __init__(self, private: bytes) -> None:
        self._private = PrivateKey(private)
        # Deriving the shared key costs more than encrypting a message.
        self._boxes: dict[str, Box] = {}
        self.public = write_public(KeyType.CURVE, bytes(self._private.public_key))

    @classmethod
    def generate(cls) -> Self:
        """A new random key."""
        return cls(secrets.token_bytes(_SIZE))

    @classmethod
    def from_seed(cls, seed: str) -> Self:
        """The key of a seed; `AuthorityError` if it is not one of a curve key."""
        return cls(_read_seed(seed, KeyType.CURVE))

    @property
    def seed(self) -> str:
        """The text of the private key. Keep it secret."""
        return _write_seed(KeyType.CURVE, bytes(self._private))

    def seal(self, message: bytes, to: str) -> bytes:
        """Encrypt and authenticate a message for another key."""
        return _BOX_VERSION + bytes(self._box(to).encrypt(message))

    def open(self, sealed: bytes, sender: str) -> bytes:
        """Decrypt a message of a sender to this key; `AuthorityError` if it is not one."""
        if not sealed.startswith(_BOX_VERSION) or len(sealed) < len(_BOX_VERSION) + _NONCE:
            raise AuthorityError(Code.BAD_REQUEST, "the message is not in a sealed box")
        try:
            return self._box(sender).decrypt(sealed[len(_BOX_VERSION) :])
        except CryptoError:
            raise AuthorityError(
                Code.INVALID_PROOF, "the sealed box does not open with this key"
            ) from None

    def _box(self, other: str) -> Box:
        box = self._boxes.get(other)
        if box is None:
            try:
                box = Box(self._private, PublicKey(read_public(other, KeyType.CURVE)))
            except CryptoError:  # a point of small order
                raise AuthorityError(Code.BAD_REQUEST, "the other key is not safe") from None
            if len(self._boxes) >= _MOST_BOXES:
                self._boxes.clear()
            self._boxes[other] = box
        return box

    def __repr__(self) -> str:
        return f"XKey({self.public})"


def write_public(kind: KeyType, public: bytes) -> str:
    """The text of a public key."""
    return _write(bytes([kind.value]) + public)


def read_public(text: str, kind: KeyType) -> bytes:
    """The 32 bytes of a public key; `AuthorityError` if the text is not one of that kind."""
    raw = _read(text)
    if raw is None or len(raw) != 1 + _SIZE or raw[0] != kind.value:
        raise AuthorityError(
            Code.BAD_REQUEST, f"{text[:_TEXT]!r} is not the key of a NATS {kind.name.lower()}"
        )
    return raw[1:]


def verify_signature(public: str, kind: KeyType, message: bytes, signature: bytes) -> bool:
    """Whether a signature is valid; False if anything is malformed."""
    try:
        key = read_public(public, kind)
    except AuthorityError:
        return False
    return verify_bytes(key, message, signature)


def _write_seed(kind: KeyType, seed: bytes) -> str:
    # The kind's five bits are spread over the two bytes, so that they make the second letter.
    return _write(bytes([_SEED | kind.value >> 5, (kind.value & 31) << 3]) + seed)


def _read_seed(text: str, kind: KeyType) -> bytes:
    raw = _read(text.strip())
    expected = bytes([_SEED | kind.value >> 5, (kind.value & 31) << 3])
    if raw is None or len(raw) != 2 + _SIZE or raw[:2] != expected:
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"this is not the seed of a NATS {kind.name.lower()} key",
            mend="give the line that `nsc` or `nk` printed, which begins with S",
        )
    return raw[2:]


def _write(raw: bytes) -> str:
    # NATS uses CRC-16/XMODEM, low byte first.
    checked = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")


def _read(text: str) -> bytes | None:
    if len(text) > _TEXT:
        return None
    try:
        checked = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        return None
    raw = checked[:-2]
    # Reject other encodings of the same key.
    return raw if _write(raw) == text else None
