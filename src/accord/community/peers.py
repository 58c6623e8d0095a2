"""Other nodes: which are known, how they are found, and what this node tells them of itself.

Discovery is multicast DNS on the local network, and nodes of the same user on this machine. Anybody
on the network can announce anything: announcements are only hints, and their number is bounded.
"""

import asyncio
import contextlib
import fcntl
import ipaddress
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from cachetools import LRUCache
from zeroconf import Error, InterfaceChoice, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from accord.community.bus import Registry
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.hardware import Machine
from accord.community.rules import formats, manifests
from accord.community.rules.formats import display_id
from accord.community.rules.gossip import AddressRecord
from accord.community.rules.manifests import REPUBLISH_SECONDS, Pins, sign_node
from accord.kernel.clock import Clock, parse_time
from accord.kernel.signing import SigningKey

if TYPE_CHECKING:
    from accord.community.communities import HostedCommunity

MAX_PEERS: Final = 1024
MAX_HINTS: Final = 256
HINT_SECONDS: Final = 300.0
"""How long a hint is worth asking."""

MAX_ADDRESSES: Final = 8192
"""How many addresses that were tried are remembered."""


def node_url(scheme: str, host: str, port: int) -> str:
    """The URL of a host, which may be an IPv6 address."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listening address of a node, and the fingerprint of its certificate."""

    transport: str
    host: str
    port: int
    certificate: str | None = None

    @property
    def url(self) -> str:
        """The URL to dial."""
        return node_url(self.transport, self.host, self.port)


