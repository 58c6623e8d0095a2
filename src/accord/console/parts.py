"""What a page needs, and nothing of how it came to be: the station fills it in.

Planes come and go while the console serves. Whatever belongs to one is a function that is asked
each time and says None while its plane is away.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from accord.authority.assembly import Running
from accord.capabilities.file import Blobs
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.console.children import Children
from accord.console.turns import Turns
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.relay.connector.assembly import Connector

# An answer that a model writes takes its time.
_ANSWER_SECONDS: Final = 600.0
_NODE: Final = "http://node"


@dataclass(frozen=True, slots=True)
class Health:
    """How one plane is doing.

    Attributes:
        name: Its name.
        state: A word, such as `ready`.
        is_well: Whether it serves.
        reason: Why not, or what was last wrong.
        restarts: How often it was started again.
        parts: How each of its parts is doing, such as a relay's platforms.
    """

    name: str
    state: str
    is_well: bool
    reason: str = ""
    restarts: int = 0
    parts: tuple["Health", ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is shown: a secret says only whether it is set."""

    section: str
    key: str
    value: str
    description: str
    is_default: bool
    variable: str


@dataclass(frozen=True, slots=True)
class Door:
    """The way to the home's own node: signed with its key, as the commands do it.

    Attributes:
        key: The node's.
        clock: The time.
        transport: How a request gets there; None while the community plane is away.
    """

    key: SigningKey
    clock: Clock
    transport: Callable[[], httpx.AsyncBaseTransport | None]

    @asynccontextmanager
    async def client(self, community_id: str | None = None) -> AsyncIterator[Client]:
        """A client of the node, in a community or, for what concerns none, in no particular.

        Raises:
            CommunityError: The node is away: `partition`.
        """
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
        """The communities that the node is in.

        Raises:
            CommunityError: The node does not say.
        """
        async with self.client() as client:
            return list((await client.get("/node/v1/status"))["communities"])

    async def manifest(self) -> dict[str, Any]:
        """What the node tells everybody of itself.

        Raises:
            CommunityError: The node does not say.
        """
        try:
            async with httpx.AsyncClient(transport=self._way(), base_url=_NODE) as http:
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


async def _unaudited(_most: int) -> Sequence[Mapping[str, Any]]:
    """Nobody keeps a journal."""
    return ()


async def _unnoted(_what: str, _by: str) -> None:
    """Nobody keeps a journal."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that pages stand on.

    Attributes:
        name: What the station calls itself.
        address: Where it is reached on this machine.
        home: Its folder.
        home_option: What a command needs to be told to mean that folder; empty for the usual one.
        clock: The time.
        node: The way to its node.
        blobs: Its files.
        relay: The connector, while it runs.
        authority: The authority, while it runs.
        planes: How every plane is doing.
        settings: What is set.
        settings_file: Where it is set.
        log_file: Where every line of the log is; None when none is kept.
        landing: Where segments land for the pipeline; None for its own folder.
        children: Runs long commands beside the station.
        turns: When the shell of the home may connect.
        note: Writes down what is done at the console itself, and by whom.
        audit: The latest acts on every plane, the newest last; at most so many.
    """

    name: str
    address: str
    home: Path
    clock: Clock
    node: Door
    blobs: Blobs
    relay: Callable[[], Connector | None]
    authority: Callable[[], Running | None]
    planes: Callable[[], Sequence[Health]]
    settings: Sequence[Setting]
    settings_file: Path
    log_file: Path | None
    landing: str | None = None
    home_option: str = ""
    children: Children = field(default_factory=Children)
    turns: Turns = field(default_factory=Turns)
    note: Callable[[str, str], Awaitable[None]] = _unnoted
    audit: Callable[[int], Awaitable[Sequence[Mapping[str, Any]]]] = _unaudited
