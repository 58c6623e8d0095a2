"""The comparison of first calls: what is counted, what is run, and what the page says of it."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench import first_call
from bench.first_call import CONTESTANTS, Contestant, FirstCall, counted, lines_of, measure, table

SOURCE = '''"""A docstring
of two lines."""

import os  # said

# A comment.
TEXT = """One,
two,

four."""


def go(one: int,
       two: int) -> str:
    """Say it."""

    return (
        f"{one}"
        "and more"
    )
'''


def test_only_lines_with_code_are_counted() -> None:
    # The import, four of the text, two of the head, four of the return.
    assert lines_of(SOURCE) == 11
    assert lines_of('"""Nothing."""\n\n# at all\n') == 0


def test_every_contestant_is_counted_by_the_programs_that_are_run() -> None:
    for each in CONTESTANTS:
        assert 5 < counted(each) < 60, each.name


def test_the_page_has_what_is_counted_now() -> None:
    page = first_call.PAGE.read_text()
    for each in CONTESTANTS:
        found = re.search(rf"^\| {each.name} \| (\d+) \| (\d+) \| ", page, re.MULTILINE)
        assert found is not None, each.name
        assert (int(found[1]), int(found[2])) == (counted(each), len(each.commands)), each.name
    assert re.search(
        r"^`python -m bench.first_call`, \d{4}-\d\d-\d\d .*revision \w+", page, re.MULTILINE
    )


def test_the_table_says_what_was_not_run() -> None:
    rows = table(
        [FirstCall(CONTESTANTS[0], 10, 16.4, 33.6), FirstCall(CONTESTANTS[3], 36, None, None)]
    )
    assert "| Accord | 10 | 3 | 16 s | 34 s |" in rows
    assert "| Temporal | 36 | 3 | not run | not run |" in rows


def test_what_was_measured_replaces_what_the_page_said_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Before\n\n<!-- measured -->\nold\n<!-- end of what was measured -->\n\nafter\n"
    )
    for _ in range(2):
        first_call.write([FirstCall(CONTESTANTS[1], 10, 1.0, 2.0)], 0.5, page)
    text = page.read_text()
    assert text.startswith("# Before\n\n<!-- measured -->\n| |")
    assert text.endswith("<!-- end of what was measured -->\n\nafter\n")
    assert "old" not in text
    assert text.count("| FastAPI | 10 | 2 | 1 s | 2 s |") == 1
    assert "load before 0.5; " in text


def test_a_contestant_without_its_program_is_counted_and_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = replace(CONTESTANTS[3], needs="no-such-program")
    monkeypatch.setattr(first_call, "CONTESTANTS", (missing,))
    (found,) = measure()
    assert (found.lines, found.install_seconds, found.call_seconds) == (
        counted(missing),
        None,
        None,
    )


def test_the_last_command_is_repeated_until_it_answers(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(
        "import pathlib, time\n"
        "time.sleep(0.3)\n"
        "pathlib.Path('up').write_text('Good morning, Ann!')\n"
        "time.sleep(60)\n"
    )
    commands = ["touch made", f"{sys.executable} serve.py &", "cat made up"]
    seconds = first_call.first_call(commands, tmp_path, {"PATH": "/usr/bin:/bin"})
    assert 0.3 < seconds < first_call.PATIENCE


def test_a_call_that_never_answers_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_call, "PATIENCE", 0.2)
    contestant = Contestant("Silent", "", [], ["echo Good night"])
    with pytest.raises(TimeoutError, match="no answer"):
        first_call.first_call(contestant.commands, tmp_path, {"PATH": "/usr/bin:/bin"})
