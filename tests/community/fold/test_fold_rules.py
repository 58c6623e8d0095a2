"""Each verdict, by an event that meets it: the table of rules is covered whole."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.histories import POLICY, START, HistoryAuthor, HistoryWriter, ulid

from accord.community.rules import ACCEPTED, VERDICTS, Event, Status, fold_events

YEAR = 365 * 86_400


class Town:
    """A founder (anchor), three trusted members, two plain ones, and a stranger."""

    def __init__(self, **policy: Any) -> None:
        self.scribe = HistoryWriter("town")
        self.founder, self.stranger = self.pen("founder"), self.pen("stranger")
        self.scribe.found(self.founder, policy)
        self.trusted = [self.admit(f"trusted {number}", "trusted") for number in range(3)]
        self.plain = [self.admit(f"plain {number}") for number in range(2)]

    def pen(self, name: str) -> HistoryAuthor:
        return self.scribe.pen(name)

    def admit(self, name: str, level: str = "member") -> HistoryAuthor:
        pen = self.pen(name)
        self.scribe.admit(self.founder, pen, level)
        return pen

    def change(self, pen: HistoryAuthor, post: Event, **fields: Any) -> Event:
        data = {"client_id": "c", "target_event_id": post.event_id, "fields": {"title": "Saw"}}
        return self.scribe.write(pen, "market.post.updated", data, **fields)

    def end(self, pen: HistoryAuthor, post: Event, reason: str = "withdrawn") -> Event:
        data = {"client_id": "c", "target_event_id": post.event_id, "reason": reason}
        return self.scribe.write(pen, "market.post.expired", data)

    def read(self, pen: HistoryAuthor, message: Event, **options: Any) -> Event:
        data = {"target_event_id": message.event_id, "read_at": "2026-01-02T00:00:00Z"}
        return self.scribe.write(pen, "chat.message.read", data, **options)

    def hold(self, pen: HistoryAuthor, cid: str = "a", *, is_held: bool = True) -> Event:
        kind = "advertised" if is_held else "unpinned"
        data = {"cid": "blake3:" + cid * 64} | ({"sizes_bytes": 1} if is_held else {})
        return self.scribe.write(pen, f"file.cid.{kind}", data)

    def ingest(self, pen: HistoryAuthor) -> Event:
        data = {"corpus": "rules", "doc_cid": "blake3:" + "b" * 64, "chunks": 1}
        return self.scribe.write(pen, "rag.document.ingested", data)

    def verdict(self, event: Event) -> str:
        folded = fold_events(self.scribe.events, self.scribe.community_id)
        return folded.verdicts[event.digest].rule


Scenario = Callable[[Town], Event]
SCENARIOS: dict[str, Scenario] = {}


def meets(rule: str) -> Callable[[Scenario], Scenario]:
    def register(scenario: Scenario) -> Scenario:
        assert SCENARIOS.setdefault(rule, scenario) is scenario
        return scenario

    return register


@meets("accepted")
def post(town: Town) -> Event:
    return town.scribe.post(town.plain[0])


@meets("chain.gap")
def after_a_missing_event(town: Town) -> Event:
    town.scribe.events.remove(town.scribe.post(town.founder))
    return town.scribe.post(town.founder)


@meets("lamport.gap")
def far_above_the_others(town: Town) -> Event:
    return town.scribe.post(town.founder, lamport=town.scribe.lamport + 1_000_001)


@meets("chain.broken")
def after_another_event(town: Town) -> Event:
    town.founder.prev = "blake3:" + "0" * 64
    return town.scribe.post(town.founder)


@meets("chain.lamport")
def below_its_own_last_event(town: Town) -> Event:
    return town.scribe.post(town.founder, lamport=town.founder.lamport)


@meets("equivocation")
def after_a_fork(town: Town) -> Event:
    fork = town.founder.back(town.founder.seq)
    town.scribe.post(town.founder)
    town.scribe.post(fork)
    return town.scribe.post(town.founder)


@meets("revoked.cutoff")
def backdated_by_a_revoked_member(town: Town) -> Event:
    revoked = town.plain[0]
    before = revoked.lamport + 1
    town.scribe.post(town.founder)
    town.scribe.revoke(town.founder, revoked, *town.trusted)
    return town.scribe.post(revoked, lamport=before)


@meets("floor")
def below_a_floor_that_does_not_list_it(town: Town) -> Event:
    heads = town.scribe.heads(town.scribe.lamport)
    town.scribe.post(town.founder)
    late = town.scribe.post(town.plain[0])
    town.scribe.post(town.founder)
    town.scribe.floor(town.founder, late.lamport, heads)
    return late


@meets("community.foreign")
def another_communitys(town: Town) -> Event:
    return town.scribe.post(town.founder, community_id=HistoryWriter("elsewhere").community_id)


@meets("community.missing")
def before_the_founding(town: Town) -> Event:
    del town.scribe.events[0]
    return town.scribe.invite(town.founder, town.stranger)


@meets("community.founded")
def founded_again(town: Town) -> Event:
    return town.scribe.found(town.founder)


@meets("root.only")
def policy_by_an_anchor(town: Town) -> Event:
    return town.scribe.write(town.founder, "community.policy.updated", {"policy": POLICY})


@meets("root.never")
def invite_by_the_root(town: Town) -> Event:
    return town.scribe.invite(town.scribe.root, town.stranger)


@meets("type.unknown")
def of_no_known_type(town: Town) -> Event:
    return town.scribe.write(town.plain[0], "weather.report.made", {})


@meets("type.reserved")
def of_a_reserved_type(town: Town) -> Event:
    return town.scribe.write(town.plain[0], "federation.link.made", {})


@meets("schema.newer")
def of_a_newer_version(town: Town) -> Event:
    return town.scribe.write(town.founder, "community.member.revoked", {}, version=2)


@meets("chain.required")
def unchained(town: Town) -> Event:
    return town.scribe.post(town.plain[0], chained=False)


@meets("membership.level")
def by_a_stranger(town: Town) -> Event:
    return town.scribe.post(town.stranger)


@meets("membership.above")
def invite_above_the_inviter(town: Town) -> Event:
    return town.scribe.invite(town.plain[0], town.stranger, "trusted")


@meets("membership.signatures")
def one_signature_many_times(town: Town) -> Event:
    signer = town.trusted[0]
    return town.scribe.revoke(signer, town.plain[0], signer, town.trusted[1], town.trusted[1])


@meets("membership.target")
def about_a_stranger(town: Town) -> Event:
    return town.scribe.revoke(town.founder, town.stranger, *town.trusted)


@meets("membership.already")
def to_the_level_it_has(town: Town) -> Event:
    return town.scribe.level(town.founder, "promoted", town.trusted[0], "trusted")


@meets("membership.revoked")
def back_after_a_revocation(town: Town) -> Event:
    town.scribe.revoke(town.founder, town.plain[0], *town.trusted)
    return town.scribe.invite(town.founder, town.plain[0])


@meets("membership.reach")
def signed_by_whom_it_makes_nobody(town: Town) -> Event:
    target, signer = town.trusted[0], town.plain[0]
    town.scribe.level(target, "promoted", signer, "trusted")
    return town.scribe.revoke(signer, target, *town.trusted[1:], last_seq=1)


@meets("invite.missing")
def join_without_an_invite(town: Town) -> Event:
    return town.scribe.join(town.stranger, town.scribe.events[0])


@meets("invite.expired")
def join_too_late(town: Town) -> Event:
    invite = town.scribe.invite(town.founder, town.stranger)
    return town.scribe.join(town.stranger, invite, at=START + YEAR + 1)


@meets("invite.withdrawn")
def join_by_a_withdrawn_invite(town: Town) -> Event:
    invite = town.scribe.invite(town.founder, town.stranger)
    town.scribe.withdraw(town.founder, invite)
    return town.scribe.join(town.stranger, invite)


@meets("invite.unwitnessed")
def join_by_a_guarded_invite_without_a_witness(town: Town) -> Event:
    town.scribe.guard(town.founder)
    invite = town.scribe.invite(town.founder, town.stranger, "trusted")
    # Neither somebody who could not have given it, nor one who came too late, is a witness.
    town.scribe.witness(town.plain[0], invite)
    town.scribe.witness(town.founder, invite, at=START + YEAR + 1)
    return town.scribe.join(town.stranger, invite)


@meets("invite.manifest")
def join_with_anothers_manifest(town: Town) -> Event:
    invite = town.scribe.invite(town.founder, town.stranger)
    manifest = town.scribe.manifest(town.plain[0])
    data = {"invite_event_id": invite.event_id, "node_manifest": manifest}
    return town.scribe.write(town.stranger, "community.member.joined", data)


@meets("names.later")
def join_at_the_invites_own_lamport(town: Town) -> Event:
    invite = town.scribe.invite(town.founder, town.stranger)
    return town.scribe.join(town.stranger, invite, lamport=invite.lamport)


@meets("floor.lamport")
def floor_not_below_itself(town: Town) -> Event:
    return town.scribe.floor(town.founder, town.scribe.lamport + 1, [])


@meets("floor.unchained")
def floor_where_chains_are_not_required(town: Town) -> Event:
    policy = {"policy": {**POLICY, "unchained_events": True}}
    allowed = town.scribe.write(town.scribe.root, "community.policy.updated", policy)
    town.scribe.post(town.founder)
    return town.scribe.floor(town.founder, allowed.lamport, [])


@meets("market.duplicate")
def post_twice(town: Town) -> Event:
    town.scribe.post(town.plain[0], "same")
    return town.scribe.post(town.plain[0], "same")


@meets("market.missing")
def change_anothers_post(town: Town) -> Event:
    return town.change(town.founder, town.scribe.post(town.plain[0]))


@meets("market.ended")
def change_an_ended_post(town: Town) -> Event:
    ladder = town.scribe.post(town.plain[0])
    town.end(town.plain[0], ladder)
    return town.change(town.plain[0], ladder)


@meets("market.reason")
def end_anothers_post_at_its_request(town: Town) -> Event:
    return town.end(town.trusted[0], town.scribe.post(town.plain[0]), "user_request")


@meets("chat.recipient")
def message_to_a_stranger(town: Town) -> Event:
    return town.scribe.say(town.founder, town.stranger)


@meets("chat.duplicate")
def message_with_a_used_id(town: Town) -> Event:
    first = town.scribe.say(town.founder, town.plain[0])
    return town.scribe.say(town.founder, town.plain[0], event_id=first.event_id)


@meets("chat.missing")
def receipt_for_anothers_message(town: Town) -> Event:
    return town.read(town.plain[1], town.scribe.say(town.founder, town.plain[0]))


@meets("chat.already")
def receipt_twice(town: Town) -> Event:
    message = town.scribe.say(town.founder, town.plain[0])
    town.read(town.plain[0], message)
    return town.read(town.plain[0], message)


@meets("file.missing")
def unpin_what_another_holds(town: Town) -> Event:
    town.hold(town.founder)
    return town.hold(town.plain[0], is_held=False)


@meets("rag.duplicate")
def ingest_twice(town: Town) -> Event:
    town.ingest(town.founder)
    return town.ingest(town.trusted[0])


@meets("manifest.foreign")
def manifest_for_another_community(town: Town) -> Event:
    manifest = HistoryWriter("elsewhere").manifest(town.founder)
    return town.scribe.write(town.founder, "node.manifest.updated", {"manifest": manifest})


@pytest.mark.parametrize("rule", VERDICTS)
def test_every_rule_is_met_by_an_event(rule: str) -> None:
    town = Town()
    event = SCENARIOS[rule](town)
    assert town.verdict(event) == rule


def test_there_are_no_other_rules_and_each_has_a_sentence() -> None:
    assert SCENARIOS.keys() == VERDICTS.keys()
    for rule, verdict in VERDICTS.items():
        assert verdict.rule == rule
        assert verdict.reason
    assert [rule for rule, each in VERDICTS.items() if each.status is Status.ACCEPTED] == [
        "accepted"
    ]
    assert VERDICTS["accepted"] is ACCEPTED


def test_ids_that_others_reuse_shadow_nothing() -> None:
    town = Town()
    scribe, (alice, mallory), bob = town.scribe, town.plain, town.trusted[0]
    name = ulid(10**9)
    shadow = scribe.post(mallory, event_id=name)
    ladder = scribe.post(alice, event_id=name)
    changed = town.change(alice, ladder)
    first = scribe.say(mallory, bob, event_id=name)
    second = scribe.say(alice, bob, event_id=name)
    read = town.read(bob, second)
    ended = town.end(town.founder, ladder, "stale")
    folded = fold_events(scribe.events, scribe.community_id)
    for event in (shadow, ladder, changed, first, second, read, ended):
        assert folded.verdicts[event.digest] is ACCEPTED
    posts = {each.author: each for each in folded.state.content.posts[name]}
    assert posts[alice.id].fields["title"] == "Saw"
    assert posts[mallory.id].fields["title"] == "Ladder"
    assert {each.ended for each in posts.values()} == {"stale"}
    assert all(each.read_at for each in folded.state.content.messages[name])


def test_an_invite_whose_id_another_reuses_is_redeemed_all_the_same() -> None:
    town = Town()
    scribe, newcomer = town.scribe, town.stranger
    invite = scribe.invite(town.plain[0], newcomer)
    data = {**invite.data, "initial_level": "anchor", "expires_at": "2026-01-01T00:00:00Z"}
    spoiled = scribe.write(town.founder, "community.member.invited", data, event_id=invite.event_id)
    joined = scribe.join(newcomer, invite)
    folded = fold_events(scribe.events, scribe.community_id)
    assert folded.verdicts[spoiled.digest] is ACCEPTED
    assert folded.verdicts[joined.digest] is ACCEPTED
    member = folded.state.roster.members[newcomer.id]
    assert (member.added_by, member.level.text) == (town.plain[0].id, "member")


def test_unchained_events_stand_by_their_place_where_the_policy_allows_them() -> None:
    town = Town(unchained_events=True)
    before = town.scribe.post(town.plain[0], chained=False)
    town.scribe.revoke(town.founder, town.plain[0], *town.trusted)
    after = town.scribe.post(town.plain[0], chained=False)
    assert town.verdict(before) == "accepted"
    assert town.verdict(after) == "revoked.cutoff"


def test_a_founder_that_is_the_root_itself_founds_nothing() -> None:
    scribe = HistoryWriter("rootless")
    founding = scribe.found(scribe.root)
    folded = fold_events(scribe.events, scribe.community_id)
    assert folded.verdicts[founding.digest].rule == "community.founded"
    assert not folded.state.is_founded


def test_a_foreign_event_with_a_used_number_is_no_equivocation() -> None:
    town = Town()
    elsewhere = town.founder.back(town.founder.seq)
    ours = town.scribe.post(town.founder)
    town.scribe.post(elsewhere, community_id=HistoryWriter("elsewhere").community_id)
    assert town.verdict(ours) == "accepted"


def test_a_guarded_invite_is_redeemed_by_whoever_was_seen_in_time() -> None:
    town = Town()
    scribe, newcomer = town.scribe, town.pen("newcomer")
    before = scribe.invite(town.trusted[0], town.stranger)
    scribe.guard(town.trusted[0])
    invite = scribe.invite(town.trusted[0], newcomer, "trusted")
    assert town.verdict(scribe.witness(town.plain[0], invite)) == "membership.above"
    assert town.verdict(scribe.witness(town.founder, invite, at=START + YEAR + 1)) == (
        "invite.expired"
    )
    assert town.verdict(scribe.witness(town.trusted[1], invite)) == "accepted"
    assert town.verdict(scribe.witness(town.founder, invite)) == "membership.already"
    assert town.verdict(scribe.join(newcomer, invite)) == "accepted"
    # An invite from before the guard needs nobody.
    assert town.verdict(scribe.join(town.stranger, before)) == "accepted"


def test_who_was_seen_later_in_the_log_was_not_seen_before_joining() -> None:
    town = Town()
    scribe = town.scribe
    scribe.guard(town.founder)
    invite = scribe.invite(town.founder, town.stranger)
    joined = scribe.join(town.stranger, invite)
    scribe.witness(town.founder, invite)
    assert town.verdict(joined) == "invite.unwitnessed"


def test_members_that_may_not_invite_witness_nothing() -> None:
    town = Town(default_member_can_invite=False)
    scribe = town.scribe
    scribe.guard(town.founder)
    invite = scribe.invite(town.founder, town.stranger)
    assert town.verdict(scribe.witness(town.plain[0], invite)) == "membership.level"
    assert town.verdict(scribe.guard(town.stranger)) == "membership.level"
    assert town.verdict(scribe.guard(town.founder)) == "membership.already"


def test_where_nobody_invites_alone_nobody_but_the_inviter_is_a_witness() -> None:
    town = Town()
    scribe = town.scribe
    policy = {"policy": {**POLICY, "min_signatures_to_invite": 2}}
    scribe.write(scribe.root, "community.policy.updated", policy)
    scribe.guard(town.founder)
    invite = scribe.invite(town.founder, town.stranger, signers=(town.trusted[0],))
    assert town.verdict(invite) == "accepted"
    for pen in (town.plain[0], *town.trusted):
        assert town.verdict(scribe.witness(pen, invite)) == "membership.signatures"
    early = scribe.join(town.stranger, invite)
    assert town.verdict(early) == "invite.unwitnessed"
    assert town.verdict(scribe.witness(town.founder, invite)) == "accepted"
    assert town.verdict(scribe.join(town.stranger, invite)) == "accepted"


class Hamlet:
    """A founder (anchor), one trusted member and one plain one, where three must sign."""

    def __init__(self) -> None:
        self.scribe = HistoryWriter("hamlet")
        policy = {"min_signatures_to_revoke": 3, "min_signatures_to_demote": 3}
        self.founder, self.trusted, self.plain = (
            self.scribe.pen(name) for name in ("founder", "trusted", "plain")
        )
        self.scribe.found(self.founder, policy)
        self.scribe.admit(self.founder, self.trusted, "trusted")
        self.scribe.admit(self.founder, self.plain)

    def verdict(self, event: Event) -> str:
        folded = fold_events(self.scribe.events, self.scribe.community_id)
        return folded.verdicts[event.digest].rule


def test_where_fewer_are_trusted_than_must_sign_all_others_together_are_enough() -> None:
    hamlet = Hamlet()
    alone = hamlet.scribe.revoke(hamlet.founder, hamlet.plain)
    assert hamlet.verdict(alone) == "membership.signatures"
    both = hamlet.scribe.revoke(hamlet.founder, hamlet.plain, hamlet.trusted)
    assert hamlet.verdict(both) == "accepted"
    # The device of the only other trusted member was stolen, and does not sign against itself.
    demoted = hamlet.scribe.level(hamlet.founder, "demoted", hamlet.trusted, "member")
    assert hamlet.verdict(demoted) == "accepted"
    assert hamlet.verdict(hamlet.scribe.revoke(hamlet.founder, hamlet.trusted)) == "accepted"


def test_those_below_do_not_throw_out_those_above_by_being_few() -> None:
    hamlet = Hamlet()
    against = hamlet.scribe.revoke(hamlet.trusted, hamlet.founder)
    assert hamlet.verdict(against) == "membership.signatures"
    demoted = hamlet.scribe.level(hamlet.trusted, "demoted", hamlet.founder, "member")
    assert hamlet.verdict(demoted) == "membership.signatures"


def test_a_target_that_signs_is_none_of_those_who_must() -> None:
    hamlet = Hamlet()
    other = hamlet.scribe.pen("other")
    hamlet.scribe.admit(hamlet.founder, other, "trusted")
    data = hamlet.scribe.revoke(hamlet.founder, hamlet.trusted, hamlet.trusted)
    assert hamlet.verdict(data) == "membership.signatures"
    agreed = hamlet.scribe.revoke(hamlet.founder, hamlet.trusted, other)
    assert hamlet.verdict(agreed) == "accepted"
