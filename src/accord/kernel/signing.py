"""Ed25519 by libsodium, which refuses small-order and non-canonical keys and points.

The text of a public key (its *id*) and of a signature is `ed25519:<base64url>`. A payload is signed
over the canonical bytes of everything but its member `signature`.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

from accord.kernel import canonical
from accord.kernel.errors import AccordError
from accord.kernel.files import create_private

SEED_SIZE: Final = 32
PUBLIC_SIZE: Final = 32
SIGNATURE_SIZE: Final = 64
_PREFIX: Final = "ed25519:"


class SigningError(AccordError):
    """A key, a key file or an id cannot be used."""


class SigningKey:
    """A private key; its repr shows only the id."""

    __slots__ = ("_secret", "id", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_SIZE:
            raise SigningError(f"a seed of {len(seed)} bytes instead of {SEED_SIZE}")
        self.public, self._secret = crypto_sign_seed_keypair(seed)
        self.id = public_id(self.public)

    @classmethod
    def from_seed(cls, seed: bytes) -> Self:
        """The key of a 32-byte seed."""
        return cls(seed)

    @classmethod
    def generate(cls) -> Self:
        """A new random key, not stored."""
        return cls(secrets.token_bytes(SEED_SIZE))

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create a key and its file, atomically and private; SigningError if it exists already."""
        key = cls.generate()
        try:
            create_private(path, key.seed)
        except FileExistsError:
            raise SigningError(
                "there is a key file already", where=str(path), mend="choose another path"
            ) from None
        except OSError as error:
            raise SigningError(
                f"the key file cannot be written ({error.strerror})",
                where=str(path),
                mend="choose a folder that exists and that you may write to",
            ) from error
        return key

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a key; SigningError if its file is missing, readable by others, or not a seed."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                seed = file.read(SEED_SIZE + 1) if stat.S_ISREG(status.st_mode) else b""
        except OSError as error:
            raise SigningError(
                f"the key file cannot be read ({error.strerror})",
                where=str(path),
                mend="make one with `accord keys new`",
            ) from error
        if status.st_mode & 0o077:
            raise SigningError(
                f"the key file may be read by others (mode {stat.S_IMODE(status.st_mode):04o})",
                where=str(path),
                mend=f"run `chmod 600 {path}`",
            )
        if len(seed) != SEED_SIZE:
            raise SigningError(
                f"the key file does not hold exactly {SEED_SIZE} bytes",
                where=str(path),
                mend="restore it from a backup, or make a new one with `accord keys new`",
            )
        return cls(seed)

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes of this key."""
        return self._secret[:SEED_SIZE]

    def sign_bytes(self, message: bytes) -> bytes:
        """The signature of raw bytes."""
        return crypto_sign(message, self._secret)[:SIGNATURE_SIZE]

    def __repr__(self) -> str:
        return f"SigningKey({self.id})"


def public_id(public: bytes) -> str:
    """Write a public key as an id."""
    if len(public) != PUBLIC_SIZE:
        raise SigningError(f"a public key of {len(public)} bytes instead of {PUBLIC_SIZE}")
    return _PREFIX + canonical.encode_base64url(public)


def parse_id(text: str) -> bytes:
    """The public key of an id; raises SigningError."""
    public = _parse(text, PUBLIC_SIZE)
    if public is None:
        raise SigningError(
            f"{text[:80]!r} is not an id", mend="expected ed25519: and 43 characters of base64url"
        )
    return public


def verify_bytes(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature of raw bytes is the key's."""
    if len(public) != PUBLIC_SIZE or len(signature) != SIGNATURE_SIZE:
        return False
    try:
        crypto_sign_open(signature + message, public)
    except BadSignatureError:
        return False
    return True


def sign(payload: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """The payload with the key's signature, replacing an earlier one; may raise CanonicalError."""
    signature = key.sign_bytes(signed_bytes(payload))
    return {**payload, "signature": _PREFIX + canonical.encode_base64url(signature)}


def verify(payload: Mapping[str, Any], public: str | bytes) -> bool:
    """Whether the payload has a valid signature of this key; False if anything is malformed."""
    signature = payload.get("signature")
    raw = _parse(signature, SIGNATURE_SIZE) if isinstance(signature, str) else None
    key = _parse(public, PUBLIC_SIZE) if isinstance(public, str) else public
    if raw is None or key is None:
        return False
    try:
        message = signed_bytes(payload)
    except canonical.CanonicalError:
        return False
    return verify_bytes(key, message, raw)


def signed_bytes(payload: Mapping[str, Any]) -> bytes:
    """The canonical bytes that a payload's signature covers."""
    return canonical.encode({name: payload[name] for name in payload if name != "signature"})


def _parse(text: str, size: int) -> bytes | None:
    if not text.startswith(_PREFIX):
        return None
    with contextlib.suppress(canonical.Base64Error):
        data = canonical.decode_base64url(text.removeprefix(_PREFIX))
        return data if len(data) == size else None
    return None
