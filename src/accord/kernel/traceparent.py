"""The `traceparent` header of W3C Trace Context. Malformed headers are ignored."""

import re
from typing import Final, NamedTuple

HEADER: Final = "traceparent"

_LONGEST: Final = 256
_FORM: Final = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII
)


class Trace(NamedTuple):
    """A span of a trace, all in hexadecimal digits: 32 for `id`, 16 for `span`, 2 for `flags`."""

    id: str
    span: str
    flags: str = "00"

    @property
    def is_recorded(self) -> bool:
        """Whether the caller records the trace."""
        return bool(int(self.flags, 16) & 1)

    def __str__(self) -> str:
        return f"00-{self.id}-{self.span}-{self.flags}"


def parse(text: object) -> Trace | None:
    """Parse a header; None if it is malformed. Later versions may have more fields at the end."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not (trace.strip("0") and span.strip("0")):
        return None
    return Trace(trace, span, flags)
