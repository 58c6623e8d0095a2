"""Why a text is not strict JSON: the first offence, with its place.

This runs only when a text was refused, so it is written to be read. It keeps its own stack and
tokenises in linear time, so no input can make it recurse or backtrack.
"""

import re
from typing import Final, NoReturn

import orjson

from accord.kernel.canonical.limits import MAX_DEPTH, MAX_INTEGER, CanonicalError
from accord.kernel.canonical.numbers import spell

_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_STRING: Final = re.compile(
    r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"', re.ASCII
)
_LITERALS: Final = ("true", "false", "null")


def explain(data: bytes) -> NoReturn:
    """Raise the error of the first offence in a text that was refused.

    Raises:
        CanonicalError: Always.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _error("bytes that are not UTF-8", data, error.start) from None
    Scanner(text).scan()
    raise CanonicalError("not strict JSON")


def survives_double(literal: str) -> bool:
    """Whether an integer literal says exactly what the double that it is read as says."""
    if len(literal) > 22:  # the longest integer that canonical JSON writes without an exponent
        return False
    number = int(literal)
    return abs(number) <= MAX_INTEGER or spell(float(number)) == literal


class Scanner:
    """Walks over one text, token by token, with a stack of the containers that are open."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        # One entry per open container: the member names of an object so far, None for an array.
        self._open: list[set[str] | None] = []

    def scan(self) -> None:
        """Read the whole text; return when nothing is wrong with it."""
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
                f"the member {name[:80]!r} stands twice", at=start, mend="keep one of the two"
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
        raise _error(what, self._text.encode(errors="surrogatepass"), len(before), mend=mend)


def _error(what: str, data: bytes, position: int, *, mend: str | None = None) -> CanonicalError:
    line = data.count(b"\n", 0, position) + 1
    column = position - (data.rfind(b"\n", 0, position) + 1) + 1
    return CanonicalError(
        what, position=position, where=f"byte {position} (line {line}, column {column})", mend=mend
    )
