"""Markdown as HTML: what it may become, and what it may not."""

import pytest

from accord.console.markdown import markdown


def test_lists_emphasis_code_and_tables_are_shown() -> None:
    shown = markdown("**Boil** it:\n\n- first\n\n`code`\n\n| a | b |\n|:-:|--:|\n| 1 | 2 |\n")
    for part in ("<strong>Boil</strong>", "<li>first</li>", "<code>code</code>", "<td>1</td>"):
        assert part in shown


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](data:text/html,<script>alert(1)</script>)",
        "[x](vbscript:x)",
        "![x](http://evil.example/x.png)",
        '<https://ok.example/" onclick="alert(1)>',
        '[x](http://ok.example/"onclick="alert(1))',
        "```\n</code></pre><script>alert(1)</script>\n```",
    ],
)
def test_nothing_in_it_runs_or_is_fetched(text: str) -> None:
    shown = markdown(text)
    for bad in ("<script", "<img", 'href="javascript', 'href="data', 'href="vbs', ' onclick="'):
        assert bad not in shown


def test_it_has_no_inline_styles_which_the_policy_would_refuse() -> None:
    assert "style=" not in markdown("| a |\n|--:|\n| 1 |\n")


def test_links_tell_others_nothing() -> None:
    assert 'rel="noopener noreferrer nofollow"' in markdown("[x](https://ok.example)")


def test_what_is_too_long_or_too_deep_is_bounded() -> None:
    assert len(markdown("x" * 1_000_000)) < 200_000
    assert markdown("> " * 5000 + "x")
