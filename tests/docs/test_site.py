"""The built site: strict, whole, quiet towards other hosts, and pleasant to read and to search."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import pytest
from docs.making.nav import navigation
from docs.making.site import repository_path, site_link
from filelock import FileLock
from playwright.async_api import Page, ViewportSize, expect

from accord.testing.browser import Chromium

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PHONE = ViewportSize(width=360, height=740)
READ = ("index.html", "guides/community.html", "reference/settings.html", "concepts/index.html")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it, once for all workers: a warning is an error."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "site"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            build(folder.with_suffix(".part")).rename(folder)
    return folder


def build(folder: Path) -> Path:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_no_link_of_the_built_site_is_dead_and_nothing_is_asked_of_other_hosts(site: Path) -> None:
    read = {path: Html.of(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(read) > 100
    wrong = []
    for path, html in read.items():
        wrong += [f"{path}: asks for {each}" for each in html.asked if urlsplit(each).netloc]
        for link in (*html.asked, *html.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file():
                wrong.append(f"{path.relative_to(site)}: {link} is not there")
            elif parts.fragment and there in read and parts.fragment not in read[there].ids:
                wrong.append(f"{path.relative_to(site)}: {link} has no such place")
    assert wrong == []


def test_no_page_has_a_diagram_that_the_theme_would_fetch_a_script_for() -> None:
    drawn = [page for page in (ROOT / "docs").rglob("*.md") if "```mermaid" in page.read_text()]
    assert drawn == []


async def test_a_reader_finds_dead_letters_and_no_request_leaves(
    site: Path, chromium: Chromium
) -> None:
    async with chromium.opened() as browser:
        with served(site) as address:
            page = await browser.new_page()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            for name in READ:
                await page.goto(f"{address}/{name}")
            assert await results(page, "dead letter") > 0
        assert len(asked) > len(READ)
        assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


async def test_search_works_for_a_site_that_is_opened_from_a_folder(
    site: Path, chromium: Chromium
) -> None:
    async with chromium.opened() as browser:
        page = await browser.new_page()
        await page.goto((site / "index.html").as_uri())
        assert await results(page, "dead letter") > 0


async def test_pages_fit_a_phone_and_are_dark_for_whoever_wants_it(
    site: Path, chromium: Chromium
) -> None:
    async with chromium.opened() as browser:
        with served(site) as address:
            for dark, name in ((False, "default"), (True, "slate")):
                scheme: Literal["dark", "light"] = "dark" if dark else "light"
                page = await browser.new_page(viewport=PHONE, color_scheme=scheme)
                for path in READ:
                    await page.goto(f"{address}/{path}")
                    await expect(page.locator("body")).to_have_attribute(
                        "data-md-color-scheme", name
                    )
                    wide = await page.evaluate("document.documentElement.scrollWidth")
                    assert wide <= PHONE["width"], path


def test_every_page_is_in_the_navigation_once_whatever_it_is_called() -> None:
    pages = [
        "index.md", "tutorial.md", "new.md", "guides/index.md", "guides/chat.md", "guides/odd.md",
        "guides/platforms/README.md", "guides/deploy/tls.md", "concepts/index.md",
        "concepts/fold.md", "reference/cli.md", "reference/cli/market.md", "reference/settings.md",
        "decisions/README.md", "decisions/0001-x.md", "project/README.md", "project/x/README.md",
    ]  # fmt: skip
    found = list(leaves(navigation(reversed(pages))))
    assert sorted(found) == sorted(pages)
    assert found[:3] == ["index.md", "tutorial.md", "guides/index.md"]


@pytest.mark.parametrize(
    ("here", "target", "leads"),
    [
        ("docs/guides/chat.md", "files.md#top", "files.md#top"),
        ("docs/guides/chat.md", "../../README.md", "../project/README.md"),
        ("README.md", "docs/guides/chat.md", "../guides/chat.md"),
        ("README.md", "examples/README.md", "examples/README.md"),
        ("examples/README.md", "../docs/index.md", "../../index.md"),
        ("README.md", "https://example.org/x", "https://example.org/x"),
        ("README.md", "#start", "#start"),
    ],
)
def test_links_are_written_for_the_repository_and_lead_on_in_the_site(
    here: str, target: str, leads: str
) -> None:
    assert site_link(here, target) == leads


def test_a_page_of_the_site_is_found_where_it_lies() -> None:
    assert repository_path("guides/chat.md") == "docs/guides/chat.md"
    assert repository_path("project/README.md") == "README.md"


class Html(HTMLParser):
    """What a page links to, what it asks for by itself, and its places."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.asked: list[str] = []
        self.ids: set[str] = set()

    @classmethod
    def of(cls, path: Path) -> "Html":
        made = cls()
        made.feed(path.read_text(encoding="utf-8"))
        return made

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next", "edit"):
            self.asked.append(given["href"])
        elif "src" in given:
            self.asked.append(given["src"])


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a plain server for a folder, on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def results(page: Page, question: str) -> int:
    """How many pages the search of the site finds that say it."""
    await page.keyboard.press("/")
    await page.locator(".md-search__input").press_sequentially(question)
    found = page.locator(".md-search-result__item").filter(has_text=question)
    await expect(found.first).to_be_visible(timeout=30_000)
    return await found.count()


def leaves(entries: Any) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from leaves([below] if isinstance(below, str) else below)
