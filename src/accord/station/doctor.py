"""Probes of the machine: `accord doctor`, and the plane `machine`, which repeats some of them.

What was found is judged by `checks`. The plane logs every change once, and never fails because of
what it finds.
"""

import asyncio
import importlib.metadata
import importlib.util
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client.metrics_core import Metric
from starlette.routing import BaseRoute

import accord
from accord.capabilities import models
from accord.capabilities.settings import ModelsSettings
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.errors import AccordError
from accord.pipeline.session import find_java
from accord.station import checks, listener
from accord.station.checks import CheckStatus, ClockTimes, DiskProbe, MachineCheck
from accord.station.errors import SettingsError, StationError
from accord.station.home import Home, ask_station, home_holder, load_device_key
from accord.station.plane import PartReport, PlaneContext
from accord.station.sections import split_listen
from accord.station.settings import Settings, load, secrets_in
from accord.telemetry.metrics import family

_SPARK = ("pyspark", "pyarrow", "pandas", "fsspec")


def probe_disk(folder: Path) -> DiskProbe:
    """Write a small file to the folder, sync it, and remove it."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".accord-probe-") as file:
        file.write(b"accord")
        file.flush()
        now = time.time()
        before = time.monotonic()
        os.fsync(file.fileno())
        took = time.monotonic() - before
        skew = os.fstat(file.fileno()).st_mtime - now
    return DiskProbe(filesystem(folder), free_bytes(folder), took, skew)


def settings_file_checks(settings: Settings) -> Iterator[MachineCheck]:
    """Check who can read the secrets in the settings file."""
    file = settings.file
    if file is None:
        return
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        secrets = secrets_in(file)
    except (OSError, AccordError):
        return  # it is told of where it is read
    yield checks.settings_file(str(file), secrets, _readers(file.resolve(), mode), mode)


def _readers(file: Path, mode: int) -> str:
    """Who else may read a file, considering the folders above it."""
    above = [folder.stat().st_mode for folder in file.parents]
    if mode & stat.S_IROTH and all(each & stat.S_IXOTH for each in above):
        return "everybody on this machine"
    if mode & stat.S_IRGRP and all(each & (stat.S_IXGRP | stat.S_IXOTH) for each in above):
        return "its group"
    return ""


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write there."""
    return shutil.disk_usage(folder).free


def filesystem(folder: Path) -> str:
    """The type of a folder's filesystem; empty if unknown."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    resolved = folder.resolve()
    covering = [(len(at), kind) for _, at, kind, *_ in mounts if resolved.is_relative_to(at)]
    # The longest mount point counts, and of two at one place the later one.
    return max(covering, key=lambda found: found[0])[1] if covering else ""


def clock_times(home: Home, clock: Clock, *, skew: float = 0.0, step: float = 0.0) -> ClockTimes:
    """Compare the clock with file times on this machine."""
    now = clock.now()
    age = now - Path(accord.__file__).stat().st_mtime
    return ClockTimes(age, now - max(_written_at(home), default=now), skew, step)


def model_checks(settings: ModelsSettings) -> Iterator[MachineCheck]:
    """Check the models that the settings run in this process."""
    folder = models.weights_folder(settings.weights)
    if settings.embedded and not settings.servers:
        trouble: AccordError | None = None
        try:
            models.library("xllamacpp")
            first = models.language_models(folder)[0]
        except AccordError as error:
            trouble, seen = error, ""
        else:
            seen = f"{first.name}{', the small built-in model' if first.built_in else ''}"
        loss = (
            "questions are answered with passages from documents only, without a model's own words"
        )
        yield checks.model("language model", loss, trouble, seen)
    trouble = None
    try:
        models.library("onnxruntime")
        models.embedding_model(folder)
    except AccordError as error:
        trouble = error
    yield checks.model("embedding model", "searches match words only, not meaning", trouble)


def spark_check() -> MachineCheck:
    """Check for the pipeline's libraries."""
    return checks.spark([name for name in _SPARK if importlib.util.find_spec(name) is None])


