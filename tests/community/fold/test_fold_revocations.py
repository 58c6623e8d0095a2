"""Revocations that reach back, also against each other: settled as the text says, at a bound."""

import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.fakes.histories import HistoryWriter

from accord.community.rules import (
    MAX_CONTESTED,
    MAX_CONTESTED_BY_AUTHOR,
    MAX_RIVALS,
    Chain,
    Event,
    MemoryHistory,
    Roster,
    all_chains,
    cutoff_of,
    fold_events,
    settle_membership,
    signers,
)

REVOKED = "community.member.revoked"


class Feud:
    """A community whose members promote, demote and revoke each other, often backdated."""

    def __init__(self, seed: int, size: int) -> None:
        self.chance = random.Random(seed)
        self.scribe = HistoryWriter(seed)
        self.pens = [self.scribe.pen(f"member {number}") for number in range(6)]
        policy = {
            "min_signatures_to_revoke": self.chance.randint(1, 2),
            "min_signatures_to_demote": 1,
        }
        self.scribe.found(self.pens[0], policy)
        for pen in self.pens[1:]:
            self.scribe.admit(self.pens[0], pen, "trusted")
        for _ in range(size):
            self._strike()

    @property
    def chains(self) -> dict[str, Chain]:
        return all_chains(MemoryHistory(self.scribe.events).authors())

    @property
    def events(self) -> list[Event]:
        return sorted(self.scribe.events, key=lambda event: event.position)

    def _strike(self) -> None:
        chance, scribe = self.chance, self.scribe
        pen, target, *others = chance.sample(self.pens, 4)
        lamport = chance.choice([None, chance.randint(pen.lamport + 1, scribe.lamport + 1)])
        turn = chance.random()
        if turn < 0.2:
            level = chance.choice(["trusted", "anchor"])
            scribe.level(pen, "promoted", target, level, lamport=lamport)
        elif turn < 0.4:
            scribe.level(pen, "demoted", target, "member", lamport=lamport)
        else:
            last = chance.randint(max(0, target.seq - 2), target.seq)
            scribe.revoke(pen, target, *others, last_seq=last, lamport=lamport)


class Reference:
    """Settles revocations literally, with a pass for every question."""

    def __init__(self, feud: Feud) -> None:
        self.feud = feud
        self.events, self.chains = feud.events, feud.chains
        revocations = [event for event in self.events if event.event_type == REVOKED]
        self.reaching = [event for event in revocations if self.reaches_back(event)]
        self.in_place = [event for event in revocations if not self.reaches_back(event)]

    def reaches_back(self, revocation: Event) -> bool:
        cutoff, target = cutoff_of(revocation), revocation.data["target_node_id"]
        return any(
            event.author == target and cutoff.voids(event)
            for event in self.events
            if event.position < revocation.position
        )

    def world(self, known: Sequence[Event]) -> Roster:
        reaching = frozenset(event.digest for event in self.reaching)
        roster = Roster(self.feud.scribe.community_id, self.chains, known, reaching)
        for event in self.events:
            roster.take(event)
        return roster

    def holds(self, event: Event, known: Sequence[Event]) -> bool:
        return event.digest in self.world([*known, event]).holding

    def excludes(self, one: Event, other: Event, known: Sequence[Event]) -> bool:
        return self.holds(other, known) and not self.holds(other, [*known, one])

    def senior(self, event: Event, known: Sequence[Event]) -> tuple[object, str]:
        return self.world([*known, event]).seniority[event.digest]

    def settled(self) -> Roster:
        known = self.undisputed([])
        contested = [event for event in self.reaching if event not in known]
        authors = Counter(event.author for event in contested)
        assume(
            len(contested) <= MAX_CONTESTED
            and max(authors.values(), default=0) <= MAX_CONTESTED_BY_AUTHOR
        )
        while candidates := self.candidates(known):
            free = [each for each in candidates if not self.is_excluded(each, candidates, known)]
            oldest = min(candidates, key=lambda each: self.senior(each, known))
            known = self.undisputed([*known, free[0] if free else oldest])
        return self.world(known)

    def undisputed(self, known: list[Event]) -> list[Event]:
        """All that hold beside each other and beside all the rest, with what is known."""
        rest = [each for each in self.reaching if each not in known and self.is_possible(each)]
        in_all = self.world([*known, *rest]).holding
        together = [event for event in rest if event.digest in in_all]
        while True:
            holding = self.world([*known, *together]).holding
            if all(event.digest in holding for event in together):
                return [*known, *together]
            together = [event for event in together if event.digest in holding]

    def is_possible(self, event: Event) -> bool:
        """Whether author and target had joined, all of them as trusted members.

        How many had to sign cannot be told beforehand: where few are trusted, all are enough.
        """
        members = {
            each.author
            for each in self.events
            if each.event_type == "community.member.joined" and each.position < event.position
        } | {self.feud.pens[0].id}
        return {event.author, event.data["target_node_id"]} <= members

    def candidates(self, known: list[Event]) -> list[Event]:
        reaching = [e for e in self.reaching if e not in known and self.holds(e, known)]
        if not reaching:
            return []
        signed = {signer for event in reaching for signer in signers(event)}
        rivals = [
            event
            for event in self.in_place
            if event.data["target_node_id"] in signed
            and event not in known
            and event.digest in self.world(known).holding
        ]
        assume(len(reaching) <= MAX_RIVALS)
        assume(len(rivals) <= MAX_RIVALS)
        return sorted(reaching + rivals, key=lambda event: event.position)

    def is_excluded(self, event: Event, others: list[Event], known: list[Event]) -> bool:
        for other in others:
            if other is event or not self.excludes(other, event, known):
                continue
            if not self.excludes(event, other, known):
                return True
            if self.senior(other, known) < self.senior(event, known):
                return True
        return False


feuds = st.builds(Feud, st.integers(0, 2**32 - 1), st.integers(1, 14))


@settings(max_examples=150)
@example(Feud(69755345, 4))
@given(feuds)
def test_revocations_are_settled_as_the_text_says(feud: Feud) -> None:
    expected = Reference(feud).settled()
    found = settle_membership(feud.events, feud.chains, feud.scribe.community_id)
    assert found.outcomes == expected.outcomes
    assert (found.members, found.revoked) == (expected.members, expected.revoked)


@settings(max_examples=150)
@given(feuds)
def test_where_none_reaches_back_one_pass_is_enough(feud: Feud) -> None:
    reference = Reference(feud)
    without = [event for event in feud.events if event not in reference.reaching]
    plain = Roster(feud.scribe.community_id, feud.chains)
    for event in without:
        plain.take(event)
    assert (
        settle_membership(without, feud.chains, feud.scribe.community_id).outcomes == plain.outcomes
    )


@settings(max_examples=300)
@given(feuds)
def test_nothing_beyond_a_cutoff_stands_unless_it_was_settled_before(feud: Feud) -> None:
    folded = fold_events(feud.events, feud.scribe.community_id)
    roster = folded.state.roster
    for event in feud.events:
        cutoff = roster.revoked.get(event.author)
        if cutoff is not None and cutoff.voids(event) and event.event_type != REVOKED:
            assert folded.verdicts[event.digest].rule == "revoked.cutoff"
    assert not roster.members.keys() & roster.revoked.keys()
