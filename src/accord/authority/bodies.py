"""The members of requests, each with its type: what is known and wrong is refused by its name.

Unknown members are ignored. Nothing that was sent is shown. Pure.
"""

import re
from typing import Any, Final, TypeAlias

from accord.authority.errors import AuthorityError, Code
from accord.kernel import canonical

_KEY: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_LARGEST: Final = 2**53 - 1

Body: TypeAlias = dict[str, Any]
"""A JSON object."""


def text(body: Body, member: str, *, most: int = 512) -> str:
    """A text that must be there: printable, and not too long.

    Raises:
        AuthorityError: It is not.
    """
    value = body.get(member)
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise bad(f"expected a text of 1 to {most} printable characters", f"/{member}")
    return value


def texts(body: Body, member: str, *, most: int = 1000) -> tuple[str, ...]:
    """A list of such texts; a missing one is empty.

    Raises:
        AuthorityError: It is another thing.
    """
    value = body.get(member, [])
    if not isinstance(value, list) or len(value) > most:
        raise bad(f"expected a list of at most {most} texts", f"/{member}")
    return tuple(text({member: each}, member) for each in value)


def flag(body: Body, member: str) -> bool:
    """A truth value that must be there.

    Raises:
        AuthorityError: It is another thing.
    """
    value = body.get(member)
    if not isinstance(value, bool):
        raise bad("expected true or false", f"/{member}")
    return value


def session_key(body: Body, member: str = "sessionKey") -> str:
    """A session key that must be there.

    Raises:
        AuthorityError: It is not one.
    """
    value = body.get(member)
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise bad("expected a public key, 43 characters of base64url", f"/{member}")
    return value


def digest(body: Body) -> str:
    """The digest of the contract that is presented.

    Raises:
        AuthorityError: It is not one.
    """
    value = body.get("contractDigest")
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise bad("expected a digest, 43 characters of base64url", "/contractDigest")
    return value


def manifest(body: Body) -> bytes | None:
    """The manifest that came along, as bytes; None without one.

    Raises:
        AuthorityError: It is no object.
    """
    value = body.get("manifest")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad("a manifest is a JSON object", "/manifest")
    return canonical.encode(value)


def maybe(body: Body, member: str) -> str | None:
    """A text, or None where it is missing or null.

    Raises:
        AuthorityError: It is another thing.
    """
    return None if body.get(member) is None else text(body, member)


def number(body: Body, member: str, default: int, *, most: int = _LARGEST) -> int:
    """A whole number, not below 0.

    Raises:
        AuthorityError: It is another thing, or too large.
    """
    value = body.get(member, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise bad(f"expected a whole number up to {most}", f"/{member}")
    return value


def bad(what: str, where: str | None = None) -> AuthorityError:
    """What is said of a request that cannot be understood."""
    return AuthorityError(Code.BAD_REQUEST, what, where=where)
