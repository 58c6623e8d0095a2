"""A place in a trace, as the header `traceparent` writes it (W3C Trace Context).

Owns the form of the header. Pure: ids are drawn elsewhere. Whatever is not well formed names
nothing, so no text of a stranger's gets any further than this.
"""

import re
from typing import Final, NamedTuple

HEADER: Final = "traceparent"

_LONGEST: Final = 256
_FORM: Final = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII
)


class Trace(NamedTuple):
    """A place in a trace.

    Attributes:
        id: The trace, 32 hexadecimal digits.
        span: The step of it, 16 of them.
        flags: Two of them; the lowest bit says that somebody records it.
    """

    id: str
    span: str
    flags: str = "00"

    @property
    def is_recorded(self) -> bool:
        """Whether somebody before has recorded it."""
        return bool(int(self.flags, 16) & 1)

    def __str__(self) -> str:
        return f"00-{self.id}-{self.span}-{self.flags}"


def parse(text: object) -> Trace | None:
    """The place that a header names; a malformed one names none.

    A later version may have more behind what is known of it, and is read as far as that.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not (trace.strip("0") and span.strip("0")):
        return None
    return Trace(trace, span, flags)
