"""What people see and do in a browser."""

from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from accord.authority.identities import ACTIVATE
from accord.authority.rules import DeploymentKind
from accord.contracts import digest
from accord.contracts.session_proof import flow_message, login_message, prove, session_key
from accord.kernel.signing import SigningKey

ORIGIN = "https://app.example"
BACK = f"{ORIGIN}/back"
PASSWORD = "correct horse battery"
READ, WRITE = "notes::notes.read", "notes::notes.write"


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.from_seed(bytes(range(32)))


@pytest.fixture
async def ann(web: Any) -> Any:
    person = await web.house.person("Ann", READ)
    await web.house.identities.login.set_password(person.id, PASSWORD)
    return person


async def begin(
    web: Any, key: SigningKey, manifest: Any, redirect_to: str = BACK
) -> httpx.Response:
    response: httpx.Response = await web.http.post(
        "/auth/v1/logins",
        json={
            "sessionKey": session_key(key),
            "redirectTo": redirect_to,
            "contractDigest": digest(manifest),
            "manifest": manifest,
            "sig": prove(key, login_message(redirect_to)),
        },
    )
    return response


async def bind(web: Any, key: SigningKey, address: str) -> httpx.Response:
    flow = parse_qs(urlsplit(address).query)["flowId"][0]
    response: httpx.Response = await web.http.post(
        f"/auth/v1/flows/{flow}/bind",
        json={"sessionKey": session_key(key), "sig": prove(key, flow_message(flow))},
    )
    return response


async def test_a_login_from_the_apps_first_word_to_its_session(
    web: Any, ann: Any, client: Any, key: SigningKey
) -> None:
    begun = await begin(web, key, client("Notes.List", "Notes.Add"))
    assert begun.status_code == 201
    address = begun.json()["loginUrl"]
    assert address.startswith("http://authority.test/login/")
    page = await web.http.get(address)
    assert "Log in" in page.text
    entered = await web.submit(page, name="ann", password=PASSWORD)
    assert (entered.status_code, entered.headers["location"]) == (303, urlsplit(address).path)
    asked = await web.http.get(address)
    text = unescape(asked.text)
    for said in ("Desk <b>", ORIGIN, "Read notes", "Others will see it.", "You are Ann."):
        assert said in text
    assert "<b>" not in asked.text
    assert asked.text.count("you do not have this yourself") == 1
    allowed = await web.submit(asked, answer="accept")
    assert allowed.status_code == 303
    assert allowed.headers["location"].startswith(f"{BACK}?flowId=")
    bound = await bind(web, key, allowed.headers["location"])
    assert bound.status_code == 200
    told = bound.json()
    assert told["status"] == "ready"
    assert told["sentinel"] == {"jwt": "the.sentinel.jwt", "seed": "SUSEED"}
    assert told["inboxPrefix"] == f"_INBOX.{session_key(key)[:16]}"
    assert told["contract"]["id"] == "desk@v1"
    session = await web.house.authority.sessions.get(session_key(key))
    assert (session.subject, session.capabilities) == (ann.id, {READ})
    grants = await web.house.authority.sessions.grants(session_key(key), session.digest)
    assert "rpc.v1.Notes.List" in grants.publish
    assert "rpc.v1.Notes.Add" not in grants.publish


async def test_a_person_may_refuse(web: Any, ann: Any, client: Any, key: SigningKey) -> None:
    begun = await begin(web, key, client("Notes.List"))
    path = urlsplit(begun.json()["loginUrl"]).path
    await web.enter(onwards=path)
    page = await web.http.get(path)
    refused = await web.submit(page, answer="deny")
    assert refused.headers["location"] == f"{BACK}?authError=consent_denied"
    assert await web.house.authority.sessions.get(session_key(key)) is None
    again = await web.submit(page, answer="accept")
    assert again.status_code == 409
    assert "answered already" in again.text


async def test_what_was_agreed_to_before_goes_on_without_a_question(
    web: Any, ann: Any, client: Any, key: SigningKey
) -> None:
    await web.house.log_in(ann, SigningKey.generate(), client("Notes.List"))
    begun = await begin(web, key, client("Notes.List"))
    path = urlsplit(begun.json()["loginUrl"]).path
    await web.enter(onwards=path)
    onwards = await web.http.get(path)
    assert onwards.status_code == 303
    assert (await bind(web, key, onwards.headers["location"])).status_code == 200


