"""Charts of query results."""

import pytest

from accord.console import ConsoleError
from accord.console.charts import chart


def test_a_chart_stands_on_its_ground_and_leaves_nulls_out() -> None:
    drawn = chart("bar", "day", "calls", [("a", 2), ("b", None), ("c", -1), (None, 0.5)])
    up, down, flat = drawn.marks
    assert up.top + up.height == pytest.approx(drawn.ground, abs=0.2)
    assert down.top == drawn.ground
    assert down.y > drawn.ground > flat.y > up.y
    assert flat.label == "null"
    assert [each.text for each in drawn.rows] == ["-1", "0", "2"]
    assert chart("line", "x", "y", []).marks == ()
    one = chart("line", "x", "y", [("a", 0)])
    assert one.line == f"{one.marks[0].x},{one.marks[0].y}"
    for value in ("high", True, float("nan"), float("inf"), [1]):
        with pytest.raises(ConsoleError, match="other than numbers"):
            chart("bar", "x", "y", [("a", value)])
