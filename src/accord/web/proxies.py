"""The client's address behind trusted proxies, by `X-Forwarded-For`.

The header is read from its end: the first address that is not a trusted proxy's is the client's.
Without a trusted proxy it is ignored.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEADER = b"x-forwarded-for"


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
    """Return the client's address of a request.

    Args:
        peer: The connected address.
        said: Every `X-Forwarded-For` header, in order.
        networks: The ranges of trusted proxies.
    """
    believed = _address(peer)
    if believed is None:
        return peer
    steps = ",".join(said).split(",")
    while _is_in(believed, networks) and steps:
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


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)
