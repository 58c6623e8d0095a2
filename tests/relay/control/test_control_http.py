"""The routes, over a real socket: what they answer, and what they do with bad input."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette

from accord.kernel import tokens
from accord.relay.connector import ControlRoutes, ManagedTokens, PublicKey, tables
from accord.relay.rules import RelevancePolicy
from accord.storage import StoreError

KEY = rsa.generate_private_key(65537, 2048)
MANAGED = (
    "/relay/policy",
    "/manage/link",
    "/manage/scope",
    "/manage/scope/release",
    "/manage/principal",
    "/manage/dm-default",
    "/manage/deprovision",
    "/manage/rotate",
    "/manage/wake-url",
    "/relay/rotate",
)
JOINING = ("/relay/enroll", "/relay/provision")


@pytest.fixture
def managed() -> ManagedTokens:
    return ManagedTokens([PublicKey(KEY.public_key())])


class Site:
    """The routes of a control half, served."""

    def __init__(self, half: Any, routes: ControlRoutes, client: httpx.AsyncClient) -> None:
        self.half = half
        self.routes = routes
        self.client = client
        self.bearer: str | None = None

    async def join(self, instance: str = "a1", tenant: str = "t1") -> Any:
        credentials = await self.half.enrol(instance, tenant)
        self.bearer = self.half.bearer(credentials)
        return credentials

    async def post(self, path: str, body: Any = None, **given: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.bearer}"} if self.bearer else {}
        return await self.client.post(path, json=body, headers=headers, **given)

    async def raw(self, path: str, content: bytes) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.bearer}"} if self.bearer else {}
        return await self.client.post(path, content=content, headers=headers)

    def managed(self, instance: str = "a1", tenant: str = "t1", **given: Any) -> str:
        now = int(self.half.clock.now())
        claims = {"aud": f"agent:{instance}", "tenant": tenant, "iat": now, "exp": now + 300}
        return jwt.encode({**claims, **given}, KEY, "RS256")


class Listener(uvicorn.Server):
    """A server that says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serves.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@pytest.fixture