def _written_at(home: Home) -> Iterator[float]:
    """When each store was last written."""
    for file in home.stores.glob("*.db*"):
        with suppress(FileNotFoundError):  # a journal file that has just been let go of
            yield file.stat().st_mtime


_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*extra == ['\"]([\w-]+)['\"])?")


def examine(
    home: Path | str | None = None, config: Path | str | None = None
) -> Iterator[MachineCheck]:
    """Run all checks, yielding each result at once.

    A running station is asked for what it watches itself.
    """
    yield checks.python(sys.version_info[:3])
    yield from package_checks()
    try:
        settings = load(home, config)
    except SettingsError as error:
        for finding in (error, *error.also):
            yield checks.failed_check("settings", finding)
        return
    yield MachineCheck("settings", CheckStatus.OK, f"home {settings.home}")
    yield folder_check(settings.home)
    yield port_check(settings)
    held = home_holder(Home(settings.home))
    yield from key_checks(Home(settings.home))
    yield from store_checks(settings)
    if held is not None and held.is_station:
        answer = ask_station(held.address)
        yield from running_checks(answer)
        if answer is not None:
            return
    else:
        yield from community_checks(settings)
        yield from other_port_checks(settings)
    yield from machine_checks(settings)


def machine_checks(settings: Settings) -> Iterator[MachineCheck]:
    """Run the checks that a running station would do itself."""
    yield from settings_file_checks(settings)
    offset = time.time() - time.monotonic()
    skew = 0.0
    try:
        seen = probe_disk(_nearest_folder(settings.home))
        yield checks.disk(seen)
        skew = seen.skew_seconds
    except OSError as error:
        advice = "let this user write there, or name another folder with --home or ACCORD_HOME"
        yield MachineCheck("disk", CheckStatus.FAIL, f"{settings.home}: {error.strerror}", advice)
    step = time.time() - time.monotonic() - offset
    yield checks.clock(clock_times(Home(settings.home), SystemClock(), skew=skew, step=step))
    yield from model_checks(settings.models)
    yield spark_check()
    yield checks.java(find_java())


def key_checks(home: Home) -> Iterator[MachineCheck]:
    """Check that the device key exists and is valid, where there has been a station."""
    try:
        key = load_device_key(home)
        yield MachineCheck(
            "device key", CheckStatus.OK, key.id if key else "the first start makes it"
        )
    except AccordError as error:
        yield checks.failed_check("device key", error)


def store_checks(settings: Settings) -> Iterator[MachineCheck]:
    """Check that this version can read every store, and that none is damaged."""
    from accord.community.store import COMMUNITY_STORE as COMMUNITY
    from accord.station import community
    from accord.station.versions import (
        unreadable_stores,  # which knows the stores, and so loads every plane
    )
    from accord.storage import StoreDamagedError

    found = 0
    for name, trouble in unreadable_stores(settings, thorough=True):
        found += 1
        if name == COMMUNITY.name and isinstance(trouble, StoreDamagedError):
            yield checks.failed_check(
                f"store {name}", community.explain_damaged_log(settings.home, trouble)
            )
        elif trouble is not None:
            yield checks.failed_check(f"store {name}", trouble)
    yield MachineCheck("stores", CheckStatus.OK, f"{found} looked at")


def community_checks(settings: Settings) -> Iterator[MachineCheck]:
    """Check that the log of every community is here and can be written to."""
    from accord.community.communities import CommunityFolders
    from accord.community.rules.formats import display_id
    from accord.station import community
    from accord.station.versions import logged_communities

    known = logged_communities(settings)
    if known is None:
        return  # its store has been told of
    folders = CommunityFolders(settings.home)
    for part in community.report_lost(settings.home, folders.lost(known)):
        yield MachineCheck(part.name, CheckStatus.FAIL, f"{part.state}: {part.reason}")
    for each in known:
        if folders.is_restored(each):
            part = community.report_restored(settings.home, display_id(each), each)
            yield MachineCheck(part.name, CheckStatus.WARN, f"{part.state}: {part.reason}")


