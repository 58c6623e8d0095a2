"""What looks alike has the same skeleton, and what does not has another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.kernel.confusables import skeleton


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ann1", "\u0430nn1"),  # Cyrillic a
        ("bob", "\u0392\u039f\u0392"),  # Greek capitals
        ("concierge", "CONCIERGE"),
        ("concierge", "\u0421ON\u0421IERGE"),
        ("Ian", "lan"),
        ("modern", "modem"),
        ("Oliver", "0liver"),
        ("anna", "a\u200dn\u00adna"),
    ],
)
def test_texts_that_look_alike_have_one_skeleton(one: str, other: str) -> None:
    assert skeleton(one) == skeleton(other)


@pytest.mark.parametrize(
    ("one", "other"), [("ann", "anna"), ("anna", "\u00e4nna"), ("ann lee", "annlee"), ("bo", "do")]
)
def test_texts_that_do_not_look_alike_have_two(one: str, other: str) -> None:
    assert skeleton(one) != skeleton(other)


@given(st.text())
def test_every_text_has_a_skeleton_and_it_depends_on_nothing_else(text: str) -> None:
    assert skeleton(text) == skeleton(text)
    assert skeleton(text + "\u200d") == skeleton(text)