async def site(half: Any) -> AsyncIterator[Site]:
    routes = ControlRoutes(half.control, half.clock)
    app = Starlette(routes=routes.routes)
    server = Listener(
        uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, loop="none")
    )
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await server.serves.wait()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        yield Site(half, routes, client)
    server.should_exit = True
    await serving
    listening.close()


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_gateway_enrols_declares_its_policy_rotates_and_leaves(site: Site) -> None:
    token = await site.half.control.mint_token("t1", "a1")
    body = {"enrollmentToken": token.token, "gatewayId": "gw", "wakeUrl": None, "extra": [1]}
    answer = await site.post("/relay/enroll", body)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert set(answer.json()) == {"secret", "deliveryKey", "tenant", "gatewayId"}
    site.bearer = tokens.make("gw", answer.json()["secret"], site.half.clock.now())
    policy = {
        "platform": "chat",
        "requireAddress": True,
        "freeResponseScopes": ["c2", "c1"],
        "allowOtherBots": False,
    }
    answer = await site.post("/relay/policy", policy)
    assert answer.status_code == 200
    assert answer.json() == {**policy, "freeResponseScopes": ["c1", "c2"]}
    strict, mine = RelevancePolicy(True), await site.half.control.principal("a1")
    await site.half.control.set_relevance(mine, "chat", strict, by_operator=True)
    answer = await site.post("/relay/policy", policy)
    assert answer.status_code == 200
    assert answer.json() == {"platform": "chat", **strict.to_dict(), "setBy": "operator"}
    link = (await site.post("/manage/link")).json()
    assert set(link) == {"code", "expiresAt"}
    assert "Answer yes" in await site.half.say(f"/link {link['code']}")
    assert await site.half.say("yes")
    answer = await site.post("/manage/dm-default", {"platform": "chat", "user_id": "u1"})
    assert answer.status_code == 200
    principal = {"platform": "chat", "policy": "allow-list", "allow": ["u2"]}
    assert (await site.post("/manage/principal", principal)).json() == principal
    await site.half.control.route("t1", "chat", "g1")
    scope = {"platform": "chat", "scope_id": "g1", "channel_id": "c1"}
    unknown = await site.post("/manage/scope", scope)
    assert (unknown.status_code, unknown.json()["error"]) == (503, "unavailable")
    assert "ask again" in unknown.text
    site.half.chat.manages["u1", "c1"] = False
    refused = await site.post("/manage/scope", scope)
    assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")
    site.half.chat.manages["u1", "c1"] = True
    assert (await site.post("/manage/scope", scope)).json() == scope
    headers = {"authorization": f"Bearer {site.bearer}"}
    status = (await site.client.get("/manage/status", headers=headers)).json()
    assert (status["tenant"], status["instanceId"], status["scopes"][0]["channel_id"]) == (
        "t1",
        "a1",
        "c1",
    )
    assert (await site.post("/manage/scope/release", scope)).status_code == 200
    assert (await site.post("/manage/scope/release", scope)).status_code == 404
    rotated = (await site.post("/manage/rotate")).json()
    site.bearer = tokens.make("gw", rotated["secret"], site.half.clock.now())
    assert (await site.post("/manage/deprovision")).json() == {"deprovisioned": "a1"}
    answer = await site.post("/manage/link")
    assert (answer.status_code, answer.json()["error"]) == (401, "revoked")


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_managed_gateway_is_provisioned_once_per_platform(site: Site) -> None:
    site.bearer = site.managed()
    body = {
        "gatewayId": "gw",
        "platform": "chat",
        "botId": "bot",
        "gatewayEndpoint": "",
        "routeKeys": ["g1", "g1"],
        "instanceId": "a1",
    }
    first = await site.post("/relay/provision", body)
    assert first.status_code == 200
    assert first.json()["routeKeys"] == ["g1"]
    second = await site.post("/relay/provision", {**body, "platform": "else"})
    assert second.json()["secret"] == first.json()["secret"]
    # The managed token also manages, with the authority of the stored record.
    assert (await site.post("/manage/link")).status_code == 200
    site.bearer = site.managed(tenant="t2")
    assert (await site.post("/relay/provision", body)).status_code == 409
    assert (await site.post("/manage/link")).status_code == 401
    site.bearer = site.managed(instance="a2", tenant="t2")
    other = {**body, "gatewayId": "gw2"}
    assert (await site.post("/relay/provision", other)).status_code == 409
    assert site.routes.counts["asserted_identity"] == 1
    site.bearer = site.managed(exp=int(site.half.clock.now()) - 1)
    answer = await site.post("/relay/provision", body)
    assert (answer.status_code, answer.json()["error"]) == (401, "expired")


async def test_a_body_that_asserts_another_instance_is_ignored_and_counted(site: Site) -> None:
    await site.join("b1", "t2")
    await site.join("a1", "t1")
    body = {"platform": "chat", "policy": "any", "instanceId": "b1", "tenant": "t2"}
    assert (await site.post("/manage/principal", body)).status_code == 200
    [row] = await site.half.rows(tables.principals)
    assert row["instance"] == "a1"
    assert site.routes.counts["asserted_identity"] == 1
    assert (await site.post("/manage/deprovision", {"instanceId": "b1"})).status_code == 200
    assert {i.instance for i in await site.half.control.instances() if i.live} == {"b1"}


