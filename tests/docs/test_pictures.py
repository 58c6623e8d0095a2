"""The pictures of the console: every page has one, and the guide shows those that are there."""

import re
from pathlib import Path

import pytest
from docs.making import pictures
from PIL import Image
from tests.console.consoles import opened, served

from accord.console.pages import PAGES
from accord.testing.browser import Chromium

DOCS = Path(pictures.__file__).parents[1]
GUIDE = DOCS / "guides" / "console.md"
MOST_BYTES = 120_000


def test_every_listed_page_can_be_taken() -> None:
    places = {place.partition("?")[0] for place in pictures.PLACES.values()}
    assert {page.slug for page in PAGES} == places


def test_the_guide_shows_every_picture_and_each_is_small() -> None:
    kept = {file.name for file in (DOCS / "assets" / "console").iterdir()}
    named = {f"{name}-{look.name}.png" for name, look in pictures.SHOWN}
    shown = set(re.findall(r"assets/console/([\w-]+\.png)", GUIDE.read_text()))
    assert kept == named == shown
    for name in kept:
        assert (DOCS / "assets" / "console" / name).stat().st_size < MOST_BYTES, name


def test_what_is_set_for_tests_does_not_reach_the_station(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORD_BROWSER_FOLDER", "build/browser")
    monkeypatch.setenv("ACCORD_TEST_BROWSER", "/usr/bin/chromium")
    monkeypatch.setenv("ACCORD_STATION__NAME", "mine")
    found = pictures.environment()
    assert "PATH" in found
    ours = {name for name in found if name.startswith("ACCORD_")}
    assert ours == {"ACCORD_METRICS__HISTORY_SECONDS"}


async def test_pictures_are_taken_with_an_answered_question(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with (
        opened(tmp_path / "home") as found,
        found.inside() as owner,
        served(found) as address,
        chromium.opened() as browser,
    ):
        rain = b"# Rain\n\nClean rain water by boiling it for five minutes.\n"
        given = {"corpus": "library", "title": "Rain", "licence": "CC0-1.0"}
        await owner.send("files/add", given, files={"file": ("rain.md", rain, "text/markdown")})
        link = f"{address}/console/login?link={found.tickets.link()}"
        taken = await pictures.take(browser, link, tmp_path, every=False)
        assert len(taken) == len(pictures.SHOWN)
        for name in taken:
            with Image.open(tmp_path / name) as picture:
                assert picture.mode == "P"
                assert picture.width in {look.width for look in pictures.LOOKS}
        assert "How do I clean rain water?" in (await owner.get("ask")).text
