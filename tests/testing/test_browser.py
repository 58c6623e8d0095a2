"""The browser that tests drive."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from accord.testing import HarnessError, nodejs
from accord.testing.browser import Chromium, find_chromium

WIDTH = "document.createElement('canvas').getContext('2d').measureText('Hello').width"


async def test_text_has_a_width(chromium: Chromium) -> None:
    async with chromium.opened() as browser:
        page = await browser.new_page()
        assert await page.evaluate(WIDTH) > 10


async def test_a_browser_without_fonts_is_refused(chromium: Chromium, tmp_path: Path) -> None:
    bare = tmp_path / "fonts.conf"
    bare.write_text("<fontconfig><dir>/nonexistent</dir></fontconfig>")
    fontless = replace(chromium, environment={**chromium.environment, "FONTCONFIG_FILE": str(bare)})
    with pytest.raises(HarnessError, match="no fonts"):
        async with fontless.opened():
            pass


def test_a_variable_names_another_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "chromium"
    monkeypatch.setenv("ACCORD_TEST_BROWSER", str(mine))
    with pytest.raises(HarnessError, match="no such program"):
        find_chromium(tmp_path / "folder")
    mine.touch()
    assert find_chromium(tmp_path / "folder") == Chromium(mine)


def test_the_browser_and_node_of_the_machine_are_not_taken(
    chromium: Chromium, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("chromium", "google-chrome", "node"):
        (tmp_path / name).touch(0o755)
    assert tmp_path not in Path(nodejs.node_program()).parents
    if "ACCORD_TEST_BROWSER" not in os.environ:
        assert "FONTCONFIG_FILE" in chromium.environment
