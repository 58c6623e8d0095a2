"""Whose request it is behind a proxy: by `X-Forwarded-For`, where the proxy is one we trust.

Owns which of the addresses in that header is believed: read from its end, the first that is not a
trusted proxy's own. Anybody can write anything before that one. A request that did not come through
a trusted proxy is by whoever sent it, whatever it says.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEADER = b"x-forwarded-for"


class TrustedProxies:
    """Lets an application see the client's own address.

    Args:
        app: What is served.
        networks: The ranges of the proxies.
    """

    def __init__(self, app: ASGIApp, networks: Sequence[Network]) -> None:
        self._app = app
        self._networks = networks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on as its client's."""
        if self._networks and scope["type"] in ("http", "websocket") and scope.get("client"):
            host, port = scope["client"]
            said = [value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER]
            client = client_of(host, said, self._networks)
            scope = {**scope, "client": (client, port if client == host else 0)}
        await self._app(scope, receive, send)


def client_of(peer: str, said: Iterable[str], networks: Sequence[Network]) -> str:
    """The address of whoever a request is from.

    Args:
        peer: Who sent it to us.
        said: Every `X-Forwarded-For` of it, in order.
        networks: The ranges of the proxies that are believed.
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
    """An address as proxies write it: alone, or with a port."""
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
