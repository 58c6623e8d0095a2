"""How an agent's Markdown looks on Telegram."""

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.relay.platforms.telegram_markdown import Entity, parse

from accord.relay.platforms import telegram
from accord.relay.rules import measure

marks = st.lists(
    st.sampled_from(
        [
            *"*_~`[]()!\\> \na.#|=-{}+",
            "**",
            "__",
            "~~",
            "***",
            "```",
            "\n```\n",
            "](http://x)",
            "é😀",
        ]
    ),
    max_size=40,
).map("".join)


@pytest.mark.parametrize(
    ("text", "shown", "entities"),
    [
        ("**bold** x", "bold x", [Entity("bold", "bold")]),
        ("__bold__ x", "bold x", [Entity("bold", "bold")]),
        ("*it* _it_", "it it", [Entity("italic", "it")] * 2),
        ("~~gone~~", "gone", [Entity("strikethrough", "gone")]),
        ("`a*b\\`", "a*b\\", [Entity("code", "a*b\\")]),
        ("``a`b``", "a`b", [Entity("code", "a`b")]),
        ("***x***", "x", [Entity("italic", "x"), Entity("bold", "x")]),
        ("**a *b* c**", "a b c", [Entity("italic", "b"), Entity("bold", "a b c")]),
        ("[a](http://x/y_(z))", "a", [Entity("link", "a", "http://x/y_(z)")]),
        ("[**a**](http://x)", "a", [Entity("bold", "a"), Entity("link", "a", "http://x")]),
        (
            "**a [**b**](http://x)**",
            "a b",
            [Entity("link", "b", "http://x"), Entity("bold", "a b")],
        ),
        ("```py\nx = `1`\n```\nend", "x = `1`\n\nend", [Entity("pre", "x = `1`\n")]),
        ("~~~\n**x**\n~~~", "**x**\n", [Entity("pre", "**x**\n")]),
    ],
)
def test_common_marks_keep_their_meaning(text: str, shown: str, entities: list[Entity]) -> None:
    assert parse(telegram.render_markdown(text)) == (shown, entities)


@pytest.mark.parametrize(
    "text",
    [
        "1. one (two) - three! #4 > 5 + 6 = {7} | 8",
        "snake_case_name and 2 * 3 * 4",
        "**unfinished and `unfinished and [unfinished](",
        "a ** b ** c",
        "[label](no address)",
        "``` ```",
        "****",
        "one **two\n\nthree** four",
        "@someone https://example.org/a_b_c",
    ],
)
def test_everything_else_is_shown_as_it_is(text: str) -> None:
    assert parse(telegram.render_markdown(text)) == (text, [])


def test_an_escaped_mark_is_shown_without_its_backslash() -> None:
    assert parse(telegram.render_markdown(r"\*no\* \_no\_")) == ("*no* _no_", [])


def test_two_italics_side_by_side_do_not_become_an_underline() -> None:
    assert parse(telegram.render_markdown("*a*_b_")) == ("ab", [Entity("italic", "ab")])


@settings(max_examples=400)
@given(marks)
@example("*_*_*_")
@example("**[**](http://x)**")
@example("_a__b_")
def test_whatever_is_written_is_well_formed_and_not_longer(text: str) -> None:
    shown, _ = parse(telegram.render_markdown(text))
    assert measure(shown, "utf16") <= measure(text, "utf16")
    assert bool(shown.strip()) == bool(text.strip())


@given(st.text())
def test_an_escaped_text_is_shown_as_it_is(text: str) -> None:
    kept = text.replace("\\", "")
    assert parse(telegram.escape_markdown(kept)) == (kept, [])


@given(st.text(alphabet=string.ascii_letters + " ,;:'\"?@$%^&/<"))
def test_words_without_marks_are_not_touched(text: str) -> None:
    assert telegram.render_markdown(text) == text


@pytest.mark.parametrize("part", ["*a ", "_a ", "[", "[a](", "`", "``a`", "**a _b ", "(", "~~a*b_"])
def test_long_texts_of_marks_are_read_in_linear_time(part: str) -> None:
    # A reader that looks back for each mark would take minutes.
    text = part * (100_000 // len(part))
    assert len(telegram.render_markdown(text)) < 3 * len(text)
