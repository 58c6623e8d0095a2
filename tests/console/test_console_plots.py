"""The plots of Home: what they show, and what they leave open."""

from accord.console.plots import plot, tiles
from accord.telemetry.figures import Figure

NOW = 1_000_000.0
CALLS = Figure("community", "calls answered", 4, "/s")


def test_a_tile_has_the_latest_value_and_a_plot_of_the_hour_and_of_the_day() -> None:
    samples = [
        (NOW - 60 * minute, (Figure("community", "calls answered", max(0, 60 - minute), "/s"),))
        for minute in range(80, 0, -1)
    ]
    [tile] = tiles(samples, NOW)
    assert tile.value == "59/s"
    assert [each.span for each in tile.plots] == ["hour", "day"]
    assert tile.plots[0].text == "calls answered, last hour: 0/s to 59/s"


def test_in_the_first_hour_the_one_plot_is_filled_by_what_there_is() -> None:
    samples = [(NOW - 60 * minute, (CALLS,)) for minute in range(12, 0, -1)]
    [tile] = tiles(samples, NOW)
    [drawn] = tile.plots
    assert drawn.span == "12 minutes"
    [line] = drawn.lines
    first, *_, last = [float(each.split(",")[0]) for each in line.split()]
    assert first == 0.0
    assert last == 110.0


def test_a_sample_that_came_late_makes_no_gap() -> None:
    drawn = plot([(NOW - 240, 1.0), (NOW - 100, 1.0), (NOW - 60, 1.0)], CALLS, "hour", 3600, NOW)
    assert len(drawn.lines) == len(drawn.areas) == 1


def test_the_line_goes_up_where_the_figure_does() -> None:
    drawn = plot([(NOW - 1800, 1.0), (NOW - 1740, 9.0)], CALLS, "hour", 3600, NOW)
    [(x1, y1), (x2, y2)] = [tuple(map(float, each.split(","))) for each in drawn.lines[0].split()]
    assert x2 > x1
    assert y2 < y1


def test_time_without_samples_is_a_gap_and_not_a_zero() -> None:
    drawn = plot([(NOW - 3500, 1.0), (NOW - 100, 1.0)], CALLS, "hour", 3600, NOW)
    assert len(drawn.lines) == 2


def test_what_was_before_the_span_is_not_drawn() -> None:
    drawn = plot([(NOW - 7200, 1.0)], CALLS, "hour", 3600, NOW)
    assert drawn.lines == ()
    assert drawn.text == "calls answered, last hour: nothing was recorded"


def test_a_figure_that_never_changes_is_a_flat_line_at_the_bottom() -> None:
    drawn = plot([(NOW - 120, 0.0), (NOW - 60, 0.0)], CALLS, "hour", 3600, NOW)
    heights = {each.split(",")[1] for each in drawn.lines[0].split()}
    assert heights == {"26.0"}


def test_without_samples_there_are_no_tiles() -> None:
    assert tiles((), NOW) == []


def test_a_figure_that_was_zero_all_day_is_quiet() -> None:
    quiet = Figure("relay", "dead letters", 0.0, "")
    first, second = tiles([(NOW - 60, (CALLS, quiet)), (NOW, (CALLS, quiet))], NOW)
    assert not first.is_quiet
    assert second.is_quiet
