"""`encode`: RFC 8785 at the speed of a library.

orjson with sorted keys writes RFC 8785 but for four things, and each is noticed before its answer
is taken: it writes NaN as null, it spells some doubles differently (`1.0`, `1e+16`), it sorts
member names by code point where the RFC sorts by UTF-16 unit, and it takes integers and depths
that our own reader refuses. A second encoding, as MessagePack, shows doubles and depth in one pass
over bytes, where looking at every value from Python would cost ten times as much.
"""

import math
import re
import struct
from collections.abc import Callable
from typing import Any, Final

import orjson
import ormsgpack

from accord.kernel.canonical import reference
from accord.kernel.canonical.limits import MAX_DEPTH
from accord.kernel.canonical.nesting import SHORT, Nest
from accord.kernel.canonical.numbers import spell

_OPTIONS: Final = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)

# MessagePack's marker of a double. It also occurs inside integers and lengths, so a match may
# be no double: then the text, where a double has just one spelling, does not have it.
_DOUBLE: Final = 0xCB
# Doubles that orjson spells in another way, or not at all: those that are not finite, minus zero,
# 1e16 and beyond, and from 1e-6 to 1e-5. Whole doubles, with their `.0`, are too many to look for.
_ODD: Final = re.compile(
    rb"\xcb(?:[\x7f\xff][\xf0-\xff]|\x80\0{7}|[\x43\xc3][\x41-\xff]|[\x44\xc4]|[\x3e\xbe][\xb0-\xe4])"
)
_ODD_SPELLING: Final = re.compile(rb"-0\.0(?=[,\]}]|\Z)|-?[0-9](?:\.[0-9]++)?+e[+-]?[0-9]+")
_WHOLE_TAIL: Final = re.compile(rb"\.0(?=[,\]}]|\Z)")

_depth = Nest(ormsgpack.packb)


def encode(value: Any) -> bytes:
    """Write a JSON value as RFC 8785 canonical bytes.

    Enum members are written as their values, UUIDs as text, tuples as arrays.

    Raises:
        CanonicalError: The value holds something that JSON or a double cannot carry (NaN, an
            integer beyond a double, half a surrogate pair, a member name that is not text), or is
            nested too deeply.
    """
    try:
        text = orjson.dumps(value, None, _OPTIONS)
        if len(text) <= SHORT and text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
            packed = ormsgpack.packb(value)
        else:
            packed = _depth.write(value)
    except TypeError:  # both libraries' refusals derive from it
        return reference.write(value)
    if not text.isascii() and _sorts_differently(text):
        return reference.write(value)
    if _DOUBLE not in packed:
        return text
    if _ODD.search(packed) is not None:
        odd = [_double(packed, match.start()) for match in _ODD.finditer(packed)]
        if b"null" in text and not all(map(math.isfinite, odd)):
            return reference.write(value)
        if _any_written(odd, text):
            text = _respell(text, _ODD_SPELLING, lambda number: spell(float(number)).encode())
    return _respell(text, _WHOLE_TAIL, _nothing)


def _double(packed: bytes, start: int) -> float:
    number: float = struct.unpack(">d", packed[start + 1 : start + 9].ljust(8, b"\0"))[0]
    return number


def _any_written(numbers: list[float], text: bytes) -> bool:
    """Whether the text may have one of these numbers.

    Each look costs as much as the text is long, so after a few the answer is yes: it is always
    right to respell.
    """
    return len(numbers) > 8 or any(orjson.dumps(number) in text for number in numbers)


def _sorts_differently(text: bytes) -> bool:
    """Whether the text has characters from both sides of where the two orders part.

    Those beyond U+FFFF (UTF-8 lead bytes F0 to F4) come before U+E000 to U+FFFF (EE, EF) when
    compared by UTF-16 unit.
    """
    return (0xEE in text or 0xEF in text) and any(lead in text for lead in range(0xF0, 0xF5))


def _nothing(_: bytes) -> bytes:
    return b""


def _respell(text: bytes, pattern: re.Pattern[bytes], spelling: Callable[[bytes], bytes]) -> bytes:
    """Replace what matches outside strings."""
    # Escapes become filler of the same length, so that every quote left is the edge of a string.
    bare = text.replace(rb"\\", b"__").replace(rb"\"", b"__") if 0x5C in text else text
    parts: list[bytes] = []
    quotes = counted = taken = 0
    for match in pattern.finditer(bare):
        start, end = match.span()
        quotes += bare.count(b'"', counted, start)
        counted = start
        if quotes % 2 == 0:
            parts += text[taken:start], spelling(match[0])
            taken = end
    if not parts:
        return text
    parts.append(text[taken:])
    return b"".join(parts)
