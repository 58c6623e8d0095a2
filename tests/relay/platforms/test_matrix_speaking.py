"""What the bot says, as Matrix writes it: Markdown as HTML, and the contents of its events."""

import re
from html.parser import HTMLParser

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.platforms import matrix


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", None),
        ("two\nlines", None),
        ("a < b & c", None),
        ("**bold** *italic* ~~gone~~", "<strong>bold</strong> <em>italic</em> <del>gone</del>"),
        ("**a *b* c**", "<strong>a <em>b</em> c</strong>"),
        ("__a__ _b_", "<strong>a</strong> <em>b</em>"),
        ("snake_case_name", None),
        ("2 * 3 * 4", None),
        ("**open", None),
        ("*a **b*", "<em>a **b</em>"),
        ("`a **b** <c>`", "<code>a **b** &lt;c&gt;</code>"),
        (r"\*not\* `code`", "*not* <code>code</code>"),
        ("[x](https://a.b/?c=d&e)", '<a href="https://a.b/?c=d&amp;e">x</a>'),
        ("[x](javascript:alert)", None),
        ("https://a.b/c_d_e *x*", "https://a.b/c_d_e <em>x</em>"),
        ("# Title\ntext", "<h1>Title</h1><p>text</p>"),
        ("- a\n- b **c**", "<ul><li>a</li><li>b <strong>c</strong></li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("> a\n> b", "<blockquote>a<br>b</blockquote>"),
        ("one\n\ntwo", "<p>one</p><p>two</p>"),
        (
            "```py\nif a < b:\n    **c**\n```",
            '<pre><code class="language-py">if a &lt; b:\n    **c**\n</code></pre>',
        ),
        ("```\nnever closed", "<pre><code>never closed\n</code></pre>"),
    ],
)
def test_markdown_is_shown_as_meant(text: str, html: str | None) -> None:
    assert matrix.render_html(text) == html


class Checked(HTMLParser):
    """Reads HTML, and fails where tags are not balanced or not ours."""

    allowed = re.compile("p|br|pre|code|strong|em|del|a|ul|ol|li|blockquote|h[1-6]")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert self.allowed.fullmatch(tag)
        for name, value in attrs:
            assert name in ("href", "class", "start")
            if name == "href":
                assert re.match(r"https?://|mailto:", value or "")
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


MARKED = st.lists(
    st.sampled_from(
        [
            "*",
            "**",
            "_",
            "__",
            "~~",
            "`",
            "```",
            "~~~",
            "[",
            "](",
            ")",
            ">",
            "-",
            "1.",
            "#",
            "\\",
            "<",
            "&",
            '"',
            "'",
            "a",
            "b",
            "https://x.org",
            "javascript:",
            "<b>",
            "\n",
        ]
    )
    | st.text(max_size=3),
    max_size=60,
).map(" ".join) | st.lists(st.sampled_from("*_~`[]()<>#-\\a \n"), max_size=80).map("".join)


@given(MARKED)
def test_whatever_an_agent_writes_is_balanced_html_of_known_tags(text: str) -> None:
    html = matrix.render_html(text)
    if html is not None:
        reader = Checked()
        reader.feed(html)
        reader.close()
        assert reader.open == []


@pytest.mark.parametrize(
    "piece", ["*a ", "**", "_a", "[", "[a](", "`", "> ", "- a\n", "```\n", "\\", "https://"]
)
def test_a_long_text_takes_no_longer_than_it_is(piece: str) -> None:
    # Many times what a message holds: what is not linear does not come back.
    matrix.render_html(piece * (100_000 // len(piece)))


def test_an_answer_in_a_thread_stays_there() -> None:
    thread = matrix.MatrixChat("!r", "$root")
    meant = matrix.rules.message_content("x", thread, "$asked", is_notice=False)["m.relates_to"]
    assert (meant["event_id"], meant["is_falling_back"]) == ("$root", False)
    assert meant["m.in_reply_to"] == {"event_id": "$asked"}
    falling = matrix.rules.message_content("x", thread, None, is_notice=False)["m.relates_to"]
    assert (falling["is_falling_back"], falling["m.in_reply_to"]) == (True, {"event_id": "$root"})
    assert "m.relates_to" not in matrix.rules.message_content(
        "x", matrix.MatrixChat("!r"), "7", is_notice=False
    )


def test_whoever_is_named_is_mentioned_and_never_the_room() -> None:
    said = matrix.rules.message_content(
        "@ann:x.org. @room a@b:c @ann:x.org", matrix.MatrixChat("!r"), None, is_notice=True
    )
    assert said["m.mentions"] == {"user_ids": ["@ann:x.org"]}
    assert said["msgtype"] == "m.notice"
    assert matrix.rules.edit_content("@ann:x.org", "$m", is_notice=False)["m.mentions"] == {}


@pytest.mark.parametrize("character", ["x", "*", '"', "😀", "\x01", "&", "<", "\n", "`a`", "漢"])
def test_the_longest_message_fits_into_an_event(character: str) -> None:
    text = (character * matrix.rules.MAX_TEXT)[: matrix.rules.MAX_TEXT]
    for content in (
        matrix.rules.message_content(text, matrix.MatrixChat("!r", "$root"), "$m", is_notice=False),
        matrix.rules.edit_content(text, "$m", is_notice=False),
    ):
        assert len(orjson.dumps(content)) < 60_000
