"""What the gate goes by: complete, fresh, from memory, and closed where nothing is known."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from accord.relay.connector import (
    BotPermissions,
    ControlSettings,
    Directory,
    InboundEvent,
    VisibilityCache,
    tables,
)
from accord.relay.rules import (
    Facts,
    GateEvent,
    PrincipalPolicy,
    SessionRules,
    Visibility,
    VisibilityKey,
    decide,
)
from accord.testing import VirtualClock, run_virtual

GROUP = {"chat": "c1", "kind": "group", "scope": "g1"}


def deliveries(inbound: InboundEvent, facts: Facts) -> tuple[str, ...]:
    event = GateEvent.of(
        inbound.event.source,
        event_id=inbound.event_id,
        bot_id=inbound.bot_id,
        author_is_bot=inbound.author_is_bot,
        addressed=inbound.addressed,
        hook=inbound.route_key,
    )
    return decide(event, facts).deliveries


async def receives(half: Any, inbound: InboundEvent) -> tuple[str, ...]:
    return deliveries(inbound, await half.directory.facts(inbound))


async def town(half: Any) -> None:
    """Two tenants on one platform: a1 holds c1 for its owner u1, u2 is linked to a2."""
    for instance, tenant in (("a1", "t1"), ("a2", "t1"), ("b1", "t2")):
        await half.enrol(instance, tenant)
    await half.control.route("t1", "chat", "g1")
    await half.control.route("t2", "chat", "g2")
    for instance, user in (("a1", "u1"), ("a2", "u2"), ("b1", "u1")):
        await half.control.bind(instance, "chat", user)
    await half.control.grant("a1", "chat", "g1", "c1")
    for user in ("u1", "u2"):
        half.chat.views[user, "c1"] = True


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_the_gate_decides_by_them_as_the_specification_says(
    half: Any, inbound: Callable[..., Any]
) -> None:
    await town(half)
    assert await receives(half, inbound(user="u1", **GROUP)) == ("a1",)
    # The holder listens to its owner only, until it says otherwise.
    assert await receives(half, inbound(user="u2", **GROUP)) == ("a2",)
    a1 = await half.control.principal("a1")
    await half.control.set_principal(a1, "chat", PrincipalPolicy.ANY)
    assert set(await receives(half, inbound(user="u2", **GROUP))) == {"a1", "a2"}
    # A thread belongs to the holder of its channel.
    half.chat.views.update({("u1", "th"): True, ("u2", "th"): True})
    thread = inbound(user="u2", chat="th", kind="thread", scope="g1", parent="c1")
    assert set(await receives(half, thread)) == {"a1", "a2"}
    # In the other tenant's scope only the other tenant's link counts.
    half.chat.views["u1", "c9"] = True
    assert await receives(half, inbound(user="u1", chat="c9", kind="group", scope="g2")) == ("b1",)
    assert await receives(half, inbound(user="u2", chat="c9", kind="group", scope="g2")) == ()
    # Strangers, places that are nobody's, and webhooks by their own key.
    assert await receives(half, inbound(user="u9", **GROUP)) == ()
    assert await receives(half, inbound(user="u1", chat="c1", kind="group", scope="g7")) == ("a1",)
    assert await receives(half, inbound(user="u9", chat="c1", kind="group", scope="g7")) == ()
    await half.control.route("t1", "chat", "/hook/1")
    half.chat.views["u2", "c5"] = True
    hook = inbound(user="u2", chat="c5", kind="group", scope="g2", route_key="/hook/1")
    assert await receives(half, hook) == ("a2",)
    # Direct messages go home.
    assert await receives(half, inbound(user="u2")) == ("a2",)
    assert await receives(half, inbound(user="u9")) == ()


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
@pytest.mark.parametrize("settings", [ControlSettings(profile_chats=2, manage_per_minute=4)])
async def test_the_agent_that_answered_last_is_known_for_so_many_chats_and_ends_with_its_instance(
    half: Any,
) -> None:
    await half.principal()
    directory = half.directory
    for place in ("c1", "c2", "c3"):
        half.clock.advance(1)
        await directory.choose_profile("a1", place, "coder")
        await directory.choose_profile("a1", place, "coder")
    assert await directory.profiles("a1") == {"c2": "coder", "c3": "coder"}
    assert await directory.profiles("a2") == {}
    await directory.choose_profile("a1", "c2", None)
    # Whoever changes it too often is not followed for a while.
    await directory.choose_profile("a1", "c3", "writer")
    assert await directory.profiles("a1") == {"c3": "coder"}
    half.clock.advance(60)
    await directory.choose_profile("a1", "c3", "writer")
    assert await directory.profiles("a1") == {"c3": "writer"}
    await half.control.revoke("a1")
    assert await half.rows(tables.chat_profiles) == []


async def test_an_owners_own_message_is_evidence_and_asks_no_platform(
    half: Any, inbound: Callable[..., Any]
) -> None:
    await town(half)
    half.chat.failure = RuntimeError("down")
    assert await receives(half, inbound(user="u1", **GROUP)) == ("a1",)
    assert half.chat.asked == 0
    # The sender of a webhook chooses its author, who may see nothing of it.
    half.chat.failure = None
    await half.control.route("t1", "chat", "/hook/1")
    hook = inbound(user="u1", route_key="/hook/1", **{**GROUP, "chat": "c5"})
    for answer, received in ((None, ()), (False, ()), (True, ("a1",))):
        half.chat.views["u1", "c5"] = answer
        half.directory.flush_visibility("chat")
        assert await receives(half, hook) == received


async def test_visibility_that_is_unknown_hidden_or_failing_closes(
    half: Any, inbound: Callable[..., Any]
) -> None:
    await town(half)
    await half.control.grant("a1", "chat", "g1", "c1", "u1")
    a1 = await half.control.principal("a1")
    await half.control.set_principal(a1, "chat", PrincipalPolicy.ANY)
    event = inbound(user="u2", **GROUP)
    for answer in (None, False):
        half.chat.views["u1", "c1"] = answer
        half.directory.flush_visibility("chat")
        assert await receives(half, event) == ("a2",)
    half.chat.views["u1", "c1"] = True
    half.chat.failure = RuntimeError("down")
    half.directory.flush_visibility("chat", "g1")
    assert await receives(half, event) == ("a2",)
    half.chat.failure = None
    half.clock.advance(5)
    assert set(await receives(half, event)) == {"a1", "a2"}


async def test_a_visibility_answer_is_believed_for_thirty_seconds(
    half: Any, inbound: Callable[..., Any]
) -> None:
    await town(half)
    a1 = await half.control.principal("a1")
    await half.control.set_principal(a1, "chat", PrincipalPolicy.ANY)
    event = inbound(user="u2", **GROUP)
    assert await receives(half, event) == ("a2", "a1")
    asked = half.chat.asked
    half.chat.views["u1", "c1"] = False
    half.clock.advance(29)
    assert await receives(half, event) == ("a2", "a1")
    half.directory.flush_visibility("chat", "another scope")
    assert await receives(half, event) == ("a2", "a1")
    assert half.chat.asked == asked
    half.clock.advance(1)
    assert await receives(half, event) == ("a2",)
    half.chat.views["u1", "c1"] = True
    half.directory.flush_visibility("chat", "g1")
    assert await receives(half, event) == ("a2", "a1")


async def test_facts_of_a_known_place_touch_no_database(
    half: Any, inbound: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await town(half)
    events = [inbound(user=user, **GROUP) for user in ("u1", "u2", "u9")]
    before = [await half.directory.facts(event) for event in events]
    assert await half.directory.consume_link_dm(events[0]) is None

    async def refuse(*_: Any) -> Any:
        raise AssertionError("the database was asked")

    monkeypatch.setattr(half.store, "read", refuse)
    monkeypatch.setattr(half.store, "write", refuse)
    assert [await half.directory.facts(event) for event in events] == before
    for event in events:
        assert await half.directory.consume_link_dm(event) is None


async def test_every_change_here_is_seen_at_once(half: Any, inbound: Callable[..., Any]) -> None:
    await town(half)
    event = inbound(user="u1", **GROUP)
    a1 = await half.control.principal("a1")
    steps: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
        (lambda: half.control.unbind("chat", "u1", "a1"), ()),
        (lambda: half.control.bind("a1", "chat", "u1"), ("a1",)),
        # Then it is nobody's place, and the author decides.
        (lambda: half.control.unroute("chat", "g1"), ("b1",)),
        (lambda: half.control.route("t1", "chat", "g1"), ("a1",)),
        (lambda: half.control.suspend("t1"), ()),
        (lambda: half.control.resume("t1"), ("a1",)),
        (lambda: half.control.deprovision(a1), ()),
    ]
    for change, after in steps:
        await change()
        assert await receives(half, event) == after


async def test_changes_elsewhere_are_seen_within_a_second_or_at_a_hint(
    half: Any, inbound: Callable[..., Any]
) -> None:
    other = Directory(
        half.store, half.keyring, half.clock, ControlSettings(), platforms={"chat": half.chat}
    )
    await town(half)
    event = inbound(user="u1", **GROUP)
    assert deliveries(event, await other.facts(event)) == ("a1",)
    await half.control.revoke("a1")
    assert deliveries(event, await other.facts(event)) == ("a1",)
    half.clock.advance(1)
    assert deliveries(event, await other.facts(event)) == ()
    await half.control.route("t1", "chat", "g3")
    third = inbound(user="u2", chat="c1", kind="group", scope="g3")
    assert (await other.facts(third)).routes
    await half.control.unroute("chat", "g3")
    other.hint()
    assert not (await other.facts(third)).routes
    await other.close()


async def test_whoever_has_missed_too_much_forgets_everything(
    half: Any, inbound: Callable[..., Any]
) -> None:
    told: list[str] = []
    other = Directory(
        half.store, half.keyring, half.clock, ControlSettings(), platforms={"chat": half.chat}
    )

    async def hear(instance: str) -> None:
        told.append(instance)

    other.revocations.subscribe(hear)
    await town(half)
    event = inbound(user="u1", **GROUP)
    assert deliveries(event, await other.facts(event)) == ("a1",)
    await half.control.revoke("a1")
    await half.store.write(lambda c: c.execute(tables.changes.delete()))
    half.clock.advance(1)
    assert deliveries(event, await other.facts(event)) == ()
    await other.settle()
    assert told == ["a1"]
    await other.close()


async def test_what_was_read_while_it_changed_is_not_kept(
    half: Any, inbound: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await town(half)
    event = inbound(user="u1", **GROUP)
    read = half.store.read

    async def slow(work: Any) -> Any:
        value = await read(work)
        monkeypatch.setattr(half.store, "read", read)
        await half.control.unbind("chat", "u1")
        return value

    monkeypatch.setattr(half.store, "read", slow)
    await half.directory.facts(event)
    assert await receives(half, event) == ()


async def test_a_hint_that_comes_while_it_looks_is_not_lost(
    half: Any, inbound: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Directory(
        half.store, half.keyring, half.clock, ControlSettings(), platforms={"chat": half.chat}
    )
    await town(half)
    event = inbound(user="u1", **GROUP)
    assert deliveries(event, await other.facts(event)) == ("a1",)
    read = half.store.read

    async def slow(work: Any) -> Any:
        value = await read(work)
        monkeypatch.setattr(half.store, "read", read)
        await half.control.revoke("a1")
        other.hint()
        return value

    monkeypatch.setattr(half.store, "read", slow)
    await other.look()
    assert deliveries(event, await other.facts(event)) == ()
    await other.close()


async def test_a_bot_of_ours_is_known_by_the_instances_that_speak_through_it(
    half: Any, inbound: Callable[..., Any]
) -> None:
    await town(half)
    a1 = await half.control.principal("a1")
    await half.control.set_principal(a1, "chat", PrincipalPolicy.ANY)
    for _ in range(2):
        await half.directory.front(a1, "chat", "bot")
    [facts] = [await half.directory.facts(inbound(user="bot", **GROUP))]
    assert list(facts.voices.values()) == [frozenset({"a1"})]
    assert await receives(half, inbound(user="bot", **GROUP)) == ()


async def test_another_tenants_claims_about_its_bots_make_nobody_here_a_bot(
    half: Any, inbound: Callable[..., Any]
) -> None:
    await town(half)
    a1 = await half.control.principal("a1")
    await half.control.set_principal(a1, "chat", PrincipalPolicy.ANY)
    event = inbound(user="u2", **GROUP)
    assert set(await receives(half, event)) == {"a1", "a2"}
    await half.directory.front(await half.control.principal("b1"), "chat", "u2")
    assert set(await receives(half, event)) == {"a1", "a2"}


async def test_ids_that_no_store_can_keep_reach_nobody(
    half: Any, inbound: Callable[..., Any]
) -> None:
    await town(half)
    for bad in ("x\x00", "\ud800", "n" * 600):
        for given in ({"user": bad}, {"chat": bad}, {"scope": bad}, {"parent": bad}):
            assert await receives(half, inbound(**{"user": "u1", **GROUP, **given})) == ()
    assert await receives(half, inbound(user=None, **GROUP)) == ()


async def test_the_dialect_changes_only_when_nothing_is_kept_under_keys(half: Any) -> None:
    await half.enrol("a1")
    directory = half.directory
    assert (await directory.session_rules("a1")).dialect == "hermes"
    assert (await directory.session_rules("nobody")).dialect == "hermes"
    assert await directory.choose_sessions("a1", SessionRules("hermes"), lambda _: False)
    assert not await directory.choose_sessions("a1", SessionRules("scoped"), lambda _: False)
    assert await directory.choose_sessions("a1", SessionRules("scoped"), lambda _: True)
    assert (await directory.session_rules("a1")).dialect == "scoped"


async def test_the_first_hello_chooses_freely_whatever_waits_already(half: Any) -> None:
    await half.enrol("a1")
    assert await half.directory.choose_sessions("a1", SessionRules("scoped"), lambda _: False)
    assert (await half.directory.session_rules("a1")).dialect == "scoped"


def test_a_platform_that_hangs_is_unknown_and_asked_once_for_all_who_wait() -> None:
    clock = VirtualClock()

    class Hanging:
        asked = 0

        async def can_view(self, *_: Any) -> bool | None:
            self.asked += 1
            await asyncio.sleep(1000)
            return True

        async def can_manage(self, *_: Any) -> bool | None:
            await asyncio.sleep(1000)
            return True

    async def main() -> None:
        platform = Hanging()
        visibility = VisibilityCache({"chat": platform}, clock, seconds=30, timeout=3)
        view = VisibilityKey("chat", "g", "c", "u")
        waiting = [asyncio.create_task(visibility.get(view)) for _ in range(20)]
        await asyncio.sleep(1)
        waiting[0].cancel()
        answers = await asyncio.gather(*waiting[1:])
        assert {sight for sight, _ in answers} == {Visibility.UNKNOWN}
        assert platform.asked == 1
        assert clock.monotonic() == pytest.approx(3)
        assert await visibility.can_manage("u", "chat", "g", "c") is None
        assert await visibility.can_manage("u", "elsewhere", "g", "c") is False

    run_virtual(main(), clock=clock)


def test_an_answer_that_was_on_its_way_during_a_flush_is_not_believed_later() -> None:
    clock = VirtualClock()

    class Slow:
        answer: bool | None = True

        async def can_view(self, *_: Any) -> bool | None:
            answer = self.answer
            await asyncio.sleep(1)
            return answer

        async def can_manage(self, *_: Any) -> bool | None:
            return None

    async def main() -> None:
        platform = Slow()
        visibility = VisibilityCache({"chat": platform}, clock)
        view = VisibilityKey("chat", "g", "c", "u")
        first = asyncio.create_task(visibility.get(view))
        await asyncio.sleep(0.5)
        platform.answer = False
        visibility.flush("chat")
        await first
        assert (await visibility.get(view))[0] is Visibility.HIDDEN

    run_virtual(main(), clock=clock)


class _Saying:
    """A bot that gives one answer, or fails."""

    def __init__(self, answer: bool | Exception | None) -> None:
        self._answer = answer

    async def can_view(self, _user: str, _scope: str | None, _channel: str) -> bool | None:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    can_manage = can_view


@pytest.mark.parametrize(
    ("answers", "together"),
    [
        ((True, False), True),
        ((None, True), True),
        ((OSError(), True), True),
        ((False, False), False),
        ((False, None), None),
        ((False, OSError()), None),
    ],
)
async def test_of_several_bots_of_a_platform_one_that_surely_knows_is_enough(
    answers: tuple[bool | Exception | None, ...], together: bool | None
) -> None:
    bots = BotPermissions([_Saying(each) for each in answers])
    assert await bots.can_view("u", None, "c") is together
    assert await bots.can_manage("u", None, "c") is together
