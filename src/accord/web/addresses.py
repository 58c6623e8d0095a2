"""Addresses of clients, for limits and local access, and the Host header."""

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Final

# Headers that a proxy adds; then the connected address is not the client's.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


_PORT: Final = re.compile(r":[0-9]{1,5}\Z")


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
    """Whether a request was made on this machine and not passed on by a proxy here.

    Args:
        host: The connected address.
        headers: By lower-case names.
    """
    return is_loopback(host) and not any(name in headers for name in _FORWARDED)


def is_own_name(host: str, names: Collection[str] = (), *, is_reached_from_afar: bool) -> bool:
    """Whether a server may answer for the name in a request's `Host`, against DNS rebinding.

    Accepted are addresses and own names, which another site cannot claim.

    Args:
        host: The header; empty if a request has none.
        names: Further names of the server, in lower case and without a port.
        is_reached_from_afar: Whether other machines reach the server; names without a dot, which
            belong to their network, are accepted then.
    """
    name = _PORT.sub("", host.strip().lower())
    if not name or name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return is_reached_from_afar and re.fullmatch(r"[a-z0-9_-]{1,63}", name) is not None
    return True