async def test_the_page_of_a_consent_lets_the_browser_go_on_to_the_app_and_nowhere_else(
    web: Any, ann: Any, client: Any, key: SigningKey
) -> None:
    begun = await begin(web, key, client("Notes.List"))
    path = urlsplit(begun.json()["loginUrl"]).path
    await web.enter(onwards=path)
    policy = (await web.http.get(path)).headers["content-security-policy"]
    assert policy.endswith(f"form-action 'self' {ORIGIN}")
    for page in ("/login", "/activate", "/login/done?flowId=x", "/login/link/none"):
        response = await web.http.get(page)
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; base-uri 'none'")
        assert policy.endswith("form-action 'self'")
        assert "script" not in response.text
        assert "//" not in response.text.replace("<!doctype html>", "")
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["cache-control"] == "no-store"


async def test_a_cookie_is_for_our_pages_and_renewed_when_somebody_comes_in(
    web: Any, ann: Any
) -> None:
    before = (await web.http.get("/login")).headers["set-cookie"]
    assert "HttpOnly" in before
    assert "SameSite=lax" in before
    entered = await web.enter()
    after = entered.headers["set-cookie"]
    assert before.partition(";")[0] != after.partition(";")[0]
    assert "You are Ann" in (await web.http.get("/login")).text


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({"token": ""}, {}),
        ({"token": "x" * 43}, {}),
        ({"token": "\xe4"}, {}),
        ({}, {"origin": "https://evil.example"}),
        ({}, {"origin": "null"}),
        ({}, {"sec-fetch-site": "cross-site"}),
        ({}, {"cookie": "accord_visit="}),
    ],
)
async def test_a_form_that_another_site_sends_does_nothing(
    web: Any, ann: Any, fields: dict[str, str], headers: dict[str, str]
) -> None:
    page = await web.http.get("/login")
    token = page.text.partition('name="token" value="')[2].partition('"')[0]
    form = {"token": token, "name": "Ann", "password": PASSWORD, **fields}
    response = await web.http.post("/login", data=form, headers=headers)
    assert response.status_code == 403
    assert "our own page" in response.text
    assert "You are Ann" not in (await web.http.get("/login")).text


async def test_a_wrong_password_is_told_and_tried_only_so_often(web: Any, ann: Any) -> None:
    page = await web.http.get("/login")
    answers = [
        await web.submit(page, name="Ann", password=f"wrong horse {number}") for number in range(11)
    ]
    assert [each.status_code for each in answers] == [403] * 10 + [429]
    assert "is wrong" in answers[0].text
    assert "wrong horse" not in answers[0].text
    web.house.clock.advance(60)
    assert (await web.submit(page, name="Ann", password=PASSWORD)).status_code == 303


async def test_whoever_logs_in_is_sent_on_only_to_our_own_pages(web: Any, ann: Any) -> None:
    for onwards in ("https://evil.example", "//evil.example", "/login/../x", "/admin/v1/status"):
        page = await web.http.get("/login")
        entered = await web.submit(page, name="Ann", password=PASSWORD, next=onwards)
        assert entered.headers["location"] == "/login"
        web.http.cookies.clear()


async def test_a_link_asks_before_it_is_used_up_and_lets_set_a_password(web: Any) -> None:
    bob = await web.house.person("Bob")
    told = (await web.admin("people/link", name="Bob")).json()
    assert told["url"].startswith("http://authority.test/login/link/")
    # Whatever looks at links in messages does not use them up.
    await web.http.get(told["url"])
    page = await web.http.get(told["url"])
    assert "logs you in as Bob" in page.text
    entered = await web.submit(page)
    assert entered.status_code == 303
    assert (await web.http.get(told["url"])).status_code == 403
    account = await web.http.get("/login")
    changed = await web.submit(account, password=PASSWORD)
    assert changed.status_code == 303
    assert "You are Bob" in (await web.http.get("/login")).text
    assert (await web.house.identities.login.by_password("bob", PASSWORD)).id == bob.id
    short = await web.submit(await web.http.get("/login"), password="short")
    assert short.status_code == 400


