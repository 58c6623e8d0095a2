"""Connectors share the shards of a bot evenly, and keep what they have."""

from hypothesis import given
from hypothesis import strategies as st

from accord.relay.rules import choose_shards


def test_one_connector_takes_all() -> None:
    assert choose_shards(4, {}, "a", 1) == {0, 1, 2, 3}


def test_one_that_has_too_many_gives_back() -> None:
    held = dict.fromkeys(range(4), "a")
    assert choose_shards(4, held, "a", 2) == {0, 1}
    assert choose_shards(4, held, "b", 2) == set()
    assert choose_shards(4, {0: "a", 1: "a"}, "b", 2) == {2, 3}


@given(
    count=st.integers(1, 40),
    names=st.lists(st.sampled_from("abcdef"), min_size=1, unique=True),
    chosen=st.randoms(use_true_random=False),
)
def test_every_shard_is_heard_by_one_after_a_few_rounds(
    count: int, names: list[str], chosen: object
) -> None:
    holders = {n: chosen.choice(names) for n in range(count) if chosen.random() < 0.5}  # type: ignore[attr-defined]
    for _ in range(2):
        for name in names:
            mine = choose_shards(count, holders, name, len(names))
            holders = {n: each for n, each in holders.items() if each != name or n in mine}
            holders |= {n: name for n in mine if n not in holders}
    share = -(-count // len(names))
    assert set(holders) == set(range(count))
    assert all(list(holders.values()).count(name) <= share for name in names)
