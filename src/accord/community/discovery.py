"""Discovery: multicast DNS on the local network, and nodes of the same user on this machine.

Anybody on the network can announce anything: announcements are only hints, and their number is
bounded.
"""

import asyncio
import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from zeroconf import Error, InterfaceChoice, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from accord.community.errors import Code, CommunityError
from accord.community.peers import Endpoint, Hint
from accord.community.rules import formats
from accord.community.rules.formats import display_id

_log = structlog.stdlib.get_logger(__name__)

_MOST: Final = 1024


@contextmanager
def announced(port: int) -> Iterator[None]:
    """Announce a listening port to other nodes of this user, while this context is open."""
    try:
        held = _hold(_folder() / str(port))
    except OSError as error:
        _log.warning("other nodes on this machine do not find this one", why=str(error))
        held = None
    try:
        yield
    finally:
        if held is not None:
            with suppress(OSError):
                (_folder() / str(port)).unlink()
            os.close(held)


def announced_ports() -> frozenset[int]:
    """The ports of this machine on which nodes of this user listen."""
    try:
        entries = [entry for _, entry in zip(range(_MOST), _folder().iterdir(), strict=False)]
    except OSError:
        return frozenset()
    return frozenset(int(entry.name) for entry in entries if _is_held(entry))


def _folder() -> Path:
    """The folder, created if missing; raises `OSError` if others could write to it."""
    own = os.getuid()
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{own}")
    if runtime.is_absolute() and os.access(runtime, os.W_OK):
        folder = runtime / "accord-nodes"
    else:
        folder = Path(tempfile.gettempdir()) / f"accord-nodes-{own}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != own or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's own")
    return folder


def _hold(path: Path) -> int:
    while True:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_SH)
            # Another node may have taken it for a stale one and removed it before it was locked.
            if path.exists() and os.path.samestat(os.fstat(held), path.stat()):
                return held
        except OSError:
            os.close(held)
            raise
        os.close(held)


def _is_held(path: Path) -> bool:
    if not path.name.isascii() or not path.name.isdecimal():
        return False
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        # Its node was killed.
        with suppress(OSError):
            path.unlink()
        return False
    finally:
        os.close(opened)


SERVICE: Final = "_hearthnet._tcp.local."
MAX_NAMES: Final = 256
"""How many announced names are followed at one time."""

_MAX_ADDRESSES: Final = 8
_MAX_SHOWN: Final = 8
_RESOLVE_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node announces on the local network.

    Attributes:
        communities: Full ids; only the display ids of the first few are announced.
    """

    node_id: str
    communities: tuple[str, ...]
    addresses: tuple[str, ...]
    port: int
    transport: str

    def properties(self) -> dict[str, str]:
        """The TXT record."""
        return {
            "version": "1",
            "node_id": self.node_id,
            "communities": ",".join(map(display_id, self.communities[:_MAX_SHOWN])),
            "port": str(self.port),
            "transport": self.transport,
        }


class LocalNetwork:
    """Multicast DNS for one node, from `start` to `close`.

    `noticed` is called with a hint for each announced node; `interfaces` default to all.
    """

    def __init__(
        self, noticed: Callable[[Hint], None], *, interfaces: Sequence[str] | None = None
    ) -> None:
        self._noticed = noticed
        self._interfaces = list(interfaces) if interfaces is not None else InterfaceChoice.All
        self._network: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._following: dict[str, asyncio.Task[None]] = {}

    async def start(self, announcement: Announcement) -> None:
        """Announce this node and listen for others; raises `partition` without multicast."""
        name = display_id(announcement.node_id)
        info = AsyncServiceInfo(
            SERVICE,
            f"{name}.{SERVICE}",
            port=announcement.port,
            properties=announcement.properties(),
            server=f"{name}.local.",
            parsed_addresses=list(announcement.addresses),
        )
        try:
            self._network = AsyncZeroconf(interfaces=self._interfaces)
            await self._network.async_register_service(info, allow_name_change=True)
            self._browser = AsyncServiceBrowser(
                self._network.zeroconf, SERVICE, handlers=[self._changed]
            )
        except (OSError, Error, RuntimeError) as error:
            await self.close()
            raise CommunityError(
                Code.PARTITION,
                f"multicast DNS is not available ({error})",
                mend="configure peers by address",
            ) from error

    async def close(self) -> None:
        """Withdraw the announcement and stop listening."""
        browser, self._browser = self._browser, None
        network, self._network = self._network, None
        if browser is not None:
            await browser.async_cancel()
        following = list(self._following.values())
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        if network is not None:
            await network.async_close()

    def _changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if (
            state_change is ServiceStateChange.Removed
            or name in self._following
            or len(self._following) >= MAX_NAMES
        ):
            return
        task = asyncio.ensure_future(self._follow(zeroconf, service_type, name))
        self._following[name] = task
        task.add_done_callback(lambda _: self._following.pop(name, None))

    async def _follow(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        info = AsyncServiceInfo(service_type, name)
        # A name that cannot be resolved is ignored.
        with contextlib.suppress(OSError, Error):
            if await info.async_request(zeroconf, _RESOLVE_MS):
                for hint in read_hints(info.properties, info.parsed_addresses(), info.port):
                    self._noticed(hint)


def read_hints(
    properties: Mapping[bytes, bytes | None], addresses: Iterable[str], port: int | None
) -> list[Hint]:
    """The hints in an announcement; none if it is malformed."""
    node_id = (properties.get(b"node_id") or b"").decode("ascii", "replace")
    transport = (properties.get(b"transport") or b"").decode("ascii", "replace")
    if not formats.is_id(node_id) or transport not in ("http", "https") or not port:
        return []
    places = list(addresses)[:_MAX_ADDRESSES]
    return [Hint(node_id, Endpoint(transport, host, port)) for host in places]
