"""Tasks become one message: as many of them, in order, as there is room for.

Both sides take the same turns. What did not fit is left over; the one who remembers it is the
initiator.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from accord.community.reconcile.index import Item, item_of
from accord.community.reconcile.message import ID_BYTES, MAX_BODY, MAX_RANGES, Body, Mode, Range
from accord.community.reconcile.salted import Salted
from accord.community.reconcile.tasks import LEAF, Do, Task

Fetch = Callable[[Sequence[Item]], Iterable[Body | None]]
"""Gives the bodies of items in order, None for what is gone; read as far as there is room."""

TYPICAL_BODY: Final = 700
MOST_TASKS: Final = MAX_RANGES // 2 - 1
"""In one message: between two ranges there may be a settled one."""

_RANGE_BYTES: Final = 12
_BODY_BYTES: Final = 4
_ANSWER_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class Room:
    """What a message may take.

    Attributes:
        message: Bytes of this message.
        looks: Items that are compared by short id for it.
        answer: Bytes of the answer that it may be expected to cause; None where nobody answers.
        typical: How long a body probably is.
    """

    message: int
    looks: int
    answer: int | None = None
    typical: int = TYPICAL_BODY


@dataclass(slots=True)
class Turn:
    """What goes into one message (settled ranges left out), and the tasks that do not."""

    ranges: list[Range] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    rest: list[Task] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a task says in this message, and which bodies go with it.

    Attributes:
        task: The task; what is said may end before it does.
        said: What is said when all bodies are in.
        sent: Records of the bodies, each with the bound that is reached once it is in.
        looks: How many items were compared.
    """

    task: Task
    said: Range
    sent: list[tuple[bytes, bytes]] = field(default_factory=list)
    looks: int = 0

    @property
    def size(self) -> int:
        return _RANGE_BYTES + len(self.said.upper) + len(self.said.ids) * ID_BYTES


def compose(salted: Salted, tasks: Sequence[Task], fetch: Fetch, room: Room) -> Turn:
    """Do as many of the tasks as fit into one message; at least a part of the first."""
    plans = _plans(salted, tasks, room)
    wanted = [item_of(record) for plan in plans for record, _ in plan.sent]
    bodies = iter(fetch(wanted) if wanted else ())
    turn = Turn()
    size = 0
    for at, plan in enumerate(plans):
        reached, size = _load(turn, plan, bodies, size + plan.size, room.message)
        if reached == plan.task.upper:
            if plan.said.mode is not Mode.SETTLED:
                turn.ranges.append(plan.said)
            continue
        turn.rest = [_cut(salted, turn, plan.task, reached), *tasks[at + 1 :]]
        return turn
    turn.rest = list(tasks[len(plans) :])
    return turn


def _plans(salted: Salted, tasks: Sequence[Task], room: Room) -> list[_Plan]:
    plans: list[_Plan] = []
    size = answer = looks = 0
    for task in tasks:
        plan = _plan(salted, task, room.looks - looks, (room.message - size) // room.typical)
        plans.append(plan)
        size += plan.size + len(plan.sent) * room.typical
        answer += _answer(plan.said, room.typical)
        looks += plan.looks
        if (
            plan.said.upper != task.upper
            or size >= room.message
            or looks >= room.looks
            or (room.answer is not None and answer >= room.answer)
            or len(plans) >= MOST_TASKS
        ):
            break
    return plans


def _plan(salted: Salted, task: Task, looks: int, bodies: int) -> _Plan:
    lower, upper = task.lower, task.upper
    if task.do is Do.WANT:
        return _Plan(task, Range(lower, upper, Mode.WANT, ids=task.ids))
    start, stop = salted.rank(lower), salted.rank(upper)
    if task.do is Do.LIST and stop - start <= LEAF:
        ids = tuple(short for short, _ in salted.items(start, stop))
        return _Plan(task, Range(lower, upper, Mode.ITEMS, ids=ids))
    if task.do in (Do.LIST, Do.PROBE):
        mark = salted.fingerprint(start, stop)
        return _Plan(task, Range(lower, upper, Mode.FINGERPRINT, mark))
    theirs = set(task.ids)
    sent: list[tuple[bytes, bytes]] = []
    rank = start
    for short, record in salted.items(start, stop):
        rank += 1
        if (short in theirs) is (task.do is Do.SEND):
            sent.append((record, upper if rank == stop else salted.separator(rank)))
        theirs.discard(short)
        if rank - start >= looks or len(sent) >= bodies:
            break
    end = upper if rank == stop else salted.separator(rank)
    return _Plan(task, _said(task, end, theirs), sent, rank - start)


def _said(task: Task, upper: bytes, unmatched: set[bytes]) -> Range:
    """What is said about a task that got so far; ids that lie above are wanted in vain."""
    ids = tuple(short for short in task.ids if short in unmatched)
    if task.do is Do.SETTLE and ids:
        return Range(task.lower, upper, Mode.WANT, ids=ids)
    return Range(task.lower, upper, Mode.SETTLED)


def _answer(said: Range, typical: int) -> int:
    bodies = {Mode.ITEMS: 1, Mode.WANT: len(said.ids)}.get(said.mode, 0)
    return _ANSWER_BYTES + bodies * typical


def _load(
    turn: Turn, plan: _Plan, bodies: Iterator[Body | None], size: int, most: int
) -> tuple[bytes, int]:
    """Put the bodies of a plan into the message; return the bound reached and the size."""
    reached = plan.task.lower
    if size > most and (turn.ranges or turn.bodies):
        return reached, size
    for _, bound in plan.sent:
        body = next(bodies, None)
        if body is not None and len(body.raw) <= MAX_BODY:
            size += len(body.raw) + _BODY_BYTES
            if size > most and turn.bodies:
                return reached, size
            turn.bodies.append(body)
        reached = bound
    return plan.said.upper, size


def _cut(salted: Salted, turn: Turn, task: Task, reached: bytes) -> Task:
    """Say what can be said below the bound that was reached; return the rest of the task."""
    if reached == task.lower:
        return task
    done = salted.items(salted.rank(task.lower), salted.rank(reached))
    unmatched = set(task.ids) - {short for short, _ in done}
    said = _said(task, reached, unmatched)
    if said.mode is not Mode.SETTLED:
        turn.ranges.append(said)
    return replace(task, lower=reached, ids=tuple(each for each in task.ids if each in unmatched))
