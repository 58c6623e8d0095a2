"""The judge of a long run finds a leak in the noise, and no leak where there is only noise."""

from dataclasses import replace
from random import Random

import pytest
from tests.fakes.leaks import COUNTED, Sample, growth, leaks

MB = 1_000_000
REST = Sample(0, 300 * MB, 60, 20, 1, 90)


def run(chance: Random, *, leak_per_second: float = 0, steps: int = 180) -> list[Sample]:
    """Three minutes of a process that takes and gives back, and may also only take."""
    return [
        replace(
            REST,
            at=float(at),
            memory=int(300 * MB + leak_per_second * at + chance.uniform(-6, 6) * MB),
        )
        for at in range(steps)
    ]


@pytest.mark.parametrize("number", range(5))
def test_noise_alone_is_no_leak(number: int) -> None:
    samples = run(Random(number))
    assert list(leaks(samples, REST, replace(REST, at=200.0), allowed_bytes=12 * MB)) == []


@pytest.mark.parametrize("number", range(5))
def test_a_few_kilobytes_with_each_of_many_calls_are_found(number: int) -> None:
    # Twenty calls in a second that keep five kilobytes each.
    samples = run(Random(number), leak_per_second=20 * 5000)
    (found,) = leaks(samples, REST, REST, allowed_bytes=12 * MB)
    assert found.startswith("memory grew by 1")
    assert found.endswith("MB in 3.0 minutes")


def test_a_step_that_stays_is_no_slope() -> None:
    first, second = run(Random(1), steps=20), run(Random(2), steps=160)
    late = [replace(each, at=each.at + 20, memory=each.memory + 20 * MB) for each in second]
    assert growth([*first, *late]) < 12 * MB


@pytest.mark.parametrize("name", COUNTED)
def test_whatever_is_not_given_back_is_named(name: str) -> None:
    more = getattr(REST, name) + 1
    (found,) = leaks([], REST, replace(REST, **{name: more}), allowed_bytes=0)
    assert found == f"there are {more} {name} where there were {more - 1}"
    assert list(leaks([], REST, replace(REST, **{name: more - 2}), allowed_bytes=0)) == []
