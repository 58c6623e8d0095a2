"""Password hashes by scrypt. One takes 32 MiB and a tenth of a second, so run it in a thread."""

import hashlib
import hmac
import secrets
import unicodedata
from typing import Final

from accord.authority.rules.errors import AuthorityError, Code
from accord.kernel import base64url

_LOG_N: Final = 15
_R: Final = 8
_P: Final = 1
_SALT: Final = 16
_SIZE: Final = 32
_SHORTEST: Final = 10
_LONGEST: Final = 1024


def hash_password(password: str) -> str:
    """The hash to store, `scrypt$log n$r$p$salt$hash`, of a password of valid length."""
    if not _SHORTEST <= len(password) <= _LONGEST:
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"a password has {_SHORTEST} to {_LONGEST} characters",
            mend="take a few words that do not belong together",
        )
    salt = secrets.token_bytes(_SALT)
    made = _scrypt(password, salt, _LOG_N, _R, _P)
    parts = ("scrypt", _LOG_N, _R, _P, base64url.encode(salt), base64url.encode(made))
    return "$".join(map(str, parts))


def verify_password(password: str, stored: str | None) -> bool:
    """Whether a password matches a hash; takes as long if there is none."""
    _, log_n, r, p, salt, made = (stored or NO_PASSWORD).split("$")
    tried = _scrypt(password[:_LONGEST], base64url.decode(salt), int(log_n), int(r), int(p))
    return hmac.compare_digest(tried, base64url.decode(made)) and stored is not None


def _scrypt(password: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    # The same letter may be composed differently by another keyboard.
    text = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    n = 1 << log_n
    return hashlib.scrypt(text, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=_SIZE)


NO_PASSWORD: Final = (
    f"scrypt${_LOG_N}${_R}${_P}${base64url.encode(bytes(_SALT))}$" + base64url.encode(bytes(_SIZE))
)
"""Tried where there is no password, so that the time taken does not tell."""
