"""Solves conjunctions about a number, in exact rational arithmetic.

Candidates are doubles; a set that contains only other numbers is not called empty.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd, lcm
from typing import Final

from accord.contracts.containment.budget import EMPTY, UNKNOWN, Supply
from accord.contracts.containment.formulas import Bound, Literal, Multiple
from accord.contracts.containment.nodes import rational
from accord.kernel.canonical import MAX_INTEGER

MAX_SCAN: Final = 2000
"""How many numbers are looked at, beyond those that are excluded one by one."""

_MAX_DIGITS: Final = 700
"""Binary digits of a numerator or denominator that is still computed with."""


@dataclass(slots=True)
class _Interval:
    low: Fraction | None = None
    high: Fraction | None = None
    low_strict: bool = False
    high_strict: bool = False

    def narrow(self, bound: Bound) -> None:
        if bound.lower:
            if self.low is None or (bound.limit, bound.strict) > (self.low, self.low_strict):
                self.low, self.low_strict = bound.limit, bound.strict
        elif self.high is None or (-bound.limit, bound.strict) > (-self.high, self.high_strict):
            self.high, self.high_strict = bound.limit, bound.strict

    @property
    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.is_point and (self.low_strict or self.high_strict))

    @property
    def is_point(self) -> bool:
        return self.low is not None and self.low == self.high

    def holds(self, number: Fraction) -> bool:
        if self.low is not None and (number, 0) < (self.low, self.low_strict):
            return False
        return self.high is None or (-number, 0) >= (-self.high, self.high_strict)


def supply(literals: Iterable[Literal], excluded: frozenset[Fraction], want: int) -> Supply:
    """Numbers that keep every literal and are not excluded."""
    interval = _Interval()
    unit: Fraction | None = None
    avoided: list[Fraction] = []
    for literal in literals:
        if isinstance(literal, Bound):
            interval.narrow(literal)
        elif isinstance(literal, Multiple) and literal.holds:
            unit = literal.of if unit is None else _common_multiple(unit, literal.of)
        elif isinstance(literal, Multiple):
            avoided.append(literal.of)
    if interval.is_empty or any(_divides(one, unit) for one in avoided):
        return EMPTY
    if unit is not None and unit.numerator.bit_length() > _MAX_DIGITS:
        return UNKNOWN
    finite = interval.is_point
    if unit is None:
        numbers = iter([interval.low]) if finite and interval.low is not None else _dense(interval)
    else:
        count = _multiples_within(interval, unit)
        finite = count is not None and count <= MAX_SCAN + len(excluded)
        numbers = _multiples(interval, unit)
    found: list[int | float] = []
    for scanned, number in enumerate(numbers):
        if len(found) == want or scanned > MAX_SCAN + len(excluded):
            return Supply(tuple(found), complete=False)
        if number in excluded or not interval.holds(number):
            continue
        if any(_divides(one, number) for one in avoided):
            continue
        value = _spelled(number)
        if value is None:
            finite = False
        else:
            found.append(value)
    return Supply(tuple(found), complete=finite)


def _common_multiple(one: Fraction, other: Fraction) -> Fraction:
    return Fraction(lcm(one.numerator, other.numerator), gcd(one.denominator, other.denominator))


def _divides(one: Fraction, number: Fraction | None) -> bool:
    return number is not None and (number / one).denominator == 1


def _spelled(number: Fraction) -> int | float | None:
    """The number as a JSON value, if a double represents it exactly."""
    if number.denominator == 1 and abs(number.numerator) <= MAX_INTEGER:
        return number.numerator
    try:
        value = float(number)
    except OverflowError:
        return None
    return value if rational(value) == number else None


def _multiples_within(interval: _Interval, unit: Fraction) -> int | None:
    if interval.low is None or interval.high is None:
        return None
    return floor(interval.high / unit) - ceil(interval.low / unit) + 1


def _multiples(interval: _Interval, unit: Fraction) -> Iterator[Fraction]:
    """Multiples of the unit in the interval, from its end or from zero outwards."""
    if interval.low is not None:
        factor = ceil(interval.low / unit)
        step = 1
    elif interval.high is not None:
        factor = floor(interval.high / unit)
        step = -1
    else:
        factor = 0
        step = 0
    yield factor * unit
    while True:
        factor = factor + step if step else (1 - factor if factor <= 0 else -factor)
        number = factor * unit
        if interval.high is not None and number > interval.high:
            return
        yield number


def _dense(interval: _Interval) -> Iterator[Fraction]:
    """Simple numbers in and around the interval: ends, integers, then finer fractions."""
    ends = [end for end in (interval.low, interval.high) if end is not None]
    yield from ends
    yield from (Fraction(n) for n in (0, 1, -1))
    low = interval.low if interval.low is not None else (min([*ends, Fraction(0)]) - 1000)
    high = interval.high if interval.high is not None else (max([*ends, Fraction(0)]) + 1000)
    for end in ends:
        yield from (Fraction(floor(end) + n) for n in (0, 1, -1, 2, -2))
    # Decimal fractions are what doubles spell; a prime number of parts avoids most multiples.
    for digits in range(1, 17):
        grain = Fraction(1, 10**digits)
        for parts in (2, 3, 7, 13, 31):
            point = low + (high - low) / parts
            yield floor(point / grain) * grain
            yield (floor(point / grain) + 1) * grain
    for exponent in (3, 6, 12, 18, 30, 60, 120, 200, 290):
        yield low - 10**exponent
        yield Fraction(-(10**exponent))
        yield high + 10**exponent
        yield Fraction(10**exponent)
    middle = (low + high) / 2
    try:
        double = float(middle)
    except OverflowError:
        return
    yield rational(double)
    if double:
        yield rational(double * (1 + 2**-50))
        yield rational(double * (1 - 2**-50))
