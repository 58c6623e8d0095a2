"""Who receives an event, told by examples."""

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from accord.relay.rules import (
    GATE_RULES,
    ChannelGrant,
    DmDefault,
    Facts,
    GateEvent,
    LinkCommand,
    PlatformAccount,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
    RouteKey,
    SessionSource,
    TenantAccount,
    TenantChannel,
    Visibility,
    VisibilityKey,
    decide,
)

ANNS = PolicyKey("t1", "i-ann", "discord")
BOBS_MESSAGE = GateEvent("e1", "discord", "bot", "c1", False, "bob", "s1", addressed=True)
# Ann and Bob are linked; Ann's instance holds the channel in which Bob speaks.
KNOWN = Facts(
    {RouteKey("discord", "s1"): "t1"},
    {
        TenantAccount("t1", "discord", "ann"): ("i-ann",),
        TenantAccount("t1", "discord", "bob"): ("i-bob",),
        TenantAccount("t2", "discord", "bob"): ("i-else",),
    },
    {PlatformAccount("discord", "ann"): DmDefault("t1", "i-ann")},
    {TenantChannel("t1", "discord", "s1", "c1"): ChannelGrant("i-ann", "ann")},
    {ANNS: PrincipalRule(PrincipalPolicy.ANY)},
    {
        VisibilityKey("discord", "s1", "c1", "ann"): Visibility.VISIBLE,
        VisibilityKey("discord", "s1", "c1", "bob"): Visibility.VISIBLE,
    },
    {ANNS: RelevancePolicy(require_address=True)},
)


def told(event: GateEvent, facts: Facts, instance: str = "i-ann") -> list[str]:
    """The rules that spoke about an instance; those about the event where it is no candidate."""
    decision = decide(event, facts)
    for candidate in decision.candidates:
        if candidate.instance == instance:
            return [verdict.rule for verdict in candidate.verdicts]
    return [verdict.rule for verdict in decision.verdicts]


def message(**changes: Any) -> GateEvent:
    return dataclasses.replace(BOBS_MESSAGE, **changes)


def knowing(**changes: Any) -> Facts:
    return dataclasses.replace(KNOWN, **changes)


def test_an_owner_and_the_holder_of_the_channel_both_receive_it() -> None:
    decision = decide(BOBS_MESSAGE, KNOWN)
    assert decision.tenant == "t1"
    assert decision.deliveries == decision.wakes == ("i-bob", "i-ann")
    assert told(BOBS_MESSAGE, KNOWN, "i-bob") == [
        "authority.owner",
        "visibility.visible",
        "relevance.owner",
    ]
    assert told(BOBS_MESSAGE, KNOWN) == [
        "authority.any",
        "visibility.visible",
        "relevance.addressed",
    ]


def test_an_unlinked_author_reaches_nobody() -> None:
    assert decide(message(author="eve"), KNOWN).deliveries == ()
    assert told(message(author="eve"), KNOWN)[-1] == "candidates.unlinked"
    assert told(message(author=None), KNOWN)[-1] == "candidates.no-author"


def test_a_place_of_no_tenant_reaches_nobody() -> None:
    assert told(message(scope_id="s9"), KNOWN)[2:] == ["tenant.unknown", "candidates.not-reached"]


def test_a_chat_is_a_discriminator_only_where_there_is_no_scope() -> None:
    facts = knowing(routes={RouteKey("discord", "c1"): "t1"})
    assert decide(BOBS_MESSAGE, facts).tenant is None
    assert decide(message(scope_id=None), facts).tenant == "t1"


def test_a_direct_message_goes_to_the_authors_default() -> None:
    event = message(is_dm=True, author="ann", chat_id="d1", scope_id=None)
    assert decide(event, KNOWN).deliveries == ("i-ann",)
    assert told(event, KNOWN) == ["authority.owner", "visibility.direct", "relevance.owner"]
    assert told(dataclasses.replace(event, author="bob"), KNOWN)[2] == "tenant.no-dm-default"


def test_a_default_that_is_no_longer_bound_receives_nothing() -> None:
    event = message(is_dm=True, author="ann", chat_id="d1", scope_id=None)
    facts = knowing(bindings={})
    assert told(event, facts)[-1] == "candidates.unlinked"


def test_a_direct_message_in_another_tenants_place_reaches_nobody() -> None:
    facts = knowing(dm_defaults={PlatformAccount("discord", "bob"): DmDefault("t2", "i-else")})
    assert told(message(is_dm=True), facts)[2] == "tenant.ambiguous"


@pytest.mark.parametrize(
    ("principal", "rule"),
    [
        (PrincipalRule(PrincipalPolicy.ANY), "authority.any"),
        (PrincipalRule(PrincipalPolicy.ALLOW_LIST, frozenset({"bob"})), "authority.listed"),
        (PrincipalRule(PrincipalPolicy.ALLOW_LIST, frozenset({"ann"})), "authority.not-listed"),
        (PrincipalRule(PrincipalPolicy.OWNER_ONLY, frozenset({"bob"})), "authority.owner-only"),
        (None, "authority.owner-only"),
    ],
)
def test_the_principal_policy_decides_over_others(
    principal: PrincipalRule | None, rule: str
) -> None:
    facts = knowing(principals={} if principal is None else {ANNS: principal})
    assert told(BOBS_MESSAGE, facts)[0] == rule