def other_port_checks(settings: Settings) -> Iterator[MachineCheck]:
    """Check that the ports of the bus, of NATS and of the relay are free."""
    chosen, power = settings.community, settings.authority
    wanted = [("bus port", chosen.host, chosen.port, "--bus-port or [community] port")]
    if power.enabled and not power.nats_urls:
        wanted.append(("nats port", power.nats_host, power.nats_port, "[authority] nats_port"))
    if settings.relay.enabled and settings.relay.listen:
        wanted.append(("relay port", *split_listen(settings.relay.listen), "[relay] listen"))
    for name, host, number, setting in wanted:
        if not number:
            continue
        try:
            listener.bind(host, number).close()
            yield MachineCheck(name, CheckStatus.OK, f"{host}:{number} is free")
        except StationError as error:
            advice = f"the rest of the station works without it; choose another with {setting}"
            yield MachineCheck(
                name, CheckStatus.WARN, f"{host}:{number}: {error.what}", advice, "taken"
            )


def package_checks() -> Iterator[MachineCheck]:
    """Check for the packages of the core and of each extra."""
    needed: dict[str, list[str]] = {"": []}
    for requirement in importlib.metadata.requires("accord") or ():
        match = _REQUIREMENT.match(requirement)
        if match:
            needed.setdefault(match.group(2) or "", []).append(match.group(1))
    modules: dict[str, list[str]] = {}
    for module, names in importlib.metadata.packages_distributions().items():
        for name in names:
            modules.setdefault(_normal_name(name), []).append(module)
    needed.pop("dev", None)  # what the checks and tests of Accord itself need
    for extra, names in needed.items():
        missing = [
            name for name in names if not _is_installed(name, modules.get(_normal_name(name), []))
        ]
        package = f"accord[{extra}]" if extra else "accord"
        if not missing:
            versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
            yield MachineCheck(f"wheels of {package}", CheckStatus.OK, versions)
        else:
            status = CheckStatus.WARN if extra else CheckStatus.FAIL
            seen = f"missing: {', '.join(missing)}"
            yield MachineCheck(f"wheels of {package}", status, seen, f"pip install '{package}'")


def folder_check(home: Path) -> MachineCheck:
    """Check that the home folder is accessible to its owner only."""
    if not home.exists():
        return MachineCheck(
            "home", CheckStatus.OK, f"{home} is not there yet; the first start makes it"
        )
    if not home.is_dir():
        return MachineCheck(
            "home", CheckStatus.FAIL, f"{home} is not a folder", "name another with --home"
        )
    mode = home.stat().st_mode & 0o777
    if mode & 0o077:
        seen = f"{home} has mode {mode:04o}: others can get at it"
        return MachineCheck("home", CheckStatus.WARN, seen, f"chmod 700 {home}")
    return MachineCheck("home", CheckStatus.OK, f"{home} has mode {mode:04o}")


def port_check(settings: Settings) -> MachineCheck:
    """Check that the port is free or in use by this home's station."""
    wanted = f"{settings.station.host}:{settings.station.port}"
    held = home_holder(Home(settings.home))
    if held is not None and held.is_station:
        own = held.address.partition("://")[2]
        told = "" if own == wanted else f"; the settings say {wanted}"
        seen = f"{own} is held by this home's own station, process {held.pid}{told}"
        return MachineCheck("port", CheckStatus.OK, seen)
    try:
        listener.bind(settings.station.host, settings.station.port).close()
    except StationError as error:
        return MachineCheck(
            "port", CheckStatus.FAIL, f"{wanted}: {error.what}", error.mend or "", "taken"
        )
    return MachineCheck("port", CheckStatus.OK, f"{wanted} is free")


