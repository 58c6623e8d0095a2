"""What operators ask of an authority."""

from typing import Any

import pytest

from accord.authority.http import ensure_token
from accord.contracts import digest
from accord.contracts.session_proof import session_key
from accord.kernel.signing import SigningKey

READ = "notes::notes.read"
KEY = session_key(SigningKey.from_seed(bytes(range(32))))


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer wrong", "Basic the-operators-token", "Bearer \u00e4".encode()]
)
async def test_without_the_token_nothing_is_told(web: Any, header: Any) -> None:
    for verb in ("status", "people/list", "no/such/verb"):
        answer = await web.http.post(f"/admin/v1/{verb}", headers={"authorization": header})
        assert answer.status_code == 401
        assert answer.json()["code"] == "unknown_session"


async def test_a_verb_that_is_none_or_lacks_something_is_refused(web: Any) -> None:
    assert (await web.admin("no/such/verb")).status_code == 404
    assert (await web.http.get("/admin/v1/status")).status_code == 405
    for verb, body in (
        ("deploy", {}),
        ("deploy", {"deployment": "a\0b"}),
        ("deploy", {"deployment": "shop", "kind": "boat"}),
        ("deploy", {"deployment": "shop", "shapes": 7}),
        ("deploy", {"deployment": "shop", "manifest": []}),
        ("plans/list", {"state": 3}),
        ("instances/add", {"deployment": "shop", "key": "short"}),
        ("instances/set", {"key": KEY, "disabled": "yes"}),
        ("history", {"since": -1}),
        ("history", {"limit": 1001}),
        ("people/add", {"name": "Ann", "capabilities": "all"}),
        ("people/add", {"name": "Ann", "capabilities": [""]}),
        ("portals/set", {"kind": "window", "selector": "*", "url": "https://x.example"}),
    ):
        answer = await web.admin(verb, **body)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), (verb, body)
    assert (await web.admin("people/list")).json() == {"people": []}
    for verb, body in (
        ("plans/show", {"plan": "none"}),
        ("plans/accept", {"plan": "none"}),
        ("instances/remove", {"key": KEY}),
        ("sessions/revoke", {"key": KEY}),
        ("people/set", {"name": "Nobody"}),
        ("portals/drop", {"kind": "login", "selector": "*"}),
    ):
        assert (await web.admin(verb, **body)).status_code == 404, verb


async def test_every_verb_answers_something_wrong_with_a_refusal(web: Any) -> None:
    for verb in web.operating.verbs:
        for body in ({}, {"deployment": 1, "key": {}, "name": [], "plan": None}):
            assert (await web.admin(verb, **body)).status_code in (200, 400, 404, 503), verb


async def test_an_operator_deploys_ahead_and_accepts_at_once(web: Any, client: Any) -> None:
    shop = client("Notes.List", kind="service", identity="shop@v1")
    told = (await web.admin("deploy", deployment="shop", manifest=shop)).json()
    assert (told["plan"]["state"], told["plan"]["classification"]) == ("pending", "update")
    rejected = await web.admin("plans/reject", plan=told["plan"]["id"], why="not yet")
    assert rejected.json()["plan"]["state"] == "rejected"
    again = await web.admin("deploy", deployment="shop", manifest=shop, accept=True, by="olga")
    assert again.json()["plan"]["state"] == "accepted"
    assert (await web.admin("deploy", deployment="shop", manifest=shop)).json()["plan"] is None
    [_, made] = (await web.admin("deployments/list")).json()["deployments"]
    assert made["desired"]["contracts"] == {"shop@v1": digest(shop)}
    acts = (await web.admin("history", deployment="shop")).json()["history"]
    assert [each["act"] for each in acts if each["digest"]] == [
        "presented",
        "rejected",
        "presented",
        "accepted",
    ]
    assert acts[-1]["by"] == "olga"


async def test_a_dependency_that_is_not_there_yet_comes_as_a_shape(web: Any, client: Any) -> None:
    later = {
        **client(kind="service", identity="later@v1"),
        "schemas": {"Any": True},
        "rpc": {
            "Later.Do": {
                "version": "v1",
                "subject": "rpc.v1.Later.Do",
                "input": {"schema": "Any"},
                "output": {"schema": "Any"},
            }
        },
    }
    shop = client("Later.Do", kind="service", identity="shop@v1", contract="later@v1")
    refused = await web.admin("deploy", deployment="shop", manifest=shop)
    assert refused.json()["code"] == "dependency_unknown"
    told = await web.admin("deploy", deployment="shop", manifest=shop, shapes=[later], accept=True)
    assert told.json()["plan"]["state"] == "accepted"


