"""Reading the members of a JSON object, each with its type, and a refusal that names the place.

A member that is null counts as missing: the contract writes null where a value is not known.
"""

from collections.abc import Mapping
from typing import Any, Final

from accord.relay.errors import Code, RelayError

Payload = Mapping[str, Any]

MAX_ID: Final = 512
"""The longest id that is read, in characters."""


def bad(what: str, *, where: str | None = None, mend: str | None = None) -> RelayError:
    """The refusal of something that was sent to us."""
    return RelayError(Code.BAD_REQUEST, what, where=where, mend=mend)


def payload(value: Any, what: str) -> Payload:
    """The value, if it is an object."""
    if not isinstance(value, dict):
        raise bad(f"{what} is a JSON object")
    return value


def text(source: Payload, name: str, default: str | None = None) -> str:
    """A text; without a default it must be there."""
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
    """A text that is not empty and not longer than an id."""
    value = text(source, name)
    if not 0 < len(value) <= MAX_ID:
        raise bad(f"expected 1 to {MAX_ID} characters", where=f"/{name}")
    return value


def flag(source: Payload, name: str, default: bool | None = None) -> bool:
    """True or false; without a default it must be there."""
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


def _wrong(source: Payload, name: str, form: str) -> RelayError:
    if source.get(name) is None:
        return bad(f"the member {name} is missing")
    return bad(f"expected {form}", where=f"/{name}")
