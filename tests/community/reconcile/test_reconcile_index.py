"""The index is a sorted set of items, however they arrive."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from accord.community.rules import (
    FIRST_BOUND,
    LAST_BOUND,
    RECORD_BYTES,
    Position,
    SyncIndex,
    SyncItem,
    decode_item,
    encode_item,
)

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

ulids = st.builds(
    str.__add__, st.sampled_from("01234567"), st.text(ALPHABET, min_size=25, max_size=25)
)
few_ulids = st.sampled_from(("0" * 26, "0" * 25 + "1", "7" + "Z" * 25, "01HXR" + "0" * 21))
items = st.builds(
    Position,
    st.one_of(st.integers(0, 9), st.integers(0, 2**53 - 1)),
    st.one_of(few_ulids, ulids),
    st.one_of(
        st.sampled_from((b"\0" * 32, b"\0" * 31 + b"\1")), st.binary(min_size=32, max_size=32)
    ),
)


@given(st.lists(items))
def test_records_sort_as_the_total_order_does(some: list[SyncItem]) -> None:
    assert [encode_item(item) for item in sorted(some)] == sorted(
        encode_item(item) for item in some
    )


@given(items)
def test_a_record_tells_its_item(some: SyncItem) -> None:
    assert decode_item(encode_item(some)) == some


@given(st.lists(st.lists(items)))
def test_batches_in_any_order_make_the_same_index(batches: list[list[SyncItem]]) -> None:
    index = SyncIndex()
    added = sum(index.insert(batch) for batch in batches)

    wanted = sorted({item for batch in batches for item in batch})
    assert list(index.records(0, len(index))) == [encode_item(item) for item in wanted]
    assert added == len(index) == len(wanted)
    assert all(item in index for item in wanted)
    assert index.insert(wanted) == 0


@given(st.sets(items), items)
def test_an_item_is_in_the_index_if_it_was_inserted(some: set[SyncItem], other: SyncItem) -> None:
    assert (other in SyncIndex(some)) == (other in some)


@given(st.sets(items), st.binary(max_size=RECORD_BYTES))
def test_a_rank_counts_what_lies_below_a_bound(some: set[SyncItem], bound: bytes) -> None:
    assert SyncIndex(some).rank(bound) == sum(encode_item(item) < bound for item in some)


@given(st.sets(items, min_size=1))
def test_a_separator_lies_between_two_neighbours_and_no_shorter_one_does(
    some: set[SyncItem],
) -> None:
    index = SyncIndex(some)
    records = list(index.records(0, len(index)))

    for rank, (below, above) in enumerate(pairwise(records), start=1):
        bound = index.separator(rank)
        assert below < bound <= above
        assert len(bound) == 8 or bound[:-1] <= below
    assert index.separator(0) == FIRST_BOUND
    assert index.separator(len(index)) == LAST_BOUND > records[-1]


@given(st.sets(items, min_size=2), st.integers(1, 9))
def test_a_separator_with_slack_goes_below_ties_that_are_short(
    some: set[SyncItem], slack: int
) -> None:
    index = SyncIndex(some)

    for rank in range(1, len(index)):
        bound = index.separator(rank, slack)
        assert rank - slack <= index.rank(bound) <= rank
        if index.rank(bound) < rank:
            assert len(bound) == 8


def numbered(number: int) -> SyncItem:
    digest = (number * 2654435761 % 2**256).to_bytes(32)
    return number // 3, f"{number % 3:026d}", digest


def test_many_blocks_are_cut_and_joined_without_a_seam() -> None:
    count = 20_000
    shuffled = [numbered(number * 7919 % count) for number in range(count)]
    index = SyncIndex(shuffled)
    wanted = [encode_item(item) for item in sorted(shuffled)]

    assert list(index.records(0, count)) == wanted
    for start, stop in ((0, 0), (0, 1), (5, 4100), (2047, 2049), (count - 1, count), (9, 9)):
        assert b"".join(index.slices(start, stop)) == b"".join(wanted[start:stop])
    for rank in range(0, count, 97):
        assert index.rank(wanted[rank]) == rank
        assert index.rank(index.separator(rank)) == rank


def test_a_snapshot_stays_as_it_was() -> None:
    index = SyncIndex(numbered(number) for number in range(0, 9000, 3))
    snapshot = index.snapshot()
    before = list(snapshot.records(0, len(snapshot)))

    index.insert(numbered(number) for number in range(9000))

    assert (len(index), len(snapshot)) == (9000, 3000)
    assert list(snapshot.records(0, 3000)) == before
    assert snapshot.insert([numbered(1)]) == 1
    assert numbered(1) in snapshot
    assert len(index) == 9000
