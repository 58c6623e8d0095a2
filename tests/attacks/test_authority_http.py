"""What strangers can do to an authority over HTTP, before anybody let them in."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from starlette.requests import Request
from tests.authority.identities.conftest import (
    BACK,
    PASSWORD,
    READ,
    Web,
    authority_template,
    client_contract,
    house,
    web,
)

from accord.authority.admin import AdminCommands
from accord.authority.http import NatsTransport, Refusals, exchange, routes
from accord.authority.manifests import GUEST_SECONDS
from accord.authority.revisions import RefusalLog
from accord.authority.tables import contracts
from accord.contracts import digest
from accord.contracts.session_proof import login_message, prove, session_key
from accord.kernel.signing import SigningKey

__all__ = ["authority_template", "house", "web"]

LOGINS = "/auth/v1/logins"


def app(number: int, padding: int = 0) -> dict[str, Any]:
    """A contract that nobody has seen before."""
    made = client_contract("Notes.List", identity=f"app{number}@v1")
    return {**made, "docs": {"markdown": "x" * padding}} if padding else made


def login(manifest: Mapping[str, Any], key: SigningKey, proof: str | None = None) -> dict[str, Any]:
    """The body that begins a login."""
    return {
        "sessionKey": session_key(key),
        "redirectTo": BACK,
        "contractDigest": digest(manifest),
        "manifest": manifest,
        "sig": proof or prove(key, login_message(BACK)),
    }


async def kept(web: Web) -> set[str]:
    """The ids of the contracts that are kept."""
    query = sa.select(contracts.c.contract_id)
    found = await web.house.authority.store.read(lambda c: list(c.execute(query).scalars()))
    return set(found) - {"notes@v1"}


def from_address(web: Web, address: str) -> httpx.AsyncClient:
    """A client at another address."""
    transport = httpx.ASGITransport(app=web.app, client=(address, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://authority.test")


async def test_no_manifest_is_kept_of_a_login_that_nobody_signed(web: Web) -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        async with from_address(web, address) as attacker:
            for number in range(25):
                forged = login(app(number), key, prove(other, login_message(BACK)))
                answer = await attacker.post(LOGINS, json=forged)
                assert answer.json()["code"] == "invalid_proof"
    assert await kept(web) == set()
    # Nor did it use up anything of those who sign.
    assert (await web.http.post(LOGINS, json=login(app(0), key))).status_code == 201


async def test_one_address_fills_only_its_own_allowance_of_new_manifests(web: Web) -> None:
    key = SigningKey.generate()
    async with from_address(web, "2001:db8:0:1::1") as attacker:
        answers = [
            (await attacker.post(LOGINS, json=login(app(number), key))).status_code
            for number in range(12)
        ]
    assert answers == [201] * 10 + [429] * 2
    async with from_address(web, "2001:db8:0:1:ffff::2") as neighbour:
        again = await neighbour.post(LOGINS, json=login(app(20), key))
        assert again.status_code == 429
    async with from_address(web, "2001:db8:0:2::1") as somebody:
        assert (await somebody.post(LOGINS, json=login(app(21), key))).status_code == 201


async def test_a_session_of_a_person_presents_no_more_manifests_than_a_stranger(web: Web) -> None:
    ann = await web.house.person("Ann", READ)
    key = SigningKey.generate()
    await web.house.log_in(ann, key, app(100))
    statuses = []
    for number in range(12):
        body = web.signed(key, app(number), manifest=app(number))
        statuses.append((await web.http.post("/bootstrap/v1", json=body)).status_code)
    assert statuses == [409] * 10 + [429] * 2
    assert len(await kept(web)) == 11


async def test_manifests_of_logins_that_came_to_nothing_go_again(web: Web) -> None:
    authority, clock = web.house.authority, web.house.clock
    ann = await web.house.person("Ann", READ)
    stays = app(1)
    await web.house.log_in(ann, SigningKey.generate(), stays)
    abandoned = login(app(2), SigningKey.generate())
    assert (await web.http.post(LOGINS, json=abandoned)).status_code == 201
    await authority.keep_up()
    assert await kept(web) == {"app1@v1", "app2@v1"}
    clock.advance(GUEST_SECONDS + 1)
    # A login that is over is dropped when the next one begins.
    assert (await web.http.post(LOGINS, json=login(app(3), SigningKey.generate()))).is_success
    await authority.keep_up()
    assert await kept(web) == {"app1@v1", "app3@v1"}
    assert await authority.manifests.get(digest(app(2))) is None


async def test_what_strangers_present_is_bounded_together(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accord.authority.manifests.MAX_GUEST_BYTES", 100_000)
    for number, status in ((1, 201), (2, 503)):
        body = login(app(number, 60_000), SigningKey.generate())
        assert (await web.http.post(LOGINS, json=body)).status_code == status
    assert await kept(web) == {"app1@v1"}


async def test_strangers_present_no_contracts_of_services(web: Web) -> None:
    service = {**app(1), "kind": "service"}
    answer = await web.http.post(LOGINS, json=login(service, SigningKey.generate()))
    assert answer.status_code == 400
    device = web.signed(SigningKey.generate(), service, manifest=service)
    answer = await web.http.post(
        "/auth/v1/activations", json={**device, "deployment": "notes", "name": "x"}
    )
    assert answer.status_code == 404
    assert await kept(web) == set()


async def test_a_stranger_changes_no_text_of_a_known_contract(web: Web) -> None:
    honest = app(1)
    assert (await web.http.post(LOGINS, json=login(honest, SigningKey.generate()))).is_success
    forged = {**honest, "displayName": "Your bank"}
    assert digest(forged) == digest(honest)
    assert (await web.http.post(LOGINS, json=login(forged, SigningKey.generate()))).is_success
    known = await web.house.authority.manifests.get(digest(honest))
    assert known is not None
    assert known["displayName"] == honest["displayName"]


@pytest.mark.parametrize("late", [0, 3600])
async def test_nobody_writes_history_under_a_key_that_is_not_proved(web: Web, late: int) -> None:
    auditing = RefusalLog(web.house.authority.revisions)
    transport = NatsTransport((), "jwt", "seed")
    served = routes(
        web.house.authority,
        web.house.identities,
        AdminCommands(web.house.authority, web.house.identities),
        transport,
        web.house.clock,
        token="token",
        refusals=Refusals(auditing.note),
    )
    victim, thief = SigningKey.generate(), SigningKey.generate()
    body = web.signed(victim if late else thief, app(1), late=-late)
    web.app.router.routes[:] = list(served)
    forged = {**body, "sessionKey": session_key(victim)}
    assert (await web.http.post("/bootstrap/v1", json=forged)).is_client_error
    await auditing.write()
    told = [step.act.by for step in await web.house.authority.revisions.history()]
    assert "127.0.0.1" in told
    assert session_key(victim) not in told


async def test_a_guesser_locks_nobody_out(web: Web) -> None:
    ann = await web.house.person("Ann", READ)
    await web.house.identities.login.set_password(ann.id, PASSWORD)

    async def enter(http: httpx.AsyncClient, password: str) -> int:
        page = await http.get("/login")
        mine = Web(web.house, web.app, http, web.operating, web.requesters)
        return (await mine.submit(page, name="Ann", password=password)).status_code

    for number in range(3):
        async with from_address(web, f"2001:db8:0:{number}::1") as guesser:
            guesses = [await enter(guesser, "wrong password") for _ in range(11)]
            assert guesses == [403] * 10 + [429]
    async with from_address(web, "192.0.2.7") as home:
        assert await enter(home, PASSWORD) == 303


async def test_addresses_of_one_network_count_as_one_for_guesses(web: Web) -> None:
    statuses = []
    for number in range(12):
        async with from_address(web, f"2001:db8::{number:x}") as guesser:
            page = await guesser.get("/login")
            mine = Web(web.house, web.app, guesser, web.operating, web.requesters)
            answer = await mine.submit(page, name=f"ann{number}", password="wrong password")
            statuses.append(answer.status_code)
    assert statuses == [403] * 10 + [429] * 2


def test_an_address_is_counted_by_its_network() -> None:
    def counted(host: str) -> str:
        scope = {"type": "http", "headers": [], "client": (host, 1)}
        return exchange.client_key(Request(scope))

    assert counted("2001:db8::1") == counted("2001:db8::ffff:1") != counted("2001:db8:0:1::1")
    assert counted("::ffff:192.0.2.1") == counted("192.0.2.1")
