"""Regular expressions: the regular part of ECMA-262, as a tree and as an automaton.

Supported are literals, classes, escapes, groups, alternation, repetition and the two anchors;
everything else (word boundaries, flags, Unicode properties) is treated as unknown. Patterns search,
so the automaton loops on any character before and after the match.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

Range: TypeAlias = tuple[int, int]
Ranges: TypeAlias = tuple[Range, ...]

LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
_DIGIT: Final[Ranges] = ((48, 57),)
_WORD: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Final[Ranges] = (
    (9, 13),
    (32, 32),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_CONTROLS: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_PUNCTUATION: Final = frozenset("^$\\.*+?()[]{}|/-")
_MAX_REPEAT: Final = 400
_MAX_NESTING: Final = 40


class UnsupportedError(Exception):
    """A part of the pattern is not supported; the text names it."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start or the end of the text."""

    side: Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other."""

    parts: "tuple[Pattern, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the parts."""

    parts: "tuple[Pattern, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part so many times; without end when `high` is None."""

    part: "Pattern"
    low: int
    high: int | None


Pattern: TypeAlias = Chars | Anchor | Sequence | Choice | Repeat


def union_ranges(ranges: list[Range]) -> Ranges:
    """The characters of all ranges, in order and without overlap."""
    joined: list[Range] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def complement_ranges(ranges: Ranges) -> Ranges:
    """Every other character, without surrogates."""
    rest: list[Range] = []
    start = 0
    for low, high in union_ranges([*ranges, _SURROGATES]):
        if start < low:
            rest.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        rest.append((start, LAST))
    return tuple(rest)


ANY_CHAR: Final[Ranges] = complement_ranges(())
_DOT: Final[Ranges] = complement_ranges(((10, 10),))
_CLASSES: Final = {
    "d": _DIGIT,
    "D": complement_ranges(_DIGIT),
    "w": _WORD,
    "W": complement_ranges(_WORD),
    "s": _SPACE,
    "S": complement_ranges(_SPACE),
}


def parse_pattern(pattern: str) -> Pattern:
    """The tree of a pattern; raises UnsupportedError."""
    reader = _PatternReader(pattern)
    tree = reader.choice(0)
    if reader.here():
        raise UnsupportedError(f"an unmatched {reader.here()!r}")
    return tree


class _PatternReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def here(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _next(self) -> str:
        character = self.here()
        if not character:
            raise UnsupportedError("an unfinished pattern")
        self._at += 1
        return character

    def choice(self, depth: int) -> Pattern:
        if depth > _MAX_NESTING:
            raise UnsupportedError("groups nested too deeply")
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, depth: int) -> Pattern:
        parts: list[Pattern] = []
        while self.here() and self.here() not in "|)":
            atom = self._atom(depth)
            parts.append(self._repeated(atom))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self, depth: int) -> Pattern:
        character = self._next()
        if character == "^":
            return Anchor("start")
        if character == "$":
            return Anchor("end")
        if character == ".":
            return Chars(_DOT)
        if character == "(":
            if self.here() == "?" and not self._take("?:"):
                raise UnsupportedError(f"a group `({self._text[self._at : self._at + 3]}`")
            inner = self.choice(depth + 1)
            if self._next() != ")":
                raise UnsupportedError("an unclosed group")
            return inner
        if character == "[":
            return Chars(self._class())
        if character == "\\":
            return Chars(self._escape())
        if character in "*+?{}]":
            raise UnsupportedError(f"a bare {character!r}")
        return Chars(((ord(character), ord(character)),))

    def _repeated(self, atom: Pattern) -> Pattern:
        bounds: tuple[int, int | None] | None = None
        if self._take("*"):
            bounds = (0, None)
        elif self._take("+"):
            bounds = (1, None)
        elif self._take("?"):
            bounds = (0, 1)
        elif self._take("{"):
            bounds = self._counts()
        if bounds is None:
            return atom
        self._take("?")  # laziness changes which match is found, not whether there is one
        if self.here() and self.here() in "*+?{":
            raise UnsupportedError("a repeated repetition")
        return Repeat(atom, *bounds)

    def _counts(self) -> tuple[int, int | None]:
        body, closed, _ = self._text[self._at :].partition("}")
        low, comma, high = body.partition(",")
        if not closed or not low.isascii() or not low.isdigit():
            raise UnsupportedError("a bare '{'")
        if high and not (high.isascii() and high.isdigit()):
            raise UnsupportedError("a bare '{'")
        self._at += len(body) + 1
        if max(len(low), len(high)) > 4 or int(high or low) > _MAX_REPEAT or int(low) > _MAX_REPEAT:
            raise UnsupportedError(f"more than {_MAX_REPEAT} repetitions")
        return int(low), (int(high) if high else None) if comma else int(low)

    def _escape(self) -> Ranges:
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _CONTROLS:
            code = _CONTROLS[character]
        elif character == "x":
            code = self._hexadecimal(2)
        elif character == "u":
            code = self._hexadecimal(4)
        elif character in _PUNCTUATION:
            code = ord(character)
        else:
            raise UnsupportedError(f"the escape `\\{character}`")
        return ((code, code),)

    def _hexadecimal(self, length: int) -> int:
        digits = self._text[self._at : self._at + length]
        if len(digits) < length or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise UnsupportedError(f"the escape before {digits!r}")
        self._at += length
        code = int(digits, 16)
        if _SURROGATES[0] <= code <= _SURROGATES[1]:
            raise UnsupportedError("half of a surrogate pair")
        return code

    def _class(self) -> Ranges:
        negated = self._take("^")
        ranges: list[Range] = []
        while not self._take("]"):
            low = self._member()
            if self.here() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._next()
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1]:
                    raise UnsupportedError("a class as the end of a range")
                if high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise UnsupportedError("a range out of order")
                ranges.append((low[0][0], high[0][0]))
            else:
                ranges.extend(low)
        if not ranges:
            raise UnsupportedError("an empty class")
        return (
            complement_ranges(union_ranges(ranges)) if negated else _scalars(union_ranges(ranges))
        )

    def _member(self) -> Ranges:
        character = self._next()
        if character == "\\":
            return self._escape()
        if character in "[&~":
            raise UnsupportedError(f"{character!r} inside a class")
        return ((ord(character), ord(character)),)


