"""How what-ifs are told to people."""

from hypothesis import given
from hypothesis import strategies as st

from accord.pipeline.text import count, format_moment, format_table, percentage, shorten


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_share_is_nothing_or_all_only_where_it_is_exactly_that(part: int, rest: int) -> None:
    whole = part + rest
    told = percentage(part, whole)
    assert (told == "0 %") == (whole > 0 and part == 0)
    assert (told == "100 %") == (whole > 0 and rest == 0)


def test_things_are_counted_with_their_noun() -> None:
    assert count(1, "call") == "1 call"
    assert count(1200, "call") == "1,200 calls"
    assert count(2, "event is", "events are") == "2 events are"


@given(st.text(), st.integers(2, 40))
def test_a_cut_text_is_one_printable_line_of_the_width(text: str, width: int) -> None:
    line = shorten(text, width)
    assert len(line) <= width
    assert line.isprintable()


@given(st.integers(-(2**63), 2**63))
def test_any_number_is_some_moment(milliseconds: int) -> None:
    assert format_moment(milliseconds).endswith("Z")


@given(st.lists(st.tuples(st.text(), st.integers() | st.none()), max_size=30))
def test_a_table_is_aligned_and_says_what_it_leaves_out(rows: list[tuple[str, int | None]]) -> None:
    lines = list(format_table(("name", "number"), rows, most=5))
    assert len(lines) == 2 + min(len(rows), 5) + (len(rows) > 5)
    if len(rows) > 5:
        assert f"{len(rows) - 5} more" in lines[-1]
