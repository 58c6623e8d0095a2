"""Outgoing requests: responses of limited size, and addresses that others chose.

Clients refuse compressed responses: some hundred bytes can expand to gigabytes, so only `identity`
is requested and accepted.

Addresses of others are those of wake URLs, webhooks, media, endpoints of members. `url_allowed` and
`address_allowed` decide without any network. `guarded_client` resolves a name once, checks all its
addresses and connects to a checked one, while TLS and the Host header keep the name. Redirects and
proxies of the environment are not used.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any, Final, TypeAlias

import httpx

from accord.kernel.errors import AccordError

SMALL: Final = 1 << 20
"""Enough for a status, a manifest or an error."""

_IDENTITY: Final = {"accept-encoding": "identity"}


class ResponseError(httpx.RequestError):
    """A response that is compressed or too long; the rest of it is not read."""


class _BoundedBody(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A body that fails after so many bytes."""

    def __init__(self, inner: Any, most: int) -> None:
        self._inner = inner
        self._left = most
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield self._counted(part)

    def __iter__(self) -> Iterator[bytes]:
        for part in self._inner:
            yield self._counted(part)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def close(self) -> None:
        self._inner.close()

    def _counted(self, part: bytes) -> bytes:
        self._left -= len(part)
        if self._left < 0:
            raise _too_long(self._most)
        return part


def bounded_client(
    most: int | None, *, headers: Mapping[str, str] | None = None, **options: Any
) -> httpx.AsyncClient:
    """Return a client with a limit of bytes per response; None if each is read by `read_bounded`.

    `options` are those of `httpx.AsyncClient`.
    """

    async def look(response: httpx.Response) -> None:
        _limit_response(response, most)

    return httpx.AsyncClient(
        headers={**_IDENTITY, **(headers or {})}, event_hooks={"response": [look]}, **options
    )


def bounded_sync_client(most: int, **options: Any) -> httpx.Client:
    """Return the synchronous counterpart of `bounded_client`."""

    def look(response: httpx.Response) -> None:
        _limit_response(response, most)

    return httpx.Client(headers=_IDENTITY, event_hooks={"response": [look]}, **options)


async def read_bounded(response: httpx.Response, most: int) -> bytes:
    """Read a streamed response; `ResponseError` if compressed or longer than `most` bytes."""
    _limit_response(response, most)
    declared = response.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and int(declared[:20]) > most:
        raise _too_long(most)
    # Its encoding is identity, so these are the bytes that were sent.
    return b"".join([part async for part in response.aiter_bytes()])


def _limit_response(response: httpx.Response, most: int | None) -> None:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ResponseError("the answer is compressed, which was not asked for")
    if most is None:
        return
    if not response.is_stream_consumed:
        response.stream = _BoundedBody(response.stream, most)


def _too_long(most: int) -> ResponseError:
    return ResponseError(f"the answer has more than {most} bytes")


Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[Address]]]

MAX_URL: Final = 2048
MAX_ANSWER: Final = 16 << 20
SECONDS: Final = 5.0
_PORTS: Final = {"https": 443, "http": 80}
# How many addresses of one name are tried.
_TRIES: Final = 3
# A name that takes for ever to resolve must not block anything else. Each such name holds a thread
# until the system gives up, and others choose the names.
_RESOLVING: Final = ThreadPoolExecutor(64, thread_name_prefix="resolve")


class OutgoingError(AccordError):
    """A request that the policy does not allow; `where` is the rule. Nothing was sent."""


@dataclass(frozen=True, slots=True)
class OutgoingVerdict:
    """Whether something may be reached, by which rule, and the reason."""

    allowed: bool
    rule: str
    reason: str

    def demand(self) -> None:
        """Raise `OutgoingError` unless it is allowed."""
        if not self.allowed:
            raise OutgoingError(self.reason, where=self.rule)


@dataclass(frozen=True, slots=True)
class OutgoingPolicy:
    """What the operator allows beyond the public internet by HTTPS on port 443."""

    http: bool = False  # whether plain `http` may be used
    ports: frozenset[int] = frozenset()  # ports besides the scheme's own
    # Ranges that may be reached although they are not public.
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
# The IPv6 space that IANA has assigned so far.
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")