def _scalars(ranges: Ranges) -> Ranges:
    return complement_ranges(complement_ranges(ranges))


MAX_STATES: Final = 1500
"""States of one automaton."""

States: TypeAlias = frozenset[int]


class Automaton:
    """A nondeterministic automaton over the character sets that it distinguishes (`alphabet`)."""

    def __init__(self, tree: Pattern) -> None:
        self._free: list[list[int]] = []
        self._at_start: list[list[int]] = []
        self._at_end: list[list[int]] = []
        self._reads: list[tuple[Ranges, int] | None] = []
        begin = self._state()
        self._final = self._state()
        self._reads[begin] = (ANY_CHAR, begin)
        self._reads[self._final] = (ANY_CHAR, self._final)
        inner = self._build(tree, self._final)
        self._free[begin].append(inner)
        self.alphabet = frozenset(read[0] for read in self._reads if read is not None)
        # The origin is left with the first character, so it tells the empty text from all others.
        self._origin = self._state()
        self.initial = self._close(frozenset((begin, self._origin)), self._at_start)

    def step(self, states: States, sets: frozenset[Ranges]) -> States:
        """The states after a character that is in exactly these sets of the alphabet."""
        reads = (self._reads[state] for state in states)
        reached = frozenset(read[1] for read in reads if read is not None and read[0] in sets)
        return self._close(reached)

    def accepts(self, states: States) -> bool:
        """Whether a text that ends here contains a match."""
        anchors = [self._at_end] + [self._at_start] * (self._origin in states)
        return self._final in self._close(states, *anchors)

    def _state(self) -> int:
        if len(self._free) >= MAX_STATES:
            raise UnsupportedError(f"an automaton of more than {MAX_STATES} states")
        self._free.append([])
        self._at_start.append([])
        self._at_end.append([])
        self._reads.append(None)
        return len(self._free) - 1

    def _build(self, tree: Pattern, after: int) -> int:
        match tree:
            case Chars(ranges):
                state = self._state()
                self._reads[state] = (ranges, after)
                return state
            case Anchor(side):
                state = self._state()
                (self._at_start if side == "start" else self._at_end)[state].append(after)
                return state
            case Sequence(parts):
                for part in reversed(parts):
                    after = self._build(part, after)
                return after
            case Choice(parts):
                state = self._state()
                self._free[state].extend([self._build(part, after) for part in parts])
                return state
            case Repeat(part, low, high):
                if high is None:
                    loop = self._state()
                    self._free[loop].extend([self._build(part, loop), after])
                    after = loop
                else:
                    end = after
                    for _ in range(high - low):
                        state = self._state()
                        self._free[state].extend([self._build(part, after), end])
                        after = state
                for _ in range(low):
                    after = self._build(part, after)
                return after

    def _close(self, states: States, *extra: list[list[int]]) -> States:
        reached = set(states)
        todo = list(states)
        while todo:
            state = todo.pop()
            for edges in (self._free, *extra):
                for target in edges[state]:
                    if target not in reached:
                        reached.add(target)
                        todo.append(target)
        # Once there is a match, there is one whatever follows.
        return frozenset((self._final,)) if self._final in reached else frozenset(reached)


@lru_cache(maxsize=512)
def automaton(pattern: str) -> Automaton:
    """The automaton of a pattern; raises UnsupportedError, also if it is too large."""
    return Automaton(parse_pattern(pattern))
