"""Connections to nodes behind NAT, through anchors that relay: who relays for whom, and the dial.

A relayed connection is a WebSocket to the anchor that carries TLS to the node. The HTTP client
finds its end as a Unix socket in a folder that only this user can enter.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import dataclass, field
from logging import NullHandler, getLogger
from pathlib import Path
from ssl import SSLContext
from typing import Final
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from accord.community.client import node_refusal
from accord.community.errors import Code, CommunityError
from accord.community.rules.tunnels import CONNECT, MAX_DATA, relayed_address
from accord.community.rules.wire import sign_path_request
from accord.community.tunnels import MessageSocket, TunnelClosedError, join_ends
from accord.kernel.clock import Clock, format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.web.outgoing import Address

_OPEN_SECONDS: Final = 10.0
_PING_SECONDS: Final = 20.0
_MAX_MESSAGE: Final = 64 * 1024
_MAX_KNOWN: Final = 256
_quiet = getLogger("accord.community.relays")
_quiet.addHandler(NullHandler())
_quiet.propagate = False


@dataclass(frozen=True, slots=True)
class Way:
    """How a node was reached: its URL, the address behind the name, and its pinned certificate."""

    url: str
    address: Address
    context: SSLContext | None

    @property
    def port(self) -> int:
        """The port in the URL."""
        found = urlsplit(self.url).port
        assert found is not None, "addresses of nodes have a port"
        return found


@dataclass(frozen=True, slots=True)
class RelayRecord:
    """An anchor that relays, and the members that held a tunnel to it when it was asked last."""

    way: Way
    members: frozenset[str]


@dataclass(eq=False, slots=True)
class RelayTable:
    """The anchors that relay, by community and node id."""

    _records: dict[tuple[str, str], RelayRecord] = field(default_factory=dict)

    def learn(self, community_id: str, anchor: str, way: Way, members: Iterable[str]) -> None:
        """Record what an anchor has told."""
        self._records.pop((community_id, anchor), None)
        self._records[community_id, anchor] = RelayRecord(way, frozenset(members))
        while len(self._records) > _MAX_KNOWN:
            del self._records[next(iter(self._records))]

    def forget(self, community_id: str, anchor: str) -> None:
        """Record that an anchor does not relay."""
        self._records.pop((community_id, anchor), None)

    def get(self, community_id: str, anchor: str) -> RelayRecord | None:
        """What is known of an anchor."""
        return self._records.get((community_id, anchor))

    def anchors(self, community_id: str) -> Mapping[str, RelayRecord]:
        """The anchors of a community that relay."""
        return {
            anchor: each for (where, anchor), each in self._records.items() if where == community_id
        }

    def addresses(self, community_id: str, node_id: str) -> list[str]:
        """The relayed addresses of a node."""
        return [
            relayed_address(anchor, node_id)
            for anchor, record in self.anchors(community_id).items()
            if node_id in record.members
        ]


class _Connect(connect):
    """A connection that follows no redirect: the signature is for this anchor."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


@dataclass(frozen=True, slots=True)
class RelayDialler:
    """Opens WebSockets to anchors as this node."""

    key: SigningKey
    clock: Clock

    @asynccontextmanager
    async def socket(
        self, way: Way, community_id: str, anchor: str, path: str, query: str = ""
    ) -> AsyncIterator[ClientConnection]:
        """Open a signed WebSocket; raises the anchor's refusal, or `partition`."""
        request = sign_path_request(
            self.key,
            path=path,
            query=query,
            request_id=UlidSource(self.clock).new(),
            community=community_id,
            timestamp=format_time(self.clock.now()),
            to=anchor,
        )
        target = f"{path}?{query}" if query else path
        try:
            connection = await _Connect(
                f"{way.url.replace('http', 'ws', 1)}{target}",
                additional_headers=request.headers,
                ssl=way.context,
                host=str(way.address),
                port=way.port,
                proxy=None,
                compression=None,
                open_timeout=_OPEN_SECONDS,
                ping_interval=_PING_SECONDS,
                ping_timeout=_PING_SECONDS,
                close_timeout=1.0,
                max_size=_MAX_MESSAGE,
                logger=_quiet,
            )
        except InvalidStatus as error:
            raise _refusal(error) from None
        except (OSError, WebSocketException, ValueError) as error:
            raise CommunityError(
                Code.PARTITION,
                f"the anchor cannot be reached ({type(error).__name__})",
                where=way.url,
            ) from error
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def bridge(
        self, way: Way, community_id: str, anchor: str, node_id: str
    ) -> AsyncIterator["Bridge"]:
        """Open a Unix socket whose connections lead to a node through an anchor."""
        async with AsyncExitStack() as opened:
            try:
                folder = opened.enter_context(
                    tempfile.TemporaryDirectory(prefix="accord-", ignore_cleanup_errors=True)
                )
                bridge = Bridge(Path(folder) / "node")
                server = await asyncio.start_unix_server(
                    lambda reader, writer: bridge.carry(
                        self.socket(
                            way, community_id, anchor, CONNECT, f"to={quote(node_id, safe='')}"
                        ),
                        reader,
                        writer,
                    ),
                    bridge.path,
                )
            except OSError as error:
                raise CommunityError(
                    Code.INTERNAL_ERROR,
                    f"no socket for a relayed connection can be made ({error.strerror})",
                    mend="see that the folder for temporary files can be written",
                ) from error
            opened.push_async_callback(bridge.close)
            opened.callback(server.close)
            yield bridge


@dataclass(eq=False, slots=True)
class Bridge:
    """A Unix socket that leads to a node; `refusal` is why the last connection failed."""

    path: Path
    refusal: CommunityError | None = None
    _carried: set["asyncio.Task[None]"] = field(default_factory=set)

    def carry(
        self,
        dialled: AbstractAsyncContextManager[ClientConnection],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Pass the bytes of one connection on until it ends."""
        task = asyncio.create_task(self._carry(dialled, reader, writer), name="relayed link")
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def close(self) -> None:
        """End every connection."""
        tasks = tuple(self._carried)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(
        self,
        dialled: AbstractAsyncContextManager[ClientConnection],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            async with dialled as connection:
                self.refusal = None
                socket = MessageSocket.of_client(connection)
                await join_ends(_outward(reader, socket), _inward(socket, writer))
        except CommunityError as error:
            self.refusal = error
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _outward(reader: asyncio.StreamReader, socket: MessageSocket) -> None:
    while data := await reader.read(MAX_DATA):
        await socket.send(data)


async def _inward(socket: MessageSocket, writer: asyncio.StreamWriter) -> None:
    while True:
        data = await socket.receive()
        if not isinstance(data, bytes):
            raise TunnelClosedError
        writer.write(data)
        await writer.drain()


def _refusal(error: InvalidStatus) -> CommunityError:
    response = error.response
    try:
        body = json.loads(response.body or b"{}")
    except ValueError:
        body = {}
    return node_refusal(body, response.status_code)
