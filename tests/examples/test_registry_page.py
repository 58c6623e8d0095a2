"""The registry's page of a station says for whom a version would break, from what was called."""

import html
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest
from examples import library
from tests.examples.example_network import Network, let_in, until
from tests.examples.example_station import station
from tests.pipeline.folders import bring_up

from accord.contracts import digest
from accord.pipeline.folder import Layout
from accord.pipeline.tables import gold_contracts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

# The proposal lets nobody keep a book for longer than a month; three calls asked for more.
DAYS = (90, 7, 31, 30, 365)
REFUSED = 3
WITHIN = 240.0


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Iterator[Network]:
    """A station whose library was called, and whose calls the pipeline has published."""
    folder = tmp_path_factory.mktemp("registry")
    home = folder / "home"
    with station(home, ACCORD_AUTHORITY__ENABLED="true") as address, ExitStack() as opened:
        made = Network(home, address, opened)
        made.contracts["library"].write_bytes(library.contract().to_json())
        made.ask("rpc", "allow")
        let_in(made, "library")
        words = ("service", "run", "examples.library:library", "--authority", address)
        assert json.loads(made.start(*words).read_line())["contract"] == "library@v1"
        for days in DAYS:
            asked = json.dumps({"book": "Walden", "reader": "eve", "days": days})
            code, said, _ = made.run(
                "rpc", "call", *made.about("library", "Library.Lend"), asked, "--json"
            )
            assert code == 0 or json.loads(said)["error"]["type"] == "BookOut"
        records: Counter[str] = Counter()

        def look() -> bool | None:
            records.update(made.ask("pipeline", "export")["records"])
            return records["contracts.calls"] >= 2 * len(DAYS) or None

        until(look)
        needed = ("contracts_history", "contracts_manifests")
        tables = [each for each in gold_contracts.CONTRACT_TABLES if each.name in needed]
        bring_up(Layout(home / "pipeline"), spark, tables)
        yield made


def proposed(made: Network) -> str:
    """Push the contract as it is, and one that fewer calls keep; the digest of the second."""
    manifest = library.contract().manifest()
    made.ask("contract", "push", str(made.contracts["library"]))
    manifest["schemas"]["Lend"]["properties"]["days"]["maximum"] = 30
    file = made.home.parent / "proposal.json"
    file.write_text(json.dumps(manifest))
    made.ask("contract", "push", str(file))
    return digest(manifest)


def read(browser: httpx.Client) -> str:
    page = browser.get("/console/registry/contract", params={"id": "library@v1"})
    assert page.status_code == 200
    return html.unescape(re.sub(r"<[^>]+>", " ", page.text))


def ended(browser: httpx.Client) -> str:
    """The page once the command has ended; it starts a session of Spark of its own."""
    deadline = time.monotonic() + WITHIN
    while "under way" in (shown := read(browser)):
        assert time.monotonic() < deadline, shown
        time.sleep(0.5)
    return shown


def test_a_version_that_breaks_real_calls_says_whose_and_how_many(busy: Network) -> None:
    newer = proposed(busy)
    with httpx.Client(base_url=busy.address, follow_redirects=True) as browser:
        link = busy.ask("console", "link")["link"].partition("link=")[2]
        assert browser.post("/console/login", data={"link": link}).status_code == 200
        before = read(browser)
        assert "not compatible" in before
        assert "shell" in before.partition("For whom it would fail")[2]
        assert "/days" not in before.partition("Replay recorded calls")[2]
        page = browser.get("/console/registry/contract", params={"id": "library@v1"}).text
        token = re.search(r'name="csrf" value="([0-9a-f]{64})"', page)
        assert token is not None
        asked = {"csrf": token[1], "id": "library@v1", "digest": newer}
        assert browser.post("/console/registry/whatif", data=asked).status_code == 200

        shown = ended(browser)
    told = shown.partition(f"accord pipeline whatif contract library@v1 {newer[:12]}")[2]
    words = " ".join(told.split())
    assert words.startswith(", since ")
    assert " : done If library@v1 were " in words
    assert f"{REFUSED} calls of {len(DAYS)} that it touches would have failed" in words
    assert "of 1 caller." in words
    # Whom, where, what they have to change, how often and why.
    assert f"shell Library.Lend input caller {REFUSED} /days the value is greater" in words
    assert '{"book":"Walden","days":90,"reader":"eve"}' in words
