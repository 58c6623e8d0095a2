"""Idempotency keys: their form, their place in a request, and the names under which they lie. Pure.

The key follows the request's own id in the header `request-id`, as `<ULID>.k.<key>`. So the proof
covers it, each repetition is signed anew, and services that know no keys see one id as before.
"""

import hashlib
import re
from typing import Final

from accord.fabric.rules.errors import ConflictError, ValidationError
from accord.kernel import canonical
from accord.kernel.identifiers import is_ulid

LONGEST_KEY: Final = 90
_FORM: Final = re.compile(rf"[\x21-\x7e]{{1,{LONGEST_KEY}}}", re.ASCII)
_MARK: Final = ".k."
_ULID: Final = 26


def request_id(own: str, key: str | None) -> str:
    """The id of a request with its key, if it has one; raises ValidationError."""
    if key is None:
        return own
    if _FORM.fullmatch(key) is None:
        raise ValidationError(
            "this cannot be an idempotency key",
            mend=f"use 1 to {LONGEST_KEY} printable ASCII characters without spaces",
        )
    return f"{own}{_MARK}{key}"


def key_of(identity: str) -> str | None:
    """The key in the id of a request; None if it has none."""
    own, rest = identity[:_ULID], identity[_ULID:]
    key = rest.removeprefix(_MARK)
    return key if rest.startswith(_MARK) and key and is_ulid(own) else None


def stored_name(owner: str, surface: str, key: str) -> str:
    """The name under which a key of one caller for one surface is stored."""
    return hashlib.sha256(canonical.encode([owner, surface, key])).hexdigest()


def used_otherwise() -> ConflictError:
    """The error for a key that came with another request before."""
    return ConflictError(
        "this idempotency key came with another request before", mend="make a key for each request"
    )
