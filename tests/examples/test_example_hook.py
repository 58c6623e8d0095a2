"""The bridge from a webhook to the market, with signatures by somebody else's library."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from examples.hook_to_market import Bridge
from standardwebhooks import Webhook, WebhookVerificationError
from tests.examples.example_station import agent, command, station, until

from accord.kernel.signing import SigningKey
from accord.relay.rules import MessageEvent, SessionSource

pytestmark = pytest.mark.slow

IN = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
OUT = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="
LADDER = {"title": "Ladder to lend", "body": "Three metres.", "tags": ["tools"]}
SETTINGS = """
[[relay.webhook]]
name = "shop"
secret = "{secret}"
url = "http://127.0.0.1:{port}/"
send_secret = "{out}"
allow_http = true
ports = [{port}]
networks = ["127.0.0.0/8"]
"""


@dataclass
class Shop:
    """A program that posts offers, and is told what became of them."""

    home: Path
    key: Path
    address: str = ""
    told: list[str] = field(default_factory=list)

    def post(self, text: str, name: str, *, secret: str = IN, **more: str) -> httpx.Response:
        """Post a message as the user `till`."""
        body = json.dumps({"chat_id": "till", "user_id": "till", "text": text, **more})
        now = datetime.fromtimestamp(int(time.time()), UTC)
        headers = {
            "webhook-id": name,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(secret).sign(name, now, body),
        }
        url = f"{self.address}/relay/platforms/webhook/shop"
        return httpx.post(url, content=body, headers=headers)

    def answer(self, text: str, name: str, **more: str) -> str:
        """What the agent answers to a message that is taken."""
        before = len(self.told)
        taken = self.post(text, name, **more)
        assert (taken.status_code, taken.json()["new"]) == (200, True)
        return until(lambda: next(iter(self.told[before:]), None))

    @property
    def offers(self) -> list[Any]:
        """What stands on the market."""
        found: list[Any] = command(self.home, "market", "list")["posts"]
        return found


def receiver(shop: Shop) -> ThreadingHTTPServer:
    """Where the shop is told; it believes only what is signed."""

    class Told(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            try:
                action = Webhook(OUT).verify(raw, dict(self.headers))
            except WebhookVerificationError:
                self.send_response(401)
            else:
                self.send_response(200)
                if action["type"] == "send":
                    shop.told.append(action["text"])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    return ThreadingHTTPServer(("127.0.0.1", 0), Told)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    home = folder / "home"
    made = Shop(home, home / "keys" / "device.ed25519")
    made.home.mkdir()
    with ExitStack() as opened:
        server = opened.enter_context(receiver(made))
        Thread(target=server.serve_forever).start()
        opened.callback(server.shutdown)
        told = SETTINGS.format(secret=IN, out=OUT, port=server.server_port)
        (made.home / "accord.toml").write_text(told)
        made.address = opened.enter_context(station(made.home, ACCORD_COMMUNITY__FOUND="Home"))
        opened.enter_context(
            agent(
                *(made.home, "examples.hook_to_market:Bridge"),
                *("--here", "shop", "--front", "webhook:shop"),
                MARKET_NODE=made.address,
                MARKET_KEY=str(made.key),
            )
        )
        command(made.home, "relay", "link", "shop", "--account", "webhook", "shop/till")
        yield made


def test_what_the_shop_posts_is_an_offer_once_however_often_it_comes(shop: Shop) -> None:
    text = json.dumps(LADDER)
    answer = shop.answer(text, "msg_1", message_id="ladder-1")
    [found] = shop.offers
    assert answer == f"Posted as {found['event_id']}."
    assert {name: found[name] for name in LADDER} == LADDER
    assert found["category"] == "offer"
    assert shop.post(text, "msg_1", message_id="ladder-1").json()["new"] is False
    assert shop.post(text, "msg_2", message_id="ladder-1").json()["new"] is True
    # What came before this was taken before this, and said nothing.
    assert shop.answer("{}", "msg_3").startswith("Not posted: ")
    assert len(shop.told) == 2
    assert shop.offers == [found]


async def test_a_turn_that_is_begun_again_after_a_crash_posts_nothing_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARKET_NODE", shop.address)
    monkeypatch.setenv("MARKET_KEY", str(shop.key))
    source = SessionSource("webhook", "shop/till", user_id="shop/till")
    event = MessageEvent('{"title": "Saw"}', source, message_id="saw-1")
    turn: Any = SimpleNamespace(event=event, source=source)
    said = {await Bridge()(turn) for _ in range(2)}
    assert len(said) == 1
    other = replace(event, source=replace(source, user_id="shop/stall"))
    said.add(await Bridge()(SimpleNamespace(event=other, source=other.source)))  # type: ignore[arg-type]
    posts = await asyncio.to_thread(lambda: shop.offers)
    saws = [each["event_id"] for each in posts if each["title"] == "Saw"]
    assert said == {f"Posted as {each}." for each in saws}
    assert len(saws) == 2


async def test_a_node_that_is_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SigningKey.create(tmp_path / "key")
    monkeypatch.setenv("MARKET_NODE", "http://127.0.0.1:1")
    monkeypatch.setenv("MARKET_KEY", str(tmp_path / "key"))
    source = SessionSource("webhook", "shop/till", user_id="shop/till")
    event = MessageEvent('{"title": "Saw"}', source, message_id="saw-1")
    turn: Any = SimpleNamespace(event=event, source=source)
    assert (await Bridge()(turn)).startswith("Not posted: ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Ladder to lend", "Write it like"),
        ('["Ladder"]', "Write it like"),
        ("{}", "title"),
        ('{"title": ""}', "title"),
        ('{"title": "Ladder", "price": 3}', "price"),
        ('{"title": "Ladder", "tags": "tools"}', "tags"),
    ],
)
def test_what_is_no_offer_is_answered_and_nothing_is_posted(
    shop: Shop, text: str, why: str
) -> None:
    before = shop.offers
    answer = shop.answer(text, f"bad {text}"[:30].replace(" ", "-"))
    assert answer.startswith("Not posted: ")
    assert why in answer
    assert shop.offers == before


def test_a_shop_cannot_choose_another_category_or_anothers_client_id(shop: Shop) -> None:
    told = {**LADDER, "title": "Tent", "category": "emergency", "client_id": "mine"}
    shop.answer(json.dumps(told), "msg_tent")
    [tent] = [each for each in shop.offers if each["title"] == "Tent"]
    assert tent["category"] == "offer"


def test_whoever_does_not_know_the_key_posts_nothing(shop: Shop) -> None:
    before, told = shop.offers, len(shop.told)
    assert shop.post(json.dumps(LADDER), "msg_9", secret=OUT).status_code == 401
    assert shop.answer("{}", "msg_10").startswith("Not posted")
    assert len(shop.told) == told + 1
    assert shop.offers == before
