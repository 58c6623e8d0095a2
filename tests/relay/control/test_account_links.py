"""Linking an account by a direct message, against the store."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from accord.relay.connector import Control, Directory, tables
from accord.relay.errors import RelayError
from accord.relay.rules import DmDefault, PlatformAccount, TenantAccount

BOTH = pytest.mark.parametrize("engine", ["sqlite", "postgres"])


async def offered(half: Any, instance: str = "a1", tenant: str = "t1") -> str:
    await half.enrol(instance, tenant, name=f"Agent {instance}")
    code = await half.control.link(await half.control.principal(instance))
    assert code.code not in repr(code)
    return str(code.code)


async def bound(half: Any) -> set[tuple[str, str, str]]:
    rows = await half.rows(tables.bindings)
    return {(row["tenant"], row["user_id"], row["instance"]) for row in rows}


@BOTH
async def test_a_code_and_a_confirmation_bind_the_account(
    half: Any, inbound: Callable[..., Any]
) -> None:
    code = await offered(half)
    assert await half.say("yes") is None
    asked = await half.say(f"/link {code.lower()}")
    assert "Agent a1" in asked
    assert await bound(half) == set()
    assert "linked" in await half.say("Yes")
    assert await bound(half) == {("t1", "u1", "a1")}
    facts = await half.directory.facts(inbound())
    assert facts.bindings == {TenantAccount("t1", "chat", "u1"): ("a1",)}
    assert facts.dm_defaults == {PlatformAccount("chat", "u1"): DmDefault("t1", "a1")}
    assert await half.say("yes") is None


@BOTH
async def test_a_code_is_spent_by_the_first_who_sends_it(half: Any) -> None:
    code = await offered(half)
    answers = await asyncio.gather(*(half.say(f"/link {code}", f"u{n}") for n in range(5)))
    assert sum("Agent a1" in answer for answer in answers) == 1


async def test_declining_or_waiting_too_long_binds_nothing(half: Any) -> None:
    await half.say(f"/link {await offered(half)}")
    assert "nothing was linked" in await half.say("no")
    assert await half.say("yes") is None
    await half.say(f"/link {await offered(half)}")
    half.clock.advance(600)
    assert await half.say("yes") is None
    assert await bound(half) == set()


async def test_a_code_lasts_ten_minutes(half: Any) -> None:
    code = await offered(half)
    half.clock.advance(600)
    assert "do not know" in await half.say(f"/link {code}")
    assert await bound(half) == set()


@BOTH
async def test_after_five_wrong_codes_even_the_right_one_is_refused_for_an_hour(half: Any) -> None:
    code = await offered(half)
    for _ in range(5):
        assert "do not know" in await half.say("/link 00000-00000")
    for text in ("/link 00000-00000", f"/link {code}"):
        assert "too many" in await half.say(text)
    # Another account, and the same one after an hour, may try.
    assert "do not know" in await half.say("/link 00000-00000", "u2")
    half.clock.advance(3600)
    assert "Agent a1" in await half.say(f"/link {await offered(half)}")


@BOTH
async def test_tries_of_many_accounts_at_once_are_counted(half: Any) -> None:
    answers = await asyncio.gather(*(half.say("/link 00000-00000") for _ in range(9)))
    assert sum("do not know" in answer for answer in answers) == 5


@BOTH
async def test_a_code_shown_in_a_group_is_burned_whoever_shows_it(half: Any) -> None:
    group = {"chat": "c1", "kind": "group", "scope": "g1"}
    for text in ("/link {}", "look, my code is {} !", "{}"):
        code = await offered(half)
        reply = await half.say(text.format(code), "somebody", **group)
        assert reply is None or "direct message" in reply
        assert "do not know" in await half.say(f"/link {code}", f"u-{len(text)}")
    assert await bound(half) == set()
    assert await half.say("good morning everybody", **group) is None


async def test_a_group_is_answered_about_no_code_but_a_real_one(half: Any) -> None:
    await offered(half)
    assert await half.say("/link 00000-00000", chat="c1", kind="group") == ""


@BOTH
async def test_unlinking_undoes_every_link_and_says_which(half: Any) -> None:
    for instance in ("a1", "a2"):
        await half.say(f"/link {await offered(half, instance)}")
        await half.say("yes")
    assert len(await bound(half)) == 2
    answer = await half.say("/unlink")
    assert "Agent a1" in answer
    assert "Agent a2" in answer
    assert await bound(half) == set()
    assert await half.rows(tables.dm_defaults) == []
    assert "not linked" in await half.say("/unlink")


async def test_a_second_link_to_the_same_agent_changes_nothing(half: Any) -> None:
    await half.say(f"/link {await offered(half)}")
    await half.say("yes")
    again = await half.control.link(await half.control.principal("a1"))
    assert "already" in await half.say(f"/link {again.code}")
    assert await bound(half) == {("t1", "u1", "a1")}


async def test_a_link_to_an_agent_that_was_revoked_meanwhile_is_not_made(half: Any) -> None:
    code = await offered(half)
    other = await offered(half, "a2")
    await half.say(f"/link {code}")
    await half.control.revoke("a1")
    await half.control.revoke("a2")
    assert await half.say("yes") is None
    assert "do not know" in await half.say(f"/link {other}")
    assert await bound(half) == set()


async def test_a_bot_cannot_link_and_other_messages_are_not_consumed(
    half: Any, inbound: Callable[..., Any]
) -> None:
    code = await offered(half)
    by_bot = inbound(f"/link {code}", author_is_bot=True, event_id="by a bot")
    assert await half.directory.consume_link_dm(by_bot) is None
    for text in ("hello", "link me", "", "no", "/stop", "x" * 10_000, "/linkage abc"):
        assert await half.say(text) is None
    assert "Agent a1" in await half.say(f"/link {code}")


async def test_ids_that_no_store_can_keep_are_not_consumed(half: Any) -> None:
    code = await offered(half)
    for user in ("", "x\x00y", None):
        assert await half.say(f"/link {code}", user) is None


async def test_at_most_five_codes_of_an_instance_are_out(half: Any) -> None:
    codes = [await offered(half) for _ in range(1)]
    principal = await half.control.principal("a1")
    for _ in range(5):
        half.clock.advance(1)
        codes.append((await half.control.link(principal)).code)
    assert len(await half.rows(tables.link_codes)) == 5
    assert "do not know" in await half.say(f"/link {codes[0]}")
    assert "Agent a1" in await half.say(f"/link {codes[1]}")


async def test_no_code_is_readable_in_the_store(half: Any) -> None:
    code = await offered(half)
    kept = repr(await half.rows(tables.link_codes)) + "".join(await half.journal())
    assert code not in kept
    assert code.replace("-", "") not in kept


@BOTH
async def test_another_process_that_looks_sees_the_code_and_the_link(
    half: Any, inbound: Callable[..., Any]
) -> None:
    other = Directory(half.store, half.keyring, half.clock, half.directory.settings)
    assert (await other.facts(inbound())).bindings == {}
    code = await offered(half)
    other.hint()
    reply = await other.consume_link_dm(inbound(f"/link {code}"))
    assert reply is not None
    assert (await other.facts(inbound())).bindings == {}
    half.directory.hint()
    assert "linked" in await half.say("yes")
    assert (await other.facts(inbound())).bindings == {}  # it has not looked yet
    half.clock.advance(1)
    assert (await other.facts(inbound())).bindings == {TenantAccount("t1", "chat", "u1"): ("a1",)}
    await other.close()


async def test_the_operator_binds_and_unbinds_without_a_code(half: Any) -> None:
    await half.enrol("a1")
    control: Control = half.control
    await control.bind("a1", "chat", "u1")
    await control.bind("a1", "chat", "u1")
    assert await bound(half) == {("t1", "u1", "a1")}
    assert await control.unbind("chat", "u1") == 1
    assert await control.unbind("chat", "u1") == 0
    with pytest.raises(RelayError):
        await control.bind("nobody", "chat", "u1")


@BOTH
async def test_an_event_that_is_delivered_again_is_answered_again_and_done_once(half: Any) -> None:
    code = await offered(half)
    first = await half.say(f"/link {code}", event_id="e1")
    assert await half.say(f"/link {code}", event_id="e1") == first
    answers = await asyncio.gather(*(half.say("yes", event_id="e2") for _ in range(3)))
    assert len(set(answers)) == 1
    assert "linked" in answers[0]
    # Also by a process that has just started, when nothing waits any more.
    other = Directory(half.store, half.keyring, half.clock, half.directory.settings)
    half.directory = other
    assert await half.say("yes", event_id="e2") == answers[0]
    assert await half.say("yes", event_id="e3") is None
    for _ in range(4):
        assert "do not know" in await half.say("/link 00000-00000", event_id="e4")
    [talk] = await half.rows(tables.link_talks)
    assert talk["tries"] == 1
    await other.close()


async def test_whoever_floods_the_bot_is_not_answered_any_more(half: Any) -> None:
    answers = [await half.say("/link") for _ in range(21)]
    assert all(answers[:20])
    assert answers[20] == ""
    half.clock.advance(60)
    assert await half.say("/link")


@BOTH
async def test_a_person_chooses_among_agents_of_several_tenants_by_chat(half: Any) -> None:
    for instance, tenant in (("a1", "t1"), ("b1", "t2")):
        await half.say(f"/link {await offered(half, instance, tenant)}")
        await half.say("yes")
    assert "1. “Agent a1” (default)" in await half.say("/agents")
    assert "Agent b1" in await half.say("/default 2")
    [home] = await half.rows(tables.dm_defaults)
    assert (home["tenant"], home["instance"]) == ("t2", "b1")
    assert any('"dm-default.chosen"' in note for note in await half.journal())
    assert "no longer" in await half.say("/unlink agent B1")
    assert await bound(half) == {("t1", "u1", "a1")}
    [home] = await half.rows(tables.dm_defaults)
    assert (home["tenant"], home["instance"]) == ("t1", "a1")
    # Nobody names an agent of somebody else.
    assert "not linked" in await half.say("/default Agent a1", user="u2")
    assert "No" not in await half.say("/help", user="u2")


@BOTH
async def test_an_operator_shares_places_and_opens_agents_and_every_mistake_is_told(
    half: Any,
) -> None:
    for instance, tenant in (("a1", "t1"), ("b1", "t2")):
        await half.enrol(instance, tenant)
    control = half.control
    await control.route("t1", "chat", "g1")
    with pytest.raises(RelayError, match="belongs to another tenant"):
        await control.open("b1", "chat", "g1")
    with pytest.raises(RelayError):
        await control.open("nobody", "chat", "g1")
    assert await control.share("chat", "g1")
    assert not await control.share("chat", "g1")
    await control.open("b1", "chat", "g1")
    await control.open("b1", "chat", "g1")
    with pytest.raises(RelayError, match="another agent is open"):
        await control.open("a1", "chat", "g1")
    await control.open("a1", "chat", "g1", "c1")
    kinds = [(each["kind"], each.get("instance")) for each in await control.places()]
    assert kinds == [("route", None), ("shared", None), ("open", "b1"), ("open", "a1")]
    status = await control.status(await control.principal("b1"))
    assert status["open"] == [{"platform": "chat", "scope_id": "g1", "channel_id": ""}]
    # An agent that is taken away is open nowhere.
    await control.revoke("b1")
    assert await control.close("chat", "g1") is None
    assert await control.close("chat", "g1", "c1") == "a1"
    assert await control.unshare("chat", "g1")
    assert not await control.unshare("chat", "g1")
    assert [each["kind"] for each in await control.places()] == ["route"]
    with pytest.raises(RelayError):
        await control.share("chat", "")
