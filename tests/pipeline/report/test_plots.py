"""Charts of little: a single day, a single value."""

import re
from datetime import date

import pytest

from accord.pipeline.report import Days, draw

pytestmark = pytest.mark.slow

DAY = date(2026, 11, 16)


def widest(svg: str, colour: str) -> float:
    """How many points the widest shape of a colour measures."""
    drawn = re.findall(rf'<path d="([^"]+)"[^>]*style="fill: {colour}"', svg)
    places = [[float(x) for x in re.findall(r"[ML] ([\d.]+) ", path)] for path in drawn]
    return max(max(each) - min(each) for each in places)


def test_the_bar_of_a_single_day_is_a_bar() -> None:
    svg = draw(Days([DAY], {"accepted": [5], "refused": [3]}, "records"))
    assert widest(svg, "#33658a") > 60
    assert "2026-11-16" in svg


def test_marks_within_one_power_of_ten_are_plain_numbers() -> None:
    svg = draw(Days([DAY], {"a": [5], "b": [3]}, "ms", stacked=False, is_log=True))
    assert "mathdefault" not in svg
    assert ">4<" in svg


def test_marks_over_many_powers_of_ten_are_those_powers_alone() -> None:
    svg = draw(Days([DAY], {"a": [2], "b": [90_000]}, "ms", stacked=False, is_log=True))
    assert ">10,000<" in svg
    assert ">20,000<" not in svg
