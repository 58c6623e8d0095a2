"""The node of a home, as the commands reach it: in its station, or opened here for a moment.

Both ways go through the same signed routes. Owns which of the two it is. It decides nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from accord.cli.community_choosing import choose_community
from accord.cli.contract_reading import printable

if TYPE_CHECKING:
    import httpx

    from accord.community.client import Client
    from accord.kernel.signing import SigningKey
    from accord.station.errors import StationError
    from accord.station.home import Holder
    from accord.station.home import Home as Place
    from accord.station.settings import Settings

T = TypeVar("T")

Community = Annotated[
    str | None,
    typer.Option(
        "--community", help="Which one: the beginning of its name or id (default: the only one)."
    ),
]

# The command that holds a home is soon done, and a station soon up.
_PATIENCE_SECONDS: Final = 15.0
_STEP_SECONDS: Final = 0.1
# Joining a large community, or an answer that a model writes, takes its time.
_ANSWER_SECONDS: Final = 600.0
_HERE: Final = "the command line"


@dataclass(frozen=True, slots=True)
class Local:
    """The node of a home.

    Attributes:
        key: Its device key, with which every request is signed.
        settings: Those of the home.
        address: Where its station listens; None when no station runs.
    """

    key: "SigningKey"
    settings: "Settings"
    address: str | None
    _transport: "httpx.AsyncBaseTransport | None"

    def client(self, community_id: str | None = None) -> "Client":
        """A client of the node, in a community or, for what concerns none, in no particular."""
        from accord.community.client import Client

        return Client(
            self.address or "http://node",
            self.key,
            community_id or self.key.id,
            self.key.id,
            transport=self._transport,
            seconds=_ANSWER_SECONDS,
        )

    @contextlib.asynccontextmanager
    async def community(self, wanted: str | None) -> AsyncIterator["Client"]:
        """A client in the community that is meant.

        Raises:
            CommunityError: None is, or more than one.
        """
        async with self.client() as client:
            status = await client.get("/node/v1/status")
        found = choose_community(status["communities"], wanted)
        async with self.client(found["community_id"]) as client:
            yield client


def with_node(
    home: Path | None,
    config: Path | None,
    work: Callable[[Local], Awaitable[T]],
    *,
    make: bool = False,
    with_models: bool = False,
) -> T:
    """Do something with the node of a home.

    Args:
        home: The home.
        config: The settings file.
        work: What to do.
        make: Whether to make the home, and the node's key, where they are missing.
        with_models: Whether the node needs its models for it.
    """
    from accord.community.errors import CommunityError

    async def run() -> T:
        async with local_node(home, config, make=make, with_models=with_models) as here:
            return await work(here)

    try:
        return asyncio.run(run())
    except CommunityError as error:
        # The words may be another node's.
        where = None if error.where is None else printable(error.where)
        raise CommunityError(
            error.code, printable(error.what), where=where, mend=error.mend
        ) from error


@contextlib.asynccontextmanager
async def local_node(
    home: Path | None, config: Path | None, *, make: bool = False, with_models: bool = False
) -> AsyncIterator[Local]:
    """Reach the node of a home.

    Raises:
        AccordError: There is no node, or it cannot be reached or opened.
    """
    from accord.kernel.signing import SigningKey
    from accord.station.home import Home
    from accord.station.settings import load

    settings = load(home, config)
    place = Home(settings.home)
    if not make and not place.device_key.exists():
        raise _missing(settings.home)
    with contextlib.ExitStack() as undo:
        async with contextlib.AsyncExitStack() as opened:
            address = await _taken_or_served(place, undo, opened)
            if address is None:
                here = await _opened(place, settings, undo, opened, with_models=with_models)
            else:
                here = Local(SigningKey.load(place.device_key), settings, address, None)
            undo.pop_all()
            yield here


async def _taken_or_served(
    place: "Place", undo: contextlib.ExitStack, opened: contextlib.AsyncExitStack
) -> str | None:
    """The address of the station that holds the home; else None, and the home is held from now.

    Raises:
        StationError: Neither can be had.
    """
    from accord.station.errors import HomeHeldError
    from accord.station.home import taken

    while (address := await _station_of(place)) is None:
        try:
            opened.enter_context(taken(place, _HERE, undo))
        except HomeHeldError:
            # Another was quicker, and may stand on what was made here.
            undo.pop_all()
        else:
            return None
    return address


async def _opened(
    place: "Place",
    settings: "Settings",
    undo: contextlib.ExitStack,
    opened: contextlib.AsyncExitStack,
    *,
    with_models: bool,
) -> Local:
    """Open the node in this process."""
    from accord.community.client import LocalTransport
    from accord.community.node import open_node
    from accord.kernel.clock import SystemClock
    from accord.station import logs
    from accord.station.community import node_settings
    from accord.station.home import device_key
    from accord.station.offers import open_offers
    from accord.station.store import place as stores

    clock = SystemClock()
    quiet = settings.log.model_copy(update={"level": "error"})
    opened.enter_context(logs.configured(quiet))
    key = device_key(place, undo)
    offers = await opened.enter_async_context(open_offers(settings, clock, with_models=with_models))
    node = await opened.enter_async_context(
        open_node(
            key,
            home=settings.home,
            stores=stores(settings),
            clock=clock,
            settings=node_settings(settings),
            register=offers.register,
        )
    )
    return Local(key, settings, None, LocalTransport(node.application()))


async def _station_of(place: "Place") -> str | None:
    """Where the station of a home answers; None when the home is free.

    Raises:
        StationError: Its node is down, it does not answer, or another command holds the home for
            long.
    """
    import httpx

    from accord.station.home import holder

    waited = 0.0
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
        while (held := holder(place)) is not None:
            planes: list[dict[str, Any]] = []
            if held.is_station:
                with contextlib.suppress(httpx.HTTPError, ValueError):
                    found = await http.get(f"{held.address}/ready")
                    if found.status_code == httpx.codes.OK:
                        return held.address
                    planes = (await http.get(f"{held.address}/readyz")).json()["planes"]
            is_late = waited >= _PATIENCE_SECONDS
            if (down := node_down(planes, is_late=is_late)) is not None or is_late:
                raise down or _silent(place, held)
            await asyncio.sleep(_STEP_SECONDS)
            waited += _STEP_SECONDS
    return None


def node_down(planes: Sequence[dict[str, Any]], *, is_late: bool) -> "StationError | None":
    """Why the node of a station does not answer, as the station tells it itself.

    A plane that failed once may be up in a moment, so only one that failed again is believed to be
    down before it is late.

    Args:
        planes: What `/readyz` says of them.
        is_late: Whether waiting is over.
    """
    from accord.station.errors import StationError

    for plane in planes:
        if plane["name"] == "community" and not plane["well"] and (is_late or plane["restarts"]):
            return StationError(f"the station runs, but its node is down: {plane['reason']}")
    return None


def _silent(place: "Place", held: "Holder") -> "StationError":
    from accord.station.errors import StationError

    return StationError(
        f"process {held.pid} at {held.address} holds the home and does not answer",
        where=str(place.path),
        mend=f"look at {held.address}/readyz, or try again",
    )


def shown(node_id: str, names: dict[str, str | None]) -> str:
    """A node as people read it: what it calls itself, and its display id."""
    from accord.community.envelope.names import display_id

    name = names.get(node_id)
    return f"{printable(name)} ({display_id(node_id)})" if name else display_id(node_id)


def show_lines(rows: Sequence[Sequence[str]]) -> None:
    """Print rows whose columns stand below each other, and whose ids are never cut short."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(line).rstrip())


def _missing(home: Path) -> Exception:
    from accord.station.errors import StationError

    return StationError(
        "there is no node here yet",
        where=str(home),
        mend="make one with `accord community create`, `accord community id` or `accord up`",
    )
