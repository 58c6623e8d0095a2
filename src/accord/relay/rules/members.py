"""Typed readers for the members of JSON objects, and what may be an id.

A member that is null counts as missing. Errors name the member and never show its value.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from accord.relay.errors import Code, RelayError

MAX_NAME: Final = 512
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]{1,512}")


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value can be an id."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def require_names(**named: object) -> None:
    """Check that each value can be an id."""
    for name, value in named.items():
        if not is_name(value):
            raise RelayError(
                Code.BAD_REQUEST,
                f"{name} must be a text of 1 to {MAX_NAME} printable characters",
                where=name,
            )


Payload = Mapping[str, Any]

MAX_ID: Final = 512
"""The longest id that is read, in characters."""


def bad(what: str, *, where: str | None = None, mend: str | None = None) -> RelayError:
    """The error for a malformed request or frame."""
    return RelayError(Code.BAD_REQUEST, what, where=where, mend=mend)


def payload(value: Any, what: str) -> Payload:
    """The value, if it is an object."""
    if not isinstance(value, dict):
        raise bad(f"{what} must be a JSON object")
    return value


def text(source: Payload, name: str, default: str | None = None) -> str:
    """A text; required if there is no default."""
    value = source.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise _wrong(source, name, "a text")
    return value


def optional_text(source: Payload, name: str) -> str | None:
    """A text, or None."""
    return None if source.get(name) is None else text(source, name)


def identifier(source: Payload, name: str) -> str:
    """A text of the length of an id."""
    value = text(source, name)
    if not 0 < len(value) <= MAX_ID:
        raise bad(f"expected 1 to {MAX_ID} characters", where=f"/{name}")
    return value


def flag(source: Payload, name: str, default: bool | None = None) -> bool:
    """True or false; required if there is no default."""
    value = source.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, bool):
        raise _wrong(source, name, "true or false")
    return value


def integer(source: Payload, name: str) -> int:
    """An integer."""
    value = source.get(name)
    if type(value) is not int:
        raise _wrong(source, name, "an integer")
    return value


def member(source: Payload, name: str) -> Payload:
    """An object; a missing one is empty."""
    value = source.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(source, name, "an object")
    return value


def texts(source: Payload, name: str) -> tuple[str, ...]:
    """A list of texts; a missing one is empty."""
    value = source.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _wrong(source, name, "a list of texts")
    return tuple(value)


def required_name(source: Payload, name: str) -> str:
    """A required id."""
    value = source.get(name)
    if not is_name(value):
        raise bad("expected an id: a text of printable characters", where=f"/{name}")
    return value


def optional_name(source: Payload, name: str, default: str = "") -> str:
    """An id, or the default where it is missing, null or empty."""
    return default if source.get(name) in (None, "") else required_name(source, name)


def unique_names(source: Payload, name: str) -> tuple[str, ...]:
    """A list of ids; a missing one is empty."""
    found = texts(source, name)
    if not all(is_name(each) for each in found):
        raise bad("expected ids: texts of printable characters", where=f"/{name}")
    return tuple(dict.fromkeys(found))


def optional_url(source: Payload, name: str) -> str | None:
    """A URL, unchecked, or None."""
    value = source.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise bad("expected a URL", where=f"/{name}")
    return value


def _wrong(source: Payload, name: str, form: str) -> RelayError:
    if source.get(name) is None:
        return bad(f"the member {name} is missing")
    return bad(f"expected {form}", where=f"/{name}")


def seconds(value: Any) -> float | None:
    """A number of seconds; None for anything else, so that no frame is lost for an extension."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e9 else None
