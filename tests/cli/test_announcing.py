"""The first words of a station, and what commands say of one whose node is down."""

from typing import Any

import pytest

from accord.cli.node import node_down
from accord.cli.station import failed_planes_json, startup_text
from accord.station import PlaneReport, PlaneState
from accord.station.plane import PartReport

TAKEN = "127.0.0.1:7080: port 7080 is in use by another program; choose another with --bus-port"
WELL = PlaneReport("relay", PlaneState.READY, "it failed once", 1)
DOWN = PlaneReport("community", PlaneState.BACKING_OFF, TAKEN, 3)
SLOW = PlaneReport("authority", PlaneState.STARTING, "", 0)


def test_a_station_whose_planes_are_ready_is_up_without_further_words() -> None:
    told = startup_text("The station 'a'", "", [WELL], facts=[("address", "x"), ("home", "/h")])
    assert told == "The station 'a' is up.\n  address  x\n  home     /h"
    assert failed_planes_json([WELL]) == []


def test_each_plane_that_is_not_up_is_named_with_its_reason_and_its_remedy() -> None:
    told = startup_text(
        "The connector", " at http://x", [WELL, DOWN, SLOW], home=" --home ./a"
    ).splitlines()
    assert told == [
        "The connector is up at http://x, but not all of it.",
        "Not up:",
        f"  community: {TAKEN}",
        "Planes that are down are restarted; `accord status --home ./a` shows their state.",
        "Still starting: authority.",
    ]
    assert failed_planes_json([WELL, DOWN]) == [
        {"name": "community", "state": "backing off", "reason": TAKEN}
    ]


def test_a_plane_that_takes_its_time_is_not_down() -> None:
    told = startup_text("The station 'a'", "", [WELL, SLOW])
    assert told == "The station 'a' is up.\nStill starting: authority."
    assert failed_planes_json([SLOW]) == []


AGAIN = PlaneReport("relay", PlaneState.STARTING, "relay.db: the store's file is empty", 2)
LOST = PartReport("community ABCD", "lost", "its log is not here", is_well=False)


def test_a_plane_that_failed_and_is_just_tried_again_is_not_called_up() -> None:
    told = startup_text("The station 'a'", "", [DOWN, AGAIN]).splitlines()
    assert told[0] == "The station 'a' is up, but not all of it."
    assert "  relay: relay.db: the store's file is empty" in told
    assert not any(line.startswith("Still starting") for line in told)
    assert [each["name"] for each in failed_planes_json([DOWN, AGAIN])] == ["community", "relay"]


def test_a_part_with_a_trouble_that_lasts_is_told() -> None:
    well = PlaneReport("community", PlaneState.READY, "", 0, (LOST,))
    told = startup_text("The station 'a'", "", [well]).splitlines()
    assert told == [
        "The station 'a' is up, but not all of it.",
        "In trouble:",
        "  community ABCD: its log is not here",
    ]


def plane(name: str = "community", *, well: bool = False, restarts: int = 1) -> dict[str, Any]:
    return {"name": name, "well": well, "restarts": restarts, "reason": TAKEN}


def test_a_node_that_is_down_is_told_with_the_reason_of_its_plane() -> None:
    told = node_down([plane("relay", well=True), plane()], is_late=False)
    assert str(told) == f"the station runs, but its node is down: {TAKEN}"


@pytest.mark.parametrize(
    ("planes", "is_late"),
    [
        ([plane(well=True)], True),
        ([plane(restarts=0)], False),
        ([plane("relay")], True),
        ([], True),
    ],
)
def test_a_node_that_may_come_up_in_a_moment_is_waited_for(
    planes: list[dict[str, Any]], is_late: bool
) -> None:
    assert node_down(planes, is_late=is_late) is None


def test_a_node_that_failed_once_is_down_when_waiting_is_over() -> None:
    assert node_down([plane(restarts=0)], is_late=True) is not None
