"""Solves conjunctions about a string: lengths, patterns and excluded texts.

The patterns run in parallel as one deterministic automaton over character classes; the shortest
accepted texts are the candidates. Results are cached, but a cached result costs as many steps as
computing it, so that no answer depends on earlier questions.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice, pairwise, product
from typing import Final, TypeAlias

from accord.contracts.containment.budget import EMPTY, MAX_LENGTH, UNKNOWN, Budget, Supply
from accord.contracts.containment.formulas import Literal, Matches, Size, lower_end
from accord.contracts.containment.patterns import (
    ANY_CHAR,
    Ranges,
    States,
    UnsupportedError,
    automaton,
)

MAX_EXPLORED: Final = 3000
"""States of the common automaton that are visited."""

MAX_KNOWN: Final = 256
"""Questions whose answers are kept."""

_PLAIN: Final = [*map(chr, range(97, 123)), *map(chr, range(48, 58)), *map(chr, range(65, 91))]
_LETTERS: Final = [*_PLAIN, *(chr(code) for code in range(0xC0, 0x0240))]

_Node: TypeAlias = tuple[tuple[States, ...], int]


@dataclass(frozen=True, slots=True)
class _Letters:
    """A class of characters: the sets that contain them, and some examples."""

    sets: frozenset[Ranges]
    examples: tuple[str, ...]


def supply(
    literals: Iterable[Literal], excluded: frozenset[str], want: int, budget: Budget
) -> Supply:
    """Strings that keep every literal and are not excluded."""
    low, high = 0, None
    patterns: list[tuple[str, bool]] = []
    exact = True
    for literal in literals:
        if isinstance(literal, Size):
            low = max(low, literal.low)
            high = lower_end(high, literal.high)
        elif isinstance(literal, Matches):
            try:
                automaton(literal.pattern)
            except UnsupportedError as error:
                budget.doubt(f"the pattern {literal.pattern[:60]!r} has {error}")
                exact = False
            else:
                patterns.append((literal.pattern, literal.holds))
    if high is not None and high < low:
        return EMPTY
    if low > MAX_LENGTH:
        budget.doubt(f"strings of more than {MAX_LENGTH} characters")
        return UNKNOWN
    if patterns:
        found = _accepted(_Language(tuple(patterns), low, high), excluded, want, budget)
    else:
        words = _words(low, high)
        fresh = (word for word in words if word not in excluded)
        found = Supply(tuple(islice(fresh, want)), complete=False)
        if high == 0:
            found = Supply(found.values, complete=True)
    return found if exact or found.is_empty else Supply(found.values, complete=False)


@dataclass(frozen=True, slots=True)
class _Language:
    """The texts between two lengths that each pattern matches, or does not match."""

    patterns: tuple[tuple[str, bool], ...]
    low: int
    high: int | None


_known: dict[tuple[_Language, int], tuple[Supply, int]] = {}


def clear_string_cache() -> None:
    """Empty the cache; answers do not change."""
    _known.clear()


def _accepted(language: _Language, excluded: frozenset[str], want: int, budget: Budget) -> Supply:
    known = None if excluded else _known.get((language, want))
    if known is not None:
        found, steps = known
        budget.spend(steps, "patterns")
        return found
    before = budget.left
    found = _Product(language, budget).words(want, excluded)
    if not excluded and found is not UNKNOWN:  # that leaves a doubt as well
        if len(_known) >= MAX_KNOWN:
            clear_string_cache()
        _known[language, want] = found, before - budget.left
    return found


def _words(low: int, high: int | None) -> Iterator[str]:
    lengths = count(low) if high is None else range(low, min(high, low + 4) + 1)
    for length in lengths:
        varying = min(length, 2)
        stem = "a" * (length - varying)
        for end in product(_LETTERS, repeat=varying):
            yield stem + "".join(end)


class _Product:
    """The product of automata, each to accept or to reject, with the length so far."""

    def __init__(self, language: _Language, budget: Budget) -> None:
        self._machines = [(automaton(pattern), holds) for pattern, holds in language.patterns]
        self._low = language.low
        self._high = language.high
        self._budget = budget
        self._letters = _tell_apart([machine.alphabet for machine, _ in self._machines])
        self._cost = 1 + len(self._letters) * len(self._machines) // 2
        self._edges: dict[_Node, list[tuple[_Letters, _Node]]] = {}

    def words(self, want: int, excluded: frozenset[str]) -> Supply:
        """Accepted texts, shortest first."""
        start: _Node = (tuple(machine.initial for machine, _ in self._machines), 0)
        if not self._explore(start):
            self._budget.doubt(f"patterns that need more than {MAX_EXPLORED} states together")
            return UNKNOWN
        distance = self._distances()
        if not self._finishes(distance, start, 0):
            return EMPTY
        # Every prefix that is kept can be finished, so this many of them are enough, and those
        # that are nearest to it come first.
        width = want + len(excluded)
        found: list[str] = []
        prefixes: list[tuple[str, _Node]] = [("", start)]
        cut = len(_LETTERS) < width
        for length in count():
            self._budget.spend(1 + len(prefixes) // 4, "patterns")
            texts = (word for word, node in prefixes if distance[node] == 0)
            found.extend(word for word in texts if word not in excluded)
            if len(found) >= want:
                return Supply(tuple(found[:want]), complete=False)
            if not prefixes or length == self._high:
                break
            longer = [
                (word + character, node)
                for word, origin in prefixes
                for letters, node in self._edges[origin]
                if self._finishes(distance, node, length + 1)
                for character in letters.examples[:width]
            ]
            cut = cut or len(longer) > width
            prefixes = sorted(longer, key=lambda prefix: distance[prefix[1]])[:width]
        return Supply(tuple(found), complete=not cut)

    def _explore(self, start: _Node) -> bool:
        """Find all reachable states; False if there are too many."""
        layer = {start}
        # Beyond the longest length nothing counts; the length is part of a state below `low` only.
        for length in count():
            if not layer or (self._high is not None and length > self._high):
                return True
            following: set[_Node] = set()
            for node in layer:
                if node not in self._edges:
                    states = sum(map(len, node[0]))
                    self._budget.spend(self._cost + states * len(self._letters) // 24, "patterns")
                    self._edges[node] = [(x, self._step(node, x)) for x in self._letters]
                    following.update(target for _, target in self._edges[node])
            if len(self._edges) > MAX_EXPLORED:
                return False
            layer = {node for node in following if node not in self._edges}
        return True

    def _step(self, node: _Node, letters: _Letters) -> _Node:
        states, length = node
        machines = zip(self._machines, states, strict=True)
        after = tuple(machine.step(state, letters.sets) for (machine, _), state in machines)
        return after, min(length + 1, self._low)

    def _accepts(self, node: _Node) -> bool:
        states, length = node
        return length >= self._low and all(
            machine.accepts(state) == wanted
            for (machine, wanted), state in zip(self._machines, states, strict=True)
        )

    def _finishes(self, distance: dict[_Node, int], node: _Node, length: int) -> bool:
        """Whether a text that leads here can be completed to an accepted one."""
        rest = distance.get(node)
        return rest is not None and (self._high is None or length + rest <= self._high)

    def _distances(self) -> dict[_Node, int]:
        """The least number of characters until a text is accepted, by state."""
        sources: dict[_Node, list[_Node]] = {}
        for node, edges in self._edges.items():
            for _, target in edges:
                sources.setdefault(target, []).append(node)
        todo = deque(node for node in self._edges.keys() | sources.keys() if self._accepts(node))
        distance = dict.fromkeys(todo, 0)
        while todo:
            target = todo.popleft()
            for node in sources.get(target, ()):
                if node not in distance:
                    distance[node] = distance[target] + 1
                    todo.append(node)
        return distance


def _tell_apart(alphabets: list[frozenset[Ranges]]) -> list[_Letters]:
    """The character classes that the sets distinguish, with readable examples."""
    sets = frozenset().union(*alphabets, (ANY_CHAR,))
    cuts = sorted({end for ranges in sets for low, high in ranges for end in (low, high + 1)})
    pieces: dict[frozenset[Ranges], list[tuple[int, int]]] = {}
    for low, after in pairwise(cuts):
        within = frozenset(r for r in sets if any(a <= low <= b for a, b in r))
        if within:
            pieces.setdefault(within, []).append((low, after - 1))
    return [_Letters(within, _examples(ranges)) for within, ranges in pieces.items()]


def _examples(ranges: list[tuple[int, int]]) -> tuple[str, ...]:
    ascii_codes = {code for low, high in ranges for code in range(low, min(high, 127) + 1)}
    chosen = [character for character in _PLAIN if ord(character) in ascii_codes]
    every = (chr(code) for low, high in ranges for code in range(low, high + 1))
    return tuple(dict.fromkeys([*chosen, *islice(every, len(_LETTERS))]))