async def test_deployments_and_instances_are_changed(web: Any) -> None:
    await web.admin("deploy", deployment="shop", compatibility="mutable-dev")
    told = await web.admin("deployments/set", deployment="shop", compatibility="strict")
    assert told.json()["deployment"]["compatibility"] == "strict"
    told = await web.admin("deployments/set", deployment="shop", disabled=True)
    assert told.json()["deployment"]["disabled"] is True
    made = await web.admin("instances/add", deployment="shop", key=KEY)
    assert made.json()["instance"]["name"] == KEY[:8]
    await web.admin("instances/set", key=KEY, disabled=True)
    listed = (await web.admin("instances/list", deployment="shop")).json()["instances"]
    assert [(each["key"], each["disabled"]) for each in listed] == [(KEY, True)]
    await web.admin("instances/remove", key=KEY)
    everybody = (await web.admin("instances/list")).json()["instances"]
    assert [each["deployment"] for each in everybody] == ["notes"]


async def test_the_catalog_shows_what_is_active(web: Any) -> None:
    told = (await web.admin("catalog")).json()
    assert told["catalog"]["format"] == "trellis.catalog.v1"
    assert {"notes@v1", "trellis.core@v1"} <= {each["id"] for each in told["catalog"]["contracts"]}
    assert told["issues"] == []
    status = (await web.admin("status")).json()
    assert status["contracts"] == len(told["catalog"]["contracts"])


async def test_people_overrides_and_pages_are_looked_after(web: Any, client: Any) -> None:
    made = await web.admin("people/add", name="Ann", capabilities=[READ])
    assert made.json()["person"]["capabilities"] == [READ]
    assert (await web.admin("people/add", name="ann")).status_code == 409
    told = await web.admin("people/set", name="ann", grant=["x::y"], revoke=[READ], disabled=True)
    assert (told.json()["person"]["capabilities"], told.json()["person"]["disabled"]) == (
        ["x::y"],
        True,
    )
    assert (await web.admin("people/consents", name="Ann")).json() == {"consents": []}
    override = {"contract": "desk@v1", "anchor": "https://app.example/"}
    await web.admin("overrides/set", **override, capabilities=[READ])
    [kept] = (await web.admin("overrides/list")).json()["overrides"]
    assert kept["anchor"] == "https://app.example"
    override["anchor"] = "https://app.example"
    assert (await web.admin("overrides/drop", **override)).status_code == 200
    assert (await web.admin("overrides/drop", **override)).status_code == 404
    await web.admin("portals/set", kind="device", selector="*", url="https://me.example")
    assert len((await web.admin("portals/list")).json()["portals"]) == 1


async def test_an_operator_ends_a_session(web: Any, client: Any) -> None:
    ann = await web.house.person("Ann", READ)
    key = SigningKey.generate()
    await web.house.log_in(ann, key, client("Notes.List"))
    [session] = (await web.admin("sessions/list", of="ann")).json()["sessions"]
    assert session["key"] == session_key(key)
    [other] = (await web.admin("sessions/list", of="notes")).json()["sessions"]
    assert (other["holder"], other["subject"]) == ("service", "notes")
    assert (await web.admin("sessions/list", of="nobody")).status_code == 404
    await web.admin("sessions/revoke", key=session_key(key))
    assert await web.house.is_over(key)


async def test_nothing_is_reconciled_where_nothing_runs_that_could(web: Any) -> None:
    answer = await web.admin("reconcile")
    assert answer.json()["code"] == "unavailable"
    assert "accord authority serve" in answer.json()["mend"]


def test_the_token_is_made_once_and_only_its_owner_reads_it(tmp_path: Any) -> None:
    file = tmp_path / "authority.token"
    token = ensure_token(file)
    assert len(token) >= 43
    assert ensure_token(file) == token
    assert file.stat().st_mode & 0o777 == 0o600
