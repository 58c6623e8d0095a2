"""Segments of text messages, and Markdown as plain text."""

from hypothesis import given
from hypothesis import strategies as st

from accord.relay.platforms import sms
from accord.relay.platforms.base import plain_text


def test_segments_of_known_texts() -> None:
    for text, expected in (
        ("", sms.Segments("GSM-7", 1)),
        ("a" * 160, sms.Segments("GSM-7", 1)),
        ("a" * 161, sms.Segments("GSM-7", 2)),
        ("a" * 306, sms.Segments("GSM-7", 2)),
        ("a" * 307, sms.Segments("GSM-7", 3)),
        ("€" * 80, sms.Segments("GSM-7", 1)),
        ("€" * 81, sms.Segments("GSM-7", 2)),
        # 153 has no room for half of an escaped character: 76 of them to a segment.
        ("€" * 152, sms.Segments("GSM-7", 2)),
        ("€" * 153, sms.Segments("GSM-7", 3)),
        ("ж" * 70, sms.Segments("UCS-2", 1)),
        ("ж" * 71, sms.Segments("UCS-2", 2)),
        ("👋" * 35, sms.Segments("UCS-2", 1)),
        ("👋" * 66, sms.Segments("UCS-2", 2)),
        ("👋" * 67, sms.Segments("UCS-2", 3)),
        ("Grüße, Ñ ù\r\n", sms.Segments("GSM-7", 1)),
        ("ç", sms.Segments("UCS-2", 1)),
        ("Ç", sms.Segments("GSM-7", 1)),
    ):
        assert sms.segments(text) == expected, text[:3]


@given(st.text(max_size=700))
def test_a_text_is_within_its_segments_and_never_cheaper_when_longer(text: str) -> None:
    found = sms.segments(text)
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    assert found.count <= sms.segments(text + "a").count
    if found.encoding == "UCS-2":
        assert units <= (70 if found.count == 1 else 67 * found.count)
    else:
        assert len(text) <= (160 if found.count == 1 else 153 * found.count)


def test_marks_are_left_out_and_code_is_kept() -> None:
    for marked, expected in (
        ("**bold** and `code`", "bold and code"),
        ("# Title\ntext", "Title\ntext"),
        ("see [docs](https://a.example/x) now", "see docs (https://a.example/x) now"),
        ("[https://a.example](https://a.example)", "https://a.example"),
        ("```python\ndef f(**a): **b\n```\nend", "def f(**a): **b\nend"),
        ("`**kept**`", "**kept**"),
        ("* item_one\n* 2*3*4", "* item_one\n* 2*3*4"),
        ("a ** b", "a ** b"),
        ("```", "```"),
        ("#5 is open", "#5 is open"),
    ):
        assert plain_text(marked) == expected


@given(st.text(alphabet="*`[]()# ~ab\n:/https", max_size=300))
def test_plain_text_is_never_longer_nor_empty(text: str) -> None:
    bare = plain_text(text)
    assert len(bare) <= len(text)
    assert bool(bare.strip()) == bool(text.strip())


def test_marks_without_an_end_take_no_more_than_linear_time() -> None:
    for mark in ("**a", "[a", "`a", "[a](https://a", "*"):
        assert plain_text(mark * 20_000)
