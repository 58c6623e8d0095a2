"""What sessions ask over HTTP before they connect."""

import json
from typing import Any

import pytest

from accord.authority.rules import DeploymentKind, Materialized, MaterialState
from accord.contracts import digest
from accord.contracts.session_proof import prove, session_key
from accord.kernel.signing import SigningKey

READ = "notes::notes.read"


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.from_seed(bytes(range(32)))


@pytest.fixture
def shop(client: Any) -> dict[str, Any]:
    """A service that uses another one."""
    contract: dict[str, Any] = client("Notes.List", kind="service", identity="shop@v1")
    return contract


async def test_a_service_waits_for_each_blocker_and_is_ready_in_the_end(
    web: Any, shop: Any, key: SigningKey
) -> None:
    async def ask(**more: Any) -> tuple[int, Any]:
        answer = await web.http.post("/bootstrap/v1", json=web.signed(key, shop, **more))
        assert answer.headers["cache-control"] == "no-store"
        return answer.status_code, answer.json()

    status, told = await ask()
    assert (status, told["status"], told["code"]) == (401, "refused", "unknown_session")
    await web.admin("deploy", deployment="shop")
    await web.admin("instances/add", deployment="shop", key=session_key(key), name="shop-1")
    status, told = await ask()
    assert (status, told["code"]) == (409, "manifest_required")
    status, told = await ask(manifest=shop)
    assert (status, told["status"]) == (409, "blocked")
    assert told["code"] == "authority_update_required"
    assert told["retryAfterMs"] > 0
    [plan] = (await web.admin("plans/list", state="pending")).json()["plans"]
    # Asked again, the same plan waits.
    await ask()
    assert (await web.admin("plans/list", state="pending")).json()["plans"] == [plan]
    accepted = await web.admin("plans/accept", plan=plan["id"], by="olga")
    assert accepted.json()["plan"]["state"] == "accepted"
    status, told = await ask()
    assert (status, told["code"]) == (409, "authority_reconciliation_pending")
    assert (await web.admin("status")).json()["to_reconcile"] == ["shop"]
    authority = web.house.authority
    version = (await authority.deployments.get("shop")).version
    made = Materialized(
        "shop",
        version,
        MaterialState.CURRENT,
        settings={"shop@v1": {"operations": {"bucket": "acc_op_x"}}},
    )
    await authority.deployments.materialize(made)
    status, told = await ask()
    assert (status, told) == (
        200,
        {
            "status": "ready",
            "transports": {"nats": {"urls": ["nats://127.0.0.1:4222"]}},
            "sentinel": {"jwt": "the.sentinel.jwt", "seed": "SUSEED"},
            "contract": {"id": "shop@v1", "digest": digest(shop)},
            "bindings": {"operations": {"bucket": "acc_op_x"}},
            "inboxPrefix": f"_INBOX.{session_key(key)[:16]}",
            "sessionKey": session_key(key),
            "deployment": "shop",
            "instance": "shop-1",
        },
    )
    told = (await web.admin("offers/list", deployment="shop")).json()
    assert [each["digest"] for each in told["offers"]] == [digest(shop)]


async def test_the_proof_is_the_sessions_own_and_fresh(
    web: Any, shop: Any, key: SigningKey
) -> None:
    body = web.signed(key, shop)
    for change, code in (
        ({"sig": prove(key, b"something else")}, "invalid_proof"),
        ({"sessionKey": session_key(SigningKey.generate())}, "invalid_proof"),
        ({"contractDigest": "x" * 43}, "invalid_proof"),
        ({"iat": body["iat"] + 1}, "invalid_proof"),
        (web.signed(key, shop, late=-31), "expired_proof"),
        (web.signed(key, shop, late=31), "expired_proof"),
        ({"iat": True}, "bad_request"),
        ({"iat": None}, "bad_request"),
        ({"sig": 7}, "bad_request"),
        ({"sessionKey": "short"}, "bad_request"),
        ({"contractDigest": ["x"]}, "bad_request"),
        ({"manifest": "text"}, "bad_request"),
    ):
        answer = await web.http.post("/bootstrap/v1", json={**body, **change})
        assert answer.json()["code"] == code, change
        assert answer.status_code in (400, 401)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{", 400),
        (b'{"a":1,"a":2}', 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b'{"sessionKey":"' + b"x" * 2_000_000 + b'"}', 413),
    ],
)
async def test_a_body_that_is_no_small_strict_object_is_refused(
    web: Any, content: bytes, status: int
) -> None:
    for path in ("/bootstrap/v1", "/auth/v1/logins", "/auth/v1/activations"):
        answer = await web.http.post(path, content=content)
        assert answer.status_code == status
        assert answer.json()["status"] == "refused"