async def test_a_person_logs_out_and_withdraws(
    web: Any, ann: Any, client: Any, key: SigningKey
) -> None:
    await web.house.log_in(ann, key, client("Notes.List"))
    await web.enter()
    account = await web.http.get("/login")
    assert "desk@v1 at https://app.example" in account.text
    token = account.text.partition('name="token" value="')[2].partition('"')[0]
    form = {"token": token, "contract": "desk@v1", "anchor": ORIGIN}
    await web.http.post("/login/withdraw", data=form)
    assert await web.house.is_over(key)
    assert "Nothing yet." in (await web.http.get("/login")).text
    await web.http.post("/logout", data={"token": token})
    assert "Log in" in (await web.http.get("/login")).text


async def test_a_program_without_a_page_gets_its_code_by_hand(
    web: Any, ann: Any, client: Any, key: SigningKey
) -> None:
    done = "http://localhost/login/done"
    begun = await begin(web, key, client("Notes.List", kind="agent"), done)
    path = urlsplit(begun.json()["loginUrl"]).path
    await web.enter(onwards=path)
    asked = await web.http.get(path)
    assert f"the key {session_key(key)[:16]}" in asked.text
    address = (await web.submit(asked, answer="accept")).headers["location"]
    shown = await web.http.get(f"/login/done?{urlsplit(address).query}")
    flow = parse_qs(urlsplit(address).query)["flowId"][0]
    assert flow in shown.text
    assert (await bind(web, key, address)).status_code == 200
    strange = await web.http.get("/login/done?flowId=<script>")
    assert "<script>" not in strange.text


async def test_a_device_is_activated_on_the_page(web: Any, client: Any, key: SigningKey) -> None:
    await web.house.authority.deployments.create("sensors", DeploymentKind.DEVICE)
    bob = await web.house.person("Bob", ACTIVATE)
    await web.house.identities.login.set_password(bob.id, PASSWORD)
    manifest = client(kind="device", identity="sensor@v1")
    body = web.signed(key, manifest, manifest=manifest, deployment="sensors", name="Cellar")
    begun = await web.http.post("/auth/v1/activations", json=body)
    assert begun.status_code == 201
    told = begun.json()
    assert told["activateUrl"] == "http://authority.test/activate"
    await web.enter("Bob", "/activate")
    wrong = await web.submit(await web.http.get("/activate"), code="AAAA-AAAA")
    assert wrong.status_code == 404
    asked = await web.submit(await web.http.get("/activate"), code=told["code"])
    assert "Activate Cellar?" in asked.text
    assert session_key(key) in asked.text
    done = await web.submit(asked, step="confirm")
    assert "Cellar is part of sensors now" in done.text
    [made] = await web.house.authority.deployments.instances("sensors")
    assert made.key == session_key(key)
    refused = await web.submit(await web.http.get("/activate"), code=told["code"])
    assert refused.status_code == 404


async def test_a_custom_page_is_told_where_to_send_people(
    web: Any, client: Any, key: SigningKey
) -> None:
    await web.admin(
        "portals/set", kind="login", selector="desk@v1", url="https://me.example/in?a=1"
    )
    told = (await begin(web, key, client("Notes.List"))).json()
    query = parse_qs(urlsplit(told["loginUrl"]).query)
    assert told["loginUrl"].startswith("https://me.example/in?a=1&")
    described = await web.http.get(f"/auth/v1/logins/{query['loginId'][0]}")
    assert described.json()["contract"]["displayName"] == "Desk <b>"
    assert described.json()["loginUrl"] == query["loginUrl"][0]
    assert described.headers["access-control-allow-origin"] == "*"


async def test_nothing_that_is_sent_to_a_page_makes_it_fail(web: Any, ann: Any) -> None:
    await web.enter()
    for path in ("/login/%00", "/login/link/%00%ff", "/login/" + "x" * 3000, "/activate?code=%00"):
        assert (await web.http.get(path)).status_code in (200, 403, 404)
    page = await web.http.get("/login")
    token = page.text.partition('name="token" value="')[2].partition('"')[0]
    for path in ("/login", "/login/password", "/login/withdraw", "/activate", "/login/" + "x" * 32):
        for fields in ({}, {"code": "\0", "name": "\0", "contract": "\0", "password": "\0"}):
            answer = await web.http.post(path, data={"token": token, **fields})
            assert answer.status_code < 500
    raw = await web.http.post("/login", content=b"a=b", headers={"content-type": "text/plain"})
    assert raw.status_code == 400
    large = await web.http.post("/login", data={"name": "x" * 20_000})
    assert large.status_code == 413
    many = await web.http.post("/login", data={f"f{n}": "x" for n in range(50)})
    assert many.status_code == 400
