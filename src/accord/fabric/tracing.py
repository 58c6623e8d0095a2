"""Trace context (W3C): which story a message belongs to.

Owns the header `traceparent` and what is current in this task. It records no spans; whoever
collects them reads the same header.
"""

import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, NamedTuple

HEADER: Final = "traceparent"
_FORM: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)


class Trace(NamedTuple):
    """A place in a trace.

    Attributes:
        id: The trace, 32 hexadecimal digits.
        span: This step of it, 16 of them.
        flags: Whether it is sampled, two of them.
    """

    id: str
    span: str
    flags: str = "01"

    def __str__(self) -> str:
        return f"00-{self.id}-{self.span}-{self.flags}"


current: ContextVar[Trace | None] = ContextVar("trace", default=None)
"""The trace of what this task works on."""


def read(headers: Mapping[str, str] | None) -> Trace | None:
    """The trace that headers name; a malformed one is none."""
    text = headers.get(HEADER) if headers else None
    found = _FORM.fullmatch(text) if text else None
    if found is None or set(found[1]) == {"0"} or set(found[2]) == {"0"}:
        return None
    return Trace(found[1], found[2], found[3])


def next_step() -> Trace:
    """A step that follows what is current, or begins a trace of its own."""
    here = current.get()
    if here is None:
        chance = secrets.token_hex(24)
        return Trace(chance[:32], chance[32:])
    return Trace(here.id, secrets.token_hex(8), here.flags)
