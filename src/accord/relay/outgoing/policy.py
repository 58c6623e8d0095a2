"""Which URLs and addresses the connector may go out to: the decision, without any network.

Owns the table of ranges that are never on the public internet, or that wrap an address which might
not be. It resolves nothing: a name is judged by the addresses that it turns out to have.
"""

from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias

import httpx

from accord.relay.errors import Code, RelayError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

MAX_URL: Final = 2048
_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something may be reached, by which rule, and why, as a sentence."""

    allowed: bool
    rule: str
    reason: str

    def demand(self) -> None:
        """Go on only where it is allowed.

        Raises:
            RelayError: It is not.
        """
        if not self.allowed:
            raise RelayError(Code.FORBIDDEN, self.reason, where=self.rule)


@dataclass(frozen=True, slots=True)
class OutgoingPolicy:
    """What the operator allows beyond the public internet by HTTPS on port 443.

    Args:
        http: Whether plain `http` may be used.
        ports: Ports besides the scheme's own.
        networks: Ranges that may be reached although they are not public.
    """

    http: bool = False
    ports: frozenset[int] = frozenset()
    networks: tuple[Network, ...] = field(default=())


# The special-purpose registries of IANA, with the ranges that wrap an IPv4 address.
_REFUSED: Final[tuple[tuple[Network, str, str], ...]] = tuple(
    (ip_network(network), f"outgoing.{rule}", what)
    for network, rule, what in (
        ("0.0.0.0/8", "unspecified", "means this host"),
        ("10.0.0.0/8", "private", "is a private network"),
        ("100.64.0.0/10", "shared", "is shared by a carrier's customers"),
        ("127.0.0.0/8", "loopback", "is this machine"),
        ("169.254.0.0/16", "link-local", "is link-local, where clouds keep their metadata"),
        ("172.16.0.0/12", "private", "is a private network"),
        ("192.0.0.0/24", "special", "is set aside for protocols"),
        ("192.0.2.0/24", "documentation", "exists in documentation only"),
        ("192.31.196.0/24", "special", "is set aside for name servers"),
        ("192.52.193.0/24", "special", "is set aside for multicast tunnels"),
        ("192.88.99.0/24", "wrapped", "relays to 6to4"),
        ("192.168.0.0/16", "private", "is a private network"),
        ("192.175.48.0/24", "special", "is set aside for name servers"),
        ("198.18.0.0/15", "special", "is set aside for measurements"),
        ("198.51.100.0/24", "documentation", "exists in documentation only"),
        ("203.0.113.0/24", "documentation", "exists in documentation only"),
        ("224.0.0.0/4", "multicast", "is multicast"),
        ("240.0.0.0/4", "reserved", "is reserved"),
        ("::/128", "unspecified", "means this host"),
        ("::1/128", "loopback", "is this machine"),
        ("::ffff:0:0/96", "wrapped", "wraps an IPv4 address"),
        ("::/96", "wrapped", "wraps an IPv4 address"),
        ("64:ff9b::/96", "wrapped", "is translated to an IPv4 address"),
        ("64:ff9b:1::/48", "wrapped", "is translated to an IPv4 address"),
        ("100::/64", "special", "is discarded"),
        ("2001::/23", "special", "is set aside for protocols, Teredo among them"),
        ("2001:db8::/32", "documentation", "exists in documentation only"),
        ("2002::/16", "wrapped", "wraps an IPv4 address by 6to4"),
        ("2620:4f:8000::/48", "special", "is set aside for name servers"),
        ("3fff::/20", "documentation", "exists in documentation only"),
        ("5f00::/16", "special", "is set aside for segment routing"),
        ("fc00::/7", "private", "is a private network"),
        ("fd00:ec2::/32", "private", "is where clouds keep their metadata"),
        ("fe80::/10", "link-local", "is link-local"),
        ("fec0::/10", "private", "is a private network"),
        ("ff00::/8", "multicast", "is multicast"),
    )
)
# What IANA has given out of IPv6 so far; whatever else appears is not there to be reached.
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")

_PUBLIC: Final = Verdict(True, "outgoing.public", "the address is on the public internet")


def address_allowed(address: Address, policy: OutgoingPolicy) -> Verdict:
    """Whether a connection to this address may be made."""
    bare = IPv6Address(int(address)) if isinstance(address, IPv6Address) else address
    if any(_within(bare, network) for network in policy.networks):
        return Verdict(True, "outgoing.configured", f"{address} is allowed by configuration")
    for network, rule, what in _REFUSED:
        if _within(bare, network):
            return Verdict(False, rule, f"{address} {what}")
    if isinstance(bare, IPv6Address) and bare not in _GLOBAL_IPV6:
        return Verdict(False, "outgoing.reserved", f"{address} is reserved")
    return _PUBLIC


def url_allowed(url: str, policy: OutgoingPolicy) -> Verdict:
    """Whether a URL has a form that may be requested; its name is not resolved.

    The reasons never repeat the URL, whose path may be a secret.
    """
    if len(url) > MAX_URL:
        return Verdict(False, "outgoing.url", f"the URL is longer than {MAX_URL} characters")
    try:
        parsed = httpx.URL(url)
        port = parsed.port
    except (httpx.InvalidURL, ValueError, TypeError):
        return Verdict(False, "outgoing.url", "this is not a URL")
    if parsed.scheme not in _PORTS or not parsed.host or parsed.host.strip(".") == "":
        return Verdict(False, "outgoing.url", "the URL has no scheme or host that can be used")
    if parsed.scheme == "http" and not policy.http:
        return Verdict(False, "outgoing.scheme", "the URL is not https")
    if parsed.userinfo:
        return Verdict(False, "outgoing.userinfo", "the URL carries a user or a password")
    if port is not None and port != _PORTS[parsed.scheme] and port not in policy.ports:
        return Verdict(False, "outgoing.port", f"port {port} may not be used")
    try:
        literal = ip_address(parsed.host)
    except ValueError:
        return Verdict(True, "outgoing.named", "the name is judged by its addresses")
    return address_allowed(literal, policy)


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network
