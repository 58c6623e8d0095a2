"""Secrets at rest: the relay's own key file, and what is encrypted under it.

Owns `keys/relay.key`: one key per line in base64url, the newest first, readable by its owner only.
The newest encrypts; older ones still open what they once closed, until everything has been
encrypted anew. Each box is bound to its context (table, tenant, instance), so that one moved to
another row does not open. Shows no key and no value, in no error.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError

from accord.kernel import base64url, canonical
from accord.kernel.files import sync_folder, write_private
from accord.relay.errors import Code, RelayError

KEY_SIZE: Final = 32
_NONCE_SIZE: Final = 24
_MOST_KEYS: Final = 16


@dataclass(frozen=True, slots=True)
class Box:
    """Something encrypted, and the id of the key that opens it."""

    key_id: str
    data: bytes


class Keyring:
    """The keys of one connector; see `load`."""

    def __init__(self, keys: Sequence[bytes], path: Path | None = None) -> None:
        self._path = path
        self._take(keys)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the key file, making it on the first start.

        Raises:
            RelayError: It cannot be read or made, others may read it, or it holds no keys.
        """
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another process was first
                _create(path, [secrets.token_bytes(KEY_SIZE)])
        return cls(_read(path), path)

    @property
    def key_id(self) -> str:
        """The id of the key that encrypts now."""
        return self._newest

    def close(self, value: str, *context: str) -> Box:
        """Encrypt a value for one context."""
        nonce = secrets.token_bytes(_NONCE_SIZE)
        sealed = crypto_aead_xchacha20poly1305_ietf_encrypt(
            value.encode(), _context(context), nonce, self._keys[self._newest]
        )
        return Box(self._newest, nonce + sealed)

    def open(self, box: Box, *context: str) -> str:
        """Decrypt a box that was closed for the same context.

        Raises:
            RelayError: Its key is not here, or it was not closed so.
        """
        if box.key_id not in self._keys and self._path is not None:
            self._take(_read(self._path))  # another process may have put a new key there
        key = self._keys.get(box.key_id)
        if key is None:
            raise RelayError(
                Code.INTERNAL_ERROR,
                f"a secret is encrypted under the key {box.key_id}, which is not here",
                where=str(self._path or "the keyring"),
                mend="restore the key file that belongs to this store",
            )
        nonce, sealed = box.data[:_NONCE_SIZE], box.data[_NONCE_SIZE:]
        try:
            return crypto_aead_xchacha20poly1305_ietf_decrypt(
                sealed, _context(context), nonce, key
            ).decode()
        except (CryptoError, ValueError):
            raise RelayError(
                Code.INTERNAL_ERROR,
                "a secret does not open in its place: it was damaged or moved",
                where=context[0] if context else "the keyring",
                mend="restore the last good backup of the store",
            ) from None

    def digests(self, code: str) -> list[bytes]:
        """Digests of a short code, the newest key's first; without the key file they tell nothing.

        One is kept under the first, and looked for under all.
        """
        return [hmac.new(key, b"code:" + code.encode(), "sha256").digest() for key in self._all]

    def rotate(self) -> str:
        """Put a new key before the others, and return its id; encrypt everything anew after it.

        Raises:
            RelayError: The key file cannot be written, or holds too many keys already.
        """
        fresh = secrets.token_bytes(KEY_SIZE)
        self._replace([fresh, *self._reread()])
        return _id(fresh)

    def forget_old(self) -> None:
        """Keep the newest key only; what older ones closed can no longer be opened."""
        self._replace(self._reread()[:1])

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._keys)})"

    def _reread(self) -> Sequence[bytes]:
        return _read(self._path) if self._path is not None else self._all

    def _replace(self, keys: Sequence[bytes]) -> None:
        if len(keys) > _MOST_KEYS:
            raise RelayError(
                Code.CONFLICT,
                f"the key file holds {_MOST_KEYS} keys already",
                mend="encrypt everything anew and forget the old ones first",
            )
        if self._path is not None:
            _create(self._path, keys, replace=True)
        self._take(keys)

    def _take(self, keys: Sequence[bytes]) -> None:
        self._keys = {_id(key): key for key in keys}
        self._newest = _id(keys[0])
        self._all = tuple(keys)


def _id(key: bytes) -> str:
    return hashlib.blake2b(b"relay.key", key=key, digest_size=8).hexdigest()


def _context(context: Sequence[str]) -> bytes:
    return canonical.encode(list(context))


def _create(path: Path, keys: Sequence[bytes], *, replace: bool = False) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            write_private(draft, "".join(base64url.encode(key) + "\n" for key in keys).encode())
            if replace:
                draft.replace(path)
            else:
                os.link(draft, path)  # fails where a rename would replace
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise RelayError(
            Code.INTERNAL_ERROR,
            f"the relay's key file cannot be written ({error.strerror})",
            where=str(path),
            mend="let this user write to the folder",
        ) from error


def _read(path: Path) -> Sequence[bytes]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(4096) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise RelayError(
            Code.INTERNAL_ERROR,
            f"the relay's key file cannot be read ({error.strerror})",
            where=str(path),
            mend="restore it from a backup",
        ) from error
    if status.st_mode & 0o077:
        raise RelayError(
            Code.INTERNAL_ERROR,
            f"the relay's key file may be read by others (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            mend=f"run `chmod 600 {path}`",
        )
    try:
        keys = [base64url.decode(line) for line in text.decode("ascii").split()]
    except (base64url.Base64Error, UnicodeDecodeError):
        keys = []
    if not keys or any(len(key) != KEY_SIZE for key in keys):
        raise RelayError(
            Code.INTERNAL_ERROR,
            f"the relay's key file does not hold keys of {KEY_SIZE} bytes",
            where=str(path),
            mend="restore it from a backup",
        )
    return keys
