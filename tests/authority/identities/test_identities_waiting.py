"""Services that wait for a plan, and how often somebody may ask."""

from typing import Any

import pytest

from accord.authority.http import SILENCE_SECONDS, PlanRequesters, RateLimit, RateLimitedError
from accord.authority.rules import Code, DeploymentKind, PlanState
from accord.contracts.session_proof import session_key
from accord.kernel.signing import SigningKey
from accord.testing import VirtualClock


async def test_the_plan_of_a_service_that_stopped_asking_goes(web: Any, client: Any) -> None:
    authority, key = web.house.authority, SigningKey.generate()
    shop = client("Notes.List", kind="service", identity="shop@v1")
    await authority.deployments.create("shop", DeploymentKind.SERVICE)
    await authority.deployments.add_instance("shop", session_key(key), "shop-1")

    async def ask() -> None:
        answer = await web.http.post("/bootstrap/v1", json=web.signed(key, shop, manifest=shop))
        assert answer.json()["code"] == "authority_update_required"

    async def waiting() -> int:
        return len(await authority.plans.all("shop", PlanState.PENDING))

    await ask()
    web.house.clock.advance(SILENCE_SECONDS - 1)
    await ask()
    web.house.clock.advance(SILENCE_SECONDS - 1)
    await web.requesters.forget_silent()
    assert await waiting() == 1
    web.house.clock.advance(1)
    await web.requesters.forget_silent()
    assert await waiting() == 0


async def test_an_operators_plan_stays(web: Any, client: Any) -> None:
    shop = client("Notes.List", kind="service", identity="shop@v1")
    await web.admin("deploy", deployment="shop", manifest=shop)
    web.house.clock.advance(10 * SILENCE_SECONDS)
    await web.requesters.forget_silent()
    assert len(await web.house.authority.plans.all("shop", PlanState.PENDING)) == 1


async def test_only_so_many_requesters_are_followed(web: Any) -> None:
    requesters = PlanRequesters(web.house.authority, web.house.clock)
    for number in range(10_001):
        requesters.asked(str(number))
    assert len(requesters._asked) == 10_000
    requesters.served("10000")
    assert "10000" not in requesters._asked


def test_a_limit_gives_back_a_turn_in_time(virtual_clock: VirtualClock) -> None:
    limit = RateLimit(virtual_clock, per_minute=6, burst=2)
    limit.take("a")
    limit.take("a")
    with pytest.raises(RateLimitedError) as caught:
        limit.take("a")
    assert (caught.value.code, caught.value.seconds) == (Code.RATE_LIMITED, 10)
    limit.take("b")
    virtual_clock.advance(10)
    limit.take("a")
    with pytest.raises(RateLimitedError):
        limit.take("a")


async def test_unknown_contracts_of_strangers_are_taken_seldom(web: Any, client: Any) -> None:
    codes = []
    for number in range(61):
        manifest = client(identity=f"app{number}@v1")
        body = web.signed(
            SigningKey.generate(), manifest, manifest=manifest, deployment="none", name="x"
        )
        web.house.clock.advance(1)
        answer = await web.http.post("/auth/v1/activations", json={**body, "iat": 0})
        codes.append(answer.json()["code"])
        body = web.signed(
            SigningKey.generate(), manifest, manifest=manifest, deployment="none", name="x"
        )
        codes.append((await web.http.post("/auth/v1/activations", json=body)).json()["code"])
    # What is not proved costs nothing; what is, does.
    assert set(codes[::2]) == {"invalid_proof"}
    assert codes[1] == "not_found"
    assert codes[-1] == "rate_limited"
