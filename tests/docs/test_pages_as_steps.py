import pytest
from tests.docs.pages import Command, File, Fragment, Left, PageError, Talk, steps
from tests.docs.wording import filled, matched


def page(*blocks: str) -> str:
    return "# A page\n\n" + "\n\nSome words.\n\n".join(blocks) + "\n"


def block(language: str, *lines: str) -> str:
    return "\n".join((f"```{language}", *lines, "```"))


def test_a_console_block_is_its_commands_and_what_each_says() -> None:
    found = steps(page(block("console", "$ one", "says this", "", "  and that", "$ two")))
    assert found == [Command(4, "one", ("says this", "and that")), Command(8, "two")]


def test_a_command_goes_on_behind_a_backslash_and_in_a_here_document() -> None:
    lines = ("$ one \\", "    two", "$ cat > file <<'EOF'", "# three", "$ four", "EOF", "$ five")
    texts = [
        step.text for step in steps(page(block("console", *lines))) if isinstance(step, Command)
    ]
    assert texts == ["one \\\n    two", "cat > file <<'EOF'\n# three\n$ four\nEOF", "five"]


def test_a_command_says_whether_it_goes_on_and_whether_it_may_be_repeated() -> None:
    server, look, act = steps(
        page(block("console", "$ serve &", "$ list   # repeat until it says so", "$ act  # once"))
    )
    assert isinstance(server, Command)
    assert isinstance(look, Command)
    assert isinstance(act, Command)
    assert (server.goes_on, look.goes_on, act.goes_on) == (True, False, False)
    assert (server.repeated, look.repeated, act.repeated) == (False, True, False)


def test_a_block_that_needs_something_is_left_with_its_reason() -> None:
    (left,) = steps(page(block("console", "# needs an account at X", "$ one", "$ two")))
    assert left == Left(4, "an account at X", (Command(5, "one"), Command(6, "two")))


def test_a_block_that_begins_with_a_path_is_that_file_and_others_are_fragments() -> None:
    found = steps(
        page(
            block("python", "# my_agent.py", "x = 1"),
            block("toml", "# ~/.accord/accord.toml", "[station]"),
            block("yaml", "# .github/workflows/ci.yml", "on: push"),
            block("ts", "// src/call.ts", "call();"),
            block("python", "# why this is so", "y = 2"),
            block("ts", "// why this is so", "call();"),
            block("json", "{}"),
        )
    )
    assert [(type(step), getattr(step, "path", "")) for step in found] == [
        (File, "my_agent.py"),
        (File, "~/.accord/accord.toml"),
        (File, ".github/workflows/ci.yml"),
        (File, "src/call.ts"),
        (Fragment, ""),
        (Fragment, ""),
    ]


def test_a_block_in_a_list_is_read_without_its_indent() -> None:
    found = steps("1. First:\n\n   ```console\n   $ one\n   said\n   ```\n")
    assert found == [Command(4, "one", ("said",))]


def test_a_quotation_of_a_talk_is_what_is_written_and_what_is_answered() -> None:
    said = (
        "> **ann** in #lobby: When?\n>\n> **accord**: On Saturdays.\n>\n> Sources:\n>\n"
        "> **ann** to accord: thank you"
    )
    assert steps(page(said, "> An ordinary quotation.")) == [
        Talk(3, "ann", "lobby", False, "When?", ("On Saturdays.", "Sources:")),
        Talk(9, "ann", "accord", True, "thank you", ()),
    ]


@pytest.mark.parametrize("language", ["", "sh", "bash", "shell"])
def test_commands_cannot_hide_in_a_block_of_another_language(language: str) -> None:
    with pytest.raises(PageError, match="line 3"):
        steps(page(block(language, "accord up")))


@pytest.mark.parametrize("lines", [("accord up",), ("# note", "$ accord up"), ("output", "$ one")])
def test_a_console_block_begins_with_a_command_or_with_what_it_needs(
    lines: tuple[str, ...],
) -> None:
    with pytest.raises(PageError, match="line 4"):
        steps(page(block("console", *lines)))


def test_a_block_that_does_not_end_is_refused() -> None:
    with pytest.raises(PageError, match="does not end"):
        steps("```console\n$ one\n")


def test_short_words_stand_for_what_was_really_said_and_mean_it_again_later() -> None:
    known = matched("id  ed25519:Kx\nnote", ["id ed25519:ab…"], {})
    assert known == {"ed25519:ab…": "ed25519:Kx"}
    assert filled("invite ed25519:ab… now", known) == "invite ed25519:Kx now"
    assert matched("removed ed25519:Kx.", ["removed ed25519:ab…."], known) == known
    assert matched("removed ed25519:Other.", ["removed ed25519:ab…."], known) is None


def test_a_short_word_in_brackets_or_quotes_leaves_them_out() -> None:
    words = matched('1. tools (blake3:99)\n{"id":"01X"}', ["1. tools (b…)", '{"id":"01…"}'], {})
    assert words == {"b…": "blake3:99", "01…": "01X"}


def test_a_bare_ellipsis_stands_for_anything_and_a_line_of_it_for_any_lines() -> None:
    text = "one 2026-01-01 until noon\ntwo\nthree"
    assert matched(text, ["one … noon", "…", "three"], {}) == {}
    assert matched(text, ["one … midnight"], {}) is None


@pytest.mark.parametrize(
    "said",
    [["a"], ["a b"], ["c", "a  b c"], ["a b c", "a b c"]],
    ids=["part", "start", "more", "twice"],
)
def test_every_line_of_a_page_must_be_a_whole_line_of_its_own(said: list[str]) -> None:
    assert matched("  a b   c  ", said, {}) is None
    assert matched("  a b   c  ", ["a b c"], {}) == {}
