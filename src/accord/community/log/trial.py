"""Would an event stand? Asked before it is signed, so that a node never says in vain.

Owns the answer's code. Judges by the fold's own functions on a copy of the content, and never
touches the state in use.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from accord.community.envelope import Event
from accord.community.errors import Code, CommunityError
from accord.community.fold import ACCEPTED, Link, State, Verdict
from accord.community.fold.chains import Chain
from accord.community.fold.folding import Ground, ground, run
from accord.community.fold.history import MEMBERSHIP

_CODES: Final = {
    "revoked.cutoff": Code.REVOKED,
    "membership.revoked": Code.REVOKED,
    "membership.target": Code.NOT_FOUND,
    "community.missing": Code.NOT_FOUND,
    "chat.recipient": Code.NOT_FOUND,
    "invite.missing": Code.NOT_FOUND,
    "market.missing": Code.NOT_FOUND,
    "chat.missing": Code.NOT_FOUND,
    "file.missing": Code.NOT_FOUND,
    "invite.expired": Code.EXPIRED,
    "market.ended": Code.EXPIRED,
    "membership.level": Code.UNAUTHORIZED,
    "membership.above": Code.UNAUTHORIZED,
    "membership.signatures": Code.UNAUTHORIZED,
    "root.only": Code.UNAUTHORIZED,
    "root.never": Code.UNAUTHORIZED,
    "market.reason": Code.UNAUTHORIZED,
}


class Trial:
    """A state to which events are added that nobody has signed yet.

    Args:
        state: The state in use.
        membership: Every membership event in it, in total order.
    """

    def __init__(self, state: State, membership: Sequence[Event]) -> None:
        self._content = state.content.copy()
        self._chains = dict(state.chains)
        self._on = ground(state.community_id, self._chains, max(state.lamport, 0), membership)

    def add(self, event: Event) -> None:
        """Add an event behind all others.

        Raises:
            CommunityError: It would not stand; the trial is as before.
        """
        author, seq = event.author, event.author_seq
        chain = self._chains.get(author, Chain())
        longer = chain.followed_by(Link(author, seq, event.digest, event.prev, event.lamport))
        if longer is None:
            standing = None if seq is None else chain.verdict(seq, event.digest)
            raise _refusal(event, standing)
        self._chains[author] = longer
        before, self._on = self._on, self._with(event)
        verdict = self._judge(event)
        if verdict is not ACCEPTED:
            self._on = before
            self._chains[author] = chain
            raise _refusal(event, verdict)

    def _with(self, event: Event) -> Ground:
        if event.event_type in MEMBERSHIP:
            everyone = [*self._on.membership, event]
            return ground(event.community_id, self._chains, event.lamport, everyone)
        return replace(self._on, reach=event.lamport)

    def _judge(self, event: Event) -> Verdict:
        found: list[Verdict] = []
        run(self._on, self._content, [event], lambda _, verdict: found.append(verdict), None)
        return found[0]


def _refusal(event: Event, verdict: Verdict | None) -> CommunityError:
    if verdict is None:
        return CommunityError(
            Code.INTERNAL_ERROR,
            "the event does not follow its author's last one",
            where=event.author,
        )
    return CommunityError(
        _CODES.get(verdict.rule, Code.BAD_REQUEST),
        f"the community would not let this {event.event_type} stand: {verdict.reason}",
        details={"rule": verdict.rule},
    )
