"""A pattern as a nondeterministic automaton, run on sets of states.

A `pattern` is searched for, so the automaton loops on any character before and after the match.
Sets of states are made as they are needed; whoever explores them keeps count.
"""

from functools import lru_cache
from typing import Final, TypeAlias

from accord.contracts.containment.syntax import (
    ANY_CHAR,
    Anchor,
    Chars,
    Choice,
    Pattern,
    Ranges,
    Repeat,
    Sequence,
    UnsupportedError,
    parse,
)

MAX_STATES: Final = 1500
"""States of one automaton."""

States: TypeAlias = frozenset[int]


class Automaton:
    """Reads a text character by character.

    Attributes:
        alphabet: The sets of characters that it tells apart.
        initial: The states before the first character.
    """

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
        """The states after a character that lies in exactly these sets of the alphabet."""
        reads = (self._reads[state] for state in states)
        reached = frozenset(read[1] for read in reads if read is not None and read[0] in sets)
        return self._close(reached)

    def accepts(self, states: States) -> bool:
        """Whether a text that ends here holds a match."""
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
    """The automaton of a pattern.

    Raises:
        UnsupportedError: The pattern is not read here, or its automaton is too large.
    """
    return Automaton(parse(pattern))
