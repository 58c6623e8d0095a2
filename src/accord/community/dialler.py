"""Dial another node: from an address to a client for exactly that node; and the open links."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from ipaddress import IPv6Network, ip_network
from ssl import SSLContext
from typing import Any, Final, NamedTuple

import httpx

from accord.community.client import (
    JSON_TYPE,
    MAX_ANSWER_BYTES,
    Client,
    empty_trust,
    node_refusal,
)
from accord.community.communities import HostedCommunity
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.identity import fingerprint, pinned_context, probe_certificate
from accord.community.peers import PeerBook, announced_ports, known_urls, node_url
from accord.community.relays import RelayDialler, RelayTable, Way
from accord.community.rules import formats, manifests, wire
from accord.community.rules.gossip import order_addresses
from accord.community.rules.manifests import REPUBLISH_SECONDS
from accord.community.rules.tunnels import parse_relayed
from accord.community.rules.wire import NO_BODY, sign_path_request
from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.web import outgoing
from accord.web.incoming import is_loopback
from accord.web.outgoing import (
    Address,
    GuardedTransport,
    Network,
    OutgoingPolicy,
    OutgoingVerdict,
    ResponseError,
    address_allowed,
    resolve,
)

DIAL_SECONDS: Final = 10.0
"""How long it may take to reach a node: its name, its certificate and its manifest together."""

MAX_LINKS: Final = 64
"""How many links to other nodes stay open."""

# How long a kept connection may be idle; the other side may close it sooner.
_IDLE_SECONDS: Final = 90.0
# How long an address may be silent before the next one of the same node is dialled beside it.
_STAGGER_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 30.0
# For TLS to a node, after the anchor that relays has answered.
_RELAYED_SECONDS: Final = 8.0
# A name that is never resolved: connections go to the Unix socket.
_RELAYED_HOST: Final = "relayed.invalid"
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
        return node_url(*self)


@dataclass(slots=True, eq=False)
class Link:
    """An open connection to one node in one community.

    Attributes:
        manifest: The node's manifest, as verified at `checked` (monotonic seconds).
        way: How the node was reached; None through an anchor.
        users: How many tasks use it now.
    """

    address: str
    client: Client
    manifest: Mapping[str, Any]
    transport: httpx.AsyncBaseTransport
    opened: AsyncExitStack
    checked: float
    way: Way | None = None
    users: int = 0

    @property
    def base(self) -> str:
        """The URL of requests."""
        return self.address if self.way is not None else f"https://{_RELAYED_HOST}"

    async def close(self) -> None:
        """Close the connection."""
        await self.opened.aclose()


class Dialler:
    """Connects to other nodes as this node.

    `plain_http` allows other machines without TLS; `peers` may be in any network. Addresses through
    anchors are found in `relays`.
    """

    def __init__(
        self, key: SigningKey, clock: Clock, *, plain_http: bool, peers: Iterable[str] = ()
    ) -> None:
        self._key = key
        self._clock = clock
        self._plain_http = plain_http
        self._configured = {place for each in peers if (place := _parsed(each)) is not None}
        self.relays = RelayTable()
        self._relay_dialler = RelayDialler(key, clock)
        self.ahead: dict[str, float] = {}
        """By how many seconds this node's clock is ahead of that of each address, as last told."""

    async def dial(
        self, address: str, community_id: str, opened: AsyncExitStack, *, node_id: str | None = None
    ) -> tuple[Client, Mapping[str, Any]]:
        """Connect to the node at an address; `opened` closes the client. See `connect`."""
        link = await self.connect(address, community_id, node_id=node_id)
        opened.push_async_callback(link.close)
        return link.client, link.manifest

    async def connect(self, address: str, community_id: str, *, node_id: str | None = None) -> Link:
        """Connect to the node at an address, within `DIAL_SECONDS`.

        Args:
            address: `https://host:port`, or `http://host:port` where that is allowed.
            node_id: The node that must be there; None for any.

        Raises:
            CommunityError: `partition` if no node answers; `bad_request` if the address is
                malformed or not allowed; what `manifests.check` raises; `invalid_signature` if the
                manifest does not name the certificate.
        """
        async with _limited(address), AsyncExitStack() as opened:
            if (relayed := parse_relayed(address)) is not None:
                return await self._connect_relayed(address, community_id, opened, *relayed)
            return await self._connect(address, community_id, opened, node_id)

    async def refresh(self, link: Link) -> None:
        """Fetch and verify the manifest of a link's node again; raises as `connect` does."""
        client = link.client
        async with _limited(link.address):
            manifest = await self._manifest(link.base, client.community, link.transport)
        self._check(manifest, client.community, client.node_id)
        link.manifest, link.checked = manifest, self._clock.monotonic()

    async def ask(self, link: Link, method: str, path: str, body: Any = NO_BODY) -> Any:
        """Send a signed request to a node that does not sign its answers; returns their JSON.

        Only for nodes that know only the seed's protocol. Raises `partition` if the node does not
        answer, and its refusal.
        """
        client = link.client
        request = sign_path_request(
            self._key,
            path=path,
            request_id=UlidSource(self._clock).new(),
            community=client.community,
            timestamp=format_time(self._clock.now()),
            body=body,
            to=client.node_id,
        )
        content = b"" if body is NO_BODY else canonical.encode(body)
        named = {**request.headers, "Content-Type": JSON_TYPE}
        http = outgoing.bounded_client(
            MAX_ANSWER_BYTES, transport=link.transport, timeout=_ANSWER_SECONDS
        )
        try:
            async with http.stream(
                method, f"{link.base}{path}", headers=named, content=content
            ) as found:
                raw = await outgoing.read_bounded(found, MAX_ANSWER_BYTES)
            answer = canonical.decode(raw, max_bytes=MAX_ANSWER_BYTES)
        except (ResponseError, canonical.CanonicalError) as error:
            raise bad_request(f"the answer cannot be read: {error}", where=path) from error
        except (httpx.HTTPError, OSError) as error:
            raise CommunityError(
                Code.PARTITION,
                f"the node cannot be reached ({type(error).__name__})",
                where=link.address[:120],
            ) from error
        if found.status_code != httpx.codes.OK:
            raise node_refusal(answer, found.status_code)
        return answer

    async def _connect(
        self, address: str, community_id: str, opened: AsyncExitStack, node_id: str | None
    ) -> Link:
        place = _parsed(address)
        if place is None:
            raise bad_request(
                f"{address[:120]!r} is not the address of a node", mend="expected https://host:port"
            )
        policy = await self._policy(place)
        addresses = await self._judged(place, policy)
        if not addresses:
            raise CommunityError(Code.PARTITION, "the name has no address", where=place.url)
        context = shown = None
        if place.scheme == "https":
            reached, shown = await _probe(place, addresses)
            addresses, context = [reached], pinned_context(shown)
        transport = _transport(policy, addresses, context)
        opened.push_async_callback(transport.aclose)
        manifest = await self._manifest(place.url, community_id, transport)
        self._check(manifest, community_id, node_id)
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
        way = Way(place.url, addresses[0], context)
        now = self._clock.monotonic()
        return Link(place.url, client, manifest, transport, opened.pop_all(), now, way)

    async def _connect_relayed(
        self, address: str, community_id: str, opened: AsyncExitStack, anchor: str, node_id: str
    ) -> Link:
        """Connect to a node through an anchor: TLS with the node within a WebSocket."""
        relay = self.relays.get(community_id, anchor)
        if relay is None:
            raise CommunityError(Code.PARTITION, "that anchor does not relay", where=address)
        bridge = await opened.enter_async_context(
            self._relay_dialler.bridge(relay.way, community_id, anchor, node_id)
        )
        try:
            shown = await probe_certificate(
                _RELAYED_HOST, 0, path=bridge.path, seconds=_RELAYED_SECONDS
            )
        except CommunityError:
            if bridge.refusal is not None:
                raise bridge.refusal from None
            raise
        context = pinned_context(shown)
        transport = _kept_transport(context, uds=str(bridge.path))
        opened.push_async_callback(transport.aclose)
        base = f"https://{_RELAYED_HOST}"
        manifest = await self._manifest(base, community_id, transport)
        self._check(manifest, community_id, node_id)
        manifests.check_certificate(manifest, fingerprint(shown))
        client = Client(
            base,
            self._key,
            community_id,
            node_id,
            ssl_context=context,
            transport=transport,
            clock=self._clock,
        )
        await opened.enter_async_context(client)
        now = self._clock.monotonic()
        return Link(address, client, manifest, transport, opened.pop_all(), now)

    def _check(self, manifest: Any, community_id: str, node_id: str | None) -> None:
        manifests.check(
            manifest,
            now=self._clock.now(),
            expected_node=node_id,
            expected_community=community_id,
        )

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
            http = outgoing.bounded_client(
                manifests.MAX_BYTES, transport=transport, timeout=DIAL_SECONDS
            )
            async with http.stream("GET", f"{address}/manifest", headers=named) as found:
                self._compare(address, found.headers.get("date", ""))
                raw = await outgoing.read_bounded(found, manifests.MAX_BYTES)
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


