"""`python -m docs.making.pictures`: take the pictures of the console anew, from a real station.

A station with the demo is started in a folder of its own, unless `--home` names one that runs. With
`--all` every page is taken in four ways: desk and phone, light and dark. Otherwise only those that
the documentation shows. Pictures are kept with 256 colours.
"""

import argparse
import asyncio
import io
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
from PIL import Image
from playwright.async_api import Browser, Page

from accord.testing.browser import find_chromium

_PROGRAM: Final = (sys.executable, "-m", "accord.cli")
_SECONDS: Final = 300.0
_QUESTION: Final = "How do I clean rain water?"
_ANSWER_MS: Final = 120_000.0
_LEAST_LETTERS: Final = 40
_TRIES: Final = 5
_COLOURS: Final = 256
_BROWSER: Final = Path("build/browser")


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
_PHONE: Final = LOOKS[2]
_PHONE_DARK: Final = LOOKS[3]
# Where each page is; Ask shows the conversation of the question above.
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
    "tables": "tables",
    "settings": "settings",
    "users": "users",
    "backups": "backups",
    "log": "log",
    "find": "find?q=water",
}
SHOWN: Final = (
    ("home", DESK),
    ("home", _PHONE_DARK),
    ("ask", DESK),
    ("chat", DESK),
    ("agents", DESK),
    ("services", DESK),
    ("settings", _PHONE),
)
"""What the documentation shows: cut to the window, so that a picture stays small."""


@contextmanager
def demo(folder: Path) -> Iterator[Path]:
    """Run a station with the demo until its story is told."""
    home = folder / "home"
    log = folder / "station.log"
    with log.open("wb") as output:
        command = (*_PROGRAM, "up", "--demo", "--home", str(home), "--port", "0")
        station = subprocess.Popen(  # noqa: S603
            command, stdout=output, stderr=output, env=environment()
        )
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


def environment() -> dict[str, str]:
    """The variables of the station: what is set for tests, or on this machine, changes nothing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCORD_")}
    # Plots have a line within the minutes that this takes.
    return {**kept, "ACCORD_METRICS__HISTORY_SECONDS": "10"}


def login_link(home: Path) -> str:
    """A link that logs one browser in."""
    command = (*_PROGRAM, "console", "link", "--json", "--home", str(home))
    told = subprocess.run(  # noqa: S603
        command, capture_output=True, check=True, env=environment()
    )
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
    places = {**PLACES, "ask": await _asked(page, base)}
    for name, look in asked:
        await page.set_viewport_size({"width": look.width, "height": look.height})
        await page.emulate_media(color_scheme="dark" if look.scheme == "dark" else "light")
        await page.goto(f"{base}/{places[name]}")
        await page.get_by_role("heading", level=1).wait_for()
        file = folder / f"{name}-{look.name}.png"
        _keep(await page.screenshot(full_page=every), file)
        taken.append(file.name)
    await context.close()
    return taken


async def _asked(page: Page, base: str) -> str:
    """Ask a question, and return where its answer is.

    The small built-in model may say next to nothing; then the question is asked anew.
    """
    for _ in range(_TRIES):
        await page.goto(f"{base}/ask")
        await page.get_by_label("Question").fill(_QUESTION)
        await page.get_by_role("button", name="Ask", exact=True).click()
        await page.get_by_role("heading", name="Sources").wait_for(timeout=_ANSWER_MS)
        text, _, _ = (await page.locator(".answer").last.inner_text()).partition("(Written by")
        if len(text.strip()) >= _LEAST_LETTERS:
            break
        await page.get_by_text("Rename, export or delete").click()
        await page.get_by_role("button", name="Delete the conversation").click()
        await page.get_by_text("The conversation is deleted.").wait_for()
    else:
        raise SystemExit("the model has not answered the question")
    return page.url.removeprefix(f"{base}/")


def _keep(picture: bytes, file: Path) -> None:
    """Write a picture with a palette, which takes about a third of the space."""
    with Image.open(io.BytesIO(picture)) as opened:
        opened.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
            file, "PNG", optimize=True
        )


async def _take_all(home: Path, folder: Path, *, every: bool) -> list[str]:
    chromium = find_chromium(_BROWSER)
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
