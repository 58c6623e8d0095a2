"""Passwords: what is kept of one, and whether one fits. By scrypt, which costs 32 MiB a try.

Pure but for the salt; a try takes a tenth of a second, so callers run it in a thread.
"""

import hashlib
import hmac
import secrets
import unicodedata
from typing import Final

from accord.authority.errors import AuthorityError, Code
from accord.kernel import base64url

_LOG_N: Final = 15
_R: Final = 8
_P: Final = 1
_SALT: Final = 16
_SIZE: Final = 32
_SHORTEST: Final = 10
_LONGEST: Final = 1024


def kept(password: str) -> str:
    """What is kept of a password: `scrypt$log n$r$p$salt$hash`.

    Raises:
        AuthorityError: It is too short or too long.
    """
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


def fits(password: str, stored: str | None) -> bool:
    """Whether a password is the one that was kept; without one it takes as long to say no."""
    _, log_n, r, p, salt, made = (stored or NOBODY).split("$")
    tried = _scrypt(password[:_LONGEST], base64url.decode(salt), int(log_n), int(r), int(p))
    return hmac.compare_digest(tried, base64url.decode(made)) and stored is not None


def _scrypt(password: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    # Keyboards differ in how they compose the same letter.
    text = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    n = 1 << log_n
    return hashlib.scrypt(text, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=_SIZE)


NOBODY: Final = f"scrypt${_LOG_N}${_R}${_P}${base64url.encode(bytes(_SALT))}$" + base64url.encode(
    bytes(_SIZE)
)
"""Tried where there is no password, so that the time taken does not tell."""
