"""What strangers, and operators who may not, can do to a connector's management over HTTP."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from accord.relay.connector import RELAY, Connector, Keyring, open_connector
from accord.relay.connector.admin import VERBS
from accord.relay.errors import Code, RelayError
from accord.storage import journal, open_store
from accord.testing import VirtualClock

DAY = 86_400


@dataclass
class Site:
    """A connector with one agent, and clients at addresses."""

    connector: Connector
    clock: VirtualClock
    app: Starlette

    async def token(self, name: str = "ann", *, days: int = 90, read_only: bool = False) -> str:
        made = await self.connector.control.add_operator(
            name, seconds=days * DAY, read_only=read_only
        )
        return made.secret

    async def post(
        self,
        verb: str,
        token: str | None = None,
        body: Any = None,
        *,
        content: bytes | None = None,
        address: str = "192.0.2.1",
    ) -> httpx.Response:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(app=self.app, client=(address, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://relay.test") as client:
            written = json.dumps(body or {}).encode() if content is None else content
            path = f"/manage/operator/{verb}"
            return await client.post(path, content=written, headers=headers)

    async def notes(self) -> list[dict[str, Any]]:
        entries = await self.connector.store.read(lambda c: journal.read(c, "relay.control"))
        told = [json.loads(entry.body) for entry in entries]
        return [note for each in told for note in each.get("actions", [each])]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    clock = VirtualClock()
    async with (
        open_store(str(tmp_path / "stores"), RELAY) as store,
        open_connector(store, Keyring([bytes(32)]), clock, name="c1", serve=False) as connector,
    ):
        token = await connector.control.mint_token("t1", "echo")
        await connector.control.enrol(token.token, "gw-echo")
        yield Site(connector, clock, Starlette(routes=connector.routes))


async def test_without_a_token_no_verb_answers_and_nothing_changes(site: Site) -> None:
    before = await site.notes()
    for number, verb in enumerate(VERBS):
        answer = await site.post(verb, body={"instance": "echo"}, address=f"192.0.2.{number}")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"] == "unauthorized"
        assert "accord relay operator-token" in answer.text or "Bearer" in answer.json()["mend"]
    assert await site.notes() == before


def forgeries(token: str) -> list[str]:
    """Tokens that look almost like a good one."""
    head, _, secret = token.rpartition("_")
    return [
        "x",
        "",
        head,
        f"{head}_",
        token[:-1],
        f"{token}A",
        f"{token}\u0661",
        token.upper(),
        f"{head[:-1]}0_{secret}",
        f"{head}_{'A' * 43}",
        f"operator_{'0' * 16}_{'A' * 43}",
        "operator_' OR 1=1 --_" + "A" * 43,
        "e" * 10_000,
    ]


async def test_a_wrong_token_is_refused_whatever_it_looks_like(site: Site) -> None:
    token = await site.token()
    for number, forged in enumerate(forgeries(token)):
        shown = forged.encode("ascii", "ignore").decode()
        if shown == token:
            continue
        answer = await site.post("instances", shown, address=f"192.0.2.{number}")
        assert answer.status_code == 401, shown
    assert (await site.post("instances", token)).status_code == 200


async def test_the_secrets_of_gateways_open_no_operators_door(site: Site) -> None:
    rotated = await site.connector.control.rotate(await site.connector.control.principal("echo"))
    assert (await site.post("instances", rotated.secret)).status_code == 401


async def test_a_revoked_token_ends_at_once(site: Site) -> None:
    token = await site.token()
    assert (await site.post("instances", token)).status_code == 200
    await site.connector.control.revoke_operator("ann")
    answer = await site.post("instances", token)
    assert answer.status_code == 401
    assert "was revoked" in answer.json()["what"]
    # The name can be used again, and the old token stays revoked.
    fresh = await site.token()
    assert (await site.post("instances", fresh)).status_code == 200
    assert (await site.post("instances", token)).status_code == 401


async def test_an_expired_token_is_refused(site: Site) -> None:
    token = await site.token(days=1)
    site.clock.advance(DAY - 1)
    assert (await site.post("instances", token)).status_code == 200
    site.clock.advance(2)
    answer = await site.post("instances", token)
    assert answer.status_code == 401
    assert "has expired" in answer.json()["what"]


async def test_a_token_that_may_read_changes_nothing(site: Site) -> None:
    token = await site.token(read_only=True)
    before = await site.notes()
    for verb in VERBS.values():
        answer = await site.post(verb.name, token, {"instance": "echo"})
        if verb.writes or verb.is_local:
            assert answer.status_code == 403, verb.name
        else:
            assert answer.status_code in (200, 400), verb.name
    assert (await site.post("instances", token)).json()["instances"][0]["instance"] == "echo"
    assert await site.notes() == before


async def test_no_token_makes_or_shows_other_tokens(site: Site) -> None:
    token = await site.token()
    body = {"name": "eve", "seconds": DAY, "read_only": False}
    for verb, said in (
        ("operators/new", body),
        ("operators/list", {}),
        ("operators/revoke", {"name": "ann"}),
    ):
        answer = await site.post(verb, token, said)
        assert answer.status_code == 403
        assert "own machine" in answer.json()["what"]


async def test_who_tries_many_wrong_tokens_has_to_wait(site: Site) -> None:
    token = await site.token()
    wrong = [(await site.post("instances", f"x{number}")).status_code for number in range(12)]
    assert wrong == [401] * 10 + [429] * 2
    limited = await site.post("instances", token)
    assert (limited.status_code, limited.json()["error"]) == (429, "rate_limited")
    assert int(limited.headers["retry-after"]) > 0
    # Others are not held up, and the wait ends.
    assert (await site.post("instances", token, address="192.0.2.2")).status_code == 200
    site.clock.advance(60)
    assert (await site.post("instances", token)).status_code == 200


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"x" * 70_000, 413),
        (b'{"instance":"' + b"x" * 70_000 + b'"}', 413),
        (b"[" * 20_000 + b"]" * 20_000, 400),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, 400),
        (b"[]", 400),
        (b"null", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b'{"instance":"echo","instance":"other"}', 400),
        (b'{"instance":1}', 400),
        (b'{"instance":null}', 400),
        (b'{"instance":"echo","tenant":"t1"}', 400),
        (b'{"instance":"' + b"x" * 600 + b'"}', 400),
        (b'{"instance":"echo\\u0000"}', 400),
        (b"{}", 400),
    ],
)
async def test_a_bad_body_is_refused_and_changes_nothing(
    site: Site, content: bytes, status: int
) -> None:
    token = await site.token()
    before = await site.notes()
    answer = await site.post("links/new", token, content=content)
    assert (answer.status_code, answer.json()["error"]) == (
        status,
        "too_large" if status == 413 else "bad_request",
    )
    assert len(answer.content) < 2_000
    assert await site.notes() == before


@pytest.mark.parametrize("verb", ["nothing", "", "instances/", "INSTANCES", "a" * 3000])
async def test_an_unknown_verb_says_so_to_operators_only(site: Site, verb: str) -> None:
    token = await site.token()
    answer = await site.post(verb, token)
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    assert (await site.post(verb)).status_code == 401


async def test_other_methods_are_not_answered(site: Site) -> None:
    token = await site.token()
    transport = httpx.ASGITransport(app=site.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://relay.test") as client:
        headers = {"authorization": f"Bearer {token}"}
        for method in ("GET", "PUT", "DELETE"):
            answer = await client.request(method, "/manage/operator/instances", headers=headers)
            assert answer.status_code == 405


async def test_two_bearers_are_none(site: Site) -> None:
    token = await site.token()
    transport = httpx.ASGITransport(app=site.app)
    both = [("authorization", f"Bearer {token}"), ("authorization", "Bearer x")]
    async with httpx.AsyncClient(transport=transport, base_url="http://relay.test") as client:
        answer = await client.post("/manage/operator/instances", headers=both)
    assert answer.status_code == 401


async def test_every_change_names_the_operator_in_the_journal(site: Site) -> None:
    token = await site.token("ann@office")
    for verb, body in (
        ("tokens/new", {"tenant": "t1", "seconds": 60}),
        ("links/add", {"instance": "echo", "platform": "chat", "user": "u1"}),
        ("links/new", {"instance": "echo"}),
        ("rotate", {"instance": "echo", "grace": 60}),
        ("route", {"platform": "chat", "key": "g1", "tenant": "t1"}),
        ("principals/set", {"instance": "echo", "platform": "chat", "policy": "any"}),
        ("relevance/set", {"instance": "echo", "platform": "chat", "require_address": True}),
        ("revoke", {"instance": "echo"}),
    ):
        before = len(await site.notes())
        answer = await site.post(verb, token, body)
        assert answer.status_code == 200, answer.text
        fresh = (await site.notes())[before:]
        assert fresh, verb
        assert {note["by"] for note in fresh} == {"operator ann@office"}
    assert token not in str(await site.notes())


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 65, "\x1b[31m", "-ann", "änn"])
async def test_a_name_that_could_deceive_in_the_journal_gets_no_token(
    site: Site, name: str
) -> None:
    with pytest.raises(RelayError) as caught:
        await site.token(name)
    assert caught.value.code is Code.BAD_REQUEST


def everything_in(folder: Path) -> bytes:
    """The bytes of all files."""
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())


async def test_the_store_holds_no_token(site: Site, tmp_path: Path) -> None:
    token = await site.token()
    secret = token.rpartition("_")[2].encode()
    assert secret not in everything_in(tmp_path)
    assert b"ann" in everything_in(tmp_path)