def running_checks(answer: dict[str, Any] | None) -> Iterator[MachineCheck]:
    """Report the planes of the running station, and their parts."""
    if answer is None:
        advice = "look into its log, or stop it and start it again"
        yield MachineCheck("station", CheckStatus.FAIL, "it runs but does not answer", advice)
        return
    for plane in answer.get("planes", ()):
        yield _part_check(
            plane["name"], plane, CheckStatus.OK if plane.get("well") else CheckStatus.FAIL
        )
        for part in plane.get("parts", ()):
            well = part.get("well") is True
            yield _part_check(part["name"], part, CheckStatus.OK if well else CheckStatus.WARN)


def _part_check(name: str, row: dict[str, Any], status: CheckStatus) -> MachineCheck:
    # A reason is a sentence that ends with its remedy.
    seen = ": ".join(filter(None, (row["state"], row.get("reason", ""))))
    return MachineCheck(name, status, seen)


def _normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_installed(name: str, modules: list[str]) -> bool:
    """Whether a package is installed: its modules are found, or it has only a program."""
    if not modules:
        return any(importlib.metadata.distributions(name=name))
    return any(importlib.util.find_spec(module) for module in modules if module.isidentifier())


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


_log = structlog.stdlib.get_logger(__name__)

LOOK_SECONDS = 5.0
# How long a step of the clock is reported.
_STEP_SECONDS: Final = 600.0


class MachinePlane:
    """Watches the machine of a station."""

    name = "machine"
    routes: Sequence[BaseRoute] = ()

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._checks: dict[str, MachineCheck] = {}
        self._offset = clock.now() - clock.monotonic()
        self._step, self._stepped_at = 0.0, 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield the number of tasks on the station's loop."""
        if self._loop is not None:
            yield family("accord_tasks", len(asyncio.all_tasks(self._loop)))

    def parts(self) -> Sequence[PartReport]:
        """Report the state of the machine."""
        return [check.part() for check in self._checks.values()]

    async def run(self, context: PlaneContext) -> None:
        """Check until the station drains."""
        self._loop = asyncio.get_running_loop()
        kind = await asyncio.to_thread(filesystem, self._settings.home)
        await self._look(kind)
        context.ready()
        for check in await asyncio.to_thread(self._installed):
            self._note(check)
        while not context.draining.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await context.draining.wait()
            await self._look(kind)

    async def _look(self, kind: str) -> None:
        for check in await asyncio.to_thread(self._seen, kind):
            self._note(check)

    def _seen(self, kind: str) -> list[MachineCheck]:
        home = self._settings.home
        try:
            disk = checks.disk(DiskProbe(kind, free_bytes(home)))
        except OSError as error:
            advice = "mount it again, or restart the station with another home"
            seen = f"{home} cannot be looked at: {error.strerror}"
            disk = MachineCheck("disk", CheckStatus.FAIL, seen, advice, "gone")
        times = clock_times(Home(home), self._clock, step=self._moved())
        return [disk, checks.clock(times), *settings_file_checks(self._settings)]

    def _moved(self) -> float:
        """How far the clock was moved recently, against the monotonic clock."""
        offset = self._clock.now() - self._clock.monotonic()
        moved, self._offset = offset - self._offset, offset
        if abs(moved) > checks.CLOCK_STEP:
            self._step, self._stepped_at = moved, self._clock.monotonic()
        elif self._clock.monotonic() - self._stepped_at > _STEP_SECONDS:
            self._step = 0.0
        return self._step

    def _installed(self) -> list[MachineCheck]:
        """Checks whose result changes with an installation only."""
        return [
            *model_checks(self._settings.models),
            spark_check(),
            checks.java(find_java()),
        ]

    def _note(self, check: MachineCheck) -> None:
        before = self._checks.get(check.name)
        self._checks[check.name] = check
        if (before.state if before else "ready") == check.state:
            return
        if check.status is CheckStatus.OK:
            _log.info(f"{check.name} is ok again", seen=check.seen)
        else:
            _log.warning(f"{check.name} is {check.state}", reason=check.part().reason)