async def test_without_a_good_bearer_nothing_is_managed(site: Site) -> None:
    credentials = await site.join()
    now = int(site.half.clock.now())
    expired = tokens.make(credentials.gateway_id, credentials.secret, now - 400)
    bearers = {
        None: "unauthorized",
        "nonsense": "unauthorized",
        "a.b.c": "unauthorized",
        tokens.make("gw-a1", "wrong", now): "unauthorized",
        expired: "expired",
    }
    for bearer, reason in bearers.items():
        site.bearer = bearer
        for path in MANAGED:
            answer = await site.post(path, {})
            assert (answer.status_code, answer.json()["error"]) == (401, reason)
            assert answer.headers["www-authenticate"] == "Bearer"
        site.half.clock.advance(20)
    odd: list[list[tuple[bytes, bytes]]] = [
        [(b"authorization", b"Basic eDp5")],
        [(b"authorization", b"Bearer x"), (b"authorization", b"Bearer y")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer \xff\xfe")],
    ]
    for headers in odd:
        answer = await site.client.get("/manage/status", headers=headers)
        assert answer.status_code == 401


BAD_BODIES = [
    b"",
    b"nonsense",
    b"[]",
    b"5",
    b'"x"',
    b"null",
    b"{",
    b'{"platform": "chat", "platform": "else"}',
    b'{"platform": NaN}',
    b"\xff\xfe\x00",
    b"[" * 5000,
    b'{"a":' * 5000,
    b'{"platform": 5, "gatewayId": 5, "policy": 5, "user_id": 5, "channel_id": 5}',
    b'{"platform": "", "enrollmentToken": "", "policy": "any"}',
    b'{"platform": "x\\u0000y", "gatewayId": "x\\u0000y", "policy": "any"}',
    b'{"platform": "chat", "policy": "everybody", "requireAddress": "yes"}',
    b'{"platform": "chat", "policy": "any", "allow": "u1", "freeResponseScopes": "c1"}',
    b'{"platform": "chat", "policy": "any", "allow": [1], "freeResponseScopes": [null]}',
    b'{"platform": "chat", "policy": "any", "allow": ["\\u0000"], "freeResponseScopes": [""]}',
    b'{"enrollmentToken": "x", "gatewayId": "g", "wakeUrl": 5, "platform": {}, "policy": []}',
    b'{"platform": "chat", "botId": "b", "gatewayId": "g", "routeKeys": {}, "requireAddress": 1}',
]


async def test_bad_bodies_are_refused_with_a_sentence_and_change_nothing(site: Site) -> None:
    credentials = await site.join()
    before = await everything(site.half)
    for path in (*MANAGED, *JOINING):
        if "scope" in path:
            continue
        # These read nothing of such a body, so that any object will do.
        reads_nothing = path in ("/manage/link", "/manage/deprovision") or "rotate" in path
        for body in BAD_BODIES:
            if reads_nothing and (not body or _is_object(body)):
                continue
            managed = path == "/relay/provision"
            site.bearer = site.managed() if managed else site.half.bearer(credentials)
            answer = await site.raw(path, body)
            assert answer.status_code == 400, (path, body, answer.text)
            assert _code(answer) == "bad_request"
            assert answer.json()["message"]
            site.half.clock.advance(3)
    assert await everything(site.half) == before


def _code(answer: httpx.Response) -> str:
    """Beside `error`, which is a sentence where a gateway enrols."""
    body = answer.json()
    code: str = body.get("code") or body["error"]
    return code


def _is_object(body: bytes) -> bool:
    try:
        return (
            isinstance(json.loads(body), dict) and b"NaN" not in body and body.count(b"else") == 0
        )
    except (ValueError, RecursionError):
        return False


async def test_bad_channels_are_refused(site: Site) -> None:
    await site.join()
    before = await everything(site.half)
    for body in (
        {},
        {"platform": "chat", "scope_id": "g"},
        {"platform": "chat", "scope_id": 5, "channel_id": "c"},
        {"platform": "chat", "scope_id": "g", "channel_id": "\x00"},
        {"platform": ["chat"], "scope_id": "g", "channel_id": "c"},
    ):
        for path in ("/manage/scope", "/manage/scope/release"):
            assert (await site.post(path, body)).status_code == 400
    assert await everything(site.half) == before


async def everything(half: Any) -> str:
    return repr([await half.rows(table) for table in (tables.changes, tables.enrolments)])


async def test_a_body_that_is_too_large_is_refused_without_being_kept(site: Site) -> None:
    await site.join()

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"[" * 4096

    for path in (*MANAGED, *JOINING):
        answer = await site.client.post(
            path, content=endless(), headers={"authorization": f"Bearer {site.bearer}"}
        )
        assert (answer.status_code, _code(answer)) == (413, "too_large")


async def test_enrolling_is_limited_by_address_and_linking_by_caller(site: Site) -> None:
    bad = {"enrollmentToken": "x", "gatewayId": "g"}
    answers = [await site.post("/relay/enroll", bad) for _ in range(31)]
    assert [answer.status_code for answer in answers] == [403] * 30 + [429]
    # What existing clients show.
    assert answers[0].json()["error"].startswith("this enrolment token is not known")
    assert answers[0].json()["code"] == "unauthorized"
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert _code(answers[-1]) == "rate_limited"
    site.half.clock.advance(60)
    await site.join()
    answers = [await site.post("/manage/link") for _ in range(11)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429]
    await site.join("a2")
    assert (await site.post("/manage/link")).status_code == 200
    site.half.clock.advance(6)
    await site.join("a1")
    assert (await site.post("/manage/link")).status_code == 200


async def test_no_secret_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "accord")
    token = await site.half.control.mint_token("t1", "a1")
    body = {"enrollmentToken": token.token, "gatewayId": "gw"}
    answer = (await site.post("/relay/enroll", body)).json()
    await site.post("/relay/enroll", body)
    site.bearer = tokens.make("gw", answer["secret"], site.half.clock.now())
    code = (await site.post("/manage/link")).json()["code"]
    await site.half.say(f"/link {code}")
    await site.post("/manage/principal", {"instanceId": "other"})
    secrets = [token.token, answer["secret"], answer["deliveryKey"], site.bearer, code]
    assert not any(secret in caplog.text for secret in secrets)


