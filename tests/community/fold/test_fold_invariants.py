"""What holds whatever members try."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.histories import HistoryAuthor, HistoryWriter, hostile

from accord.community.rules import (
    ACCEPTED,
    ChainLink,
    Event,
    Level,
    MemoryHistory,
    Replay,
    Roster,
    fold,
    fold_events,
    fold_history,
    read_state,
    state_bytes,
)

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=200)
@given(seeds)
def test_invariants_of_hostile_histories(seed: int) -> None:
    chance = random.Random(seed)
    community_id, events = hostile(chance, chance.randint(10, 90))
    folded = fold_events(events, community_id)
    state, verdicts = folded.state, folded.verdicts
    content = [event for event in events if not event.event_type.startswith("community.")]
    assert not state.roster.members.keys() & state.roster.revoked.keys()
    assert community_id not in state.roster.members
    if not state.roster.floors:
        for event in content:
            cutoff = state.roster.revoked.get(event.author)
            if cutoff is not None and cutoff.voids(event):
                assert verdicts[event.digest] is not ACCEPTED
    for event in content:
        chain = state.chains.get(event.author)
        if verdicts[event.digest] is ACCEPTED and event.author_seq is not None:
            assert chain is not None
            assert chain.verdict(event.author_seq, event.digest) is None


@settings(max_examples=200)
@given(seeds)
def test_nobody_gets_a_level_above_who_gives_it(seed: int) -> None:
    chance = random.Random(seed)
    community_id, events = hostile(chance, chance.randint(10, 90))
    roster = fold_events(events, community_id).state.roster
    levels: dict[str, Level] = {}
    for event in sorted(events, key=lambda event: event.position):
        outcome = roster.outcomes.get(event.digest)
        if outcome is None or outcome.node is None:
            continue
        if event.event_type == "community.created":
            assert outcome.level is Level.ANCHOR
        elif event.event_type == "community.member.joined":
            name = event.data["invite_event_id"], event.author
            assert outcome.level <= max(invite.level for invite in roster.invites[name])
        elif event.event_type == "community.member.promoted" and event.author != community_id:
            assert outcome.level <= levels[event.author]
        levels[outcome.node] = outcome.level


class Town:
    """A founder, three trusted members, and three who have just come."""

    def __init__(self) -> None:
        self.scribe = HistoryWriter("invariants")
        self.founder = self.scribe.pen("founder")
        self.scribe.found(self.founder)
        self.trusted = [self.admit(f"trusted {number}", "trusted") for number in range(3)]
        self.new = [self.admit(f"new {number}") for number in range(3)]

    def admit(self, name: str, level: str = "member") -> HistoryAuthor:
        pen = self.scribe.pen(name)
        self.scribe.admit(self.founder, pen, level)
        return pen

    def rule(self, event: Event) -> str:
        folded = fold_events(self.scribe.events, self.scribe.community_id)
        return folded.verdicts[event.digest].rule


def test_the_founder_is_the_first_anchor() -> None:
    town = Town()
    state = fold_events(town.scribe.events, town.scribe.community_id).state
    assert state.level_of(town.founder.id) is Level.ANCHOR
    assert [each["level"] for each in state.members()].count("anchor") == 1


def test_three_new_members_cannot_revoke() -> None:
    town = Town()
    one, *others = town.new
    assert town.rule(town.scribe.revoke(one, town.founder, *others)) == "membership.level"
    mixed = town.scribe.revoke(town.trusted[0], town.founder, *town.new)
    assert town.rule(mixed) == "membership.signatures"


def test_an_equivocators_grants_stand_and_its_own_words_do_not() -> None:
    town = Town()
    scribe, forger, guest = town.scribe, town.trusted[0], town.scribe.pen("guest")
    twin = forger.back(forger.seq)
    scribe.post(forger)
    scribe.post(twin)
    invite = scribe.invite(forger, guest)
    promoted = scribe.level(forger, "promoted", town.new[0], "trusted")
    joined = scribe.join(guest, invite)
    post = scribe.post(forger)
    assert town.rule(invite) == town.rule(promoted) == town.rule(post) == "equivocation"
    assert town.rule(joined) == "accepted"
    state = fold_events(scribe.events, scribe.community_id).state
    assert state.level_of(town.new[0].id) is Level.TRUSTED
    assert post.event_id not in state.content.posts
    scribe.revoke(town.founder, forger, *town.trusted[1:], last_seq=1)
    assert town.rule(joined) == "invite.missing"


def test_what_lies_below_a_floor_is_not_changed_by_what_comes_after_it() -> None:
    town = Town()
    scribe, target = town.scribe, town.trusted[0]
    guest = scribe.pen("guest")
    joined = scribe.admit(target, guest)
    post = scribe.post(guest)
    closed = scribe.lamport
    heads = scribe.heads(closed)
    scribe.post(town.founder)
    scribe.floor(town.founder, closed, heads)
    before = list(scribe.events)
    at_floor = fold_history(
        MemoryHistory(e for e in before if e.lamport <= closed), scribe.community_id
    )
    scribe.revoke(town.founder, target, *town.trusted[1:], last_seq=1)
    late = scribe.post(guest, lamport=guest.lamport + 1)
    assert late.lamport > closed
    assert town.rule(joined) == "invite.missing"
    assert town.rule(post) == "accepted"
    assert town.rule(late) == "membership.level"
    snapshot = read_state(state_bytes(at_floor))
    replay, _ = Replay.resume(snapshot, MemoryHistory(scribe.events))
    full = fold_history(MemoryHistory(scribe.events), scribe.community_id)
    assert state_bytes(replay.state) == state_bytes(full)


def test_what_comes_late_below_a_floor_is_void_and_needs_no_history() -> None:
    town = Town()
    scribe, writer = town.scribe, town.new[0]
    closed = scribe.lamport
    heads = scribe.heads(closed)
    scribe.post(town.founder)
    scribe.floor(town.founder, closed, heads)
    memory = MemoryHistory(scribe.events)
    snapshot = fold_history(
        MemoryHistory(e for e in scribe.events if e.lamport <= closed), scribe.community_id
    )
    replay, _ = Replay.resume(snapshot, memory)
    late = scribe.post(writer, lamport=writer.lamport + 1)
    invite = scribe.invite(town.new[1], scribe.pen("guest"), lamport=town.new[1].lamport + 1)
    assert max(late.lamport, invite.lamport) <= closed
    memory.add([late, invite])
    advance = replay.advance(memory, [late, invite])
    changed = {event.digest: verdict.rule for event, verdict in advance.changed}
    assert changed == {late.digest: "floor", invite.digest: "accepted"}
    full = fold_history(MemoryHistory(scribe.events), scribe.community_id)
    assert state_bytes(replay.state) == state_bytes(full)
    again, _ = Replay.resume(snapshot, memory)
    assert state_bytes(again.state) == state_bytes(full)


def test_an_anchor_cannot_undo_a_revocation_with_a_floor() -> None:
    town = Town()
    scribe = town.scribe
    accomplice = town.admit("accomplice", "anchor")
    heads = scribe.heads(scribe.lamport)
    revoked = scribe.revoke(town.founder, town.trusted[0], *town.trusted[1:])
    scribe.post(town.founder)
    floor = scribe.floor(accomplice, revoked.lamport, heads)
    assert town.rule(floor) == town.rule(revoked) == "accepted"
    state = fold_events(scribe.events, scribe.community_id).state
    assert state.is_revoked(town.trusted[0].id)


def test_a_quarrel_costs_a_bounded_number_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0

    class Counted(Roster):
        def __init__(self, *arguments: object, **options: object) -> None:
            nonlocal passes
            passes += 1
            super().__init__(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fold, "Roster", Counted)
    town = Town()
    scribe = town.scribe
    puppets = [town.admit(f"puppet {number}", "trusted") for number in range(60)]
    for puppet in puppets:
        scribe.invite(puppet, scribe.pen("guest"))
    for puppet, target in zip(puppets, puppets[1:] + puppets[:1], strict=True):
        scribe.revoke(puppet, target, *town.trusted[:2], last_seq=1)
    fold_events(scribe.events, scribe.community_id)
    assert passes < 400
    passes = 0
    scribe.events = [e for e in scribe.events if e.author not in {p.id for p in puppets[::2]}]
    fold_events(scribe.events, scribe.community_id)
    assert passes < 400


def test_a_gap_that_closes_is_looked_at_from_the_gap_on() -> None:
    class Counting(MemoryHistory):
        links = 0

        def author(self, author: str, after: int = 0) -> Iterator[ChainLink]:
            for link in super().author(author, after):
                self.links += 1
                yield link

    town = Town()
    writer = town.new[0]
    for _ in range(500):
        town.scribe.post(writer)
    first, second, third = (town.scribe.post(writer) for _ in range(3))
    memory = Counting(town.scribe.events[:-3])
    replay = Replay(town.scribe.community_id)
    replay.advance(memory, town.scribe.events[:-3])
    memory.links = 0
    for late in (third, second, first):
        memory.add([late])
        replay.advance(memory, [late])
    assert memory.links < 20
    full = fold_history(MemoryHistory(town.scribe.events), town.scribe.community_id)
    assert state_bytes(replay.state) == state_bytes(full)
