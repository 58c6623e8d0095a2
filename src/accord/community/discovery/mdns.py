"""Nodes on the local network, by multicast DNS: `_hearthnet._tcp.local.`.

Announces this node and turns what others announce into hints. Anybody on the network may announce
anything, so little is read, nothing is believed, and the number of names followed is bounded.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from zeroconf import Error, InterfaceChoice, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from accord.community.discovery.peers import Endpoint, Hint
from accord.community.envelope import forms
from accord.community.envelope.names import display_id
from accord.community.errors import Code, CommunityError

SERVICE: Final = "_hearthnet._tcp.local."
MAX_NAMES: Final = 256
"""How many announced names are followed at one time."""

_MAX_ADDRESSES: Final = 8
_MAX_SHOWN: Final = 8
_RESOLVE_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node tells the local network.

    Attributes:
        communities: Full ids; only their display forms are announced, and of the first few.
        addresses: IP addresses of this machine.
    """

    node_id: str
    communities: tuple[str, ...]
    addresses: tuple[str, ...]
    port: int
    transport: str

    def properties(self) -> dict[str, str]:
        """The text record."""
        return {
            "version": "1",
            "node_id": self.node_id,
            "communities": ",".join(map(display_id, self.communities[:_MAX_SHOWN])),
            "port": str(self.port),
            "transport": self.transport,
        }


class LocalNetwork:
    """One node's part in multicast DNS, from `start` to `close`.

    Args:
        noticed: Told of each place where another node might be.
        interfaces: Addresses to speak on; all of the machine's unless given.
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
        """Announce this node, and listen for others.

        Raises:
            CommunityError: The machine has no multicast: `partition`.
        """
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
        """Say goodbye and stop listening."""
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
        # A name that cannot be resolved is as good as no name at all.
        with contextlib.suppress(OSError, Error):
            if await info.async_request(zeroconf, _RESOLVE_MS):
                for hint in read_hints(info.properties, info.parsed_addresses(), info.port):
                    self._noticed(hint)


def read_hints(
    properties: Mapping[bytes, bytes | None], addresses: Iterable[str], port: int | None
) -> list[Hint]:
    """What an announcement says, as far as it has the right form; none where it has not."""
    node_id = (properties.get(b"node_id") or b"").decode("ascii", "replace")
    transport = (properties.get(b"transport") or b"").decode("ascii", "replace")
    if not forms.is_id(node_id) or transport not in ("http", "https") or not port:
        return []
    places = list(addresses)[:_MAX_ADDRESSES]
    return [Hint(node_id, Endpoint(transport, host, port)) for host in places]
