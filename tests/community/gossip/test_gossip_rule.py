"""The choice of the peers of a round."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accord.community.rules.gossip import (
    MAX_TRIED,
    AddressRecord,
    GossipLimits,
    GossipPeer,
    GossipReason,
    choose_all,
    choose_peers,
    order_addresses,
)

NOW = 1000.0


def live(name: str, met: float = NOW - 1, **more: bool) -> GossipPeer:
    return GossipPeer(name, (AddressRecord(name, tried=met, answered=met),), met=met, **more)


def untried(name: str) -> GossipPeer:
    return GossipPeer(name, (AddressRecord(name),))


def silent(
    name: str, failures: int = 3, pause: float = -1, heard: float | None = None
) -> GossipPeer:
    record = AddressRecord(name, failures, NOW + pause, NOW - 30)
    return GossipPeer(name, (record,), heard=heard)


def names(
    peers: list[GossipPeer], salt: bytes = b"s", *, news: bool = False
) -> dict[str, GossipReason]:
    plan = choose_peers(peers, now=NOW, salt=salt, news=news)
    return {choice.peer.name: choice.reason for choice in plan.chosen}


def test_a_round_has_as_many_peers_in_a_large_community_as_in_a_small_one() -> None:
    few = choose_peers([live(str(n)) for n in range(10)], now=NOW, salt=b"s")
    many = choose_peers([live(str(n)) for n in range(1000)], now=NOW, salt=b"s")
    assert len(few.chosen) == len(many.chosen) == 4
    assert set(many.left.values()) == {GossipReason.ENOUGH}
    assert len(many.chosen) + len(many.left) == 1000


def test_the_salt_alone_decides_among_those_who_answer() -> None:
    peers = [live(str(n)) for n in range(50)]
    first = names(peers)
    assert first == names(list(reversed(peers)))
    assert first != names(peers, b"another")
    met = {name for n in range(200) for name in names(peers, bytes([n]), news=True)}
    assert met == {peer.name for peer in peers}


def test_who_was_not_met_for_longest_is_met_whatever_chance_says() -> None:
    peers = [live(str(n)) for n in range(50)] + [live("old", met=1.0)]
    for salt in range(50):
        assert "old" in names(peers, bytes([salt]))


def test_silent_peers_displace_nobody_and_are_probed_one_at_a_time() -> None:
    peers = [live(str(n)) for n in range(10)] + [silent(f"s{n}") for n in range(100)]
    chosen = names(peers)
    reasons = list(chosen.values())
    assert reasons.count(GossipReason.RANDOM) == 3
    assert reasons.count(GossipReason.OLDEST) == 1
    assert reasons.count(GossipReason.PROBE) == 1
    assert not any(name.startswith("s") for name in names(peers, news=True))


def test_a_silent_peer_waits_for_its_pause_unless_it_has_called() -> None:
    peers = [live(str(n)) for n in range(10)]
    paused, woken = silent("p", pause=60), silent("w", pause=60, heard=NOW - 5)
    plan = choose_peers([*peers, paused, woken], now=NOW, salt=b"s")
    assert plan.left["p"] is GossipReason.PAUSED
    assert {c.peer.name: c.reason for c in plan.chosen}["w"] is GossipReason.HEARD
    # A call from before the last attempt says nothing new.
    late = silent("w", pause=60, heard=NOW - 31)
    assert choose_peers([late], now=NOW, salt=b"s").left["w"] is GossipReason.PAUSED


def test_while_too_few_answer_more_are_tried_and_the_next_round_comes_soon() -> None:
    peers = [
        live("a"),
        *(untried(f"u{n}") for n in range(4)),
        *(silent(f"s{n}") for n in range(20)),
    ]
    plan = choose_peers(peers, now=NOW, salt=b"s", news=True)
    assert plan.is_searching
    reasons = [choice.reason for choice in plan.chosen]
    assert reasons.count(GossipReason.UNTRIED) == 4
    assert reasons.count(GossipReason.PROBE) == 12
    assert not choose_peers([live(n) for n in "abc"], now=NOW, salt=b"s").is_searching
    assert not choose_peers([], now=NOW, salt=b"s").is_searching


def test_a_peer_with_a_sync_under_way_counts_as_one_that_answers() -> None:
    busy = [live(n, is_busy=True) for n in "abc"]
    plan = choose_peers([*busy, live("d")], now=NOW, salt=b"s")
    assert [choice.peer.name for choice in plan.chosen] == ["d"]
    assert plan.left == dict.fromkeys("abc", GossipReason.BUSY)
    assert not plan.is_searching


def test_the_address_that_answered_last_comes_first_and_paused_ones_are_left_out() -> None:
    records = [
        AddressRecord("paused", 2, NOW + 9, NOW - 1),
        AddressRecord("silent", 2, NOW - 9, NOW - 1),
        AddressRecord("new"),
        AddressRecord("older", tried=1.0, answered=1.0),
        AddressRecord("newer", tried=2.0, answered=2.0),
    ]
    assert order_addresses(records, now=NOW) == ("newer", "older", "new", "silent")
    assert order_addresses(records, now=NOW, paused=True)[-2:] == ("paused", "silent")
    assert order_addresses(records[:1], now=NOW) == ("paused",)
    many = [AddressRecord(str(n)) for n in range(99)]
    assert len(order_addresses(many, now=NOW)) == MAX_TRIED


def test_the_owner_asks_everybody_at_every_address() -> None:
    peers = [live("a"), silent("p", pause=60), untried("u")]
    plan = choose_all(peers, now=NOW)
    assert [choice.reason for choice in plan.chosen] == [GossipReason.ASKED] * 3
    assert plan.chosen[1].addresses == ("p",)


@given(
    st.lists(st.tuples(st.sampled_from("lusb"), st.floats(0, 2000)), max_size=60),
    st.binary(max_size=8),
    st.booleans(),
    st.integers(1, 5),
)
def test_every_peer_is_chosen_once_or_left_with_a_reason(
    drawn: list[tuple[str, float]], salt: bytes, news: bool, fanout: int
) -> None:
    made: Any = {
        "l": live,
        "u": lambda n, _: untried(n),
        "s": lambda n, t: silent(n, pause=t - 1000),
    }
    made["b"] = lambda n, t: live(n, t, is_busy=True)
    peers = [made[kind](str(n), at) for n, (kind, at) in enumerate(drawn)]
    limits = GossipLimits(fanout=fanout)
    plan = choose_peers(peers, now=NOW, salt=salt, news=news, limits=limits)
    chosen = [choice.peer.name for choice in plan.chosen]
    assert sorted([*chosen, *plan.left]) == sorted(peer.name for peer in peers)
    assert len(chosen) <= fanout + limits.oldest + 3 * limits.search
    assert all(choice.addresses for choice in plan.chosen)
