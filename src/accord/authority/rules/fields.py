"""Fields of requests, names and keys.

The `read_` functions raise `AuthorityError` (`bad_request`) with the pointer of the member, and do
not show its value; the `check_` functions raise it, too. Unknown members are ignored.
"""

import re
from typing import Any, Final, TypeAlias

from accord.authority.rules.errors import AuthorityError, Code
from accord.kernel import canonical

_LARGEST: Final = 2**53 - 1

Body: TypeAlias = dict[str, Any]
"""A JSON object."""


def read_text(body: Body, member: str, *, most: int = 512) -> str:
    """A required text: printable, and not too long."""
    value = body.get(member)
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise bad_request(f"expected a text of 1 to {most} printable characters", f"/{member}")
    return value


def read_texts(body: Body, member: str, *, most: int = 1000) -> tuple[str, ...]:
    """A list of such texts; empty if it is missing."""
    value = body.get(member, [])
    if not isinstance(value, list) or len(value) > most:
        raise bad_request(f"expected a list of at most {most} texts", f"/{member}")
    return tuple(read_text({member: each}, member) for each in value)


def read_flag(body: Body, member: str) -> bool:
    """A required boolean."""
    value = body.get(member)
    if not isinstance(value, bool):
        raise bad_request("expected true or false", f"/{member}")
    return value


def read_session_key(body: Body, member: str = "sessionKey") -> str:
    """A required session key."""
    return _read_hash(body, member, "a public key")


def read_digest(body: Body) -> str:
    """The digest of the contract that is presented."""
    return _read_hash(body, "contractDigest", "a digest")


def _read_hash(body: Body, member: str, what: str) -> str:
    value = body.get(member)
    if not isinstance(value, str) or not is_digest(value):
        raise bad_request(f"expected {what}, 43 characters of base64url", f"/{member}")
    return value


def read_manifest(body: Body) -> bytes | None:
    """The manifest in a request, encoded; None without one."""
    value = body.get("manifest")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad_request("a manifest is a JSON object", "/manifest")
    return canonical.encode(value)


def read_optional_text(body: Body, member: str) -> str | None:
    """A text, or None if it is missing or null."""
    return None if body.get(member) is None else read_text(body, member)


def read_number(body: Body, member: str, default: int, *, most: int = _LARGEST) -> int:
    """A whole number from 0 to `most`."""
    value = body.get(member, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise bad_request(f"expected a whole number up to {most}", f"/{member}")
    return value


def bad_request(what: str, where: str | None = None) -> AuthorityError:
    """The error for a malformed request."""
    return AuthorityError(Code.BAD_REQUEST, what, where=where)


MAX_REMARK: Final = 512
"""Characters of a free text that are kept."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_CONTRACT: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*@v[0-9]+", re.ASCII)
_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_KEY_BYTES: Final = 32


def storable(text: str) -> str:
    """The text with characters replaced that no database stores."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def clip_remark(text: str) -> str:
    """A free text, shortened to what is stored."""
    return storable(text[:MAX_REMARK]) or "?"


def is_digest(text: str) -> bool:
    """Whether a text may be the digest of a contract."""
    return _DIGEST.fullmatch(text) is not None


def is_contract_id(text: str) -> bool:
    """Whether a text may be the id of a contract."""
    return len(text) <= MAX_REMARK and _CONTRACT.fullmatch(text) is not None


def is_key(text: str) -> bool:
    """Whether a text is an Ed25519 public key in base64url."""
    try:
        return len(canonical.decode_base64url(text)) == _KEY_BYTES
    except canonical.Base64Error:
        return False


def check_name(name: str, what: str) -> None:
    """Check that a text is a valid name."""
    if _NAME.fullmatch(name) is None:
        raise AuthorityError(
            Code.BAD_REQUEST,
            f"{storable(name[:80])!r} cannot name {what}",
            mend="use letters, digits, dots, - and _, at most 128 of them",
        )


def check_key(key: str) -> None:
    """Check that a text is a session key."""
    if not is_key(key):
        raise AuthorityError(
            Code.BAD_REQUEST,
            "this is not a session key",
            mend="give the Ed25519 public key, 43 characters of base64url",
        )
