"""First paint and weight of every page of the console, alone and with 50 open consoles under load.

A station runs as `accord up` starts it, and Chromium loads each page with an empty cache; the
median of some loads counts. A page weighs what is sent for it: HTML, style and scripts. Then 50
consoles are open, each in a session of its own, on Home, Market or Members; they hold their event
stream and load their page again when it tells of news, while somebody posts every second. The
browser and the consoles share the machine with the station.
"""

import asyncio
import contextlib
import html
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import httpx
from playwright.async_api import Browser

from accord.console import Tickets
from accord.console.pages import PAGES
from accord.kernel.clock import SystemClock
from accord.testing.browser import find_chromium
from bench.figure import Figure

GOAL_SECONDS = 0.2
GOAL_KILOBYTES = 300.0
CONSOLES = 50

_ROUNDS = 5
_PATIENCE = 180.0
_BROWSER = Path("build/browser")
_TOKEN = re.compile(r'name="csrf" value="([0-9a-f]{64})"')
_LIVE = re.compile(r'data-live="([^"]+)"')
_FOLLOWED = ("", "", "market", "members", "")
_POST_SECONDS = 1.0
# Resources of the page itself, and those that it fetches; headers count, as they are sent too.
_LOOK = """() => new Promise((tell) => new PerformanceObserver((list) => {
  const [paint] = list.getEntriesByName("first-contentful-paint");
  if (!paint) return;
  const of = (kind) => performance.getEntriesByType(kind);
  const all = [...of("navigation"), ...of("resource")];
  tell([paint.startTime / 1000, all.reduce((sum, each) => sum + each.transferSize, 0) / 1000]);
}).observe({ type: "paint", buffered: true }))"""

EXPLAINED: Final = {
    "": "The paints were measured while the machine did much other work: the load before stands "
    "below, for two cores, so station and browser got a fraction of them. How far an idle machine "
    "is from the goal these figures do not say. Weights do not depend on it.",
}


def run() -> Iterator[Figure]:
    """Measure each page cold, then with open consoles."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        home = Path(folder) / "home"
        with station(home) as address:
            alone, busy = asyncio.run(measure(home, address))
    for name, (seconds, kilobytes) in alone.items():
        yield _paint(f"{name}, first paint", seconds)
        yield Figure(
            f"{name}, weight", "pages/300 KB", GOAL_KILOBYTES / kilobytes, 1, "the goal", 1.0
        )
    for name, (seconds, _) in busy.items():
        yield _paint(f"{name}, first paint, {CONSOLES} open", seconds)


def _paint(name: str, seconds: float) -> Figure:
    return Figure(name, "paints/s", 1 / seconds, 1 / GOAL_SECONDS, "the goal", 1.0)


@contextmanager
def station(home: Path) -> Iterator[str]:
    """A station with every plane; yields its address."""
    words = ["-m", "accord.cli", "up", "--json", "--port", "0", "--home", str(home)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCORD_")}
    env = {
        **kept,
        "ACCORD_AUTHORITY__NATS_PORT": "0",
        "ACCORD_COMMUNITY__PORT": "0",
        "ACCORD_LOG__LEVEL": "error",
        "ACCORD_METRICS__HISTORY_SECONDS": "5",
    }
    with subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            address = str(json.loads(process.stdout.readline())["address"])
            until = time.monotonic() + _PATIENCE
            while httpx.get(f"{address}/readyz").status_code != httpx.codes.OK:
                assert time.monotonic() < until, "it is never ready"
                time.sleep(0.1)
            yield address
        finally:
            process.terminate()


Seen = dict[str, tuple[float, float]]


async def measure(home: Path, address: str) -> tuple[Seen, Seen]:
    """Seconds to the first paint and kilobytes of each page: alone, and with open consoles."""
    tickets = Tickets(home / "console", SystemClock())
    async with find_chromium(_BROWSER).opened() as browser:
        await _write(address, tickets, 50)
        alone = await _look(browser, tickets, address)
        async with open_consoles(tickets, address):
            busy = await _look(browser, tickets, address)
    return alone, busy


async def _look(browser: Browser, tickets: Tickets, address: str) -> Seen:
    found = {}
    async with _logged_in(tickets, address) as (http, _):
        [(name, secret)] = [(each.name, each.value or "") for each in http.cookies.jar]
        for page in PAGES:
            seen = [await _load(browser, address, page.path, name, secret) for _ in range(_ROUNDS)]
            paints, weights = zip(*seen, strict=True)
            found[page.title] = statistics.median(paints), statistics.median(weights)
    return found


async def _load(
    browser: Browser, address: str, path: str, name: str, secret: str
) -> tuple[float, float]:
    """Load a page in a browser that has nothing in its cache."""
    async with await browser.new_context() as context:
        await context.add_cookies([{"name": name, "value": secret, "url": f"{address}/console"}])
        page = await context.new_page()
        await page.goto(address + path)
        seconds, kilobytes = await page.evaluate(_LOOK)
        assert page.url == address + path, page.url
        return float(seconds), float(kilobytes)


@asynccontextmanager
async def _logged_in(
    tickets: Tickets, address: str
) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """Somebody who is logged in, and the token of their forms."""
    headers = {"origin": address}
    limits = httpx.Timeout(60, read=None)
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=limits) as http:
        await http.post("/console/login", data={"link": tickets.link()})
        token = _TOKEN.search((await http.get("/console/")).text)
        assert token is not None
        yield http, token[1]


async def _write(address: str, tickets: Tickets, count: int) -> None:
    async with _logged_in(tickets, address) as (http, token):
        for number in range(count):
            await _post(http, token, number)


async def _post(http: httpx.AsyncClient, token: str, number: int) -> None:
    given = {"title": f"Ladder {number}", "category": "offer", "days": "7", "csrf": token}
    answer = await http.post("/console/market/post", data=given)
    assert answer.status_code == httpx.codes.SEE_OTHER, answer.text


@asynccontextmanager
async def open_consoles(tickets: Tickets, address: str) -> AsyncIterator[None]:
    """Keep consoles open, and write all the time."""
    following = asyncio.Event()
    count = 0

    async def follow(page: str) -> None:
        nonlocal count
        async with _logged_in(tickets, address) as (http, _):
            count += 1
            if count == CONSOLES:
                following.set()
            while True:
                shown = (await http.get(f"/console/{page}")).text
                live = _LIVE.search(shown)
                assert live is not None, page
                accepted = {"accept": "text/event-stream"}
                async with http.stream("GET", html.unescape(live[1]), headers=accepted) as told:
                    async for line in told.aiter_lines():
                        if line == "event: news":
                            break

    async def write() -> None:
        async with _logged_in(tickets, address) as (http, token):
            for number in range(1_000_000):
                await _post(http, token, number)
                await asyncio.sleep(_POST_SECONDS)

    tasks = [asyncio.create_task(follow(_FOLLOWED[n % len(_FOLLOWED)])) for n in range(CONSOLES)]
    await following.wait()
    tasks.append(asyncio.create_task(write()))
    try:
        yield
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
