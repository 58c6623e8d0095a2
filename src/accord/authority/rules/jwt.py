"""NATS keys, and the JWTs of operators, accounts, users and callout responses that they sign.

The text of a key is base32 of a type prefix, 32 bytes and a checksum; that of a seed begins with
`S`. Ed25519 keys sign, X25519 keys encrypt.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Self

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from accord.authority.rules.errors import AuthorityError, Code
from accord.kernel import canonical
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


EVERYTHING: Final = ">"
_HEADER: Final = canonical.encode_base64url(b'{"typ":"JWT","alg":"ed25519-nkey"}')
_VERSION: Final = 2
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT: Final = {
    **_UNLIMITED,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
_JETSTREAM: Final = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


def encode(claims: Mapping[str, Any], key: NKey) -> str:
    """Sign claims."""
    body = {**claims, "iss": key.public}
    digest = hashlib.sha256(canonical.encode(body)).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_HEADER}.{canonical.encode_base64url(canonical.encode(body))}"
    return f"{signed}.{canonical.encode_base64url(key.sign(signed.encode()))}"


def decode(token: str, issuer: KeyType) -> dict[str, Any]:
    """The claims of a token; `AuthorityError` unless an issuer of that kind has signed them."""
    try:
        _, body, signature = token.split(".")
        claims = canonical.decode(canonical.decode_base64url(body))
        signed = canonical.decode_base64url(signature)
    except (ValueError, canonical.Base64Error, canonical.CanonicalError):
        raise AuthorityError(Code.BAD_REQUEST, "this is not a JWT of NATS") from None
    if not isinstance(claims, dict) or not isinstance(claims.get("iss"), str):
        raise AuthorityError(Code.BAD_REQUEST, "this JWT names no issuer")
    if not verify_signature(claims["iss"], issuer, token.rpartition(".")[0].encode(), signed):
        raise AuthorityError(Code.INVALID_PROOF, "this JWT is not signed by its issuer")
    return claims


def operator(key: NKey, *, system: str, now: float) -> str:
    """The operator's JWT, which every server of a system is configured with."""
    nats = {"type": "operator", "version": _VERSION, "system_account": system}
    return encode({"name": "accord", "sub": key.public, "iat": int(now), "nats": nats}, key)


def account(
    name: str,
    subject: str,
    operator_key: NKey,
    *,
    now: float,
    jetstream: bool = False,
    authorization: Mapping[str, Any] | None = None,
    exports: Sequence[Mapping[str, Any]] = (),
    imports: Sequence[Mapping[str, Any]] = (),
) -> str:
    """An account's JWT; `authorization` says which callout admits to it."""
    nats: dict[str, Any] = {
        "type": "account",
        "version": _VERSION,
        "limits": {**_ACCOUNT, **(_JETSTREAM if jetstream else {})},
        "default_permissions": {"pub": {}, "sub": {}},
    }
    if authorization is not None:
        nats["authorization"] = dict(authorization)
    if exports:
        nats["exports"] = [dict(each) for each in exports]
    if imports:
        nats["imports"] = [dict(each) for each in imports]
    return encode({"name": name, "sub": subject, "iat": int(now), "nats": nats}, operator_key)


def user(
    name: str,
    subject: str,
    account_key: NKey,
    *,
    now: float,
    account_id: str | None = None,
    publish: Collection[str] | None = None,
    subscribe: Collection[str] | None = None,
    expires_at: float | None = None,
    tags: Collection[str] = (),
) -> str:
    """A user's JWT; without `publish` or `subscribe` it may do so on all subjects.

    The server shows `name` in its advisories. `account_id` is needed if a signing key of it signs.
    """
    nats: dict[str, Any] = {
        "type": "user",
        "version": _VERSION,
        **_UNLIMITED,
        "pub": _permission(publish),
        "sub": _permission(subscribe),
    }
    if account_id is not None and account_id != account_key.public:
        nats["issuer_account"] = account_id
    if tags:
        nats["tags"] = list(tags)
    claims: dict[str, Any] = {"name": name, "sub": subject, "iat": int(now), "nats": nats}
    if expires_at is not None:
        claims["exp"] = int(expires_at)
    return encode(claims, account_key)


def callout_response(
    key: NKey,
    *,
    server: str,
    user_key: str,
    now: float,
    account_id: str | None = None,
    jwt: str | None = None,
    error: str | None = None,
) -> str:
    """The response of a callout to a server: a user's JWT, or the error."""
    nats: dict[str, Any] = {"type": "authorization_response", "version": _VERSION}
    if account_id is not None and account_id != key.public:
        nats["issuer_account"] = account_id
    if jwt is not None:
        nats["jwt"] = jwt
    if error is not None:
        nats["error"] = error
    return encode({"sub": user_key, "aud": server, "iat": int(now), "nats": nats}, key)


def _permission(allowed: Collection[str] | None) -> dict[str, Any]:
    # An empty list of allowed subjects would permit everything.
    if allowed is None:
        return {}
    return {"allow": sorted(allowed)} if allowed else {"deny": [EVERYTHING]}
