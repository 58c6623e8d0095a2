"""Figures that are computed from two readings of the metrics."""

import pytest

from accord.telemetry.figures import Figure, Reading, Samples, figures, format_figure


def reading(at: float, **values: float) -> Reading:
    return Reading(at, {name: {(("x", "y"),): value} for name, value in values.items()})


def named(shown: list[Figure], name: str) -> float:
    [found] = [each.value for each in shown if each.name == name]
    return found


def test_a_rate_is_what_a_counter_grew_by_in_a_second() -> None:
    shown = figures(
        reading(10, accord_relay_events_total=100), reading(14, accord_relay_events_total=120)
    )
    assert named(shown, "messages received") == 5


def test_a_counter_that_was_restarted_counts_from_zero() -> None:
    shown = figures(
        reading(10, accord_relay_events_total=100), reading(14, accord_relay_events_total=8)
    )
    assert named(shown, "messages received") == 2


def test_what_the_station_does_not_show_is_left_out() -> None:
    shown = figures(reading(0), reading(1, accord_bus_in_hand=3))
    assert [(each.name, each.value) for each in shown] == [("calls in progress", 3)]


def test_labels_choose_the_series_that_are_added() -> None:
    tokens: dict[tuple[tuple[str, str], ...], float] = {
        (("direction", "out"), ("model", "a")): 4.0,
        (("direction", "out"), ("model", "b")): 6.0,
        (("direction", "in"), ("model", "a")): 90.0,
    }
    samples: Samples = {"accord_llm_tokens_total": tokens}
    shown = figures(Reading(0, {}), Reading(2, samples))
    assert named(shown, "tokens generated") == 5


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "/s", "0/s"),
        (2.25, "/s", "2.2/s"),
        (12_345.6, "", "12,346"),
        (512, "bytes", "512 B"),
        (5 * 1024**2, "bytes", "5.0 MiB"),
        (3000 * 1024**3, "bytes", "3000.0 GiB"),
        (0.256, "cores", "26 %"),
    ],
)
def test_a_figure_is_short(value: float, unit: str, text: str) -> None:
    assert format_figure(Figure("p", "n", value, unit)) == text
