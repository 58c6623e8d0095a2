"""Invites that are withdrawn, and members who leave: every node comes to the same."""

import random
from itertools import permutations

import pytest
from tests.community.fold.test_fold_rules import YEAR, Town
from tests.fakes.histories import START, HistoryAuthor

from accord.community.rules import (
    CommunityState,
    Event,
    fold_events,
    read_state,
    state_bytes,
)


def state(town: Town) -> CommunityState:
    return fold_events(town.scribe.events, town.scribe.community_id).state


def leave(town: Town, pen: HistoryAuthor) -> Event:
    return town.scribe.write(pen, "community.member.left", {})


def test_a_withdrawn_invite_lets_nobody_in_and_is_open_no_more() -> None:
    town = Town()
    invite = town.scribe.invite(town.plain[0], town.stranger)
    assert state(town).open_invites(town.stranger.id, START) == [invite.event_id]
    assert town.verdict(town.scribe.withdraw(town.plain[0], invite)) == "accepted"
    assert state(town).open_invites(town.stranger.id, START) == []
    assert town.verdict(town.scribe.join(town.stranger, invite)) == "invite.withdrawn"
    again = town.scribe.invite(town.plain[0], town.stranger)
    assert town.verdict(town.scribe.join(town.stranger, again)) == "accepted"


def test_a_withdrawal_is_the_inviters_or_a_trusted_members() -> None:
    town = Town()
    invite = town.scribe.invite(town.plain[0], town.stranger)
    assert town.verdict(town.scribe.withdraw(town.plain[1], invite)) == "membership.level"
    assert town.verdict(town.scribe.withdraw(town.stranger, invite)) == "membership.level"
    assert town.verdict(town.scribe.withdraw(town.trusted[0], invite)) == "accepted"
    assert town.verdict(town.scribe.withdraw(town.plain[0], invite)) == "membership.already"


def test_a_withdrawal_after_the_join_takes_nothing_back() -> None:
    town = Town()
    invite = town.scribe.invite(town.plain[0], town.stranger)
    town.scribe.join(town.stranger, invite)
    assert town.verdict(town.scribe.withdraw(town.plain[0], invite)) == "membership.already"
    assert town.stranger.id in state(town).roster.members


def test_a_withdrawal_of_an_invite_that_has_run_out_is_refused() -> None:
    town = Town()
    invite = town.scribe.invite(town.plain[0], town.stranger)
    late = town.scribe.withdraw(town.plain[0], invite, at=START + YEAR + 1)
    assert town.verdict(late) == "invite.expired"


def test_a_withdrawal_beyond_its_authors_fork_takes_nothing_back() -> None:
    town = Town()
    invite = town.scribe.invite(town.plain[0], town.stranger)
    fork = town.plain[0].back(town.plain[0].seq)
    town.scribe.post(town.plain[0])
    town.scribe.post(fork)
    town.scribe.withdraw(town.plain[0], invite)
    assert state(town).open_invites(town.stranger.id, START) == [invite.event_id]


def test_who_leaves_belongs_no_more_and_may_be_invited_again() -> None:
    town = Town()
    gone = town.plain[0]
    assert town.verdict(leave(town, gone)) == "accepted"
    assert gone.id not in state(town).roster.members
    assert town.verdict(town.scribe.post(gone)) == "membership.level"
    assert town.verdict(leave(town, gone)) == "membership.target"
    back = town.scribe.join(gone, town.scribe.invite(town.founder, gone))
    assert town.verdict(back) == "accepted"
    assert town.verdict(town.scribe.post(gone)) == "accepted"


def test_who_leaves_is_not_out_of_reach_of_a_revocation() -> None:
    town = Town()
    leave(town, town.plain[0])
    revoked = town.scribe.revoke(town.founder, town.plain[0], *town.trusted)
    assert town.verdict(revoked) == "accepted"
    assert state(town).is_revoked(town.plain[0].id)


def test_the_order_of_arrival_changes_nothing() -> None:
    town = Town()
    before = list(town.scribe.events)
    invite = town.scribe.invite(town.plain[0], town.stranger)
    town.scribe.withdraw(town.plain[0], invite)
    town.scribe.join(town.stranger, invite)
    leave(town, town.plain[1])
    new = town.scribe.events[len(before) :]
    folded = {
        state_bytes(fold_events([*before, *order], town.scribe.community_id).state)
        for order in permutations(new)
    }
    assert len(folded) == 1
    assert state_bytes(read_state(folded.copy().pop())) in folded


@pytest.mark.parametrize("seed", range(5))
def test_a_state_without_withdrawals_has_the_bytes_that_it_always_had(seed: int) -> None:
    town = Town()
    random.Random(seed).shuffle(town.scribe.events)
    assert b"withdrawn" not in state_bytes(state(town))


def guarded(town: Town) -> Event:
    town.scribe.write(town.plain[0], "community.invites.guarded", {})
    return town.scribe.invite(town.plain[0], town.stranger)


def test_a_withdrawal_that_is_put_into_the_past_undoes_no_membership() -> None:
    town = Town()
    invite = guarded(town)
    for _ in range(3):
        town.scribe.post(town.founder)
    town.scribe.witness(town.founder, invite)
    town.scribe.join(town.stranger, invite)
    # Before the witness, and between the witness and the joining.
    late = town.plain[0].back(town.plain[0].seq)
    for lamport in (invite.lamport + 1, town.scribe.events[-1].lamport):
        backdated = town.scribe.withdraw(late, invite, lamport=lamport)
        assert town.stranger.id in state(town).roster.members
        town.scribe.events.remove(backdated)
        late = town.plain[0].back(town.plain[0].seq)


def test_a_joining_that_is_put_into_the_past_does_not_escape_a_withdrawal() -> None:
    town = Town()
    invite = guarded(town)
    for _ in range(3):
        town.scribe.post(town.founder)
    town.scribe.withdraw(town.plain[0], invite)
    backdated = town.scribe.join(town.stranger, invite, lamport=invite.lamport + 1)
    assert town.verdict(backdated) == "invite.unwitnessed"
