"""The registry's verbs at the border: what each kind of token is good for."""

from typing import Any

import pytest
from tests.authority.identities.conftest import TOKEN, Web, notes

from accord.contracts import digest


async def ask(web: Web, token: str, verb: str, **body: Any) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {token}"}
    answer = await web.http.post(f"/admin/v1/{verb}", json=body, headers=headers)
    return answer.status_code, answer.json()


async def minted(web: Web, name: str, *, push: bool) -> str:
    status, told = await ask(web, TOKEN, "registry/tokens/add", name=name, may_push=push)
    assert status == 200
    return str(told["token"])


async def test_a_token_that_reads_does_not_push(web: Web) -> None:
    token = await minted(web, "ci", push=False)
    assert (await ask(web, token, "registry/list"))[0] == 200
    status, told = await ask(web, token, "registry/push", manifest=notes())
    assert (status, told["code"]) == (403, "forbidden")
    assert (await ask(web, TOKEN, "registry/list"))[1]["contracts"] == []


async def test_a_token_that_pushes_signs_with_its_own_name_and_does_nothing_else(web: Web) -> None:
    token = await minted(web, "release", push=True)
    status, told = await ask(
        web, token, "registry/push", manifest=notes(), by="olga", registryToken="operator"
    )
    assert (status, told["version"]["by"]) == (200, "registry token release")
    for verb in ("status", "plans/list", "deploy", "registry/tokens/add", "registry/tokens/list"):
        status, refused = await ask(web, token, verb, deployment="x", manifest=notes())
        assert (status, refused["code"]) == (403, "forbidden"), verb
    shown = await ask(web, TOKEN, "registry/tokens/list")
    assert token.rpartition("_")[2] not in str(shown)


async def test_only_an_operator_changes_the_texts_of_a_known_contract(web: Web) -> None:
    token = await minted(web, "release", push=True)
    await ask(web, token, "registry/push", manifest=notes())
    forged = {**notes(), "displayName": "Your bank"}
    assert digest(forged) == digest(notes())
    for bearer, shown in ((token, notes()["displayName"]), (TOKEN, "Your bank")):
        assert (await ask(web, bearer, "registry/push", manifest=forged))[0] == 200
        told = (await ask(web, token, "registry/pull", contract=notes()["id"]))[1]
        assert told["manifest"]["displayName"] == shown


@pytest.mark.parametrize("token", ["", "x", "registry_0000000000000000_" + "A" * 43])
async def test_strangers_get_nothing_and_are_slowed_down(web: Web, token: str) -> None:
    statuses = [(await ask(web, token, "registry/list"))[0] for _ in range(25)]
    assert statuses[0] == 401
    assert statuses[-1] == 429


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("pull", {"contract": "nonsense"}),
        ("pull", {"contract": "graph@v1", "number": -1}),
        ("versions", {"contract": "graph@v1", "which": "some"}),
        ("push", {}),
        ("push", {"manifest": 1}),
        ("users", {}),
        ("log", {"contract": "graph@v1", "since": "x"}),
    ],
)
async def test_bad_requests_are_refused(web: Web, verb: str, body: dict[str, Any]) -> None:
    status, told = await ask(web, TOKEN, f"registry/{verb}", **body)
    assert (status, told["code"]) == (400, "bad_request")


async def test_a_digest_of_another_contract_is_not_pulled_under_this_name(web: Web) -> None:
    await ask(web, TOKEN, "registry/push", manifest=notes())
    wanted = {"contract": "graph@v1", "digest": digest(notes())}
    assert (await ask(web, TOKEN, "registry/pull", **wanted))[0] == 404
