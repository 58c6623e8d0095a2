"""An HTTP client that goes only where the policy lets it.

Owns the one way out: a name is resolved once, every address that it has is judged, and the
connection goes to a judged address, while TLS and the Host header keep the name. Redirects are not
followed, no proxy of the environment is used and no connection is shared between names.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address
from typing import Final, TypeAlias

import httpx

from accord.relay.outgoing.policy import (
    Address,
    OutgoingPolicy,
    address_allowed,
    url_allowed,
)

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[Address]]]

SECONDS: Final = 5.0
# Further addresses of one name would only be tried after these have failed to connect.
_TRIES: Final = 3
# Names are chosen by others: one that takes for ever to resolve must hold up nothing else.
_RESOLVING: Final = ThreadPoolExecutor(8, thread_name_prefix="resolve")


async def resolve(host: str, port: int) -> Sequence[Address]:
    """The addresses of a name, in the order in which the system would try them.

    Raises:
        OSError: The name has none.
    """
    try:
        found = await asyncio.get_running_loop().run_in_executor(
            _RESOLVING, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        )
    except UnicodeError as error:
        raise OSError(0, "not a host name") from error
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))


class GuardedTransport(httpx.AsyncBaseTransport):
    """Judges where a request goes, and pins it to the address that was judged.

    Args:
        policy: What is allowed.
        resolver: How names become addresses.
        inner: What really connects; made here unless a test brings its own.
    """

    def __init__(
        self,
        policy: OutgoingPolicy,
        *,
        resolver: Resolver = resolve,
        inner: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        # A kept connection would be found again by its address alone, and so by another name.
        self._inner = inner or httpx.AsyncHTTPTransport(
            trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            RelayError: The policy does not allow it; nothing was sent.
            httpx.TransportError: It could not be sent.
        """
        url = request.url
        addresses = await self._judged(url)
        extensions = {**request.extensions, "sni_hostname": url.host}
        failure = httpx.ConnectError("the name has no address", request=request)
        for address in addresses[:_TRIES]:
            pinned = httpx.Request(
                request.method,
                url.copy_with(host=str(address)),
                headers=request.headers,  # with the Host that the client wrote for the name
                stream=request.stream,
                extensions=extensions,
            )
            try:
                return await self._inner.handle_async_request(pinned)
            except httpx.ConnectError as error:
                failure = error  # nothing was sent, so the next address may be tried
        raise failure

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._inner.aclose()

    async def _judged(self, url: httpx.URL) -> Sequence[Address]:
        url_allowed(str(url), self._policy).demand()
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            addresses = await self._resolver(url.host, port)
        except OSError as error:
            raise httpx.ConnectError(f"the name cannot be resolved ({error.strerror})") from error
        for address in addresses:
            # A name with one inner address is not to be trusted at all.
            address_allowed(address, self._policy).demand()
        return addresses


def guarded_client(
    policy: OutgoingPolicy, *, resolver: Resolver = resolve, seconds: float = SECONDS
) -> httpx.AsyncClient:
    """A client that goes only where the policy lets it; close it when done.

    Args:
        policy: What is allowed.
        resolver: How names become addresses.
        seconds: How long each step may take; wrap a request in `asyncio.timeout` to bound it all.
    """
    return httpx.AsyncClient(
        transport=GuardedTransport(policy, resolver=resolver),
        follow_redirects=False,
        trust_env=False,
        timeout=seconds,
        headers={"user-agent": "accord-relay"},
    )
