"""Where an answer is cut."""

from hypothesis import given
from hypothesis import strategies as st

from accord.capabilities.llm.pieces import Text
from accord.capabilities.llm.stopping import Stopper

LETTERS = st.text("ab\n", max_size=5)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    stopper = Stopper(stops)
    shown = ""
    for number, piece in enumerate(pieces, 1):
        cut = stopper.add(Text(piece, -1.0, number))
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
    assert stopper.add(Text("a", -1.0, 1)).text is None
    shown = stopper.add(Text("x", -0.5, 2)).text
    assert shown == Text("ax", -1.5, 2)
    assert stopper.add(Text("y", None, 3)).text == Text("y", None, 3)
    assert stopper.add(Text("z", -0.25, 4)).text == Text("z", -0.25, 4)
