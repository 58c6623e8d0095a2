"""The service of "A whole service" is run as printed, and called from a page in a browser.

The guide as a whole is followed by `test_guides.py`, with `--long`.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import Command, Step, steps
from tests.docs.reading import ROOT, Reader
from tests.fabric.typescript_build import Workshop

from accord.contracts.authoring import Contract
from accord.kernel import canonical
from accord.testing.browser import Chromium

pytestmark = pytest.mark.slow

GUIDE = ROOT / "docs/guides/write-a-service.md"


def whole_service() -> list[Step]:
    """The steps of the section: the file, and the commands that run and call it."""
    found = re.search(
        r"^## A whole service$.*?(?=^## )", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return steps(found[0])


def customer(shop: dict[str, Any]) -> Contract:
    contract = Contract("customer@v1", display_name="Customer", description="Buys.")
    contract.uses(
        "shop", shop["id"], rpc=shop["rpc"], operations=["Shop.Show"], subscribe=["Shop.Sold"]
    )
    return contract


@pytest.mark.timeout(300)
async def test_the_printed_service_is_called_from_a_browser(
    npm: Path, chromium: Chromium, tmp_path: Path
) -> None:
    with Reader(tmp_path / "reader", seconds=90) as reader:

        async def do(*written: Step) -> None:
            await asyncio.to_thread(reader.follow, written)

        await do(Command(0, "accord authority serve &", ("The authority is up at …",)))
        await do(*whole_service())
        shop = json.loads((reader.folder / "shop.contract.json").read_text())
        own = customer(shop)
        (reader.folder / "customer.json").write_bytes(own.to_json())
        workshop = Workshop(tmp_path / "workshop", npm)
        workshop.add([shop, own.manifest()])
        workshop.programs("customer.ts")
        await do(
            Command(0, "accord authority deploy customer customer.json --accept", ()),
            Command(0, "accord authority instance add customer --key-file customer.key", ()),
        )
        seed = canonical.encode_base64url((reader.folder / "customer.key").read_bytes())
        authority = f"http://127.0.0.1:{reader.port('7070')}"
        async with workshop.in_browser(chromium, "customer.ts") as perform:
            await perform("enter", authority=authority, seed=seed)
            assert await perform("buy", name="saw", count=3) == {"left": 7}
            assert await perform("heard") == {"name": "saw", "count": 3}
            assert await perform("buy", name="saw", count=8) == {"soldOut": 7}
            assert await perform("buy", name="saw", count=900) == {"refused": "ValidationError"}
            assert await perform("show", name="saw", bytes=[1, 2, 3]) == 3
            await perform("leave")
        # What both callers bought was packed: by the job queue of the same service.
        await do(
            Command(0, "accord rpc allow", ("The shell may call every contract, as …",)),
            Command(
                0,
                "accord jobs list --queue pack   # repeat until it says so",
                ("… shop-dev pack completed 1 of …", "… shop-dev pack completed 1 of …"),
            ),
        )
