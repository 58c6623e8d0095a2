"""Canonical JSON, the only encoder and the only strict parser; digests, and base64url.

`encode` writes RFC 8785 bytes, which are signed, hashed or compared. `decode` refuses, with its
position, any text that two readers could understand differently. Both are defined in plain Python
(`encode_reference`, `explain`) and made fast by libraries where the result is provably the same.
A digest is SHA-256 in base64url for contracts, `blake3:` and hexadecimal for everything else.
Base64url is read in one spelling only: without padding, white space and non-zero trailing bits.
"""

import base64
import binascii
import hashlib
import json
import math
import re
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, NoReturn
from uuid import UUID

import orjson
import ormsgpack
from blake3 import blake3 as _blake3

from accord.kernel.errors import AccordError

MAX_DEPTH: Final = 128
"""How many arrays and objects may enclose a value."""

MAX_BYTES: Final = 8 * 1024 * 1024
"""Default limit of `decode`."""

MAX_INTEGER: Final = 2**53 - 1
"""The greatest integer below which every integer is a double."""


class CanonicalError(AccordError):
    """A text is not strict JSON, or a value has no canonical form.

    Attributes:
        position: Byte offset in a refused text; None for a refused value, whose JSON Pointer is in
            `where`.
    """

    def __init__(
        self,
        what: str,
        *,
        position: int | None = None,
        where: str | None = None,
        mend: str | None = None,
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.position = position


SHORT: Final = 1024
"""Up to this many bytes, counting brackets is cheaper than `DepthLimitedWriter`."""


# orjson and ormsgpack have built-in depth limits. A value inside as many lists as leave it
# MAX_DEPTH levels is refused exactly at our limit, at no cost per value.
class DepthLimitedWriter(threading.local):
    """Enforces MAX_DEPTH with a writer that has a larger limit, by wrapping values in lists."""

    def __init__(self, writer: Callable[[Any], bytes]) -> None:
        self._writer = writer
        self.margin = _depth_limit(writer) - MAX_DEPTH
        self._slot: list[Any] = [None]
        self._outermost = self._slot
        for _ in range(self.margin - 1):
            self._outermost = [self._outermost]

    def write(self, value: Any) -> bytes:
        """Write the value inside the lists; raises TypeError if it is too deep or refused."""
        self._slot[0] = value
        try:
            return self._writer(self._outermost)
        finally:
            self._slot[0] = None


def _depth_limit(writer: Callable[[Any], bytes]) -> int:
    """How deeply nested lists the writer accepts."""
    value: list[Any] = []
    depth = 1
    while True:
        try:
            writer(value)
        except TypeError:
            return depth - 1
        value = [value]
        depth += 1


def spell(number: float) -> str:
    """Write a double as ECMAScript's Number::toString does; CanonicalError if it is not finite.

    Python's `repr` finds the same shortest digits; only their layout differs.
    """
    if not math.isfinite(number):
        raise CanonicalError(f"{number} is not a JSON number")
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    # `float` because a subclass, such as numpy's, may have a repr of its own.
    mantissa, _, exponent = repr(abs(float(number))).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # Where the decimal point stands, counted from the first significant digit.
    point = len(digits) - len(fraction) + int(exponent or 0)
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


def encode_reference(value: Any) -> bytes:
    """Write a JSON value canonically; the `where` of a CanonicalError is a JSON Pointer."""
    parts: list[str] = []
    _write_value(value, (), parts.append)
    return "".join(parts).encode()


def _write_value(value: Any, path: tuple[str | int, ...], emit: Callable[[str], None]) -> None:
    match value:
        case None:
            emit("null")
        case True:
            emit("true")
        case False:
            emit("false")
        case Enum():
            _write_value(value.value, path, emit)
        case UUID():
            emit(f'"{value}"')
        case str():
            emit(_write_string(value, path))
        case int():
            emit(_write_integer(value, path))
        case float():
            emit(_write_float(value, path))
        case list() | tuple():
            _check_depth(path)
            separator = "["
            for index, item in enumerate(value):
                emit(separator)
                _write_value(item, (*path, index), emit)
                separator = ","
            emit("]" if value else "[]")
        case dict():
            _check_depth(path)
            separator = "{"
            for key in sorted(value, key=lambda key: _utf16(key, path)):
                emit(separator)
                emit(_write_string(key, path))
                emit(":")
                _write_value(value[key], (*path, key), emit)
                separator = ","
            emit("}" if value else "{}")
        case _:
            raise CanonicalError(
                f"a {type(value).__name__} has no JSON form",
                where=_place(path),
                mend="turn it into text, a number, a list or a dict first",
            )


def _check_depth(path: tuple[str | int, ...]) -> None:
    if len(path) >= MAX_DEPTH:
        raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels", where=_place(path))


def _write_string(text: str, path: tuple[str | int, ...]) -> str:
    try:
        return orjson.dumps(str(text)).decode()
    except TypeError as error:
        raise _lone_surrogate(path) from error


def _utf16(key: object, path: tuple[str | int, ...]) -> bytes:
    if not isinstance(key, str):
        raise CanonicalError(
            f"the member name {key!r} is not text", where=_place(path), mend="use strings as keys"
        )
    try:
        return key.encode("utf-16-be")
    except UnicodeEncodeError as error:
        raise _lone_surrogate(path) from error


def _lone_surrogate(path: tuple[str | int, ...]) -> CanonicalError:
    return CanonicalError("a text holds half of a surrogate pair", where=_place(path))


def _write_integer(number: int, path: tuple[str | int, ...]) -> str:
    if -MAX_INTEGER <= number <= MAX_INTEGER:
        return int.__repr__(number)
    try:
        double = float(number)
    except OverflowError:
        double = 0.0
    if double != number:
        raise CanonicalError(
            "an integer that a double cannot hold exactly",
            where=_place(path),
            mend="write it as a string",
        )
    return spell(double)


def _write_float(number: float, path: tuple[str | int, ...]) -> str:
    try:
        return spell(number)
    except CanonicalError as error:
        raise CanonicalError(error.what, where=_place(path)) from None


def _place(path: tuple[str | int, ...]) -> str:
    return pointer(*path) or "the value itself"


# orjson with sorted keys writes RFC 8785 but for four things, and each is noticed before its
# answer is taken: it writes NaN as null, it spells some doubles differently (`1.0`, `1e+16`), it
# sorts member names by code point where the RFC sorts by UTF-16 unit, and it takes integers and
# depths that `decode` refuses. A second encoding, as MessagePack, shows doubles and depth in one
# pass over bytes, where looking at every value from Python would cost ten times as much.
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

_msgpack_writer = DepthLimitedWriter(ormsgpack.packb)


def encode(value: Any) -> bytes:
    """Write a JSON value as RFC 8785 canonical bytes.

    Enum members are written as their values, UUIDs as text, tuples as arrays.

    Raises:
        CanonicalError: The value contains something that JSON or a double cannot represent (NaN, a
            large integer, half a surrogate pair, a member name that is not text), or is too deep.
    """
    try:
        text = orjson.dumps(value, None, _OPTIONS)
        if len(text) <= SHORT and text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
            packed = ormsgpack.packb(value)
        else:
            packed = _msgpack_writer.write(value)
    except TypeError:  # both libraries' refusals derive from it
        return encode_reference(value)
    if not text.isascii() and _sorts_differently(text):
        return encode_reference(value)
    if _DOUBLE not in packed:
        return text
    if _ODD.search(packed) is not None:
        odd = [_packed_double(packed, match.start()) for match in _ODD.finditer(packed)]
        if b"null" in text and not all(map(math.isfinite, odd)):
            return encode_reference(value)
        if _any_written(odd, text):
            text = _respell(text, _ODD_SPELLING, lambda number: spell(float(number)).encode())
    return _respell(text, _WHOLE_TAIL, _nothing)


def _packed_double(packed: bytes, start: int) -> float:
    number: float = struct.unpack(">d", packed[start + 1 : start + 9].ljust(8, b"\0"))[0]
    return number


def _any_written(numbers: list[float], text: bytes) -> bool:
    """Whether the text may contain one of these numbers.

    Each search takes linear time, so after a few the answer is yes: respelling is always correct.
    """
    return len(numbers) > 8 or any(orjson.dumps(number) in text for number in numbers)


def _sorts_differently(text: bytes) -> bool:
    """Whether UTF-8 and UTF-16 order may differ for the characters of the text.

    By UTF-16 units, characters beyond U+FFFF (lead bytes F0 to F4) sort before U+E000 to U+FFFF
    (EE, EF).
    """
    return (0xEE in text or 0xEF in text) and any(lead in text for lead in range(0xF0, 0xF5))


def _nothing(_: bytes) -> bytes:
    return b""


def _respell(text: bytes, pattern: re.Pattern[bytes], spelling: Callable[[bytes], bytes]) -> bytes:
    """Replace matches outside strings."""
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


_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_STRING: Final = re.compile(
    r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"', re.ASCII
)
_LITERALS: Final = ("true", "false", "null")


def explain(data: bytes) -> NoReturn:
    """Raise CanonicalError for the first error in a text that was refused."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _error_at("bytes that are not UTF-8", data, error.start) from None
    _Scanner(text).scan()
    raise CanonicalError("not strict JSON")


def survives_double(literal: str) -> bool:
    """Whether an integer literal has exactly the value of its double."""
    if len(literal) > 22:  # the longest integer that canonical JSON writes without an exponent
        return False
    number = int(literal)
    return abs(number) <= MAX_INTEGER or spell(float(number)) == literal


class _Scanner:
    """Reads a text token by token, with a stack of open containers."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        # One entry per open container: the member names of an object so far, None for an array.
        self._open: list[set[str] | None] = []

    def scan(self) -> None:
        """Read the whole text; returns if nothing is wrong with it."""
        if self._text.startswith("\ufeff"):
            self._refuse("a byte order mark", mend="save the text without it")
        self._space()
        self._value()
        while self._open:
            self._space()
            self._after_value()
        self._space()
        if self._at < len(self._text):
            self._refuse("more text after the end of the value")

    def _value(self) -> None:
        """Read a scalar, or open a container and read up to its first inner value."""
        while True:
            character = self._peek()
            if character == "[":
                self._push(None)
                if self._peek() == "]":
                    return
            elif character == "{":
                self._push(set())
                if self._peek() == "}":
                    return
                self._name()
            elif character == '"':
                self._string()
                return
            elif character == "-" or character.isdecimal():
                self._number()
                return
            else:
                self._literal()
                return

    def _after_value(self) -> None:
        names = self._open[-1]
        closing = "]" if names is None else "}"
        character = self._peek()
        if character == closing:
            self._at += 1
            self._open.pop()
        elif character == ",":
            self._at += 1
            self._space()
            if names is not None:
                self._name()
            self._value()
        else:
            self._refuse(f"a comma or {closing} is missing")

    def _push(self, names: set[str] | None) -> None:
        if len(self._open) == MAX_DEPTH:
            self._refuse(f"nested deeper than {MAX_DEPTH} levels")
        self._open.append(names)
        self._at += 1
        self._space()

    def _name(self) -> None:
        start = self._at
        if self._peek() != '"':
            self._refuse("a member name in double quotes is missing")
        name = self._string()
        names = self._open[-1]
        if names is None or name in names:
            self._refuse(
                f"the member {name[:80]!r} occurs twice", at=start, mend="keep one of the two"
            )
        names.add(name)
        self._space()
        if self._peek() != ":":
            self._refuse("a colon is missing after a member name")
        self._at += 1
        self._space()

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            self._refuse("a string with a raw control character, a wrong escape or no end")
        try:
            value = orjson.loads(found.group())
        except orjson.JSONDecodeError:
            self._refuse("half of a surrogate pair")
        self._at = found.end()
        return str(value)

    def _number(self) -> None:
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            self._refuse("a number that JSON does not know")
        if found.group(1) is None and found.group(2) is None:
            if not survives_double(found.group()):
                self._refuse(
                    "an integer that a double cannot hold exactly", mend="write it as a string"
                )
        elif float(found.group()) in (float("inf"), float("-inf")):
            self._refuse("a number beyond the range of a double", mend="write it as a string")
        self._at = found.end()

    def _literal(self) -> None:
        for literal in _LITERALS:
            if self._text.startswith(literal, self._at):
                self._at += len(literal)
                return
        self._refuse(
            "a value is missing" if self._at < len(self._text) else "the text ends too soon"
        )

    def _space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _refuse(self, what: str, *, at: int | None = None, mend: str | None = None) -> NoReturn:
        before = self._text[: self._at if at is None else at].encode(errors="surrogatepass")
        raise _error_at(what, self._text.encode(errors="surrogatepass"), len(before), mend=mend)


def _error_at(what: str, data: bytes, position: int, *, mend: str | None = None) -> CanonicalError:
    line = data.count(b"\n", 0, position) + 1
    column = position - (data.rfind(b"\n", 0, position) + 1) + 1
    return CanonicalError(
        what, position=position, where=f"byte {position} (line {line}, column {column})", mend=mend
    )


# orjson reads, and writes again what it read: when the two texts are the same but for white
# space, nothing was lost on the way, so there was no duplicate member, no integer beyond a double
# and no odd spelling. (Without spaces two names may become equal, but the number of members stays
# what it was.) Any other text is read by the standard library with hooks that see every member
# and every number. What is refused is refused by `explain`, which knows the place.
def decode(data: bytes | str, *, max_bytes: int = MAX_BYTES) -> Any:
    """Parse one JSON text strictly; bytes must be UTF-8.

    An integer literal above 2^53-1 becomes a double if the double's canonical text is the literal.

    Raises:
        CanonicalError: The text is not JSON, is ambiguous (duplicate members, half a surrogate
            pair, an integer that a double cannot hold), too long or too deep. It carries the
            position.
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
    return _read_slowly(raw)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        position = len(text[: error.start].encode())
        raise CanonicalError(
            "half of a surrogate pair", position=position, where=f"byte {position}"
        ) from None


_json_writer = DepthLimitedWriter(partial(orjson.dumps, option=orjson.OPT_STRICT_INTEGER))


def _rewritten(value: Any, raw: bytes) -> bytes:
    if len(raw) <= SHORT and raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER)
    return _json_writer.write(value)[_json_writer.margin : -_json_writer.margin]


def _squeezed(text: bytes) -> bytes:
    return text.translate(None, b" \t\n\r")


class _RefusedError(ValueError):
    """A parser hook found an error; `explain` finds it again, with its position."""


def _read_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RefusedError
    return members


def _read_integer(literal: str) -> int | float:
    if len(literal) < 16 and literal != "-0":
        return int(literal)
    if not survives_double(literal):
        raise _RefusedError
    number = int(literal)
    return number if 0 < abs(number) <= MAX_INTEGER else float(literal)


_reader: Final = json.JSONDecoder(object_pairs_hook=_read_members, parse_int=_read_integer)


def _read_slowly(raw: bytes) -> Any:
    """Parse a text that orjson already accepted."""
    try:
        value = _reader.decode(raw.decode())
        _json_writer.write(value)
    except (_RefusedError, RecursionError, TypeError):
        explain(raw)
    return value


DIGEST_SIZE: Final = 32
_BLAKE3: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)


class DigestError(AccordError):
    """A text is not a digest that Accord writes."""


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of some bytes; `str` gives its text in protocols."""

    algorithm: Literal["sha256", "blake3"]
    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != DIGEST_SIZE:
            raise DigestError(f"a digest of {len(self.value)} bytes instead of {DIGEST_SIZE}")

    def __str__(self) -> str:
        if self.algorithm == "sha256":
            return encode_base64url(self.value)
        return f"blake3:{self.value.hex()}"

    @property
    def short(self) -> str:
        """A short form for people, not for protocols."""
        return str(self)[:12] if self.algorithm == "sha256" else str(self)[:23]


def sha256(data: bytes) -> Digest:
    """The digest that identifies a contract."""
    return Digest("sha256", hashlib.sha256(data).digest())


def blake3(data: bytes) -> Digest:
    """The digest that identifies blobs, events and schemas of the community."""
    return Digest("blake3", _blake3(data).digest())


def parse_digest(text: str) -> Digest:
    """Parse the text of a digest; raises DigestError."""
    if _BLAKE3.fullmatch(text):
        return Digest("blake3", bytes.fromhex(text.removeprefix("blake3:")))
    try:
        return Digest("sha256", decode_base64url(text))
    except (Base64Error, DigestError):
        raise DigestError(
            f"{text[:80]!r} is not a digest",
            mend="expected 43 characters of base64url, or blake3: and 64 hexadecimal digits",
        ) from None


# Maps base64url to base64, and characters foreign to the one to those foreign to the other.
_STANDARD_BASE64: Final = bytes.maketrans(b"-_+/=", b"+/!!!")


class Base64Error(AccordError):
    """A text is not unpadded base64url in its one canonical spelling."""


def encode_base64url(data: bytes) -> str:
    """Write bytes as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_base64url(text: str) -> bytes:
    """Decode the output of `encode_base64url`; raises Base64Error for everything else."""
    raw = text.encode("ascii", "replace").translate(_STANDARD_BASE64)
    try:
        data = binascii.a2b_base64(raw + b"=" * (-len(raw) % 4), strict_mode=True)
    except binascii.Error:
        raise _base64_refused() from None
    # Only the last group can have trailing bits.
    tail = len(data) % 3
    if tail and encode_base64url(data[-tail:]) != text[-tail - 1 :]:
        raise _base64_refused()
    return data


def _base64_refused() -> Base64Error:
    return Base64Error(
        "not base64url in its canonical form", mend="leave out padding and white space"
    )


def pointer(*path: str | int) -> str:
    """Write member names and indices as a JSON Pointer."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
