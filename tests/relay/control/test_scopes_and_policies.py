"""Who holds a channel, where direct messages go, and what an instance wants to hear."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from accord.relay.connector import tables
from accord.relay.errors import Code, RelayError
from accord.relay.rules import (
    DmDefault,
    PlatformAccount,
    PolicyKey,
    PrincipalPolicy,
    RelevancePolicy,
)

pytestmark = pytest.mark.parametrize("engine", ["sqlite", "postgres"])


async def refusal(coroutine: Any) -> Code:
    with pytest.raises(RelayError) as refused:
        await coroutine
    code: Code = refused.value.code
    return code


async def owned(half: Any, instance: str = "a1", tenant: str = "t1", user: str = "u1") -> Any:
    principal = await half.principal(instance, tenant)
    await half.control.bind(instance, "chat", user)
    return principal


async def test_a_channel_is_claimed_by_a_bound_owner_who_may_manage_it(half: Any) -> None:
    mine = await owned(half)
    await half.control.route("t1", "chat", "g1")
    claim = ("chat", "g1", "c1")
    # Unknown is not no.
    for answer, code in ((None, Code.UNAVAILABLE), (False, Code.FORBIDDEN)):
        half.chat.manages["u1", "c1"] = answer
        assert await refusal(half.control.claim_scope(mine, *claim)) is code
    half.chat.manages["u1", "c1"] = True
    half.chat.failure = RuntimeError("the platform is down")
    assert await refusal(half.control.claim_scope(mine, *claim)) is Code.UNAVAILABLE
    half.chat.failure = None
    assert await refusal(half.control.claim_scope(mine, "else", "g1", "c1")) is Code.FORBIDDEN
    await half.control.claim_scope(mine, *claim)
    await half.control.claim_scope(mine, *claim)
    [held] = await half.rows(tables.grants)
    assert (held["instance"], held["owner"]) == ("a1", "u1")
    assert await half.directory.held_scopes("a1", "chat", "c1") == ("g1",)


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (False, False, Code.FORBIDDEN),
        (False, None, Code.UNAVAILABLE),
        (None, False, Code.UNAVAILABLE),
        (None, True, None),
        (True, None, None),
    ],
)
async def test_of_several_owners_one_who_manages_is_enough_and_one_unknown_is_not_no(
    half: Any, first: bool | None, second: bool | None, code: Code | None
) -> None:
    mine = await owned(half)
    await half.control.bind("a1", "chat", "u2")
    await half.control.route("t1", "chat", "g1")
    half.chat.manages.update({("u1", "c1"): first, ("u2", "c1"): second})
    claim = half.control.claim_scope(mine, "chat", "g1", "c1")
    if code is not None:
        assert await refusal(claim) is code
        assert await half.rows(tables.grants) == []
        return
    await claim
    [held] = await half.rows(tables.grants)
    assert held["owner"] == ("u1" if first else "u2")


async def test_nobody_who_is_not_bound_opens_a_channel(half: Any) -> None:
    mine = await half.principal()
    await half.control.route("t1", "chat", "g1")
    half.chat.manages["u1", "c1"] = True
    assert await refusal(half.control.claim_scope(mine, "chat", "g1", "c1")) is Code.FORBIDDEN


async def test_a_scope_that_is_not_the_tenants_cannot_be_claimed(half: Any) -> None:
    mine = await owned(half)
    await half.principal("b1", "t2")
    await half.control.route("t2", "chat", "g2")
    half.chat.manages.update({("u1", "c1"): True, ("u1", "c2"): True})
    for scope, channel in (("g2", "c1"), ("g9", "c1"), ("", "c2")):
        assert (
            await refusal(half.control.claim_scope(mine, "chat", scope, channel)) is Code.CONFLICT
        )
    await half.control.route("t1", "chat", "c2")
    await half.control.claim_scope(mine, "chat", "", "c2")
    assert await half.directory.held_scopes("a1", "chat", "c2") == ("",)


async def test_a_channel_has_one_holder_also_in_a_race(half: Any) -> None:
    await half.control.route("t1", "chat", "g1")
    half.chat.manages["u1", "c1"] = True
    callers = [await owned(half, f"a{n}") for n in range(5)]
    outcomes = await asyncio.gather(
        *(half.control.claim_scope(each, "chat", "g1", "c1") for each in callers),
        return_exceptions=True,
    )
    assert sum(outcome is None for outcome in outcomes) == 1
    assert len(await half.rows(tables.grants)) == 1


async def test_only_the_holder_releases_a_channel(half: Any) -> None:
    await half.control.route("t1", "chat", "g1")
    mine, other = await owned(half), await owned(half, "a2")
    await half.control.grant("a1", "chat", "g1", "c1")
    release = ("chat", "g1", "c1")
    assert await refusal(half.control.release_scope(other, *release)) is Code.NOT_FOUND
    await half.control.release_scope(mine, *release)
    assert await refusal(half.control.release_scope(mine, *release)) is Code.NOT_FOUND
    await half.control.grant("a2", "chat", "g1", "c1")
    assert await half.directory.held_scopes("a1", "chat", "c1") == ()
    assert await half.directory.held_scopes("a2", "chat", "c1") == ("g1",)


async def test_an_operators_grant_needs_an_owner_whose_view_counts(half: Any) -> None:
    await half.principal()
    await half.control.route("t1", "chat", "g1")
    assert await refusal(half.control.grant("a1", "chat", "g1", "c1")) is Code.CONFLICT
    await half.control.bind("a1", "chat", "u1")
    code = await refusal(half.control.grant("a1", "chat", "g1", "c1", owner="u2"))
    assert code is Code.FORBIDDEN


async def test_a_route_stays_with_its_tenant_until_it_is_taken_away(half: Any) -> None:
    await half.control.route("t1", "chat", "g1")
    assert await refusal(half.control.route("t2", "chat", "g1")) is Code.CONFLICT
    await half.control.unroute("chat", "g1")
    await half.control.route("t2", "chat", "g1")


async def test_direct_messages_go_where_the_bound_user_says(
    half: Any, inbound: Callable[..., Any]
) -> None:
    await owned(half, "a1", "t1")
    other = await owned(half, "b1", "t2")
    stranger = await half.principal("a9")
    home = {PlatformAccount("chat", "u1"): DmDefault("t1", "a1")}
    assert (await half.directory.facts(inbound())).dm_defaults == home
    await half.control.set_dm_default(other, "chat", "u1")
    home = {PlatformAccount("chat", "u1"): DmDefault("t2", "b1")}
    assert (await half.directory.facts(inbound())).dm_defaults == home
    assert await refusal(half.control.set_dm_default(stranger, "chat", "u1")) is Code.NOT_FOUND
    assert await refusal(half.control.set_dm_default(other, "chat", "u2")) is Code.NOT_FOUND
    await half.control.unbind("chat", "u1", "b1")
    home = {PlatformAccount("chat", "u1"): DmDefault("t1", "a1")}
    assert (await half.directory.facts(inbound())).dm_defaults == home


async def test_a_policy_replaces_the_one_before_and_repeating_it_leaves_no_trace(
    half: Any, inbound: Callable[..., Any]
) -> None:
    mine = await owned(half)
    await half.control.route("t1", "chat", "g1")
    event = inbound(chat="c1", kind="group", scope="g1")
    seat = PolicyKey("t1", "a1", "chat")
    strict = RelevancePolicy(True, frozenset({"c7", "c8"}), True)
    await half.control.set_relevance(mine, "chat", strict)
    await half.control.set_principal(mine, "chat", PrincipalPolicy.ALLOW_LIST, ["u2", "u3", "u2"])
    facts = await half.directory.facts(event)
    assert facts.relevance == {seat: strict}
    assert facts.principals[seat].allow == {"u2", "u3"}
    changes, notes = await half.rows(tables.changes), await half.journal()
    await half.control.set_relevance(mine, "chat", strict)
    await half.control.set_principal(mine, "chat", PrincipalPolicy.ALLOW_LIST, ["u3", "u2"])
    assert (await half.rows(tables.changes), await half.journal()) == (changes, notes)
    await half.control.set_relevance(mine, "chat", RelevancePolicy())
    await half.control.set_principal(mine, "chat", PrincipalPolicy.ANY)
    facts = await half.directory.facts(event)
    assert facts.relevance == {seat: RelevancePolicy()}
    assert facts.principals[seat].policy is PrincipalPolicy.ANY
    await half.control.set_relevance(mine, "else", strict)
    assert (await half.directory.facts(event)).relevance == {seat: RelevancePolicy()}


async def test_a_gateway_does_not_replace_a_policy_that_the_operator_set(
    half: Any, inbound: Callable[..., Any]
) -> None:
    mine = await owned(half)
    await half.control.route("t1", "chat", "g1")
    event = inbound(chat="c1", kind="group", scope="g1")
    seat = PolicyKey("t1", "a1", "chat")
    strict, loose = RelevancePolicy(True, frozenset({"c7"})), RelevancePolicy()
    assert await half.control.set_relevance(mine, "chat", loose) is None
    await half.control.set_relevance(mine, "chat", strict, by_operator=True)
    changes = await half.rows(tables.changes)
    assert await half.control.set_relevance(mine, "chat", loose) == strict
    assert await half.rows(tables.changes) == changes
    assert (await half.directory.facts(event)).relevance == {seat: strict}
    (told,) = (await half.control.status(mine))["relevance"]
    assert told["setBy"] == "operator"
    assert await half.control.unpin_relevance(mine, "chat")
    assert not await half.control.unpin_relevance(mine, "chat")
    assert (await half.directory.facts(event)).relevance == {seat: strict}
    assert await half.control.set_relevance(mine, "chat", loose) is None
    assert (await half.directory.facts(event)).relevance == {seat: loose}


async def test_status_tells_an_instance_about_itself_and_nobody_else(half: Any) -> None:
    mine = await owned(half)
    await owned(half, "b1", "t2", "u2")
    await half.control.route("t1", "chat", "g1")
    await half.control.grant("a1", "chat", "g1", "c1")
    await half.control.set_principal(mine, "chat", PrincipalPolicy.ANY)
    await half.control.set_relevance(mine, "chat", RelevancePolicy(True))
    told = await half.control.status(mine)
    assert told["bindings"] == [{"platform": "chat", "user_id": "u1"}]
    assert told["scopes"] == [
        {"platform": "chat", "scope_id": "g1", "channel_id": "c1", "owner": "u1"}
    ]
    assert (told["secrets"], told["hasWakeUrl"]) == (1, False)
    assert "u2" not in repr(told)
    assert "secret" not in {key.lower() for key in told}