_PUBLIC: Final = OutgoingVerdict(True, "outgoing.public", "the address is on the public internet")


def address_allowed(address: Address, policy: OutgoingPolicy) -> OutgoingVerdict:
    """Decide whether a connection to this address may be made."""
    bare = IPv6Address(int(address)) if isinstance(address, IPv6Address) else address
    if any(_within(bare, network) for network in policy.networks):
        return OutgoingVerdict(
            True, "outgoing.configured", f"{address} is allowed by configuration"
        )
    for network, rule, what in _REFUSED:
        if _within(bare, network):
            return OutgoingVerdict(False, rule, f"{address} {what}")
    if isinstance(bare, IPv6Address) and bare not in _GLOBAL_IPV6:
        return OutgoingVerdict(False, "outgoing.reserved", f"{address} is reserved")
    return _PUBLIC


def url_allowed(url: str, policy: OutgoingPolicy) -> OutgoingVerdict:
    """Decide whether a URL may be requested; its name is not resolved.

    The reasons never contain the URL, whose path may be a secret.
    """
    if len(url) > MAX_URL:
        return OutgoingVerdict(
            False, "outgoing.url", f"the URL is longer than {MAX_URL} characters"
        )
    try:
        parsed = httpx.URL(url)
        port = parsed.port
    except (httpx.InvalidURL, ValueError, TypeError):
        return OutgoingVerdict(False, "outgoing.url", "this is not a URL")
    if parsed.scheme not in _PORTS or not parsed.host or parsed.host.strip(".") == "":
        return OutgoingVerdict(
            False, "outgoing.url", "the URL has no scheme or host that can be used"
        )
    if parsed.scheme == "http" and not policy.http:
        return OutgoingVerdict(False, "outgoing.scheme", "the URL is not https")
    if parsed.userinfo:
        return OutgoingVerdict(False, "outgoing.userinfo", "the URL carries a user or a password")
    if port is not None and port != _PORTS[parsed.scheme] and port not in policy.ports:
        return OutgoingVerdict(False, "outgoing.port", f"port {port} may not be used")
    try:
        literal = ip_address(parsed.host)
    except ValueError:
        return OutgoingVerdict(
            True,
            "outgoing.named",
            "a host name is allowed or refused by the addresses it resolves to",
        )
    return address_allowed(literal, policy)


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Resolve a name, in the order of the system; raises `OSError`."""
    try:
        return [ip_address(host)]  # it waits for no name
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().run_in_executor(
            _RESOLVING, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        )
    except UnicodeError as error:
        raise OSError(0, "not a host name") from error
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))


class GuardedTransport(httpx.AsyncBaseTransport):
    """Checks where a request goes, and pins it to a checked address."""

    def __init__(
        self,
        policy: OutgoingPolicy,
        *,
        resolver: Resolver = resolve,
        inner: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        # Kept connections are found by address alone, and so would serve another name.
        self._inner = inner or httpx.AsyncHTTPTransport(
            trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            OutgoingError: The policy does not allow it; nothing was sent.
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
        """Close the connections."""
        await self._inner.aclose()

    async def _judged(self, url: httpx.URL) -> Sequence[Address]:
        url_allowed(str(url), self._policy).demand()
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            addresses = await self._resolver(url.host, port)
        except OSError as error:
            raise httpx.ConnectError(f"the name cannot be resolved ({error.strerror})") from error
        for address in addresses:
            # One internal address is enough to refuse a name.
            address_allowed(address, self._policy).demand()
        return addresses


def guarded_client(
    policy: OutgoingPolicy, *, resolver: Resolver = resolve, seconds: float = SECONDS
) -> httpx.AsyncClient:
    """Return a client that goes only where the policy allows; close it when done.

    `seconds` limits each step; use `asyncio.timeout` to limit the whole request.
    """
    return bounded_client(
        MAX_ANSWER,
        transport=GuardedTransport(policy, resolver=resolver),
        follow_redirects=False,
        trust_env=False,
        timeout=seconds,
        headers={"user-agent": "accord"},
    )
