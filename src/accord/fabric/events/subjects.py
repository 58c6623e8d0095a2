"""Which subject an event goes to, and which event a subject is of. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from accord.contracts.subjects import escape_token, overlap
from accord.fabric.errors import ValidationError
from accord.fabric.terms import Event
from accord.kernel import canonical

_TEMPLATE: Final = re.compile(r"\{([^{}]*)\}")


def subject_of(event: Event, payload: Any) -> str:
    """The subject of an event, its tokens filled in from the payload.

    Raises:
        ValidationError: The payload lacks a value, or has one that no token can be.
    """

    def token(pointer: str) -> str:
        found = _token(payload, pointer)
        if found is None:
            raise ValidationError(
                f"{event.name} needs a text or a number at {pointer} for its subject",
                issues=[{"path": pointer, "message": "no text and no number"}],
            )
        return found

    return _filled(event, token)


def pattern_of(event: Event, where: Mapping[str, str | int | float] | None) -> str:
    """The subject to listen on: for every event, or for those with given values by pointer.

    Raises:
        ValidationError: A pointer is none of the event's.
    """
    given = where or {}
    if unknown := set(given) - set(event.pointers):
        raise ValidationError(
            f"the subject of {event.name} has no {min(unknown)}",
            mend=f"choose from {', '.join(event.pointers) or 'none'}",
        )
    return _filled(event, lambda pointer: _written(given.get(pointer)) or "*")


def event_of(subject: str, events: Iterable[Event]) -> Event | None:
    """The event that a subject is of, if it is of one of these."""
    return next((event for event in events if overlap(event.wildcard, subject)), None)


def _filled(event: Event, token: Callable[[str], str]) -> str:
    return _TEMPLATE.sub(lambda found: token(found[1]), event.subject)


def _token(payload: Any, pointer: str) -> str | None:
    value = payload
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return _written(value)


def _written(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return escape_token(value if isinstance(value, str) else canonical.encode(value).decode())
