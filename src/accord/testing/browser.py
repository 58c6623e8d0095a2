"""A headless browser driven by Playwright.

It is the Chromium of an npm package, which needs no root, so that every machine tests with the same
one. `ACCORD_TEST_BROWSER` names another program. It reaches loopback only.
"""

import json
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from accord.testing import HarnessError, nodejs

if TYPE_CHECKING:
    from playwright.async_api import Browser

VARIABLE: Final = "ACCORD_TEST_BROWSER"
_PACKED: Final = {"@sparticuz/chromium": "147.0.0"}
_UNPACK: Final = """
const { readFileSync, writeFileSync } = require("node:fs");
const { brotliDecompressSync } = require("node:zlib");
const [from, to] = process.argv.slice(1);
writeFileSync(to, brotliDecompressSync(readFileSync(from)));
"""
# The package's own file names folders of another machine, so that every text has the width 0.
_FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir>
  <cachedir>{cache}</cachedir>
</fontconfig>
"""
_ARGUMENTS: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--no-first-run",
    "--no-sandbox",
)


@dataclass(frozen=True, slots=True)
class Chromium:
    """A Chromium program and the environment variables that it needs."""

    program: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def opened(self) -> "AsyncIterator[Browser]":
        """Run the browser for the length of a block; `HarnessError` if it has no fonts."""
        from playwright.async_api import async_playwright

        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=self.program,
                args=list(_ARGUMENTS),
                env={**os.environ, **self.environment},
            )
            try:
                await _check_fonts(browser)
                yield browser
            finally:
                await browser.close()


def find_chromium(folder: Path) -> Chromium:
    """Unpack the packaged Chromium into a folder, or use that of `ACCORD_TEST_BROWSER`.

    Raises:
        HarnessError: There is none, and none could be installed.
    """
    if named := os.environ.get(VARIABLE):
        if not Path(named).is_file():
            raise HarnessError("there is no such program", where=VARIABLE)
        return Chromium(Path(named))
    manifest = json.dumps({"private": True, "dependencies": _PACKED}).encode()
    packed = nodejs.install_packages(manifest, folder) / "@sparticuz" / "chromium" / "bin"
    unpacked = folder / "browser"
    if not (unpacked / "ready").is_file():
        _unpack(packed, unpacked)
    configuration = unpacked / "fonts.conf"
    configuration.write_text(
        _FONTS.format(
            fonts=escape(str(unpacked / "fonts")), cache=escape(str(folder / "fontcache"))
        )
    )
    environment = {
        "LD_LIBRARY_PATH": str(unpacked / "lib"),
        "FONTCONFIG_FILE": str(configuration),
    }
    return Chromium(unpacked / "chromium", environment)


async def _check_fonts(browser: "Browser") -> None:
    page = await browser.new_page()
    try:
        width = await page.evaluate(
            "document.createElement('canvas').getContext('2d').measureText('Hello').width"
        )
    finally:
        await page.close()
    if not width:
        raise HarnessError("the browser has no fonts: every text has the width 0")


def _unpack(packed: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
        try:
            subprocess.run(  # noqa: S603
                [nodejs.node_program(), "-e", _UNPACK, packed / f"{name}.br", folder / name],
                capture_output=True,
                timeout=300,
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise HarnessError("the packed browser cannot be unpacked") from error
        if name.endswith(".tar"):
            with tarfile.open(folder / name) as archive:
                # Some releases of Python 3.11 have no filters.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)  # noqa: S202
    (folder / "chromium").chmod(0o755)
    (folder / "ready").touch()
