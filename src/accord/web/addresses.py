"""Addresses of clients, for limits and local access, behind trusted proxies, and the Host header.

`X-Forwarded-For` is read from its end: the first address that is not a trusted proxy's is the
client's. Without a trusted proxy it is ignored.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

# Headers that a proxy adds; then the connected address is not the client's.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


_PORT: Final = re.compile(r":[0-9]{1,5}\Z")
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_HEADER = b"x-forwarded-for"


def address_key(host: str) -> str:
    """Return the key of an address for limits: an IPv6 /64 network, or a mapped IPv4 address."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped) if address.ipv4_mapped else address.packed[:8].hex()


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_from_here(host: str, headers: Mapping[str, str]) -> bool:
    """Whether a request was made on this machine and not passed on by a proxy here."""
    return is_loopback(host) and not any(name in headers for name in _FORWARDED)


def is_own_name(host: str, names: Collection[str] = (), *, is_reached_from_afar: bool) -> bool:
    """Whether a server may answer for the name in a request's `Host`, against DNS rebinding.

    Accepted are addresses and own names, which another site cannot claim.

    `names` are further ones, in lower case and without a port. If other machines reach the server,
    names without a dot, which belong to their network, are accepted too.
    """
    name = _PORT.sub("", host.strip().lower())
    if not name or name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return is_reached_from_afar and re.fullmatch(r"[a-z0-9_-]{1,63}", name) is not None
    return True


class TrustedProxies:
    """ASGI middleware that sets the client's address; `networks` are the proxies' ranges."""

    def __init__(self, app: ASGIApp, networks: Sequence[Network]) -> None:
        self._app = app
        self._networks = networks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the client's address and call the application."""
        if self._networks and scope["type"] in ("http", "websocket") and scope.get("client"):
            host, port = scope["client"]
            said = [value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER]
            client = client_of(host, said, self._networks)
            scope = {**scope, "client": (client, port if client == host else 0)}
        await self._app(scope, receive, send)


def client_of(peer: str, said: Iterable[str], networks: Sequence[Network]) -> str:
    """The client's address; `said` are the `X-Forwarded-For` headers, `networks` the proxies'."""
    believed = _address(peer)
    if believed is None:
        return peer
    steps = ",".join(said).split(",")
    while any(believed in network for network in networks) and steps:
        before = _address(steps.pop())
        if before is None:
            break  # a proxy that writes no address is the last one that is known
        believed = before
    return str(believed)


def _address(text: str) -> Address | None:
    """Parse an address as proxies write it: alone, or with a port."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
