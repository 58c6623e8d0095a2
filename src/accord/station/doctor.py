"""Looks at this machine with the station's eyes and says what to do about what it sees.

Owns which checks are made, and in which order; the rules are `station.conditions`. It uses no
network beyond trying whether ports are free and asking this home's station, where it runs, how it
is; it never makes the home folder, and changes nothing in it.
"""

import importlib.metadata
import importlib.util
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from accord.kernel.clock import SystemClock
from accord.kernel.errors import AccordError
from accord.pipeline.java import find_java
from accord.station import conditions, listener, seeing
from accord.station.conditions import Check, Status
from accord.station.errors import SettingsError, StationError
from accord.station.home import Home, holder, kept_key
from accord.station.sections import split_listen
from accord.station.settings import Settings, load

_ASK_SECONDS = 5.0
_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*extra == ['\"]([\w-]+)['\"])?")


def examine(home: Path | str | None = None, config: Path | str | None = None) -> Iterator[Check]:
    """Make every check, each as soon as it is known.

    What a running station watches itself is asked of it, not looked at again.
    """
    yield conditions.python(sys.version_info[:3])
    yield from wheels()
    try:
        settings = load(home, config)
    except SettingsError as error:
        for finding in (error, *error.also):
            yield conditions.refusal("settings", finding)
        return
    yield Check("settings", Status.OK, f"home {settings.home}")
    yield folder_mode(settings.home)
    yield port(settings)
    held = holder(Home(settings.home))
    yield from keys(Home(settings.home))
    yield from stores(settings)
    if held is not None and held.is_station:
        answer = told(held.address)
        yield from running(answer)
        if answer is not None:
            return
    else:
        yield from other_ports(settings)
    yield from machine(settings)


def machine(settings: Settings) -> Iterator[Check]:
    """What a running station would watch itself."""
    offset = time.time() - time.monotonic()
    skew = 0.0
    try:
        seen = seeing.probe(_nearest_folder(settings.home))
        yield conditions.disk(seen)
        skew = seen.skew_seconds
    except OSError as error:
        advice = "let this user write there, or name another folder with --home or ACCORD_HOME"
        yield Check("disk", Status.FAIL, f"{settings.home}: {error.strerror}", advice)
    step = time.time() - time.monotonic() - offset
    yield conditions.clock(seeing.times(Home(settings.home), SystemClock(), skew=skew, step=step))
    yield from seeing.languages(settings.models)
    yield seeing.spark()
    yield conditions.java(find_java())


def keys(home: Home) -> Iterator[Check]:
    """Is the device key there and sound, where there has been a station?"""
    try:
        key = kept_key(home)
        yield Check("device key", Status.OK, key.id if key else "the first start makes it")
    except AccordError as error:
        yield conditions.refusal("device key", error)


def stores(settings: Settings) -> Iterator[Check]:
    """Can this version read every store?"""
    from accord.station.vintage import troubles  # which knows the stores, and so loads every plane

    found = 0
    for name, trouble in troubles(settings):
        found += 1
        if trouble is not None:
            yield conditions.refusal(f"store {name}", trouble)
    yield Check("stores", Status.OK, f"{found} looked at")


def other_ports(settings: Settings) -> Iterator[Check]:
    """Are the ports of the bus, of NATS and of the relay free, where the settings name them?"""
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
            yield Check(name, Status.OK, f"{host}:{number} is free")
        except StationError as error:
            advice = f"the rest of the station works without it; choose another with {setting}"
            yield Check(name, Status.WARN, f"{host}:{number}: {error.what}", advice, "taken")


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
    """Is the port free, or held by this very station, which may have been told another?"""
    wanted = f"{settings.station.host}:{settings.station.port}"
    held = holder(Home(settings.home))
    if held is not None and held.is_station:
        own = held.address.partition("://")[2]
        told = "" if own == wanted else f"; the settings say {wanted}"
        seen = f"{own} is held by this home's own station, process {held.pid}{told}"
        return Check("port", Status.OK, seen)
    try:
        listener.bind(settings.station.host, settings.station.port).close()
    except StationError as error:
        return Check("port", Status.FAIL, f"{wanted}: {error.what}", error.mend or "", "taken")
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
        yield _part(plane["name"], plane, Status.OK if plane.get("well") else Status.FAIL)
        for part in plane.get("parts", ()):
            well = part.get("well") is True
            yield _part(part["name"], part, Status.OK if well else Status.WARN)


def _part(name: str, row: dict[str, Any], status: Status) -> Check:
    # A reason is a sentence that ends with its remedy.
    seen = ": ".join(filter(None, (row["state"], row.get("reason", ""))))
    return Check(name, status, seen)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_there(name: str, modules: list[str]) -> bool:
    """Whether a package is installed: its modules are found, or it has none but a program."""
    if not modules:
        return any(importlib.metadata.distributions(name=name))
    return any(importlib.util.find_spec(module) for module in modules if module.isidentifier())


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