async def test_a_manifest_of_ten_megabytes_changes_nothing(
    web: Any, shop: Any, key: SigningKey
) -> None:
    await web.house.authority.deployments.create("shop", DeploymentKind.SERVICE)
    await web.house.authority.deployments.add_instance("shop", session_key(key), "shop-1")
    large = {**shop, "description": "x" * 10_000_000}
    answer = await web.http.post("/bootstrap/v1", json=web.signed(key, shop, manifest=large))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert (await web.admin("plans/list", deployment="shop")).json() == {"plans": []}
    wrong = {**shop, "kind": "app"}
    answer = await web.http.post("/bootstrap/v1", json=web.signed(key, shop, manifest=wrong))
    assert answer.json()["code"] == "digest_mismatch"
    broken = {**shop, "rpc": {"X": {}}}
    answer = await web.http.post("/bootstrap/v1", json=web.signed(key, shop, manifest=broken))
    assert answer.json()["code"] == "invalid_contract"
    assert answer.json()["findings"]


async def test_a_persons_session_bootstraps_until_it_is_over(
    web: Any, client: Any, key: SigningKey
) -> None:
    ann = await web.house.person("Ann", READ)
    app = client("Notes.List")
    await web.house.log_in(ann, key, app)
    ready = await web.http.post("/bootstrap/v1", json=web.signed(key, app))
    assert ready.status_code == 200
    assert ready.json()["bindings"] == {}
    more = client("Notes.List", "Notes.Add")
    asked = await web.http.post("/bootstrap/v1", json=web.signed(key, more, manifest=more))
    assert (asked.status_code, asked.json()["code"]) == (409, "consent_required")
    web.house.clock.advance(7 * 86_400)
    late = await web.http.post("/bootstrap/v1", json=web.signed(key, app))
    assert late.json()["code"] == "unknown_session"
    fresh = SigningKey.generate()
    await web.house.log_in(ann, fresh, app)
    await web.house.authority.sessions.revoke(session_key(fresh), "test")
    ended = await web.http.post("/bootstrap/v1", json=web.signed(fresh, app))
    assert (ended.status_code, ended.json()["code"]) == (403, "revoked")


async def test_pages_of_any_origin_may_ask_what_a_signature_proves(web: Any) -> None:
    asked = await web.http.options("/bootstrap/v1", headers={"origin": "https://app.example"})
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in asked.headers
    pages = await web.http.get("/login")
    assert "access-control-allow-origin" not in pages.headers


async def test_one_address_asks_only_so_often(web: Any) -> None:
    answers = [await web.http.post("/bootstrap/v1", content=b"[]") for _ in range(201)]
    assert answers[-2].status_code == 400
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert answers[-1].json()["status"] == "blocked"
    web.house.clock.advance(60)
    assert (await web.http.post("/bootstrap/v1", content=b"[]")).status_code == 400


async def test_it_is_known_to_be_alive(web: Any) -> None:
    assert (await web.http.get("/healthz")).text == "ok\n"


async def test_no_secret_is_in_a_representation(web: Any) -> None:
    from accord.authority.http import NatsTransport

    assert "SUSEED" not in repr(NatsTransport(("nats://x",), "jwt", "SUSEED"))
    assert "SUSEED" not in json.dumps((await web.admin("status")).json())