@dataclass(frozen=True, slots=True)
class Hint:
    """An address where a node might be."""

    node_id: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that was met in a community.

    Attributes:
        manifest: The last verified one.
        is_member: Whether it was a member then.
        seen: When its last manifest was verified.
        failures: Failed attempts in a row since then.
        met: When the last sync with it ended.
        heard: When it called this node last.
    """

    node_id: str
    community_id: str
    endpoints: tuple[Endpoint, ...]
    manifest: Mapping[str, Any]
    is_member: bool
    seen: float
    failures: int = 0
    met: float | None = None
    heard: float | None = None


class PeerBook:
    """The peers of one node; `pins` are keys that were pinned before."""

    def __init__(self, own_id: str, pins: Pins | None = None) -> None:
        self._own_id = own_id
        self._peers: dict[tuple[str, str], Peer] = {}
        self._hints: dict[Hint, float] = {}
        self._addresses: LRUCache[tuple[str, str], AddressRecord] = LRUCache(MAX_ADDRESSES)
        self.pins = pins or Pins()

    def admit(self, manifest: Any, community_id: str, *, is_member: bool, now: float) -> Peer:
        """Add a node by its manifest, or replace its older manifest.

        Raises:
            CommunityError: What `manifests.check` raises; `invalid_signature` if another key is
                pinned; `bad_request` if it is this node's own manifest or an old one;
                `capacity_exceeded` if the book is full of members.
        """
        manifests.check(manifest, now=now, expected_community=community_id)
        node_id = manifest["node_id"]
        if node_id == self._own_id:
            raise bad_request("this is the node's own manifest")
        key = (community_id, node_id)
        known = self._peers.get(key)
        if known is not None and _issued(manifest) < _issued(known.manifest):
            raise bad_request("a newer manifest of this node is known")
        pins = self.pins.pin(node_id)
        if known is None and len(self._peers) >= MAX_PEERS:
            self._make_room(is_member=is_member)
        if is_member:
            self.pins = pins
        peer = Peer(
            node_id,
            community_id,
            _endpoints(manifest["endpoints"]),
            manifest,
            is_member,
            now,
            met=None if known is None else known.met,
            heard=None if known is None else known.heard,
        )
        self._peers.pop(key, None)
        self._peers[key] = peer
        return peer

    def failed(self, community_id: str, node_id: str) -> None:
        """Record that a peer could not be met at any of its addresses."""
        self._change(community_id, node_id, lambda peer: replace(peer, failures=peer.failures + 1))

    def met(self, community_id: str, node_id: str, *, now: float) -> None:
        """Record that a sync with a peer succeeded."""
        self._change(community_id, node_id, lambda peer: replace(peer, failures=0, met=now))

    def heard(self, community_id: str, node_id: str, *, now: float) -> None:
        """Record that a peer has called this node, so that it is worth trying again."""
        self._change(community_id, node_id, lambda peer: replace(peer, heard=now))

    def unreached(self, community_id: str, address: str, *, now: float) -> None:
        """Record that nobody answered at an address, whether or not a peer was met there."""
        self._addresses[community_id, address] = self.address(community_id, address).failed(now)

    def reached(self, community_id: str, address: str, *, now: float) -> None:
        """Record that a node answered at an address."""
        self._addresses[community_id, address] = self.address(community_id, address).succeeded(now)

    def address(self, community_id: str, address: str) -> AddressRecord:
        """What is known of an address."""
        return self._addresses.get((community_id, address)) or AddressRecord(address)

    def end_pauses(self, community_id: str) -> None:
        """Let every address be tried at once, because it was this node that was away."""
        for key, record in tuple(self._addresses.items()):
            if key[0] == community_id and record.not_before:
                self._addresses[key] = replace(record, not_before=0.0)

    def _change(self, community_id: str, node_id: str, change: Callable[[Peer], Peer]) -> None:
        peer = self._peers.get((community_id, node_id))
        if peer is not None:
            self._peers[community_id, node_id] = change(peer)

    def forget(self, node_id: str) -> None:
        """Remove a node from every community, such as a revoked one; its key stays pinned."""
        for key in [each for each in self._peers if each[1] == node_id]:
            del self._peers[key]

    def peer(self, community_id: str, node_id: str) -> Peer | None:
        """A peer by its id."""
        return self._peers.get((community_id, node_id))

    def peers(self, community_id: str) -> list[Peer]:
        """Every peer of a community: members first, then by failures and by when it was seen."""
        found = [peer for peer in self._peers.values() if peer.community_id == community_id]
        return sorted(found, key=lambda peer: (not peer.is_member, peer.failures, -peer.seen))

    def hint(self, hint: Hint, *, now: float) -> None:
        """Add a hint; the oldest is dropped if there are too many."""
        if hint.node_id == self._own_id:
            return
        self._hints.pop(hint, None)
        while len(self._hints) >= MAX_HINTS:
            del self._hints[next(iter(self._hints))]
        self._hints[hint] = now

    def hints(self, *, now: float) -> list[Hint]:
        """The hints that are not too old, newest first."""
        return [
            hint for hint, noted in reversed(self._hints.items()) if now - noted <= HINT_SECONDS
        ]

    def _make_room(self, *, is_member: bool) -> None:
        strangers = [key for key, peer in self._peers.items() if not peer.is_member]
        leaving = strangers or (list(self._peers) if is_member else [])
        if not leaving:
            raise CommunityError(Code.CAPACITY_EXCEEDED, "the peer book is full of members")
        del self._peers[min(leaving, key=lambda key: self._peers[key].seen)]


def known_urls(book: PeerBook, hosted: "HostedCommunity", node_id: str) -> list[str]:
    """The addresses that a node has told of itself, those of its last manifest first."""
    peer = book.peer(hosted.community_id, node_id)
    found = [] if peer is None else [each.url for each in peer.endpoints]
    logged = hosted.state.content.manifests.get(node_id)
    if logged is not None:
        found += [Endpoint(*each).url for each in logged.endpoints]
    return list(dict.fromkeys(found))


def _issued(manifest: Mapping[str, Any]) -> float:
    return parse_time(manifest["issued_at"])


def _endpoints(written: list[dict[str, Any]]) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(each["transport"], each["host"], each["port"], each.get("certificate"))
        for each in written
    )


_log = structlog.stdlib.get_logger(__name__)

_MOST: Final = 1024


@contextmanager
def announced(port: int) -> Iterator[None]:
    """Announce a listening port to other nodes of this user, while this context is open."""
    try:
        held = _hold(_folder() / str(port))
    except OSError as error:
        _log.warning(
            "this node could not be announced to other nodes on this machine", why=str(error)
        )
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

    @classmethod
    def of(
        cls, node_id: str, communities: Iterable[str], endpoints: Sequence[Endpoint]
    ) -> "Announcement":
        """The announcement of a node with at least one endpoint."""
        return cls(
            node_id,
            tuple(communities),
            tuple(endpoint.host for endpoint in endpoints if _is_address(endpoint.host)),
            endpoints[0].port,
            endpoints[0].transport,
        )

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
        self._info: AsyncServiceInfo | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._following: dict[str, asyncio.Task[None]] = {}

    async def start(self, announcement: Announcement) -> None:
        """Announce this node and listen for others; raises `partition` without multicast."""
        self._info = _service_info(announcement)
        try:
            self._network = AsyncZeroconf(interfaces=self._interfaces)
            await self._network.async_register_service(self._info, allow_name_change=True)
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

    async def announce(self, announcement: Announcement) -> None:
        """Announce other addresses instead; does nothing unless started."""
        if self._network is None or self._info is None:
            return
        fresh = _service_info(announcement, name=self._info.name)
        try:
            await self._network.async_update_service(fresh)
        except (OSError, Error, RuntimeError) as error:
            _log.warning("the new addresses could not be announced", why=str(error))
        else:
            self._info = fresh

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


def _service_info(announcement: Announcement, name: str | None = None) -> AsyncServiceInfo:
    shown = display_id(announcement.node_id)
    return AsyncServiceInfo(
        SERVICE,
        name or f"{shown}.{SERVICE}",
        port=announcement.port,
        properties=announcement.properties(),
        server=f"{shown}.local.",
        parsed_addresses=list(announcement.addresses),
    )


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


async def announce_node(
    announcement: Announcement, running: AsyncExitStack, *, noticed: Callable[[Hint], None]
) -> LocalNetwork | None:
    """Announce a node, and listen for others until `running` ends.

    Without multicast on this machine it only logs a warning and returns None.
    """
    network = LocalNetwork(noticed)
    try:
        await network.start(announcement)
    except CommunityError as error:
        _log.warning("multicast DNS discovery could not be started", why=str(error))
        return None
    running.push_async_callback(network.close)
    return network


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


EXTENSIONS: Final = ("to", "seal", "seal_files")
"""The additions to the protocol that this node keeps."""


class OwnManifests:
    """The manifests of one node.

    `endpoints` are empty until it listens; `names` has its display name by community, where that
    differs from the general one. `look` tells the endpoints of the moment, or None where this
    machine has no network; without it they do not change.
    """

    def __init__(
        self, key: SigningKey, clock: Clock, registry: Registry, display_name: str, machine: Machine
    ) -> None:
        self._machine = machine
        self.endpoints: Sequence[Endpoint] = ()
        self.look: Callable[[], Sequence[Endpoint] | None] | None = None
        self.network: LocalNetwork | None = None
        self._seen: Sequence[Endpoint] | None = None
        self.names: dict[str, str] = {}
        self._key = key
        self._clock = clock
        self._registry = registry
        self._display_name = display_name
        self._born = clock.monotonic()
        self._made: dict[str, tuple[float, Mapping[str, Any], Mapping[str, Any]]] = {}

    async def follow_address(self, communities: Iterable[str]) -> bool:
        """Look at this machine's addresses; returns whether others must learn new ones.

        They change only if two looks in a row see the same, so that a network that comes and goes
        does not fill the log.
        """
        if self.look is None:
            return False
        now = await asyncio.to_thread(self.look)
        seen, self._seen = self._seen, now
        if not now or now != seen or list(now) == list(self.endpoints):
            return False
        _log.info(
            "this node's addresses have changed",
            before=[each.url for each in self.endpoints],
            now=[each.url for each in now],
        )
        self.endpoints = tuple(now)
        if self.network is not None:
            await self.network.announce(Announcement.of(self._key.id, communities, now))
        return True

    def manifest(self, hosted: "HostedCommunity") -> Mapping[str, Any]:
        """The signed manifest for a community, at most twenty seconds old."""
        lasting = self.lasting(hosted)
        made = self._made.get(hosted.community_id)
        now = self._clock.now()
        if made is not None and 0 <= now - made[0] < REPUBLISH_SECONDS and made[1] == lasting:
            return made[2]
        manifest = sign_node(self._key, {**lasting, **self._passing()}, now=now)
        self._made[hosted.community_id] = now, lasting, manifest
        return manifest

    async def log_manifest(self, hosted: "HostedCommunity") -> None:
        """Log this node's manifest, unless its lasting part is logged already."""
        if not hosted.is_member or hosted.log.is_recovering:
            return
        manifest = self.manifest(hosted)
        logged = hosted.state.content.manifests.get(self._key.id)
        if (
            logged is None
            or logged.display_name != manifest["display_name"]
            or not {*logged.extensions} >= {*manifest["extensions"]}
            or [Endpoint(*each) for each in logged.endpoints] != list(self.endpoints)
        ):
            try:
                await hosted.log.append("node.manifest.updated", {"manifest": dict(manifest)})
            except CommunityError as error:
                # It is tried again with the next round; others find this node by other ways.
                _log.warning("the node's manifest could not be logged", why=str(error))

    def name_in(self, community_id: str) -> str:
        """This node's display name in a community."""
        return self.names.get(community_id, self._display_name)

    def lasting(self, hosted: "HostedCommunity") -> Mapping[str, Any]:
        """The part of the manifest that seldom changes."""
        return {
            "display_name": self.name_in(hosted.community_id),
            "community_id": hosted.community_id,
            "profile": hosted.level_of(self._key.id).text,
            "endpoints": [_endpoint(each) for each in self.endpoints],
            "hardware": self._machine.hardware(),
            "capabilities": self._registry.listings(),
            "extensions": list(EXTENSIONS),
        }

    def _passing(self) -> Mapping[str, Any]:
        registry = self._registry
        return {
            "uptime_seconds": int(self._clock.monotonic() - self._born),
            "load": self._machine.load(registry.in_hand, registry.waiting),
        }


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    written: dict[str, Any] = {
        "transport": endpoint.transport,
        "host": endpoint.host,
        "port": endpoint.port,
    }
    if endpoint.certificate is not None:
        written["certificate"] = endpoint.certificate
    return written
