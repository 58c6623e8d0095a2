"""Reaching another node: from an address to a client that speaks with exactly that node.

Owns the order of trust. The certificate that a server shows is worth nothing until the manifest
that it gives, signed by the node, names it; then it is pinned. Plain HTTP only goes to this
machine, unless the operator says otherwise.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from accord.community.bus.rates import is_loopback
from accord.community.client import Client
from accord.community.client.exchange import trusting_nobody
from accord.community.envelope import headers, manifests
from accord.community.errors import Code, CommunityError
from accord.community.identity import fingerprint, pinned_context, probe
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey

_SECONDS: Final = 10.0
_COMPARED: Final = 64
_LOCAL_NAMES: Final = frozenset({"localhost"})


class Dialler:
    """Reaches nodes, as this node."""

    def __init__(self, key: SigningKey, clock: Clock, *, plain_http: bool) -> None:
        self._key = key
        self._clock = clock
        self._plain_http = plain_http
        self.ahead: dict[str, float] = {}
        """By how many seconds this node's clock is ahead of that of each address, as last told."""

    async def dial(
        self, address: str, community_id: str, opened: AsyncExitStack, *, node_id: str | None = None
    ) -> tuple[Client, Mapping[str, Any]]:
        """Reach the node at an address.

        Args:
            address: `https://host:port`, or `http://host:port` where that is allowed.
            community_id: In which community.
            opened: Closes the client.
            node_id: Which node must be there.

        Returns:
            A client, and the manifest that the node gave.

        Raises:
            CommunityError: `partition` when nobody answers; what `manifests.check` says;
                `invalid_signature` when the certificate is not the manifest's.
        """
        host, port, is_plain = self._parse(address)
        context = None
        shown = None
        if not is_plain:
            shown = await probe(host, port)
            context = pinned_context(shown)
        manifest = await self._manifest(address, community_id, context)
        manifests.check(
            manifest,
            now=self._clock.now(),
            expected_node=node_id,
            expected_community=community_id,
        )
        if shown is not None:
            manifests.check_certificate(manifest, fingerprint(shown))
        client = Client(
            address,
            self._key,
            community_id,
            manifest["node_id"],
            ssl_context=context,
            clock=self._clock,
        )
        await opened.enter_async_context(client)
        return client, manifest

    def _compare(self, address: str, date: str) -> None:
        """Compare clocks; the answer's date is not proven, and nothing but advice rests on it."""
        with suppress(ValueError):
            theirs = parsedate_to_datetime(date).timestamp()
            self.ahead.pop(address, None)
            self.ahead[address] = self._clock.now() - theirs
        while len(self.ahead) > _COMPARED:
            del self.ahead[next(iter(self.ahead))]

    def _parse(self, address: str) -> tuple[str, int, bool]:
        try:
            parts = urlsplit(address)
            host, port = parts.hostname or "", parts.port or 0
        except ValueError:
            host, port = "", 0
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not host or not port:
            raise CommunityError(
                Code.BAD_REQUEST,
                f"{address[:120]!r} is not the address of a node",
                mend="expected https://host:port",
            )
        is_plain = parts.scheme == "http"
        is_here = host in _LOCAL_NAMES or is_loopback(host)
        if is_plain and not (is_here or self._plain_http):
            raise CommunityError(
                Code.BAD_REQUEST,
                "another machine is dialled with https only",
                where=address[:120],
                mend="use https, or set [community] plain_http = true in a network that you trust",
            )
        return host, port, is_plain

    async def _manifest(self, address: str, community_id: str, context: Any) -> Any:
        named = {headers.COMMUNITY: community_id}
        try:
            async with (
                httpx.AsyncClient(
                    verify=context or trusting_nobody(), timeout=_SECONDS, trust_env=False
                ) as http,
                http.stream("GET", f"{address.rstrip('/')}/manifest", headers=named) as found,
            ):
                self._compare(address, found.headers.get("date", ""))
                raw = b""
                async for part in found.aiter_bytes():
                    raw += part
                    if len(raw) > manifests.MAX_BYTES:
                        raise CommunityError(Code.BAD_REQUEST, "the manifest is too long")
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
