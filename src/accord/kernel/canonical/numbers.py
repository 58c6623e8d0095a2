"""The spelling of a double in ECMAScript, which RFC 8785 prescribes."""

import math

from accord.kernel.canonical.limits import CanonicalError


def spell(number: float) -> str:
    """Write a double as ECMAScript's Number::toString does.

    Python's `repr` finds the same shortest digits; only their layout differs.

    Raises:
        CanonicalError: The number is infinite or not a number.
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
