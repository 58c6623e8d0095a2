"""The browser that tests drive."""

from dataclasses import replace
from pathlib import Path

import pytest

from accord.testing import HarnessError
from accord.testing.browser import Chromium

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