async def test_a_store_that_fails_is_told_as_unavailable(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.join()

    async def fail(*_: Any) -> Any:
        raise StoreError("the disk is full", where="/secret/place")

    monkeypatch.setattr(site.half.store, "write", fail)
    answer = await site.post("/manage/link")
    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
    assert "/secret/place" not in answer.text
    monkeypatch.undo()
    assert (await site.post("/manage/link")).status_code == 200


async def test_other_methods_and_paths_are_not_answered(site: Site) -> None:
    assert (await site.client.get("/relay/enroll")).status_code == 405
    assert (await site.client.post("/manage/status")).status_code == 405
    assert (await site.client.post("/manage/nothing")).status_code == 404


async def test_enrolment_errors_have_the_status_and_the_member_that_clients_show(
    site: Site,
) -> None:
    used = (await site.half.control.mint_token("t1", "a1")).token
    await site.post("/relay/enroll", {"enrollmentToken": used, "gatewayId": "gw"})
    late = (await site.half.control.mint_token("t1", "a2", seconds=1)).token
    site.half.clock.advance(2)
    barred = (await site.half.control.mint_token("t1", "a1")).token
    await site.half.control.revoke("a1")
    fresh = (await site.half.control.mint_token("t1", "a3")).token
    cases = [
        ({"enrollmentToken": "enrol_wrong", "gatewayId": "g"}, 403, "not known, or was used"),
        ({"enrollmentToken": used, "gatewayId": "g"}, 403, "not known, or was used"),
        ({"enrollmentToken": late, "gatewayId": "g"}, 403, "has expired"),
        ({"enrollmentToken": barred, "gatewayId": "g"}, 403, "the operator has revoked"),
        ({"enrollmentToken": fresh, "gatewayId": "gw"}, 409, "this gateway id is taken"),
        ({"enrollmentToken": fresh}, 400, "gatewayId"),
        ({"enrollmentToken": fresh, "gatewayId": "g", "wakeUrl": "ftp://x"}, 400, "wake URL"),
    ]
    # A client of others sends a bearer of its own, which means nothing here.
    site.bearer = "portal-token"
    for body, status, sentence in cases:
        answer = await site.post("/relay/enroll", body)
        assert (answer.status_code, sentence in answer.json()["error"]) == (status, True), body
        assert body["enrollmentToken"] not in answer.text
    good = await site.post("/relay/enroll", {"enrollmentToken": fresh, "gatewayId": "g"})
    assert good.status_code == 200


async def test_a_lost_secret_is_replaced_by_either_bearer(site: Site) -> None:
    site.bearer = site.managed()
    body = {"gatewayId": "gw", "platform": "chat", "botId": "bot", "routeKeys": ["g1"]}
    first = (await site.post("/relay/provision", body)).json()["secret"]
    second = (await site.post("/relay/rotate")).json()
    assert set(second) == {"secret", "gatewayId", "oldValidUntil"}
    assert second["secret"] != first
    site.bearer = tokens.make("gw", second["secret"], site.half.clock.now())
    third = (await site.post("/relay/rotate")).json()["secret"]
    for secret in (first, second["secret"], third):
        bearer = tokens.make("gw", secret, site.half.clock.now())
        assert (await site.half.directory.authenticate(bearer)).instance == "a1"
    site.bearer = site.managed(instance="a2")
    assert (await site.post("/relay/rotate")).status_code == 401
    answer = await site.post("/relay/provision", {**body, "routeKeys": ["g2"]})
    assert answer.status_code == 200
    assert answer.json() == {
        "secretIssued": False,
        "tenant": "t1",
        "gatewayId": "gw",
        "routeKeys": ["g2"],
    }


async def test_nobody_collects_secrets_by_rotating(site: Site) -> None:
    await site.join()
    for body in ({"prepare": "yes"}, {"prepare": 1}, {"confirm": 5}, {"confirm": "nothing"}):
        assert (await site.post("/relay/rotate", body)).status_code in (400, 404)
    statuses = [(await site.post("/relay/rotate")).status_code for _ in range(9)]
    assert statuses == [200] * 7 + [409] * 2
    site.half.clock.advance(3601)
    credentials = await site.half.control.rotate(await site.half.control.principal("a1"))
    assert credentials.secret


async def test_a_gateways_wake_url_does_not_replace_the_operators(site: Site) -> None:
    await site.join()
    url = {"wakeUrl": "https://wake.example/gateway"}
    assert (await site.post("/manage/wake-url", url)).json() == {"hasWakeUrl": True}
    caller = await site.half.control.principal("a1")
    await site.half.control.set_wake_url(caller, "https://wake.example/mine", by_operator=True)
    for body in (url, {"wakeUrl": None}):
        answer = await site.post("/manage/wake-url", body)
        assert answer.json() == {"hasWakeUrl": True, "setBy": "operator"}
    again = await site.half.control.mint_token("t1", "a1")
    await site.half.control.enrol(again.token, "gw-a1", "https://wake.example/enrolled")
    [record] = await site.half.control.instances()
    assert record.wake_url == "https://wake.example/mine"
    await site.half.control.set_wake_url(caller, None, by_operator=True)
    assert await site.half.control.set_wake_url(caller, url["wakeUrl"])
    assert "wake.example" not in "".join(await site.half.journal())
    answer = await site.post("/manage/wake-url", {"wakeUrl": "http://127.0.0.1/"})
    assert answer.status_code in (400, 401)


RECORDED = Path(__file__).parent.parent / "recorded" / "enrolment.json"


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case["id"]) for case in json.loads(RECORDED.read_bytes())["cases"]],
)
async def test_enrolment_as_recorded(site: Site, case: dict[str, Any]) -> None:
    control = site.half.control
    token = (await control.mint_token("t1", "a1", seconds=60)).token
    taken = await control.mint_token("t1", "a2")
    await control.enrol(taken.token, "gw-taken")
    if case["token"] == "unknown":
        token = "enrol_of-nobody"
    elif case["token"] == "expired":
        site.half.clock.advance(61)
    elif case["token"] in ("used", "barred"):
        await control.enrol(token, "gw-before")
    if case["token"] == "barred":
        await control.revoke("a1")
        token = (await control.mint_token("t1", "a1")).token
    # Existing clients send the bearer of their own portal, which means nothing here.
    site.bearer = "portal-token"
    body = {"enrollmentToken": token, "gatewayId": case["gatewayId"]}
    answer = await site.post("/relay/enroll", body)
    assert (answer.status_code, answer.json().get("error")) == (case["status"], case["error"])
    assert token not in answer.text
