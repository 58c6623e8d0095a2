"""Dial another node: from an address to a client for exactly that node."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from email.utils import parsedate_to_datetime
from ipaddress import IPv6Network, ip_network
from ssl import SSLContext
from typing import Any, Final, NamedTuple

import httpx

from accord.community.client import Client, empty_trust
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.identity import fingerprint, pinned_context, probe_certificate
from accord.community.peers import announced_ports
from accord.community.rules import formats, manifests, wire
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.web import responses
from accord.web.addresses import is_loopback
from accord.web.outgoing import (
    Address,
    GuardedTransport,
    Network,
    OutgoingPolicy,
    OutgoingVerdict,
    address_allowed,
    resolve,
)
from accord.web.responses import ResponseError

DIAL_SECONDS: Final = 10.0
"""How long it may take to reach a node: its name, its certificate and its manifest together."""

_COMPARED: Final = 64
_TRIES: Final = 3
_ADDRESS: Final = re.compile(
    r"(https?)://(?:\[([^\]]+)\]|([^\[\]:/?#@]+)):([0-9]{1,5})/?", re.ASCII
)
_EVERYWHERE: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))
_THIS_MACHINE: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
# Home and private overlay networks, without the metadata addresses of clouds.
_HOME: Final[tuple[Network, ...]] = (
    *map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")),
    *IPv6Network("fc00::/7").address_exclude(IPv6Network("fd00:ec2::/32")),
)


class _DialAddress(NamedTuple):
    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class Dialler:
    """Connects to other nodes as this node.

    `plain_http` allows other machines without TLS; `peers` may be in any network.
    """

    def __init__(
        self, key: SigningKey, clock: Clock, *, plain_http: bool, peers: Iterable[str] = ()
    ) -> None:
        self._key = key
        self._clock = clock
        self._plain_http = plain_http
        self._configured = {place for each in peers if (place := _parsed(each)) is not None}
        self.ahead: dict[str, float] = {}
        """By how many seconds this node's clock is ahead of that of each address, as last told."""

    async def dial(
        self, address: str, community_id: str, opened: AsyncExitStack, *, node_id: str | None = None
    ) -> tuple[Client, Mapping[str, Any]]:
        """Connect to the node at an address, within `DIAL_SECONDS`.

        Args:
            address: `https://host:port`, or `http://host:port` where that is allowed.
            opened: Closes the client.
            node_id: The node that must be there; None for any.

        Returns:
            A client, and the node's verified manifest.

        Raises:
            CommunityError: `partition` if no node answers; `bad_request` if the address is
                malformed or not allowed; what `manifests.check` raises; `invalid_signature` if the
                manifest does not name the certificate.
        """
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                return await self._dial(address, community_id, opened, node_id)
        except TimeoutError:
            raise CommunityError(
                Code.PARTITION,
                f"the node did not answer within {DIAL_SECONDS:g} seconds",
                where=address[:120],
            ) from None

    async def _dial(
        self, address: str, community_id: str, opened: AsyncExitStack, node_id: str | None
    ) -> tuple[Client, Mapping[str, Any]]:
        place = _parsed(address)
        if place is None:
            raise bad_request(
                f"{address[:120]!r} is not the address of a node", mend="expected https://host:port"
            )
        policy = await self._policy(place)
        addresses = await self._judged(place, policy)
        context = shown = None
        if place.scheme == "https":
            reached, shown = await _probe(place, addresses)
            addresses, context = [reached], pinned_context(shown)
        transport = _transport(policy, addresses, context)
        opened.push_async_callback(transport.aclose)
        manifest = await self._manifest(place.url, community_id, transport)
        manifests.check(
            manifest,
            now=self._clock.now(),
            expected_node=node_id,
            expected_community=community_id,
        )
        if shown is not None:
            manifests.check_certificate(manifest, fingerprint(shown))
        client = Client(
            place.url,
            self._key,
            community_id,
            manifest["node_id"],
            ssl_context=context,
            transport=transport,
            clock=self._clock,
        )
        await opened.enter_async_context(client)
        return client, manifest

    async def _policy(self, place: _DialAddress) -> OutgoingPolicy:
        """The networks that an address may lead to."""
        networks: tuple[Network, ...] = _HOME
        if place in self._configured:
            networks = _EVERYWHERE
        elif place.port in await asyncio.to_thread(announced_ports):
            networks = (*_HOME, *_THIS_MACHINE)
        return OutgoingPolicy(http=True, ports=frozenset({place.port}), networks=networks)

    async def _judged(self, place: _DialAddress, policy: OutgoingPolicy) -> Sequence[Address]:
        try:
            addresses = await resolve(place.host, place.port)
        except OSError as error:
            raise CommunityError(
                Code.PARTITION, f"the name has no address ({error.strerror})", where=place.url
            ) from error
        for address in addresses:
            verdict = address_allowed(address, policy)
            if not verdict.allowed:
                raise _refusal(place, verdict)
        is_here = all(is_loopback(str(address)) for address in addresses)
        if place.scheme == "http" and not (is_here or self._plain_http):
            raise bad_request(
                "another machine is dialled with https only",
                where=place.url,
                mend="use https, or set [community] plain_http = true in a network that you trust",
            )
        return addresses

    def _compare(self, address: str, date: str) -> None:
        """Compare clocks. The date is not signed, so it is only used for advice."""
        with suppress(ValueError, OverflowError):
            theirs = parsedate_to_datetime(date).timestamp()
            self.ahead.pop(address, None)
            self.ahead[address] = self._clock.now() - theirs
        while len(self.ahead) > _COMPARED:
            del self.ahead[next(iter(self.ahead))]

    async def _manifest(
        self, address: str, community_id: str, transport: httpx.AsyncBaseTransport
    ) -> Any:
        named = {wire.COMMUNITY: community_id}
        try:
            # Not closed here: the node's client uses the transport, too.
            http = responses.bounded_client(
                manifests.MAX_BYTES, transport=transport, timeout=DIAL_SECONDS
            )
            async with http.stream("GET", f"{address}/manifest", headers=named) as found:
                self._compare(address, found.headers.get("date", ""))
                raw = await responses.read_bounded(found, manifests.MAX_BYTES)
        except ResponseError as error:
            raise bad_request(
                f"the manifest cannot be read: {error}", where=address[:120]
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise CommunityError(
                Code.PARTITION,
                f"the node cannot be reached ({type(error).__name__})",
                where=address[:120],
            ) from error
        if found.status_code != httpx.codes.OK:
            raise CommunityError(
                Code.NOT_FOUND, "the node there is not in this community", where=address[:120]
            )
        return manifests.parse_node(raw)


def _parsed(address: str) -> _DialAddress | None:
    """Parse an address strictly; None if it is malformed or has a path, a query or a user."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return None
    scheme, literal, name, port = match.groups()
    host = literal or name
    if not formats.is_host(host) or (literal is None) is (":" in host) or not 0 < int(port) < 65536:
        return None
    return _DialAddress(scheme, host.lower(), int(port))


def _refusal(place: _DialAddress, verdict: OutgoingVerdict) -> CommunityError:
    if verdict.rule == "outgoing.loopback":
        return CommunityError(
            Code.PARTITION,
            "the node cannot be reached: no node of this user listens there on this machine",
            where=place.url,
            mend="start its station; where another user runs it, put the address into "
            "[community] peers",
        )
    return bad_request(
        f"the address may not be dialled: {verdict.reason}",
        where=place.url,
        mend="put it into [community] peers, if a node that you know is there",
    )


async def _probe(place: _DialAddress, addresses: Sequence[Address]) -> tuple[Address, bytes]:
    """The first address that presents a certificate, and the certificate."""
    failure = CommunityError(Code.PARTITION, "the name has no address", where=place.url)
    for address in addresses[:_TRIES]:
        try:
            return address, await probe_certificate(str(address), place.port, name=place.host)
        except CommunityError as error:
            failure = error
    raise failure


def _transport(
    policy: OutgoingPolicy, addresses: Sequence[Address], context: SSLContext | None
) -> GuardedTransport:
    """A transport to the checked addresses, whatever the name resolves to later."""

    async def judged(_host: str, _port: int) -> Sequence[Address]:
        return addresses

    # Connections are kept, since all of them are to one node.
    inner = httpx.AsyncHTTPTransport(
        verify=context or empty_trust(),
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
    )
    return GuardedTransport(policy, resolver=judged, inner=inner)
