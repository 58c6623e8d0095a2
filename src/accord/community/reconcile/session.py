"""Two nodes make their logs equal: the side that asks, and the side that answers.

The responder is stateless: each request holds all that its answer needs, so a lost message is sent
again and a broken session is begun again without loss. Bodies that arrive are handed to the
caller, who verifies and stores them and inserts what stands into the index; nothing here trusts
them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from accord.community.errors import Code, CommunityError
from accord.community.reconcile.index import END, START, Index
from accord.community.reconcile.message import (
    SALT_BYTES,
    Body,
    Limits,
    Message,
    Mode,
    Range,
    bad,
    decode,
    encode,
)
from accord.community.reconcile.salted import Salted
from accord.community.reconcile.tasks import Do, Task, first_tasks, tasks_from
from accord.community.reconcile.turn import MOST_TASKS, TYPICAL_BODY, Fetch, Room, compose

_ASKED = {Mode.FINGERPRINT: Do.PROBE, Mode.ITEMS: Do.LIST, Mode.WANT: Do.WANT}
_ANSWERS = {
    Mode.FINGERPRINT: (Mode.FINGERPRINT,),
    Mode.ITEMS: (Mode.FINGERPRINT,),
    Mode.WANT: (Mode.ITEMS,),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a responder sends back, and the bodies that came with the request."""

    reply: bytes
    received: tuple[Body, ...]


def respond(index: Index, request: bytes, fetch: Fetch, limits: Limits | None = None) -> Answer:
    """Answer one request of any initiator.

    Raises:
        CommunityError: The request is not a message: `bad_request`.
    """
    limits = limits or Limits()
    asked = decode(request, limits)
    salted = Salted(index, asked.salt)
    # One task more than a message can hold shows where the reply ends.
    tasks = list(islice(tasks_from(salted, asked.ranges), MOST_TASKS + 1))
    turn = compose(salted, tasks, fetch, Room(min(asked.room, limits.message), limits.looks))
    end = turn.rest[0].lower if turn.rest else END
    ranges = [*_with_gaps(turn.ranges, end)]
    reply = encode(Message(asked.salt, limits.message, ranges, turn.bodies))
    return Answer(reply, tuple(asked.bodies))


class Initiator:
    """One session with one node.

    While `request()` gives bytes, send them and hand the answer to `receive`. A request that was
    lost, or whose answer was, is simply sent again.

    Args:
        index: What this node holds; it may grow while the session runs.
        salt: Random bytes that nobody could know before.
        fetch: Gives the bodies of items.
        limits: What messages and the session may cost.
    """

    def __init__(
        self, index: Index, salt: bytes, fetch: Fetch, limits: Limits | None = None
    ) -> None:
        if len(salt) != SALT_BYTES:
            raise ValueError(f"a salt has {SALT_BYTES} bytes")
        self._salted = Salted(index, salt)
        self._salt = salt
        self._fetch = fetch
        self._limits = limits or Limits()
        self._room = self._limits.message
        self._tasks = list(first_tasks(self._salted))
        self._asked: list[Range] = []
        self._waiting: bytes | None = None
        self._bodies = 1
        self._body_bytes = TYPICAL_BODY
        self.rounds = 0

    def request(self) -> bytes | None:
        """What to send next, the same until it is answered; None when the logs are equal.

        Raises:
            CommunityError: The session took more round trips than it may: `capacity_exceeded`.
        """
        if self._waiting is None and self._tasks:
            if self.rounds >= self._limits.rounds:
                raise CommunityError(
                    Code.CAPACITY_EXCEEDED,
                    f"after {self.rounds} round trips the logs still differ",
                    mend="begin another session",
                )
            room = Room(
                self._room,
                self._limits.looks,
                self._limits.message,
                max(1, self._body_bytes // self._bodies),
            )
            turn = compose(self._salted, self._tasks, self._fetch, room)
            self._tasks, self._asked = turn.rest, turn.ranges
            ranges = [*_with_gaps(turn.ranges, None)]
            self._waiting = encode(Message(self._salt, self._limits.message, ranges, turn.bodies))
        return self._waiting

    def receive(self, reply: bytes) -> tuple[Body, ...]:
        """Take the answer to the request; return the bodies that came with it.

        Raises:
            CommunityError: It is no answer to it: `bad_request`. The session stands where it was.
        """
        if self._waiting is None:
            raise bad("there is no request that this could answer")
        answer = decode(reply, self._limits)
        if answer.salt != self._salt:
            raise bad("the reply belongs to another session")
        _check(self._asked, answer.ranges)
        end = answer.ranges[-1].upper if answer.ranges else START
        if self._asked and end <= self._asked[0].lower:
            raise bad("the reply handles nothing of what was asked")
        tasks = [
            *tasks_from(self._salted, answer.ranges),
            *_unanswered(self._asked, end),
            *self._tasks,
        ]
        if sum(1 + len(task.ids) for task in tasks) > self._limits.pending:
            raise bad("the reply leaves more open than a session may remember")
        tasks.sort(key=lambda task: task.lower)
        self._tasks, self._waiting = tasks, None
        self._room = min(self._limits.message, answer.room)
        self._bodies += len(answer.bodies)
        self._body_bytes += sum(len(body.raw) for body in answer.bodies)
        self.rounds += 1
        return tuple(answer.bodies)


def _with_gaps(ranges: Sequence[Range], end: bytes | None) -> Iterable[Range]:
    """The ranges of a message: what lies between them, and up to an end, is settled."""
    closing = () if end is None else (Range(end, end, Mode.SETTLED),)
    lower = START
    for each in chain(ranges, closing):
        if lower < each.lower:
            yield Range(lower, each.lower, Mode.SETTLED)
        if each.lower < each.upper:
            yield each
        lower = each.upper


def _unanswered(asked: Iterable[Range], end: bytes) -> Iterable[Task]:
    for each in asked:
        if each.upper > end:
            yield Task(max(each.lower, end), each.upper, _ASKED[each.mode], each.ids)


def _check(asked: Sequence[Range], answers: Iterable[Range]) -> None:
    """Refuse what was not asked for: only so do ranges shrink in each round, and a session ends."""
    at = 0
    for each in answers:
        if each.mode is Mode.SETTLED:
            continue
        while at < len(asked) and asked[at].upper <= each.lower:
            at += 1
        if (
            at == len(asked)
            or each.lower < asked[at].lower
            or each.upper > asked[at].upper
            or asked[at].mode not in _ANSWERS[each.mode]
        ):
            raise bad("the reply speaks of what was not asked")