def addresses_of(
    dialler: Dialler, book: PeerBook, hosted: HostedCommunity, node_id: str, *, now: float
) -> list[str]:
    """Every address of a node, those through anchors too; where it answered last comes first."""
    urls = known_urls(book, hosted, node_id)
    urls += dialler.relays.addresses(hosted.community_id, node_id)
    records = [book.address(hosted.community_id, url) for url in urls]
    return list(order_addresses(records, now=now, paused=True))


@asynccontextmanager
async def _limited(address: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            yield
    except TimeoutError:
        raise CommunityError(
            Code.PARTITION,
            f"the node did not answer within {DIAL_SECONDS:g} seconds",
            where=address[:120],
        ) from None


@dataclass(kw_only=True, slots=True, eq=False)
class Links:
    """The open links of one node, which are kept between syncs.

    A link whose user fails is closed; the one that was not used for longest makes room for another.
    """

    dialler: Dialler
    book: PeerBook
    clock: Clock
    most: int = MAX_LINKS
    _open: dict[tuple[str, str], Link] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def reach(
        self, community_id: str, addresses: Sequence[str], node_id: str | None = None
    ) -> AsyncIterator[Link]:
        """Use a link to a node, by the address that answers first; best addresses first.

        Every address that failed is recorded in the peer book, also one whose user raises a
        `CommunityError` or a `TimeoutError`. Raises what `Dialler.connect` raises for the last.
        """
        link = await self._find(community_id, addresses, node_id)
        try:
            yield link
        except BaseException as error:
            self._remove(community_id, link)
            if isinstance(error, CommunityError | TimeoutError):
                self.book.unreached(community_id, link.address, now=self.clock.now())
            raise
        finally:
            await self._leave(community_id, link)

    def open_to(self, community_id: str, node_id: str) -> list[str]:
        """The addresses at which a link to a node is open."""
        return [
            address
            for (community, address), link in self._open.items()
            if community == community_id and link.client.node_id == node_id
        ]

    async def close(self) -> None:
        """Close every link."""
        links = tuple(self._open.values())
        self._open.clear()
        for link in links:
            await link.close()

    async def _find(self, community_id: str, addresses: Sequence[str], node_id: str | None) -> Link:
        for link in tuple(self._held(community_id, addresses, node_id)):
            # In use from here on, so that it does not make room for another one meanwhile.
            link.users += 1
            try:
                if self.clock.monotonic() - link.checked >= REPUBLISH_SECONDS:
                    await self.dialler.refresh(link)
            except BaseException as error:
                self._remove(community_id, link)
                await self._leave(community_id, link)
                if not isinstance(error, CommunityError):
                    raise
                # Dialled anew below: the node may have restarted with another certificate.
                continue
            self.book.reached(community_id, link.address, now=self.clock.now())
            key = community_id, link.address
            if self._open.get(key) is link:
                # The last one is the one that was used last.
                self._open[key] = self._open.pop(key)
            return link
        link = await self._race(community_id, addresses, node_id)
        link.users += 1
        await self._keep(community_id, link)
        return link

    def _held(
        self, community_id: str, addresses: Sequence[str], node_id: str | None
    ) -> Iterator[Link]:
        for address in addresses:
            link = self._open.get((community_id, address))
            if link is not None and node_id in (None, link.client.node_id):
                yield link

    async def _race(self, community_id: str, addresses: Sequence[str], node_id: str | None) -> Link:
        """Dial one address after the other, without waiting long for a silent one."""
        waiting = deque(addresses)
        dialled: dict[asyncio.Task[Link], str] = {}
        failure = CommunityError(Code.PARTITION, "no address of the node is known")
        try:
            while waiting or dialled:
                if waiting:
                    address = waiting.popleft()
                    dial = self.dialler.connect(address, community_id, node_id=node_id)
                    dialled[asyncio.create_task(dial, name="dial")] = address
                done, _ = await asyncio.wait(
                    dialled,
                    timeout=_STAGGER_SECONDS if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    address = dialled[task]
                    try:
                        link = task.result()
                    except CommunityError as error:
                        del dialled[task]
                        self.book.unreached(community_id, address, now=self.clock.now())
                        failure = error
                        continue
                    del dialled[task]
                    self.book.reached(community_id, address, now=self.clock.now())
                    return link
        finally:
            for task in dialled:
                task.cancel()
            for late in await asyncio.gather(*dialled, return_exceptions=True):
                if isinstance(late, Link):
                    await late.close()
        raise failure

    async def _keep(self, community_id: str, link: Link) -> None:
        key = community_id, link.address
        before = self._open.pop(key, None)
        self._open[key] = link
        leaving = [] if before is None or before.users else [before]
        idle = [each for each, other in self._open.items() if not other.users and each != key]
        leaving += [self._open.pop(each) for each in idle[: max(len(self._open) - self.most, 0)]]
        for other in leaving:
            await other.close()

    async def _leave(self, community_id: str, link: Link) -> None:
        """End one use of a link; one that is not kept is closed by its last user."""
        link.users -= 1
        if not link.users and self._open.get((community_id, link.address)) is not link:
            await link.close()

    def _remove(self, community_id: str, link: Link) -> None:
        key = community_id, link.address
        if self._open.get(key) is link:
            del self._open[key]


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

    return GuardedTransport(policy, resolver=judged, inner=_kept_transport(context))


def _kept_transport(context: SSLContext | None, uds: str | None = None) -> httpx.AsyncHTTPTransport:
    """A transport that keeps connections, since all of them are to one node."""
    return httpx.AsyncHTTPTransport(
        verify=context or empty_trust(),
        trust_env=False,
        uds=uds,
        limits=httpx.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_SECONDS
        ),
    )
