"""Where an answer is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.capabilities.llm import Repetition, Stopper, TextPiece

LETTERS = st.text("ab\n", max_size=5)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    stopper = Stopper(stops)
    shown = ""
    for number, piece in enumerate(pieces, 1):
        cut = stopper.add(TextPiece(piece, -1.0, number))
        shown += cut.text.text if cut.text else ""
        if cut.stopped:
            return shown, True
    rest = stopper.rest()
    return shown + (rest.text if rest else ""), False


@given(STOPS, st.lists(LETTERS, max_size=12))
def test_the_answer_is_cut_at_the_first_sequence_that_is_complete(
    stops: list[str], pieces: list[str]
) -> None:
    """The reference looks at the whole text after every piece."""
    whole = ""
    wanted, stopped = "", False
    for piece in pieces:
        whole += piece
        places = [place for stop in stops if (place := whole.find(stop)) >= 0]
        if places:
            wanted, stopped = whole[: min(places)], True
            break
    shown, was_stopped = run(stops, pieces)
    assert was_stopped == stopped
    assert shown == (wanted if stopped else whole)


@given(STOPS, st.lists(LETTERS, max_size=12))
def test_nothing_of_a_stop_sequence_is_ever_shown(stops: list[str], pieces: list[str]) -> None:
    shown, _ = run(stops, pieces)
    assert not any(stop in shown for stop in stops)


def test_text_that_was_held_back_has_the_probability_of_all_its_tokens() -> None:
    stopper = Stopper(["abc"])
    assert stopper.add(TextPiece("a", -1.0, 1)).text is None
    shown = stopper.add(TextPiece("x", -0.5, 2)).text
    assert shown == TextPiece("ax", -1.5, 2)
    assert stopper.add(TextPiece("y", None, 3)).text == TextPiece("y", None, 3)
    assert stopper.add(TextPiece("z", -0.25, 4)).text == TextPiece("z", -0.25, 4)


def heard(text: str, size: int) -> tuple[str, bool]:
    """What is shown of an answer that comes in pieces of a size, and whether it was stopped."""
    repetition = Repetition()
    shown = ""
    for start in range(0, len(text), size):
        cut = repetition.add(TextPiece(text[start : start + size], -1.0, start))
        shown += cut.text.text if cut.text else ""
        if cut.stopped:
            return shown, True
    rest = repetition.rest()
    return shown + (rest.text if rest else ""), False


LINE = "A moment that brings laughter,\n"
SENTENCE = "The shed is open on Saturdays. "


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("In the night,\n" + LINE * 50, "In the night,\n" + LINE * 2),
        (SENTENCE * 50, SENTENCE * 2),
        (f"{SENTENCE}\n\n- {SENTENCE}\n\n" * 9, None),
        (SENTENCE + "Yes. " + SENTENCE + "No. " + SENTENCE + "Or so.", None),
        ("1. Turn it off now.\n2. Turn it off now!\n3. Turn it OFF now.\n4. And on.\n", None),
    ],
)
def test_what_was_said_twice_is_not_shown_again(size: int, text: str, shown: str | None) -> None:
    found, stopped = heard(text, size)
    assert stopped
    assert text.startswith(found)
    assert found == shown or (shown is None and len(found) < len(text))


@pytest.mark.parametrize("size", [1, 5, 11])
@pytest.mark.parametrize("block", ["la ", "reuse of water in the ", "ha"])
def test_what_goes_on_without_an_end_is_stopped(size: int, block: str) -> None:
    found, stopped = heard("Well, " + block * 200, size)
    assert stopped
    assert len(found) < 6 + max(64, 4 * len(block)) + 2 * size + len(block)


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "The shed is open on Saturdays. It is closed on Sundays. Ask Ann for the key.",
        "Yes. Yes. Yes. Yes.",
        "| a | b |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        "if x:\n    return 1\n" + "}\n" * 5 + "----------------------------------------------" * 3,
        SENTENCE * 2 + "The shed is open on Sundays. " + "The shed is shut.",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
    ],
)
def test_an_answer_that_goes_on_is_shown_whole(size: int, text: str) -> None:
    assert heard(text, size) == (text, False)


@given(st.lists(st.text("ab .\n", max_size=6), max_size=30))
def test_what_is_shown_is_how_the_answer_begins(pieces: list[str]) -> None:
    text = "".join(pieces)
    found, stopped = heard(text, 3)
    assert text.startswith(found)
    assert stopped or len(text) - len(found) < 40
