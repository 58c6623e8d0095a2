"""Whether a value is JSON that every reader reads alike (specification, section 12).

Finite numbers, no negative zero, integers that a double holds, whole characters, limited depth.
One pass of a library sees almost all of it; only what it leaves in doubt is looked at closely.
"""

import functools
import math
from typing import Any, Final

import orjson

from accord.contracts.manifest.pointers import Path, steps
from accord.kernel import canonical
from accord.kernel.canonical.nesting import Nest

_depth: Final = Nest(
    functools.partial(
        orjson.dumps,
        option=orjson.OPT_STRICT_INTEGER
        | orjson.OPT_PASSTHROUGH_SUBCLASS
        | orjson.OPT_PASSTHROUGH_DATACLASS
        | orjson.OPT_PASSTHROUGH_DATETIME,
    )
)
_NULLS: Final = (b":null", b",null", b"[null")


def written(value: Any) -> bytes | None:
    """The value as compact JSON, somewhere in brackets; None if it is not plain JSON."""
    try:
        text = _depth.write(value)
        # orjson writes NaN as null too.
        if b"null" in text and any(null in text for null in _NULLS):
            canonical.encode(value)
    except (TypeError, canonical.CanonicalError):
        return None
    return None if b"-0.0" in text and _negative_zero(value) is not None else text


def copied(value: Any) -> Any:
    """A copy of a value that was written."""
    return orjson.loads(orjson.dumps(value))


def refusal(value: Any) -> tuple[Path, str]:
    """Where and why a value is not plain JSON."""
    try:
        canonical.encode(value)
    except canonical.CanonicalError as error:
        return tuple(steps(error.where or "")), error.what
    zero = _negative_zero(value)
    if zero is not None:
        return zero, "negative zero, which not every reader keeps apart from zero"
    return (), "something in it is not plain JSON; decode the text of the manifest"


def _negative_zero(value: Any) -> Path | None:
    pending: list[tuple[Path, Any]] = [((), value)]
    while pending:
        path, part = pending.pop()
        if isinstance(part, float) and part == 0 and math.copysign(1, part) < 0:
            return path
        if isinstance(part, dict):
            pending.extend(((*path, name), item) for name, item in reversed(part.items()))
        elif isinstance(part, list):
            pending.extend(((*path, str(at)), item) for at, item in enumerate(part))
    return None
