"""`decode`: strict JSON at the speed of a library.

orjson reads, and writes again what it read: when the two texts are the same but for white space,
nothing was lost on the way, so there was no duplicate member, no integer beyond a double and no odd
spelling. (Without spaces two names may become equal, but the number of members stays what it was.)
Any other text is read by the standard library with hooks that see every member and every number.
What is refused is refused by `explain`, which knows the place.
"""

import json
from functools import partial
from typing import Any, Final

import orjson

from accord.kernel.canonical.explain import explain, survives_double
from accord.kernel.canonical.limits import MAX_BYTES, MAX_DEPTH, MAX_INTEGER, CanonicalError
from accord.kernel.canonical.nesting import SHORT, Nest


def decode(data: bytes | str, *, max_bytes: int = MAX_BYTES) -> Any:
    """Read one JSON text strictly.

    An integer literal above 2^53-1 is read as a double, and only when the double's canonical text
    is the literal itself.

    Args:
        data: The text, in UTF-8 when it is bytes.
        max_bytes: The longest text to read, in bytes of UTF-8.

    Raises:
        CanonicalError: The text is not JSON, or readers could disagree about it: duplicate
            members, half a surrogate pair, an integer that a double cannot hold; or it is too
            long or too deep. It carries the position.
    """
    raw = data if isinstance(data, bytes) else _utf8(data)
    if len(raw) > max_bytes:
        raise CanonicalError(
            f"a text of {len(raw)} bytes where at most {max_bytes} are read", position=max_bytes
        )
    try:
        value = orjson.loads(raw)
        written = _rewritten(value, raw)
        if written == raw or _squeezed(written) == _squeezed(raw):
            return value
    except ValueError:
        explain(raw)
    except TypeError:
        pass  # orjson will not write an integer above 2^53-1 or a value this deep: look closer
    return _read(raw)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        position = len(text[: error.start].encode())
        raise CanonicalError(
            "half of a surrogate pair", position=position, where=f"byte {position}"
        ) from None


_depth = Nest(partial(orjson.dumps, option=orjson.OPT_STRICT_INTEGER))


def _rewritten(value: Any, raw: bytes) -> bytes:
    if len(raw) <= SHORT and raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER)
    return _depth.write(value)[_depth.margin : -_depth.margin]


def _squeezed(text: bytes) -> bytes:
    return text.translate(None, b" \t\n\r")


class _RefusedError(ValueError):
    """A hook saw something that `explain` will find again, with its place."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RefusedError
    return members


def _integer(literal: str) -> int | float:
    if len(literal) < 16 and literal != "-0":
        return int(literal)
    if not survives_double(literal):
        raise _RefusedError
    number = int(literal)
    return number if 0 < abs(number) <= MAX_INTEGER else float(literal)


_reader: Final = json.JSONDecoder(object_pairs_hook=_members, parse_int=_integer)


def _read(raw: bytes) -> Any:
    """Read a text of whose grammar orjson is already content."""
    try:
        value = _reader.decode(raw.decode())
        _depth.write(value)
    except (_RefusedError, RecursionError, TypeError):
        explain(raw)
    return value