@pytest.mark.parametrize(
    ("sight", "rule"),
    [
        (Visibility.VISIBLE, "visibility.visible"),
        (Visibility.HIDDEN, "visibility.hidden"),
        (Visibility.UNKNOWN, "visibility.unknown"),
        (None, "visibility.unknown"),
    ],
)
def test_the_owner_must_see_the_channel(sight: Visibility | None, rule: str) -> None:
    view = VisibilityKey("discord", "s1", "c1", "ann")
    facts = knowing(visibility={} if sight is None else {view: sight})
    assert told(BOBS_MESSAGE, facts)[1] == rule


def test_a_grant_ends_with_the_link_of_whoever_claimed_it() -> None:
    facts = knowing(bindings={TenantAccount("t1", "discord", "bob"): ("i-bob",)})
    assert told(BOBS_MESSAGE, facts)[1] == "visibility.owner-gone"
    facts = knowing(
        grants={TenantChannel("t1", "discord", "s1", "c1"): ChannelGrant("i-ann", None)}
    )
    assert told(BOBS_MESSAGE, facts)[1] == "visibility.owner-gone"


def test_a_thread_belongs_to_whoever_holds_its_channel() -> None:
    facts = knowing(
        visibility={VisibilityKey("discord", "s1", "thread", "ann"): Visibility.VISIBLE}
    )
    event = message(chat_id="thread", parent_chat_id="c1")
    assert decide(event, facts).deliveries == ("i-bob", "i-ann")


def test_what_does_not_address_the_bot_is_dropped_but_not_an_owners_word() -> None:
    event = message(addressed=False)
    assert told(event, KNOWN)[2] == "relevance.unaddressed"
    decision = decide(event, KNOWN)
    assert decision.deliveries == decision.wakes == ("i-bob",)


def test_in_some_channels_the_bot_need_not_be_addressed() -> None:
    facts = knowing(relevance={ANNS: RelevancePolicy(True, frozenset({"c1"}))})
    assert told(message(addressed=False), facts)[2] == "relevance.free-response"
    in_thread = message(addressed=False, chat_id="t", parent_chat_id="c1")
    assert told(in_thread, facts)[2] == "relevance.free-response"


def test_other_bots_are_heard_only_where_they_are_admitted() -> None:
    event = message(author_is_bot=True)
    assert told(event, KNOWN)[2] == "relevance.bot"
    facts = knowing(relevance={ANNS: RelevancePolicy(allow_other_bots=True)})
    assert decide(event, facts).deliveries == ("i-bob", "i-ann")
    owner_only = dataclasses.replace(facts, principals={})
    assert decide(event, owner_only).deliveries == ("i-bob",)


def test_a_bot_that_nobody_linked_reaches_nobody_however_welcome_bots_are() -> None:
    facts = knowing(relevance={ANNS: RelevancePolicy(allow_other_bots=True)})
    for voices in ({}, {PlatformAccount("discord", "crow"): frozenset({"i-else"})}):
        known = dataclasses.replace(facts, voices=voices)
        event = message(author="crow", author_is_bot=True)
        assert told(event, known)[-1] == "candidates.unlinked"


def test_a_bot_never_triggers_itself() -> None:
    facts = knowing(relevance={ANNS: RelevancePolicy(allow_other_bots=True)})
    assert told(message(author="bot"), facts)[1] == "origin.self"
    # Nor does an instance that speaks through one bot and is seen by another.
    facts = dataclasses.replace(
        facts, voices={PlatformAccount("discord", "bob"): frozenset({"i-ann"})}
    )
    assert told(message(), facts)[0] == "authority.own-voice"


@pytest.mark.parametrize("command", LinkCommand)
def test_what_is_about_linking_is_consumed_before_any_layer(command: LinkCommand) -> None:
    decision = decide(message(link=command), KNOWN)
    assert decision.deliveries == ()
    assert [verdict.rule for verdict in decision.verdicts] == [
        "link.consumed",
        "origin.not-reached",
        "tenant.not-reached",
        "candidates.not-reached",
    ]


def test_a_layer_that_fails_says_no_and_why() -> None:
    bad: Any = {ANNS: "nonsense"}
    candidate = decide(BOBS_MESSAGE, knowing(relevance=bad)).candidates[1]
    assert candidate.relevance.rule == "gate.error"
    assert "AttributeError" in candidate.relevance.sentence
    assert not candidate.delivers


def test_an_event_is_made_from_a_source() -> None:
    source = SessionSource("discord", "c1", "group", user_id="bob", scope_id="s1")
    made = GateEvent.of(source, event_id="e1", bot_id="bot", addressed=True)
    assert made == BOBS_MESSAGE


def test_every_rule_has_an_id_of_its_layer_and_a_sentence() -> None:
    for rule, verdict in GATE_RULES.items():
        assert rule == verdict.rule
        assert rule.startswith(verdict.layer.value + ".")
        assert verdict.sentence


def test_wire_and_gate_import_no_crypto_and_no_io() -> None:
    script = (
        "import sys, accord.relay.rules\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] in"
        " {'nacl', 'cryptography', 'jwt', 'asyncio', 'socket', 'random', 'sqlalchemy'}"
        " or name in {'accord.kernel.signing', 'accord.kernel.tokens', 'hmac'}))\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == []
