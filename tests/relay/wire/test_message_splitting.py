"""Cutting long texts: within the limit, nothing lost, nothing torn that need not be."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accord.relay.errors import RelayError
from accord.relay.rules import code_blocks, is_grapheme_border, measure, split_pieces, split_text

units = st.sampled_from(["chars", "utf16", "graphemes"])
awkward = st.text(st.sampled_from("ab `~\n\r🚀👩‍é̈🇦🇧가ᅡ\t"), max_size=400)
words = st.text(st.sampled_from("abcdé漢🚀"), min_size=1, max_size=12)
prose = st.lists(words, min_size=1, max_size=12).map(" ".join)
code = st.lists(prose, max_size=8).map("\n".join)
fenced = st.tuples(
    st.sampled_from(["```", "````", "~~~"]), st.sampled_from(["", "py", "c++"]), code
)
block = fenced.map(lambda parts: f"{parts[0]}{parts[1]}\n{parts[2]}\n{parts[0]}")
closed = st.lists(prose | block, max_size=8).map("\n".join)
documents = closed | st.tuples(closed, code).map(lambda parts: f"{parts[0]}\n~~~\n{parts[1]}")


@given(awkward | st.text(max_size=300), st.integers(2, 60), units)
@example("🚀" * 5, 3, "utf16")
@example("e" + "\u0301" * 50, 4, "chars")
def test_every_piece_is_within_the_limit_and_nothing_is_lost(
    text: str, limit: int, unit: str
) -> None:
    found = split_pieces(text, limit, unit)
    assert all(0 < measure(str(piece), unit) <= limit for piece in found)
    assert "".join(piece.body for piece in found) == text
    assert [str(piece) for piece in found] == split_text(text, limit, unit)


@given(documents, st.integers(40, 200), units)
def test_fences_are_balanced_in_every_piece(text: str, limit: int, unit: str) -> None:
    found = split_pieces(text, limit, unit)
    for piece in found if len(found) > 1 else ():
        assert all(block.end < block.after for block in code_blocks(str(piece))), piece
    assert "".join(piece.body for piece in found) == text
    assert all(measure(str(piece), unit) <= limit for piece in found)


@given(documents, st.integers(40, 200))
def test_code_stays_code_and_prose_stays_prose(text: str, limit: int) -> None:
    offset = 0
    for piece in split_pieces(text, limit, "chars"):
        inside = _code_offsets(str(piece), -len(piece.opening) + offset)
        bodies = range(offset, offset + len(piece.body))
        assert inside & set(bodies) == _code_offsets(text, 0) & set(bodies)
        offset += len(piece.body)


def _code_offsets(text: str, shift: int) -> set[int]:
    return {
        index + shift
        for block in code_blocks(text)
        for index in range(block.body, block.end)
        if text[index] != "\n"
    }


def test_a_text_that_fits_is_one_message() -> None:
    assert split_text("hello", 5, "chars") == ["hello"]
    assert split_text("", 5, "chars") == []
    assert split_text("```\nnever closed", 20, "chars") == ["```\nnever closed"]


def test_lines_are_preferred_to_words_and_words_to_characters() -> None:
    assert split_text("one two\nthree four", 12, "chars") == ["one two\n", "three four"]
    assert split_text("one two three", 9, "chars") == ["one two ", "three"]
    assert split_text("onetwothree", 4, "chars") == ["onet", "woth", "ree"]


def test_an_early_border_does_not_make_a_stub() -> None:
    assert split_text("a b" + "c" * 20, 12, "chars")[0] == "a bcccccccccc"[:12]


def test_code_is_closed_and_opened_again() -> None:
    text = "intro\n```py\n" + "\n".join(f"line{number}" for number in range(20)) + "\n```\nend"
    found = split_text(text, 60, "chars")
    assert len(found) == 3
    assert found[0].startswith("intro\n```py\nline0\n")
    assert all(piece.endswith("\n```") for piece in found[:-1])
    assert all(piece.startswith("```py\nline") for piece in found[1:])
    assert found[-1].endswith("line19\n```\nend")


def test_no_empty_block_is_left_before_or_after_a_cut() -> None:
    text = "x" * 50 + "\n```py\n" + "code\n" * 6 + "```"
    for limit in range(52, 90):
        assert not any("```py\n```" in piece for piece in split_text(text, limit, "chars")), limit


def test_a_cut_makes_no_fence_out_of_backticks_in_a_line() -> None:
    assert split_text("aaaa bbbbb ```cc dddd", 12, "chars") == ["aaaa ", "bbbbb ```cc ", "dddd"]


@pytest.mark.parametrize("cluster", ["👩‍👩‍👧", "🇩🇪", "e\u0301", "👍🏽", "\r\n", "각"])
def test_what_people_see_as_one_character_is_not_torn(cluster: str) -> None:
    for piece in split_text(cluster * 30, 11, "chars"):
        assert piece.replace(cluster, "") == ""


def test_utf16_counts_code_units() -> None:
    assert split_text("🚀" * 6, 4, "utf16") == ["🚀🚀"] * 3
    assert split_text("🚀" * 6, 5, "utf16") == ["🚀🚀"] * 3
    assert split_text("🚀" * 4, 4, "chars") == ["🚀" * 4]


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(RelayError, match="room"):
        split_text("ab", 1, "chars")


@given(st.text(st.sampled_from("a\u0301\u0308"), min_size=2, max_size=20), st.integers(1, 19))
def test_a_mark_belongs_to_what_it_stands_on(text: str, index: int) -> None:
    if 0 < index < len(text):
        assert is_grapheme_border(text, index) == (unicodedata.combining(text[index]) == 0)


def test_splitting_is_linear() -> None:
    hostile = ["`" * 200_000, "```\n" * 50_000, "\u0301" * 200_000, "🇦" * 200_000, " ```" * 50_000]
    for text in hostile:
        found = split_pieces(text, 4096, "utf16")
        assert "".join(piece.body for piece in found) == text
