"""What pages need of the station, which fills it in.

Planes come and go while the console serves, so what belongs to one is a function that returns None
while its plane is not up.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from accord.authority.assembly import RunningAuthority
from accord.capabilities.file import Blobs
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.console.commands import CommandRunner
from accord.kernel import canonical
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.relay.connector.connector import Connector
from accord.relay.platforms.webchat import Admin
from accord.web import responses


class ShellLock:
    """Spaces the connections of the home's shell, whose tokens have a resolution of one second."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._turn = asyncio.Lock()
        self._last = -math.inf

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the block."""
        async with self._turn:
            # Without the limit, a clock that was set back would cause a long wait.
            await asyncio.sleep(min(1.0, max(0.0, self._last + 1 - self._clock.now())))
            try:
                yield
            finally:
                self._last = math.floor(self._clock.now())


# A model may take long to answer.
_ANSWER_SECONDS: Final = 600.0
_NODE: Final = "http://node"
_WAITING: Final = "waiting"


@dataclass(frozen=True, slots=True)
class PlaneHealth:
    """The state of a plane or of one of its parts.

    Attributes:
        state: A word, such as `ready`.
        is_well: Whether it serves.
        reason: Why not, or what was last wrong.
        restarts: How often it was started again.
    """

    name: str
    state: str
    is_well: bool
    reason: str = ""
    restarts: int = 0
    parts: tuple["PlaneHealth", ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Whether it only waits for a decision."""
        return self.state == _WAITING


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting; of a secret only whether it is set."""

    section: str
    key: str
    value: str
    description: str
    is_default: bool
    variable: str


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Access to the home's own node, signed with its key as by the commands.

    Attributes:
        transport: Returns the transport; None while the community plane is not up.
    """

    key: SigningKey
    clock: Clock
    transport: Callable[[], httpx.AsyncBaseTransport | None]

    @asynccontextmanager
    async def client(self, community_id: str | None = None) -> AsyncIterator[Client]:
        """Yield a client in a community, or without one; `partition` if the node is not up."""
        async with Client(
            _NODE,
            self.key,
            community_id or self.key.id,
            self.key.id,
            transport=self._way(),
            seconds=_ANSWER_SECONDS,
            clock=self.clock,
        ) as client:
            yield client

    async def communities(self) -> list[dict[str, Any]]:
        """Return the communities of the node."""
        async with self.client() as client:
            return list((await client.get("/node/v1/status"))["communities"])

    async def manifest(self) -> dict[str, Any]:
        """Return the node's manifest."""
        try:
            async with responses.bounded_client(
                responses.SMALL, transport=self._way(), base_url=_NODE
            ) as http:
                told = canonical.decode((await http.get("/manifest")).content)
        except (httpx.HTTPError, canonical.CanonicalError) as error:
            raise CommunityError(Code.PARTITION, "the node does not say what it offers") from error
        return told if isinstance(told, dict) else {}

    def _way(self) -> httpx.AsyncBaseTransport:
        transport = self.transport()
        if transport is None:
            raise CommunityError(
                Code.PARTITION,
                "the community is not up",
                mend="wait a moment; Home says how its plane is doing",
            )
        return transport


def _no_chat() -> Admin | None:
    return None


async def _no_audit(_most: int) -> Sequence[Mapping[str, Any]]:
    return ()


async def _no_journal(_what: str, _by: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """Everything that pages need.

    Attributes:
        address: Where the station is reached on this machine.
        home_option: The option that selects this home in commands; empty for the default home.
        relay: The connector, while it runs.
        chat: The web chat's administration, while it runs.
        authority: The authority, while it runs.
        log_file: None if there is none.
        landing: Where segments land for the pipeline; None for the default folder.
        children: Runs long commands beside the station.
        turns: Spaces the connections of the home's shell.
        note: Records an act at the console, and its author.
        audit: Returns the latest acts on every plane, the newest last.
    """

    name: str
    address: str
    home: Path
    clock: Clock
    node: NodeAccess
    blobs: Blobs
    relay: Callable[[], Connector | None]
    authority: Callable[[], RunningAuthority | None]
    planes: Callable[[], Sequence[PlaneHealth]]
    settings: Sequence[ShownSetting]
    settings_file: Path
    log_file: Path | None
    landing: str | None = None
    home_option: str = ""
    chat: Callable[[], Admin | None] = _no_chat
    children: CommandRunner = field(default_factory=CommandRunner)
    turns: ShellLock = field(default_factory=ShellLock)
    note: Callable[[str, str], Awaitable[None]] = _no_journal
    audit: Callable[[int], Awaitable[Sequence[Mapping[str, Any]]]] = _no_audit
