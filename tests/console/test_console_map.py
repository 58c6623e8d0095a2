"""The map of a community: where stations stand, and what is known of each."""

from typing import Any

from accord.console.map import community_map
from accord.console.templates import MemberNames

OWN = "ed25519:own"


def peer(node_id: str, **changed: Any) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "capabilities": ["llm.chat@1.0", "file.read@1.0"],
        "endpoints": ["http://127.0.0.1:1"],
        "load": {"cpu": 0.42},
        "seen_seconds_ago": 1,
        "failures": 0,
        **changed,
    }


def drawn(*peers: dict[str, Any], unmet: int = 0) -> Any:
    ids = [OWN, *(each["node_id"] for each in peers), *(f"ed25519:u{n}" for n in range(unmet))]
    names = MemberNames({each: each.removeprefix("ed25519:") for each in ids})
    return community_map([{"node_id": each} for each in ids], peers, OWN, ["chat.send"], names)


def test_a_station_that_is_reached_shows_its_load_and_what_it_offers() -> None:
    own, ben = drawn(peer("ed25519:ben")).stations
    assert (own.way, own.offers) == ("this station", ("chat",))
    assert (ben.way, ben.load, ben.offers) == ("reached directly", 42, ("models", "files"))


def test_of_a_station_that_is_away_no_load_is_claimed() -> None:
    _, ben = drawn(peer("ed25519:ben", failures=3)).stations
    assert (ben.way, ben.load) == ("away", None)


def test_what_a_peer_says_of_its_load_is_bounded() -> None:
    loads = [9.5, -1, float("nan"), "much", True]
    found = drawn(*(peer(f"ed25519:{n}", load={"cpu": load}) for n, load in enumerate(loads)))
    assert [each.load for each in found.stations[1:]] == [100, 0, None, None, None]


def test_nobody_moves_when_somebody_goes_away() -> None:
    before = drawn(peer("ed25519:a"), peer("ed25519:b"))
    after = drawn(peer("ed25519:a", failures=1, seen_seconds_ago=900), peer("ed25519:b"))
    assert [(each.name, each.x, each.y) for each in before.stations] == [
        (each.name, each.x, each.y) for each in after.stations
    ]


def test_of_a_large_community_those_that_were_met_last_are_drawn_and_the_others_counted() -> None:
    found = drawn(peer("ed25519:ben"), unmet=40)
    assert any(each.name == "ben" for each in found.stations)
    assert len(found.stations) + found.more == 42
    spots = {(each.x, each.y) for each in found.stations}
    assert len(spots) == len(found.stations)
    assert all(0 < x < found.width and 0 < y < found.height - 60 for x, y in spots)
