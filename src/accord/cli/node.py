"""The node of a home, and the communities and members that a name or an id stands for.

The node is reached in its station, or opened here for the time of the command; both go through the
same signed routes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from accord.cli.arguments import printable
from accord.cli.output import Cli

if TYPE_CHECKING:
    import httpx

    from accord.community.client import Client
    from accord.community.errors import CommunityError
    from accord.kernel.signing import SigningKey
    from accord.station.errors import StationError
    from accord.station.home import Home as Place
    from accord.station.home import HomeHolder
    from accord.station.settings import Settings


def choose_community(
    communities: list[dict[str, Any]], wanted: str | None, *, current: str | None = None
) -> dict[str, Any]:
    """The community that a person means.

    Args:
        wanted: A name, an id, the beginning of one, or both as they are shown.
        current: The id of the default, for a `wanted` of None.

    Raises:
        CommunityError: None is meant, or more than one.
    """
    from accord.community.rules.formats import display_id

    def is_meant(each: dict[str, Any]) -> bool:
        text = (wanted or "").lower()
        return each["name"].lower().startswith(text) or any(
            form.lower().startswith(text)
            for form in (
                each["community_id"],
                each["community_id"].removeprefix("ed25519:"),
                display_id(each["community_id"]),
            )
        )

    if not communities:
        raise _not_found(
            "this node is in no community", "`accord community create` or `accord community join`"
        )
    if wanted is None and current is not None:
        wanted = current
    exact = [
        each
        for each in communities
        if wanted in (each["name"], each["community_id"], _label(each["name"], each))
    ]
    found = exact or [each for each in communities if is_meant(each)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise _not_found(
            f"this node is in no community {printable(wanted or '')!r}",
            "`accord community list` shows them",
        )
    names = ", ".join(
        f"{printable(each['name'])} ({display_id(each['community_id'])})" for each in found[:8]
    )
    raise _not_found(
        f"several communities match: {names}",
        f"choose one by its id, such as --community {display_id(found[0]['community_id'])}",
    )


def _label(name: str | None, each: dict[str, Any]) -> str:
    """A community or a member as it is shown, which may be pasted again."""
    from accord.community.rules.formats import display_id

    return f"{name} ({display_id(each.get('node_id') or each['community_id'])})"


def choose_node(members: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    """The member that a person means by a full id, a display id, a display name, or name and id.

    Raises:
        CommunityError: None is meant, or more than one.
    """
    from accord.community.rules.formats import display_id

    def form_of(each: dict[str, Any], form: str) -> str | None:
        if form == "shown":
            return _label(each["display_name"], each)
        return display_id(each["node_id"]) if form == "display_id" else each[form]

    for form in ("node_id", "display_id", "shown", "display_name"):
        found = [each for each in members if form_of(each, form) == wanted]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(display_id(each["node_id"]) for each in found[:8])
            raise _not_found(
                f"several members are called {printable(wanted)!r}: {ids}", "give one of these ids"
            )
    raise _not_found(
        f"no member is {printable(wanted[:80])!r}", "`accord community members` shows them all"
    )


def choose_invite(invites: list[dict[str, Any]], wanted: str) -> dict[str, str]:
    """Whose invites a person means, or which one, as the withdrawal takes it.

    Raises:
        CommunityError: None is meant, or those of more than one.
    """
    from accord.community.rules.formats import display_id

    for each in invites:
        if each["event_id"] == wanted:
            return {"invitee_node_id": each["invitee"], "invite_event_id": wanted}
    found = {
        each["invitee"]
        for each in invites
        if wanted in (each["invitee"], display_id(each["invitee"]), each["display_name"])
    }
    if len(found) == 1:
        return {"invitee_node_id": found.pop()}
    if found:
        ids = ", ".join(sorted(map(display_id, found)))
        raise _not_found(
            f"several who are invited are called {printable(wanted)!r}: {ids}",
            "give one of these ids",
        )
    raise _not_found(
        f"there is no open invite for {printable(wanted[:80])!r}",
        "`accord community invites` lists open invites",
    )


def _not_found(what: str, mend: str) -> "CommunityError":
    from accord.community.errors import Code, CommunityError

    return CommunityError(Code.NOT_FOUND, what, mend=mend)


T = TypeVar("T")

Community = Annotated[
    str | None,
    typer.Option(
        "--community", help="Which one: the beginning of its name or id (default: the current one)."
    ),
]


@dataclass(frozen=True)
class CommunityCli(Cli):
    """The context of a command that works in a community."""

    community: Community = None

    def in_community(
        self, work: Callable[["Client"], Awaitable[T]], *, with_models: bool = False
    ) -> T:
        """Run `work` with a client in the chosen community."""

        async def run(here: LocalNode) -> T:
            async with here.community(self.community) as client:
                return await work(client)

        return with_node(self, run, with_models=with_models)


# The command that holds a home is soon done, and a station soon up.
_PATIENCE_SECONDS: Final = 15.0
_STEP_SECONDS: Final = 0.1
# Joining a large community, or an answer that a model writes, takes its time.
_ANSWER_SECONDS: Final = 600.0
_HERE: Final = "the command line"


@dataclass(frozen=True, slots=True)
class LocalNode:
    """The node of a home; `address` is None when no station runs."""

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
            routed=True,
        )

    @contextlib.asynccontextmanager
    async def community(self, wanted: str | None) -> AsyncIterator["Client"]:
        """A client in the community that is meant; raises `CommunityError`."""
        async with self.client() as client:
            status = await client.get("/node/v1/status")
        if not status["communities"] and status["lost"]:
            raise _lost_log(status["lost"])
        found = choose_community(status["communities"], wanted, current=status["current"])
        async with self.client(found["community_id"]) as client:
            yield client


def with_node(
    cli: Cli,
    work: Callable[[LocalNode], Awaitable[T]],
    *,
    make: bool = False,
    with_models: bool = False,
) -> T:
    """Run `work` with the node of a home.

    Args:
        make: Create the home and the node's key where they are missing.
        with_models: Load the node's models if it is opened in this process.
    """
    from accord.community.errors import CommunityError

    async def run() -> T:
        async with local_node(cli, make=make, with_models=with_models) as here:
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
    cli: Cli, *, make: bool = False, with_models: bool = False
) -> AsyncIterator[LocalNode]:
    """Reach the node of a home; raises `AccordError`."""
    from accord.kernel.signing import SigningKey
    from accord.station.home import Home

    settings = cli.settings()
    place = Home(settings.home)
    if not make and not place.device_key.exists():
        raise _no_node(settings.home)
    with contextlib.ExitStack() as undo:
        async with contextlib.AsyncExitStack() as opened:
            address = await _take_or_reach(place, undo, opened)
            if address is None:
                here = await _open_node(place, settings, undo, opened, with_models=with_models)
            else:
                here = LocalNode(SigningKey.load(place.device_key), settings, address, None)
            undo.pop_all()
            yield here


async def _take_or_reach(
    place: "Place", undo: contextlib.ExitStack, opened: contextlib.AsyncExitStack
) -> str | None:
    """The address of the station that holds the home; else None, and the home is held from now."""
    from accord.station.errors import HomeHeldError
    from accord.station.home import hold_home

    while (address := await _station_address(place)) is None:
        try:
            opened.enter_context(hold_home(place, _HERE, undo))
        except HomeHeldError:
            # Another was quicker, and may stand on what was made here.
            undo.pop_all()
        else:
            return None
    return address


async def _open_node(
    place: "Place",
    settings: "Settings",
    undo: contextlib.ExitStack,
    opened: contextlib.AsyncExitStack,
    *,
    with_models: bool,
) -> LocalNode:
    """Open the node in this process."""
    from accord.community.client import LocalTransport
    from accord.community.node import open_node
    from accord.kernel.clock import SystemClock
    from accord.station import logs
    from accord.station.community import node_settings, open_capabilities
    from accord.station.home import ensure_device_key
    from accord.station.store import store_location as stores

    clock = SystemClock()
    quiet = settings.log.model_copy(update={"level": "error"})
    opened.enter_context(logs.configured(quiet))
    key = ensure_device_key(place, undo)
    offers = await opened.enter_async_context(
        open_capabilities(settings, clock, with_models=with_models)
    )
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
    return LocalNode(key, settings, None, LocalTransport(node.application()))


async def _station_address(place: "Place") -> str | None:
    """Where the station of a home answers; None when the home is free."""
    import httpx

    from accord.station.home import home_holder
    from accord.web import outgoing

    waited = 0.0
    async with outgoing.bounded_client(outgoing.SMALL, trust_env=False, timeout=5.0) as http:
        while (held := home_holder(place)) is not None:
            planes: list[dict[str, Any]] = []
            if held.is_station:
                with contextlib.suppress(httpx.HTTPError, ValueError):
                    found = await http.get(f"{held.address}/ready")
                    if found.status_code == httpx.codes.OK:
                        return held.address
                    planes = (await http.get(f"{held.address}/readyz")).json()["planes"]
            is_late = waited >= _PATIENCE_SECONDS
            if (down := node_down(planes, is_late=is_late)) is not None or is_late:
                raise down or _no_answer(place, held)
            await asyncio.sleep(_STEP_SECONDS)
            waited += _STEP_SECONDS
    return None


def node_down(planes: Sequence[dict[str, Any]], *, is_late: bool) -> "StationError | None":
    """Why the node of a station does not answer, by the station's `/readyz`.

    A plane that failed once may be up in a moment, so only one that failed again counts as down
    before the waiting time is over (`is_late`).
    """
    from accord.station.errors import StationError

    for plane in planes:
        if plane["name"] == "community" and not plane["well"] and (is_late or plane["restarts"]):
            return StationError(f"the station runs, but its node is down: {plane['reason']}")
    return None


def _no_answer(place: "Place", held: "HomeHolder") -> "StationError":
    from accord.station.errors import StationError

    return StationError(
        f"process {held.pid} at {held.address} holds the home and does not answer",
        where=str(place.path),
        mend=f"look at {held.address}/readyz, or try again",
    )


async def members_of(client: "Client") -> list[dict[str, Any]]:
    """The members of the client's community."""
    members: list[dict[str, Any]] = (await client.get("/node/v1/members"))["members"]
    return members


def names_of(members: Sequence[dict[str, Any]]) -> dict[str, str | None]:
    """The display names of members, by node id."""
    return {each["node_id"]: each["display_name"] for each in members}


def new_id() -> str:
    """A new client id for a request that is made once."""
    from accord.kernel.clock import SystemClock
    from accord.kernel.identifiers import UlidSource

    return UlidSource(SystemClock()).new()


def label(node_id: str, names: dict[str, str | None]) -> str:
    """A node as people read it: what it calls itself, and its display id."""
    from accord.community.rules.formats import display_id

    name = names.get(node_id)
    return f"{printable(name)} ({display_id(node_id)})" if name else display_id(node_id)


def _lost_log(lost: Sequence[dict[str, Any]]) -> Exception:
    from accord.station.errors import StationError

    names = ", ".join(each["display_id"] for each in lost)
    return StationError(
        f"the log of the community in which this node was is not here ({names})",
        mend="restore a backup with `accord restore`, or fetch it from another member with "
        "`accord community recover --peer ADDRESS`",
    )


def _no_node(home: Path) -> Exception:
    from accord.station.errors import StationError

    return StationError(
        "there is no node here yet",
        where=str(home),
        mend="make one with `accord community create`, `accord community id` or `accord up`",
    )
