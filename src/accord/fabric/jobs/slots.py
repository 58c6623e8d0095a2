"""Who runs and who waits of one key: every step as a function of what was there. Pure.

A job that may run has a slot, from when it is granted until it has ended, through all its tries.
Those that wait follow in the order in which they came.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from accord.fabric.errors import FabricError
from accord.fabric.jobs.queue import Keyed
from accord.kernel import canonical


@dataclass(frozen=True, slots=True)
class Slot:
    """A job that may run.

    Attributes:
        tries: How often it was begun; 0 while nobody has.
    """

    job: str
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one key, and the jobs that wait for one."""

    active: tuple[Slot, ...] = ()
    queued: tuple[str, ...] = ()

    def slot(self, job: str) -> Slot | None:
        """The slot that a job has."""
        return next((slot for slot in self.active if slot.job == job), None)

    @property
    def is_empty(self) -> bool:
        """Whether nobody runs and nobody waits."""
        return not self.active and not self.queued


@dataclass(frozen=True, slots=True)
class Admission:
    """What becomes of a job that wants to run.

    Attributes:
        outcome: It has a slot, waits, is not taken, or another one does instead.
        other: The job that does instead, or that had to make way.
    """

    outcome: Literal["granted", "queued", "rejected", "coalesced"]
    other: str | None = None


EMPTY: Final = Slots()


def admit(slots: Slots, job: str, keyed: Keyed, *, anyway: bool = False) -> tuple[Slots, Admission]:
    """Let a job in, as far as the policy of the queue allows.

    Args:
        slots: What is there.
        job: Who wants to run; one that is in already stays as it is.
        keyed: The policy.
        anyway: Whether it may wait even where the queue is full.
    """
    if slots.slot(job) is not None:
        return slots, Admission("granted")
    if job in slots.queued:
        return slots, Admission("queued")
    if len(slots.active) < keyed.max_active and not slots.queued:
        return replace(slots, active=(*slots.active, Slot(job))), Admission("granted")
    if len(slots.queued) < keyed.max_queued or anyway:
        return replace(slots, queued=(*slots.queued, job)), Admission("queued")
    if keyed.when_full == "coalesce":
        latest = slots.queued[-1] if slots.queued else slots.active[-1].job
        return slots, Admission("coalesced", latest)
    if keyed.when_full == "replace-oldest" and slots.queued:
        oldest, *rest = slots.queued
        return replace(slots, queued=(*rest, job)), Admission("queued", oldest)
    return slots, Admission("rejected")


def begin(slots: Slots, job: str) -> Slots:
    """A job that has a slot is begun once more."""
    return replace(
        slots,
        active=tuple(
            replace(slot, tries=slot.tries + 1) if slot.job == job else slot
            for slot in slots.active
        ),
    )


def release(slots: Slots, job: str, keyed: Keyed) -> tuple[Slots, tuple[str, ...]]:
    """A job makes way, whether it ran or waited: what is left, and who has a slot now."""
    active = tuple(slot for slot in slots.active if slot.job != job)
    queued = tuple(waiting for waiting in slots.queued if waiting != job)
    room = max(0, keyed.max_active - len(active))
    granted, left = queued[:room], queued[room:]
    return Slots((*active, *(Slot(each) for each in granted)), left), granted


def write(slots: Slots) -> bytes:
    """Slots as they are kept."""
    active = [{"job": slot.job, "tries": slot.tries} for slot in slots.active]
    return canonical.encode({"v": 1, "active": active, "queued": list(slots.queued)})


def read(data: bytes) -> Slots:
    """The slots that `write` wrote.

    Raises:
        FabricError: They are none.
    """
    try:
        kept = canonical.decode(data, max_bytes=len(data))
        active = tuple(Slot(slot["job"], slot["tries"]) for slot in kept["active"])
        return Slots(active, tuple(kept["queued"]))
    except (canonical.CanonicalError, KeyError, TypeError):
        raise FabricError("what is kept here are no slots of a key") from None
