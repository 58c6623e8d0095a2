"""The home folder of a station: its layout, its lock and the device key.

What is created can be undone: a start that fails leaves the disk as it was.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from accord.kernel.signing import SigningKey
from accord.station.errors import HomeHeldError, StationError

LOCK_NAME = "station.lock"
_ASK_SECONDS = 5.0
_METRICS_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Home:
    """The paths in a station's folder, whether or not they exist."""

    path: Path

    @property
    def device_key(self) -> Path:
        """The key that the station signs with."""
        return self.path / "keys" / "device.ed25519"

    @property
    def authority_token(self) -> Path:
        """The operators' token for a running authority; only the station's user can read it."""
        return self.path / "keys" / "authority.token"

    @property
    def stores(self) -> Path:
        """The folder of SQLite files."""
        return self.path / "stores"

    @property
    def services(self) -> Path:
        """A folder for each service that runs here, with its key and journal."""
        return self.path / "services"

    @property
    def console(self) -> Path:
        """The console's login links and sessions, as digests."""
        return self.path / "console"

    @property
    def log_file(self) -> Path:
        """The log file."""
        return self.path / "logs" / "station.log"


@dataclass(frozen=True, slots=True)
class HomeHolder:
    """The process that holds a home, according to the lock file."""

    pid: int
    address: str

    @property
    def is_station(self) -> bool:
        """Whether it listens; a command that holds a home for a moment does not."""
        return self.address.startswith("http")


@contextmanager
def hold_home(home: Home, address: str, undo: ExitStack) -> Iterator[None]:
    """Create the home if needed and hold its lock until the end of the block.

    Args:
        address: Where the station listens, for others that find the home locked.
        undo: Collects callbacks that remove everything created here.

    Raises:
        HomeHeldError: Another process holds it.
        StationError: The folder cannot be created or written to.
    """
    with ExitStack() as held:
        try:
            _make_folder(home.path, undo)
            lock = held.enter_context(_locked(home.path / LOCK_NAME, undo))
            lock.truncate()
            lock.write(json.dumps({"pid": os.getpid(), "address": address}).encode())
            for folder in (home.device_key.parent, home.stores, home.log_file.parent):
                _make_folder(folder, undo)
        except OSError as error:
            raise StationError(
                f"the home folder cannot be used: {error.strerror}",
                where=str(home.path),
                mend="let this user write to it, or name another with --home or ACCORD_HOME",
            ) from error
        yield


def home_holder(home: Home) -> HomeHolder | None:
    """Return the process that holds the home now."""
    try:
        with FileIO(home.path / LOCK_NAME) as lock:
            return None if _lock(lock, fcntl.LOCK_SH) else _read_holder(lock)
    except OSError:
        # Without a readable lock file there is no station.
        return None


def ask_station(address: str) -> dict[str, Any] | None:
    """Return the state of the station at an address; None if it does not answer."""
    import httpx

    from accord.web import outgoing

    try:
        with outgoing.bounded_sync_client(
            outgoing.SMALL, timeout=_ASK_SECONDS, trust_env=False
        ) as client:
            answer = client.get(f"{address}/readyz").json()
    except (httpx.HTTPError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def read_metrics(address: str, token: str) -> str:
    """Return the metrics of the station at an address, in Prometheus's text format.

    Raises:
        StationError: It does not answer, or refuses the token.
    """
    import httpx

    from accord.web import outgoing

    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with outgoing.bounded_sync_client(
            _METRICS_BYTES, timeout=_ASK_SECONDS, trust_env=False
        ) as client:
            answer = client.get(f"{address}/metrics", headers=headers)
    except httpx.HTTPError:
        raise StationError(
            "the station does not answer", where=address, mend="`accord status` says why"
        ) from None
    if answer.status_code != httpx.codes.OK:
        raise StationError(
            f"the station refuses to show its metrics ({answer.status_code})",
            where=address,
            mend="the running station has another [metrics] token than the settings; restart it",
        )
    return answer.text


def load_device_key(home: Home) -> SigningKey | None:
    """Load the station's key; None before the first start.

    Raises:
        AccordError: The key file is damaged or readable by others; or it is missing although the
            community's log here is signed with it.
    """
    if home.device_key.exists():
        return SigningKey.load(home.device_key)
    had_one = any(home.path.glob("communities/*/signed.*"))
    if had_one or (home.stores / "community.db").exists():
        raise StationError(
            "the device key of this station is missing",
            where=str(home.device_key),
            mend="put it back from a backup, or name another home to begin anew",
        )
    return None


def ensure_device_key(home: Home, undo: ExitStack) -> SigningKey:
    """Load the station's key, or create it on the first start; raises as `load_device_key`."""
    if (key := load_device_key(home)) is not None:
        return key
    undo.callback(home.device_key.unlink, missing_ok=True)
    return SigningKey.create(home.device_key)


def _make_folder(path: Path, undo: ExitStack) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700)
        undo.callback(shutil.rmtree, folder)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


@contextmanager
def _locked(path: Path, undo: ExitStack) -> Iterator[FileIO]:
    while True:
        existed = path.exists()
        with FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as lock:
            if not _lock(lock, fcntl.LOCK_EX):
                held = _read_holder(lock)
                who = f"process {held.pid} at {held.address}" if held else "another process"
                raise HomeHeldError(
                    f"{who} already runs the station of this home",
                    where=str(path.parent),
                    mend="stop it first, or name another home with --home or ACCORD_HOME",
                )
            # A failed start may have unlinked the file between our open and our lock.
            if not path.exists() or path.stat().st_ino != os.fstat(lock.fileno()).st_ino:
                continue
            if not existed:
                undo.callback(path.unlink, missing_ok=True)
            yield lock
            return


def _lock(file: FileIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(lock: FileIO) -> HomeHolder | None:
    try:
        written = json.loads(lock.read(1000))
        return HomeHolder(int(written["pid"]), str(written["address"]))
    except (ValueError, KeyError, TypeError):
        # The holder has just begun to write.
        return None
