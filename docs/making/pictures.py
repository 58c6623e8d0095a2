"""`python -m docs.making.pictures`: take the pictures of the console anew, from a real station.

A station with the demo is started in a folder of its own, unless `--home` names one that runs. With
`--all` every page is taken in four ways: desk and phone, light and dark. Otherwise only those that
the documentation shows.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
from docs.making.indexes import DOCS
from playwright.async_api import Browser

from accord.testing.browser import find_chromium

_PROGRAM: Final = (sys.executable, "-m", "accord.cli")
_SECONDS: Final = 300.0
_QUESTION: Final = "ask?q=How+do+I+clean+rain+water%3F"


@dataclass(frozen=True, slots=True)
class Look:
    """A size of window and a colour scheme."""

    name: str
    width: int
    height: int
    scheme: str


DESK: Final = Look("desk", 1280, 800, "light")
LOOKS: Final = (
    DESK,
    Look("desk-dark", 1280, 800, "dark"),
    Look("phone", 390, 844, "light"),
    Look("phone-dark", 390, 844, "dark"),
)
_PHONE_DARK: Final = LOOKS[3]
PLACES: Final = {
    "home": "",
    "ask": "ask",
    "chat": "chat",
    "market": "market",
    "files": "files",
    "members": "members",
    "agents": "agents",
    "contracts": "contracts",
    "registry": "registry",
    "services": "services",
    "pipeline": "pipeline",
    "settings": "settings",
    "log": "log",
    "find": "find?q=water",
}
SHOWN: Final = (
    ("home", DESK),
    ("home", _PHONE_DARK),
    ("ask", DESK),
    ("members", DESK),
    ("agents", DESK),
    ("services", DESK),
)
"""What the documentation shows: cut to the window, so that a picture stays small."""


@contextmanager
def demo(folder: Path) -> Iterator[Path]:
    """Run a station with the demo until its story is told."""
    home = folder / "home"
    log = folder / "station.log"
    with log.open("wb") as output:
        command = (*_PROGRAM, "up", "--demo", "--home", str(home), "--port", "0")
        station = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603
    try:
        until = time.monotonic() + _SECONDS
        while b"demo: told" not in log.read_bytes():
            if station.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the demo has not come up: see {log}")
            time.sleep(0.5)
        yield home
    finally:
        station.terminate()
        station.wait(60)


def login_link(home: Path) -> str:
    """A link that logs one browser in."""
    command = (*_PROGRAM, "console", "link", "--json", "--home", str(home))
    told = subprocess.run(command, capture_output=True, check=True)  # noqa: S603
    return str(orjson.loads(told.stdout)["link"])


async def take(browser: Browser, link: str, folder: Path, *, every: bool) -> list[str]:
    """Log in and take the pictures; returns their names."""
    taken = []
    asked = [(name, look) for look in LOOKS for name in PLACES] if every else list(SHOWN)
    context = await browser.new_context(reduced_motion="reduce")
    page = await context.new_page()
    await page.goto(link)
    await page.get_by_role("button", name="Log in").click()
    base = page.url.rstrip("/")
    for name, look in asked:
        await page.set_viewport_size({"width": look.width, "height": look.height})
        await page.emulate_media(color_scheme="dark" if look.scheme == "dark" else "light")
        await page.goto(f"{base}/{PLACES[name]}")
        await page.get_by_role("heading", level=1).wait_for()
        file = folder / f"{name}-{look.name}.png"
        await page.screenshot(path=file, full_page=every)
        taken.append(file.name)
    await context.close()
    return taken


async def _take_all(home: Path, folder: Path, *, every: bool) -> list[str]:
    chromium = find_chromium(Path(os.environ.get("ACCORD_BROWSER_FOLDER", "build/browser")))
    async with chromium.opened() as browser:
        return await take(browser, login_link(home), folder, every=every)


def main() -> None:
    """Do what the command line asks for."""
    asked = argparse.ArgumentParser(prog="python -m docs.making.pictures", description=__doc__)
    asked.add_argument("--home", type=Path, help="the home of a station that runs")
    asked.add_argument("--to", type=Path, default=DOCS / "assets" / "console")
    asked.add_argument("--all", action="store_true", help="every page, in four ways")
    given = asked.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pictures-"))
    try:
        if given.home:
            names = asyncio.run(_take_all(given.home, given.to, every=given.all))
        else:
            with demo(folder) as home:
                names = asyncio.run(_take_all(home, given.to, every=given.all))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"{len(names)} pictures are in {given.to}: {', '.join(names)}.\n")


if __name__ == "__main__":
    main()
