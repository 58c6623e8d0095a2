"""No link of the project's Markdown is dead: files, images, anchors. Nothing asks the network."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from docs.making.links import Link, anchors, links, relinked, slug
from docs.making.lists import respaced

ROOT = Path(__file__).parents[2]
SKIPPED = {".git", ".venv", "build", "dist", "node_modules"}


def pages() -> Iterator[Path]:
    """Every Markdown file that belongs to the project; notes are read on the pages they are in."""
    for path in sorted(ROOT.rglob("*.md")):
        within = path.relative_to(ROOT)
        hidden = any(part in SKIPPED or part.startswith(".") for part in within.parts)
        if not hidden and within.parts[:2] != ("docs", "making"):
            yield path


def test_no_link_in_any_page_is_dead() -> None:
    dead = [f"{page.relative_to(ROOT)}:{each}" for page in pages() for each in dead_links(page)]
    assert dead == []


def dead_links(page: Path) -> Iterator[str]:
    for link in links(page.read_text(encoding="utf-8")):
        if trouble := (of_form if link.is_external else of_place)(page, link):
            yield f"{link.line}: {link.path}#{link.anchor} {trouble}"


def of_form(_page: Path, link: Link) -> str | None:
    parts = urlsplit(link.path)
    if parts.scheme == "mailto":
        return None if "@" in parts.path else "is no address"
    whole = parts.scheme in ("http", "https") and "." in (parts.hostname or "localhost")
    return None if whole else "is no whole http(s) address"


def of_place(page: Path, link: Link) -> str | None:
    there = (page.parent / unquote(link.path)).resolve() if link.path else page
    if not there.is_relative_to(ROOT) or not there.exists():
        return "is not there"
    if not link.anchor:
        return None
    if there.suffix != ".md":
        return "has an anchor, and is no page"
    found = anchors(there.read_text(encoding="utf-8"))
    return None if link.anchor in found else "has no such heading"


@pytest.mark.parametrize("index", ["concepts/index.md", "guides/index.md", "decisions/README.md"])
def test_an_index_names_every_page_of_its_section(index: str) -> None:
    page = ROOT / "docs" / index
    named = {page.parent / link.path for link in links(page.read_text(encoding="utf-8"))}
    assert set(page.parent.rglob("*.md")) - named - {page} == set()


def test_links_are_found_in_prose_and_not_in_code() -> None:
    text = (
        'See [a](one.md#x) and ![b](two.png "title").\n'
        "`[not](this.md)` but [`code`](three(1).md)\n"
        "```\n[nor](that.md)\n```\n"
        "[c](https://example.org/a)\n"
    )
    found = list(links(text))
    assert [(each.line, each.path, each.anchor) for each in found] == [
        (1, "one.md", "x"),
        (1, "two.png", ""),
        (2, "three(1).md", ""),
        (6, "https://example.org/a", ""),
    ]
    assert [each.is_external for each in found] == [False, False, False, True]
    moved = relinked(text, lambda target: f"../{target}")
    assert "[a](../one.md#x)" in moved
    assert "`[not](this.md)`" in moved
    assert "[nor](that.md)" in moved


def test_anchors_are_those_of_github() -> None:
    text = '# The `gate`, again!\n## Twice\n## Twice\n<a id="here"></a>\n```\n# no heading\n```\n'
    assert anchors(text) == {"the-gate-again", "twice", "twice-1", "here"}
    assert slug("[station]") == "station"
    assert slug("A [link](to.md) & more") == "a-link--more"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("So:\n- a\n- b", "So:\n\n- a\n- b"),
        ("- a\n  - b\n\nend", "- a\n    - b\n\nend"),
        ("1. a\n   ```\n   x\n   ```\n2. b", "1. a\n    ```\n    x\n    ```\n2. b"),
        ("- a\n  goes on\n- b", "- a\n    goes on\n- b"),
        ("```\nSo:\n- a\n```", "```\nSo:\n- a\n```"),
    ],
)
def test_lists_are_respaced_for_the_site(written: str, read: str) -> None:
    assert respaced(written) == read
